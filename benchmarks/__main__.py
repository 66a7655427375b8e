"""All benchmarks, one after the other: ``python -m benchmarks [--check]``.

Each part is a process of its own. A part that misses a threshold, or dies, does not keep the rest
from running: the table at the end has a line for each, and the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.goals import add_check

PARTS = (
    "compare",
    "compare --v5",
    "compare --cluster",
    "security",
    "publish_rates",
    "scaling",
    "sealing",
    "spark_write",
    "spark_sealed",
    "spark_read",
    "spark_stream",
    "spark_freshness",
    "sealed_size",
)


class Outcome(NamedTuple):
    """How a part ended."""

    part: str
    code: int
    minutes: float


def run(part: str, check: bool) -> Outcome:
    """Run a part; what it prints is seen as it is printed."""
    module, *options = part.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    command += ["--check"] if check else []
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    return Outcome(part, code, (time.monotonic() - began) / 60)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="All benchmarks.")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    outcomes = []
    for number, part in enumerate(PARTS, 1):
        print(f"\n== {part} ({number} of {len(PARTS)})", flush=True)
        outcomes.append(run(part, chosen.check))
    print(f"\n{'part':<18}{'minutes':>8}  outcome")
    for part, code, minutes in outcomes:
        print(f"{part:<18}{minutes:>8.1f}  {'ok' if code == 0 else f'FAILED, exit code {code}'}")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
