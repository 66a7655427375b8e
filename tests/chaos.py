"""``python -m tests.chaos``: the faults that every run has no time for, in about ``--hours``.

Two lanes, side by side. One has real processes: first each scenario of the fault lists, marked
``chaos``, which takes what it takes; hostile clients have the rest, half of it against a broker
with TLS and logins. The other one simulates: first what is marked, then random lives of one broker
and of several, from a seed that is new each time and printed. A part that fails ends no other one.
At the end there is a table of all parts; the exit code is 1 if one has failed.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

LEAST: Final = 0.05
"""Of all hours, for a part that has the rest, if nothing is left."""
SCENARIOS: Final = "chaos and not long"
SIMULATED: Final = ("tests/sim", "tests/contracts", "tests/unit")
LIVE: Final = ("tests/integration", "tests/clients", "tests/spark")
BY_FILE: Final = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""They mostly wait. More at a time would be late because of each other, not of the product."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command; ``share`` of what the scenarios leave to its lane, or none for as long as it
    takes."""

    name: str
    words: tuple[str, ...]
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A part that has ended."""

    part: Part
    seconds: float
    code: int


@dataclass(slots=True)
class Lane:
    """Parts one after the other, as far as possible within ``hours``."""

    parts: Sequence[Part]
    hours: float
    run: Callable[[Sequence[str]], int]
    clock: Callable[[], float] = time.monotonic
    ran: list[Ran] = field(default_factory=list)

    def run_all(self) -> None:
        """Run them all, also after a failure."""
        begun = self.clock()
        left = self.hours
        for part in self.parts:
            started = self.clock()
            if part.share:
                hours = max(left * part.share, LEAST * self.hours)
                code = self.run([*part.words, "--hours", f"{hours:.3f}"])
            else:
                code = self.run(part.words)
                left = max(self.hours - (self.clock() - begun) / 3600, 0.0)
            self.ran.append(Ran(part, self.clock() - started, code))


def parts_of(seed: int, python: str, more: Sequence[str]) -> tuple[list[Part], list[Part]]:
    """Those with real processes, and those that simulate. ``more`` is for each run of pytest."""
    module = (python, "-m")
    # Nice, because hostile clients and scenarios measure answers.
    sim = ("nice", "-n", "10", *module)
    random_lives = (*sim, "tests.sim", "--processes", "1", "--seed", str(seed))
    marked = ("pytest", "-q", "-m", SCENARIOS)
    hostile = (*module, "tests.fuzz")
    return [
        Part("scenarios", (*module, *marked, *BY_FILE, *LIVE, *more)),
        Part("hostile clients", (*hostile, "--frames", "5000000"), 0.5),
        Part("with TLS and logins", (*hostile, "--frames", "1000000", "--secured"), 0.5),
    ], [
        Part("simulations", (*sim, *marked, *SIMULATED, *more)),
        Part("lives of a broker", random_lives, 0.5),
        Part("lives of several", (*random_lives, "--several"), 0.5),
    ]


def table(ran: Sequence[Ran]) -> str:
    """A line for each part."""
    lines = []
    for each in ran:
        what = "passed" if each.code == 0 else f"FAILED with exit code {each.code}"
        lines.append(f"{each.part.name:20} {each.seconds / 60:6.1f} min  {what}")
    return "\n".join(lines)


def _run(words: Sequence[str]) -> int:
    print(f"$ {shlex.join(words)}", flush=True)
    return subprocess.run(words, check=False).returncode


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="the first of the simulation")
    given, more = parser.parse_known_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    lanes = [Lane(parts, given.hours, _run) for parts in parts_of(seed, sys.executable, more)]
    threads = [threading.Thread(target=lane.run_all) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = [each for lane in lanes for each in lane.ran]
    print(table(ran))
    return int(any(each.code for each in ran))


if __name__ == "__main__":
    sys.exit(main())
