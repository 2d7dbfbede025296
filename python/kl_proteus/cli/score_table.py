"""The totals of a scoring run as text for people, within 80 columns where paths allow."""

from typing import Any

__all__ = ["render"]

_LABEL = 17
_COLUMN = 11


def render(results: dict[str, Any]) -> str:
    """Lays the totals out.

    Args:
        results: The summary of `kl_proteus.cli.score`.

    Returns:
        Lines without colours, the last one ended.
    """
    lines = [
        _row("policy", results["policy"]),
        _row("reference", results["reference"]),
        _row("rows", _rows(results)),
        _row("tokens", _tokens(results)),
        _row("length", _length(results)),
        _row("temperature", f"{results['temperature']:g}"),
        "",
        _row("log-probability", _numbers(results["policy_logprob"]) + " per token, policy"),
        _row("", _numbers(results["reference_logprob"]) + " per token, reference"),
        "",
        _row(
            "divergence (nats)",
            "".join(f"{name:>{_COLUMN}}" for name in ("per token", "rows' mean", "std", "per row")),
        ),
        _row(f"  {results['estimator']}", _divergence(results["kl"])),
    ]
    if "full_kl" in results:
        lines.append(_row("  exact", _divergence(results["full_kl"])))
        if results["direction"] == "reference_policy":
            lines.append(_row("", "the exact one is KL(reference || policy)"))
    lines += ["", _row("scores", results["output"])]
    if "cache" in results:
        lines.append(_row("cache", _cache(results["cache"])))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _rows(results: dict[str, Any]) -> str:
    text = f"{results['done_rows']} of {results['rows']}"
    if results["resumed_rows"]:
        text += f", {results['resumed_rows']} of them earlier"
    empty = results["done_rows"] - results["scored_rows"]
    return f"{text}, {empty} without a scored token" if empty else text


def _tokens(results: dict[str, Any]) -> str:
    text = f"{results['tokens']} scored"
    excluded = results["excluded_tokens"]
    return f"{text}, {excluded} left out as not finite" if excluded else text


def _length(results: dict[str, Any]) -> str:
    if results["max_length"] is None:
        return "no limit"
    text = f"at most {results['max_length']} tokens a row"
    if not results["cut_rows"]:
        return f"{text}, none longer"
    cut = f"{results['cut_tokens']} cut from {results['cut_rows']} rows"
    return f"{text} ({results['overlong']}): {cut}"


def _cache(cache: dict[str, Any]) -> str:
    text = f"{cache['directory']}, {cache['hits']} rows found, {cache['misses']} computed"
    return f"{text}, {cache['unsaved']} not written" if cache["unsaved"] else text


def _divergence(numbers: dict[str, float | None]) -> str:
    return _numbers(
        *(numbers[key] for key in ("token_mean", "sequence_mean", "std", "sequence_sum"))
    )


def _numbers(*values: float | None) -> str:
    return "".join(f"{'-' if v is None else format(v, '.4f'):>{_COLUMN}}" for v in values)


def _row(label: str, value: str) -> str:
    return f"{label:<{_LABEL}} {value}"
