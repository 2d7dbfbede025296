"""Fails where tests of an extra were skipped, or a file of tests ran none.

    python scripts/check_test_report.py REPORT.xml [TESTS]

REPORT.xml is what `pytest --junitxml` wrote. A green run says nothing of torch where torch is
missing; this says so.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

NEEDS_AN_EXTRA = re.compile(
    r"\b(?:from|import|importorskip\(\W?)\s*"
    r"(?:torch|transformers|trl|peft|safetensors|stable_baselines3|ale_py|minigrid)\b"
)


def problems(report: Path, tests: Path) -> list[str]:
    """What is missing from a report on all the tests of a folder."""
    ran: dict[str, int] = defaultdict(int)
    skipped: dict[str, list[str]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        # A module that was skipped as a whole is a case without a class.
        module = case.get("classname") or case.get("name") or ""
        skip = case.find("skipped")
        if skip is None:
            ran[module] += 1
        else:
            skipped[module].append(f"{case.get('name')}: {skip.get('message')}")
    found: list[str] = []
    for path in sorted(tests.rglob("test_*.py")):
        file = path.relative_to(tests.parent)
        module = ".".join(file.with_suffix("").parts)
        # A class of tests adds its name to that of the module.
        names = [name for name in {*ran, *skipped} if f"{name}.".startswith(f"{module}.")]
        reasons = [reason for name in sorted(names) for reason in skipped[name]]
        if not sum(ran[name] for name in names):
            found.append(f"{file}: no test ran {reasons or ''}".rstrip())
        elif reasons and NEEDS_AN_EXTRA.search(path.read_text(encoding="utf-8")):
            found.extend(f"{file}: skipped {reason}" for reason in reasons)
        else:
            found.extend(
                f"{file}: skipped {reason}" for reason in reasons if "could not import" in reason
            )
    return found


def main(report: str, tests: str = "tests") -> int:
    """Prints what is missing; returns the exit status."""
    found = problems(Path(report), Path(tests).resolve())
    print("\n".join(found) or "every file of tests ran, and none of an extra was skipped")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
