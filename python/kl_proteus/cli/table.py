"""The results of a run as text for people, within 80 columns where paths allow."""

from typing import Any

__all__ = ["render"]

_LABEL = 17
_COLUMN = 10

_FILES = {
    "recording": ("recording", "episodes"),
    "chat": ("training data", "chat rows"),
    "completion": ("training data", "completion rows"),
    "preference": ("training data", "preference pairs"),
    "snapshot": ("snapshot", "pairs"),
}


def render(results: dict[str, Any]) -> str:
    """Lays the results out.

    Args:
        results: What `kl_proteus.cli.results.summary` returned.

    Returns:
        Lines without colours, the last one ended.
    """
    lines = [
        *_run(results),
        "",
        *_drift(results["drift"]),
        *_encoders(results["encoder"]),
        _row("cells", str(results["cells"])),
        _row("outside the bins", f"{100 * results['flow_share']:.1f} % of the pairs"),
        *_movers(results["top_movers"]),
        "",
        *_files(results),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _encoders(name: str | None) -> list[str]:
    """One line for each encoded array; none where each scalar has an axis."""
    labels = ("encoder", *[""] * (name or "").count("; "))
    return [_row(*line) for line in zip(labels, name.split("; "), strict=True)] if name else []


def _run(results: dict[str, Any]) -> list[str]:
    reward = results["reward"]
    steps = _count(results["steps"], "steps")
    ended = ", interrupted" if results["interrupted"] else ""
    return [
        _row("environment", results["environment"]),
        _row("policy", results["policy"]),
        _row("episodes", f"{results['episodes']} completed in {steps}{ended}"),
        _row("reward", f"{_reward(reward['mean_per_episode'])} per episode"),
        _row("", f"{_reward(reward['mean_per_step'])} per step"),
        _row(
            "shaped reward",
            f"{_reward(reward['mean_shaped_per_step'])} per step ({results['mode']})",
        ),
    ]


def _drift(drift: dict[str, Any]) -> list[str]:
    joint = drift["joint"]
    # Until there is a value the numbers are 0.0, which is no result.
    measured = drift["values"] > 0

    def numbers(label: str, *values: float) -> str:
        shown = [f"{value:.4f}" if measured else "-" for value in values]
        return _row(label, "".join(f"{text:>{_COLUMN}}" for text in shown))

    return [
        _row("drift (nats)", "".join(f"{name:>{_COLUMN}}" for name in ("now", "mean", "std"))),
        numbers("  joint", joint["current"], joint["mean"], joint["std"]),
        numbers("    states", drift["observation"]["current"], drift["observation"]["mean"]),
        numbers("    actions", drift["policy"]["current"], drift["policy"]["mean"]),
        *([] if drift["noise_floor"] is None else [numbers("  noise floor", drift["noise_floor"])]),
        *_past(drift),
        *_readiness(drift, measured),
        _row("compared", _comparison(drift)),
    ]


def _past(drift: dict[str, Any]) -> list[str]:
    """How unusual the value is; nothing where the run has no past to tell."""
    if drift["expected"] == 0.0:
        return []
    return [_row("p-value", f"{drift['pvalue']:.2g} by this run's own past")]


def _readiness(drift: dict[str, Any], measured: bool) -> list[str]:
    if drift["ready"]:
        return [_row("ready", "yes")]
    lines = [
        _row("NOT READY YET", f"{drift['missing_pairs']} of {drift['needed_pairs']} pairs missing")
    ]
    if measured:
        lines.append(_row("", "early values run several times higher without any change"))
    return lines


def _comparison(drift: dict[str, Any]) -> str:
    window, lag, reference = drift["window"], drift["lag"], drift["reference"]
    now = "every step" if window is None else f"last {_count(window, 'steps')}"
    if reference is not None:
        return f"{now} with {reference}"
    if window is None:
        return f"{now} with all but the newest"
    if lag is not None:
        return f"{now} with the {window} that end {_count(lag, 'steps')} earlier"
    if not drift["ready"]:
        return "newer half of the steps with the older half"
    return f"{now} with the {window} before them"


def _movers(movers: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for mover in movers:
        shift = mover["shift"]
        moved = "" if shift is None else f", mean {shift:+.3g}"
        # Without a past the deviations are those of independent pairs, which successive steps are
        # not: they would tell of a change where there is none.
        judged = f", {mover['excess']:+.1f} sd" if mover["past"] else ""
        text = f"{mover['axis']}: {mover['kl']:.4f} nats{judged}{moved}"
        lines.append(_row("" if lines else "moved most", text))
    return lines


def _files(results: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    recorded = 0
    for file in results["files"]:
        label, unit = _FILES[file["kind"]]
        if file["kind"] == "recording":
            recorded += file["rows"]
        lines.append(_row(label, f"{file['path']}, {_count(file['rows'], unit)}"))
    if results["format"] not in {file["kind"] for file in results["files"]}:
        lines.append(_row("training data", "none written"))
    earlier = recorded - results["episodes"]
    if earlier > 0:
        lines.append(_row("", f"{_count(earlier, 'episodes')} of other runs included"))
    return lines


def _row(label: str, value: str) -> str:
    return f"{label:<{_LABEL}} {value}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit.removesuffix('s') if number == 1 else unit}"


def _reward(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4f}"
    return f"{value:.2e}"
