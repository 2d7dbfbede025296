"""The scores of a run on disk: appended as they are made, continued by the same command."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from kl_proteus.cli.failures import CommandError, describe
from kl_proteus.llm.recording import jsonl, locking

__all__ = ["ScoreFile", "Totals", "row_digest"]

_FORMAT = "kl-proteus scores"
_VERSION = 1


def row_digest(row: Mapping[str, Any]) -> str:
    """What tells a row of the data from others, 16 hexadecimal digits."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Running:
    """Mean, standard deviation, minimum and maximum of a stream (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.min = math.inf
        self.max = -math.inf
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Adds a value."""
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self._squares += distance * (value - self.mean)
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    @property
    def std(self) -> float:
        """Of the population."""
        return math.sqrt(self._squares / self.count)


class Totals:
    """Sums over the rows of a score file, for its summary.

    Attributes:
        rows: Rows so far.
        scored_rows: Those with a scored token.
        tokens: Scored tokens.
        excluded: Tokens left out because a number is not finite.
        cut: Tokens left out because rows are too long.
        cut_rows: Rows that lost tokens.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.scored_rows = 0
        self.tokens = 0
        self.excluded = 0
        self.cut = 0
        self.cut_rows = 0
        self._sums: dict[str, float] = {}
        self._means: dict[str, Running] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row of scores."""
        self.rows += 1
        self.excluded += row["excluded"]
        self.cut += row["cut"]
        self.cut_rows += row["cut"] > 0
        if row["tokens"] == 0:
            return
        self.scored_rows += 1
        self.tokens += row["tokens"]
        for name in ("policy_logprob", "reference_logprob", "kl_sum", "full_kl_sum"):
            if name in row:
                self._sums[name] = self._sums.get(name, 0.0) + row[name]
        for name in ("kl", "full_kl"):
            if name in row:
                self._means.setdefault(name, Running()).add(row[name])

    def per_token(self, name: str) -> float | None:
        """A sum divided by all tokens; None without any."""
        return self._sums[name] / self.tokens if self.tokens else None

    def over_rows(self, name: str) -> dict[str, float | None]:
        """The numbers of the rows' means and sums, in nats.

        Args:
            name: `kl` or `full_kl`.

        Returns:
            `token_mean` (per token, over all tokens), `sequence_mean`, `std`, `min`, `max` (over
            the rows' means per token) and `sequence_sum` (per row); None without a scored row.
        """
        rows = self._means.get(name)
        if rows is None:
            keys = ("token_mean", "sequence_mean", "std", "min", "max", "sequence_sum")
            return dict.fromkeys(keys)
        return {
            "token_mean": self.per_token(f"{name}_sum"),
            "sequence_mean": rows.mean,
            "std": rows.std,
            "min": rows.min,
            "max": rows.max,
            "sequence_sum": self._sums[f"{name}_sum"] / rows.count,
        }


class ScoreFile:
    """A file of scores with one writer, and the settings beside it.

    Args:
        path: The file; created if missing.
        settings: What decides the scores, as JSON values; a file of other settings is refused.

    Attributes:
        done: Rows that the file holds.
        totals: Their sums.

    Raises:
        CommandError: The file is not one of scores, is of other settings or other data, is being
            written by another process, or cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.done = 0
        self.totals = Totals()
        self._settings = json.loads(json.dumps(settings))
        self._settings_path = path.with_name(f"{path.name}.run.json")
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(path, flags, 0o666)
        try:
            if locking.try_lock(self._descriptor) == "busy":
                raise CommandError(f"{path} is being written by another process")
            self._check_settings()
        except BaseException:
            os.close(self._descriptor)
            raise

    def resume(self, digests: Iterator[str]) -> None:
        """Repairs the end of the file and checks that its rows are those of the data.

        Args:
            digests: From `row_digest`, a row of the data each; as many are taken as rows are there.

        Raises:
            CommandError: The data has other or fewer rows.
        """
        with _naming(self.path):
            jsonl.repair_tail(self.path)
            try:
                for row in jsonl.read_rows(self.path):
                    if row.get("digest") != next(digests, None) or row.get("row") != self.done:
                        raise CommandError(
                            f"row {self.done + 1} of {self.path} is not a score of row "
                            f"{self.done + 1} of the data; choose another --output"
                        )
                    self._check_row(row)
                    self.totals.add(row)
                    self.done += 1
            except ValueError as error:
                raise CommandError(f"{self.path} is not a file of scores: {error}") from error

    def _check_row(self, row: Mapping[str, Any]) -> None:
        """Refuses what no run of these settings has written."""
        counts = ("tokens", "cut", "excluded")
        numbers = ["policy_logprob", "reference_logprob", "kl", "kl_sum"]
        if self._settings.get("full_kl"):
            numbers += ["full_kl", "full_kl_sum"]
        for name in (*counts, *numbers):
            value = row.get(name)
            if name in counts:
                right, expected = type(value) is int and value >= 0, "an integer of at least 0"
            else:
                right, expected = type(value) is float and math.isfinite(value), "a finite float"
            if not right:
                raise ValueError(f"{name} of row {self.done + 1} must be {expected}, got {value!r}")

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Adds rows, all of them on disk or none of them there.

        Args:
            rows: Scores.

        Raises:
            CommandError: The disk is full, or the like; the rows before these are kept.
        """
        data = b"".join(map(jsonl.encode_row, rows))
        end = os.fstat(self._descriptor).st_size
        try:
            jsonl.write_all(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise CommandError(f"cannot write {self.path}: {describe(error)}") from error
        for row in rows:
            self.totals.add(row)
        self.done += len(rows)

    def _check_settings(self) -> None:
        """Compares the settings with those of the rows that are there, or writes them."""
        empty = os.fstat(self._descriptor).st_size == 0
        if empty:
            with _naming(self._settings_path):
                row = {"format": _FORMAT, "version": _VERSION, "settings": self._settings}
                jsonl.write_atomic(self._settings_path, [row])
            return
        try:
            row = next(jsonl.read_rows(self._settings_path))
        except (OSError, StopIteration, ValueError) as error:
            raise CommandError(
                f"{self.path} exists, and {self._settings_path.name} beside it does not say what "
                "it is; choose another --output"
            ) from error
        if (row.get("format"), row.get("version")) != (_FORMAT, _VERSION):
            raise CommandError(f"{self._settings_path} is not of {_FORMAT} version {_VERSION}")
        before = cast("dict[str, Any]", row.get("settings"))
        if not isinstance(before, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CommandError(f"{self._settings_path} holds no settings; choose another --output")
        for name in {**self._settings, **before}:
            then, now = before.get(name), self._settings.get(name)
            if then != now:
                raise CommandError(
                    f"{self.path} was made with another {name.replace('_', ' ')} "
                    f"({_short(then)}, now {_short(now)}); choose another --output"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."


@contextlib.contextmanager
def _naming(path: Path) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot use {path}: {describe(error)}") from error
