"""The table of a walk: a file of tab-separated rows, and what the docs say of it."""

import csv
import re
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from .catalogue import FAMILIES
from .walk import Row

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "zoo.tsv"
PAGE = ROOT / "docs" / "zoo.md"
_MARKED = re.compile(r"(<!-- table -->\n).*(<!-- end of table -->)", re.DOTALL)


def read(path: Path = FILE) -> list[Row]:
    """The rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(*(field.type(text) for field, text in zip(fields(Row), row, strict=True)))
            for row in list(csv.reader(file, delimiter="\t"))[1:]
        ]


def write(rows: Sequence[Row], path: Path = FILE) -> None:
    """Writes rows, floats with three decimals."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, delimiter="\t", lineterminator="\n")
        lines.writerow([field.name for field in fields(Row)])
        for row in rows:
            lines.writerow(
                [f"{value:.3f}" if isinstance(value, float) else value for value in astuple(row)]
            )


def summary(rows: Sequence[Row], missing: dict[str, str]) -> str:
    """What the docs show: counts by family, and every environment that is not seen."""
    lines = [
        "| family | environments | seen | blind | same states |",
        "|---|---|---|---|---|",
    ]
    for family in (*FAMILIES, "all"):
        own = [row for row in rows if family in (row.family, "all")]
        counts = [
            sum(row.verdict == verdict for row in own)
            for verdict in ("sees", "blind", "same states")
        ]
        lines.append(f"| {family} | {len(own)} | {' | '.join(map(str, counts))} |")
    lines += ["", "Not seen, with `kl_observation` of the random and of the held run in nats:", ""]
    lines += ["| environment | random | held | |", "|---|---|---|---|"]
    lines += [
        f"| {row.name} | {row.observation_random:.3f} | {row.observation_held:.3f} | "
        f"{row.reason or 'blind'} |"
        for row in rows
        if row.verdict != "sees"
    ]
    if missing:
        lines += ["", "Not walked, because they cannot be made:", ""]
        lines += [f"* {', '.join(names)}: {why}" for why, names in _by_reason(missing).items()]
    return "\n".join(lines) + "\n"


def _by_reason(missing: dict[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, why in missing.items():
        grouped.setdefault(why, []).append(f"`{name}`")
    return grouped


def update_page(text: str, page: Path = PAGE) -> None:
    """Puts the summary between the marks of the docs' page."""
    old = page.read_text(encoding="utf-8")
    new, found = _MARKED.subn(lambda match: match[1] + text + match[2], old)
    if found != 1:
        raise ValueError(f"{page} has no place for the table")
    page.write_text(new, encoding="utf-8")
