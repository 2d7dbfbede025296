"""The progress bar on standard error."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kl_proteus.cli import streams

if TYPE_CHECKING:
    from tqdm import tqdm as Bar

__all__ = ["Progress"]

# Seconds between two looks at the numbers beside the bar; fast environments step in microseconds.
_INTERVAL = 0.1


class Progress:
    """Shows how far a run is, and a few numbers.

    Args:
        total: Episodes, steps or rows in the whole run.
        unit: What `total` counts.
        visible: Whether there is a bar at all; it needs a terminal.
        done: How far the run is when it begins.
    """

    def __init__(self, total: int, unit: str, *, visible: bool, done: int = 0) -> None:
        self._bar: Bar[Any] | None = None
        self._next = 0.0
        self._rewards = unit != "rows"
        if visible and _is_terminal():
            from tqdm import tqdm

            # It leaves nothing behind: the table says the same.
            self._bar = tqdm(
                total=total,
                initial=done,
                unit=f" {unit}",
                file=sys.stderr,
                dynamic_ncols=True,
                leave=False,
            )

    def show(self, done: int, kl: float | None, reward: float | None = None) -> None:
        """Brings the bar up to date.

        Args:
            done: Episodes, steps or rows so far.
            kl: Divergence, in nats; None while there is none.
            reward: Mean reward of the completed episodes; None while there is none.
        """
        bar = self._bar
        if bar is None:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL
            shown = "KL -" if kl is None else f"KL {kl:.4f}"
            if self._rewards:
                shown += ", reward -" if reward is None else f", reward {reward:.4g}"
            bar.set_postfix_str(shown, refresh=False)
            if not bar.update(done - bar.n):
                bar.refresh()

    def say(self, text: str) -> None:
        """Tells the user a line without tearing the bar."""
        if self._bar is None:
            streams.say(text)
            return
        with self._bar.external_write_mode(file=sys.stderr):
            streams.say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]
