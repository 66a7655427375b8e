"""``python -m tests.sim.planted``: plant each bug in a copy of the sources, and see who notices.

A bug is caught when a test that passes without it fails. At least 95 of 100 must be, and 80 by a
simulation or a contract suite alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.sim.planted.bugs import ROOT, PlantedBug, load
from tests.support.changed_copy import FAILED, copy_sources, run_tests

CAUGHT_PART = 0.95
STRONG_PART = 0.80
TIMEOUT_SECONDS = 600


class Outcome(NamedTuple):
    """``by``: "strong", "other", or "" when nobody noticed; ``seconds`` it took."""

    bug: PlantedBug
    by: str
    seconds: float
    note: str = ""


def main() -> int:
    """Print a table; 1 if too many bugs survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these bugs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    bugs = [bug for bug in load() if not given.names or bug.name in given.names]
    print(f"{len(bugs)} bugs, {given.jobs} at a time", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = []
        for outcome in pool.map(_try, bugs):
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
    caught = sum(bool(o.by) for o in outcomes) / len(outcomes)
    strong = sum(o.by == "strong" for o in outcomes) / len(outcomes)
    print(f"caught {caught:.0%}, by a simulation or a contract suite {strong:.0%}")
    return 0 if caught >= CAUGHT_PART and strong >= STRONG_PART else 1


def _line(outcome: Outcome) -> str:
    by = {"strong": "caught", "other": "caught elsewhere", "": "SURVIVED"}[outcome.by]
    return f"{outcome.bug.name:<40} {by:<17} {outcome.seconds:4.0f} s {outcome.note}".rstrip()


def _try(bug: PlantedBug) -> Outcome:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pulsark-planted-") as folder:
        root = Path(folder)
        copy_sources(ROOT, root)
        bug.plant(root)
        notes = []
        for by, tests in (("strong", bug.strong), ("other", bug.other)):
            if not tests:
                continue
            code = run_tests(root, tests, TIMEOUT_SECONDS)
            if code == FAILED:
                return Outcome(bug, by, time.monotonic() - begun)
            if code != 0:
                notes.append(f"pytest ended with {code}")
    return Outcome(bug, "", time.monotonic() - begun, "; ".join(notes))


if __name__ == "__main__":
    sys.exit(main())
