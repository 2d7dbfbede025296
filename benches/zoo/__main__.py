"""Walks every environment and writes the table: `python -m benches.zoo`, in the root."""

import argparse
import contextlib
import os
import re
import signal
import tempfile
import time
import warnings
from pathlib import Path

from . import table
from .catalogue import environments
from .walk import Row, make, walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression that names must match")
    arguments = parser.parse_args()
    known = environments()
    names = [name for name in known if re.search(arguments.only, name)]
    rows, missing = [], {}
    start = time.monotonic()
    # MuJoCo writes a log into the directory it is run in.
    with tempfile.TemporaryDirectory() as away, contextlib.chdir(away):
        for at, name in enumerate(names):
            why = cannot_be_made(name)
            if why:
                missing[name] = why
                continue
            row = in_time(known[name], name)
            rows.append(row)
            print(
                f"{at + 1:4d}/{len(names)} {time.monotonic() - start:5.0f} s  {name:44s} "
                f"{row.observation_random:7.3f} {row.observation_held:7.3f}  "
                f"{row.joint_random:7.3f} {row.joint_held:7.3f}  {row.verdict}",
                flush=True,
            )
    judged = [row for row in rows if row.verdict != "same states"]
    seen = sum(row.verdict == "sees" for row in judged)
    print(f"{len(rows)} walked, {seen} of {len(judged)} seen, {len(missing)} cannot be made")
    if not arguments.only:
        table.write(rows)
        table.update_page(table.summary(rows, missing))


def in_time(family: str, name: str, seconds: float = 120.0) -> Row:
    """Walks one environment; with other seeds where a level of it never gets ready.

    Raises:
        TimeoutError: Three times.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError(f"{name} is not done after {seconds} s")

    signal.signal(signal.SIGALRM, too_long)
    for shift in (0, 100, 200):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return walk(family, name, shift)
        except TimeoutError:
            if shift == 200:
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    raise AssertionError("unreachable")


def cannot_be_made(name: str) -> str | None:
    """Why an environment cannot be made, on its own, without the wrapper."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            env = make(name)
            env.reset(seed=0)
            env.close()
        except FileNotFoundError as error:
            return f"its package lacks {Path(error.filename).name}"
        except Exception as error:  # a missing dependency, each with an error of its own
            text = re.sub(r"\x1b\[\d+m", "", str(error)).split(". ")[0].split(", ")[0]
            return re.sub(r"`?\b[\w/-]+-v\d`?", "this version", text).split(" (")[0]
    return None


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
