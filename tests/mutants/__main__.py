"""``python -m tests.mutants``: change the code of rooms at random, and see whether tests notice.

Mutants are drawn from all modules of a room, with a seed that is printed; each runs in a copy of
the sources. What survives is shown with its diff: a test is missing there, or the change means
nothing. Those of the latter kind are named in ``equivalent.toml``, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.mutants.mutations import Mutation, mutations
from tests.support.changed_copy import copy_sources, run_tests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
CAUGHT_PART: Final = 0.85
TIMEOUT_SECONDS: Final = 600.0
"""For the tests of a room without a change."""


class Mutant(NamedTuple):
    """A mutation of one module, whose path is below the sources."""

    room: str
    path: str
    mutation: Mutation

    def diff(self) -> str:
        """Return the lines that change, as people read it, and as ``equivalent.toml`` names it."""
        data, (_, _, start, end, new) = (ROOT / self.path).read_bytes(), self.mutation
        first = data.rfind(b"\n", 0, start) + 1
        last = len(data) if (found := data.find(b"\n", end)) < 0 else found
        old = data[first:last].decode()
        changed = f"{data[first:start].decode()}{new}{data[end:last].decode()}"
        return "\n".join(
            [f"-{line}" for line in old.splitlines()]
            + [f"+{line}" for line in changed.splitlines()]
        )


class Outcome(NamedTuple):
    """What became of a mutant. ``code`` is pytest's: 0 means that nobody noticed."""

    mutant: Mutant
    code: int
    seconds: float


def main() -> int:
    """Print a line for each mutant and a table of the rooms; 1 if a room's tests see too few."""
    rooms = tomllib.loads((FOLDER / "rooms.toml").read_text())
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").split("\n\n", 1)[1]
    )
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms)}")
    parser.add_argument("--count", type=int, default=60, help="mutants of all rooms together (60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help=f"exit 1 below {CAUGHT_PART:.0%}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all outcomes")
    given = parser.parse_args()
    unknown = [room for room in given.rooms if room not in rooms]
    if unknown:
        parser.error(f"ROOM {unknown[0]} is not one of {', '.join(rooms)}")
    chosen = given.rooms or list(rooms)
    drawn = list(draw(chosen, given.count, random.Random(given.seed)))
    print(f"{len(drawn)} mutants, seed {given.seed}, {given.jobs} at a time", flush=True)
    outcomes = list(_run_all(drawn, {room: rooms[room]["tests"] for room in chosen}, given.jobs))
    if given.json:
        given.json.write_text(json.dumps([_as_json(each) for each in outcomes], indent=1))
    short = _report(outcomes)
    return short if given.check else 0


def draw(rooms: Sequence[str], count: int, chance: random.Random) -> Iterator[Mutant]:
    """Draw about as many mutants of each room, without those that mean nothing."""
    meaningless = _meaningless()
    for number, room in enumerate(rooms):
        most = (count + number) // len(rooms)
        every = [mutant for mutant in of_room(room) if mutant.diff() not in meaningless]
        yield from chance.sample(every, min(most, len(every)))


def of_room(room: str) -> list[Mutant]:
    """Return all mutants of a room's modules."""
    found = []
    for path in sorted((ROOT / "pulsark" / room).rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            name = str(path.relative_to(ROOT))
            found += [Mutant(room, name, each) for each in mutations(path.read_text())]
    return found


def _meaningless() -> frozenset[str]:
    named = tomllib.loads((FOLDER / "equivalent.toml").read_text())
    return frozenset(each["diff"].strip("\n") for each in named.values())


def _run_all(
    mutants: Sequence[Mutant], tests: Mapping[str, Sequence[str]], jobs: int
) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="pulsark-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        limits: dict[str, float] = {}
        for number in range(jobs):
            copy = Path(folder) / str(number)
            copy.mkdir()
            copy_sources(ROOT, copy)
            copies.put(copy)

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return _try(mutant, copy, tests[mutant.room], limits[mutant.room])
            finally:
                copies.put(copy)

        def limit(room: str) -> float:
            copy = copies.get()
            try:
                return _time_limit(room, copy, tests[room])
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            limits.update(zip(tests, pool.map(limit, tests), strict=True))
            for outcome in pool.map(run, mutants):
                print(_line(outcome), flush=True)
                yield outcome


def _time_limit(room: str, copy: Path, tests: Sequence[str]) -> float:
    """Run a room's tests on unchanged sources; returns how long a mutant may take, in seconds."""
    begun = time.monotonic()
    code = run_tests(copy, tests, TIMEOUT_SECONDS)
    seconds = time.monotonic() - begun
    if code != 0:
        sys.exit(f"The tests of {room} end with {code} without a change: nothing can be learned")
    print(f"{room}: {seconds:.0f} s without a change", flush=True)
    return 3 * seconds + 30


def _try(mutant: Mutant, copy: Path, tests: Sequence[str], limit: float) -> Outcome:
    begun = time.monotonic()
    module = copy / mutant.path
    source = module.read_text()
    try:
        module.write_text(mutant.mutation.apply(source))
        code = run_tests(copy, tests, limit)
    finally:
        module.write_text(source)
    return Outcome(mutant, code, time.monotonic() - begun)


def _line(outcome: Outcome) -> str:
    mutant, code, seconds = outcome
    said = "SURVIVED" if code == 0 else "caught"
    where = f"{mutant.path.removeprefix('pulsark/')}:{mutant.mutation.line}"
    line = f"{said:<8} {seconds:4.0f} s {where:<44} {mutant.mutation.kind}"
    return line if code else f"{line}\n{mutant.diff()}"


def _report(outcomes: Sequence[Outcome]) -> int:
    """Print what part of each room's mutants was caught; 1 if it is too small."""
    short = 0
    for room in dict.fromkeys(each.mutant.room for each in outcomes):
        codes = [each.code for each in outcomes if each.mutant.room == room]
        part = sum(map(bool, codes)) / len(codes)
        short |= part < CAUGHT_PART
        print(f"{room:<24} {sum(map(bool, codes)):3} of {len(codes):3} caught, {part:.0%}")
    return short


def _as_json(outcome: Outcome) -> dict[str, object]:
    mutant, code, seconds = outcome
    return {
        "room": mutant.room, "path": mutant.path, "line": mutant.mutation.line,
        "kind": mutant.mutation.kind, "diff": mutant.diff(), "code": code, "seconds": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
