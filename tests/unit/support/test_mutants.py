"""The mutator: what it changes, and that each change is one of the language."""

from __future__ import annotations

import ast
import random
import tomllib

import pytest

from tests.mutants.__main__ import FOLDER, ROOT, draw, of_room
from tests.mutants.mutations import mutations

ROOMS = tomllib.loads((FOLDER / "rooms.toml").read_text())


def changed(body: str) -> set[tuple[str, str]]:
    source = f"async def f(self, a, b):\n    {body}\n"
    return {
        (each.kind, each.apply(source).split("\n    ", 1)[1].strip()) for each in mutations(source)
    }


@pytest.mark.parametrize(
    ("body", "kind", "mutant"),
    [
        ("return a < b", "comparison", "return a <= b"),
        ("return a is not b", "comparison", "return a is b"),
        ("return a and b", "and or", "return a or b"),
        ("return a[b + 1]", "boundary", "return a[b]"),
        ("return a - b", "operands swapped", "return (b - a)"),
        ("return min(a, b)", "min max", "return max(a, b)"),
        ("await self.flush()", "await dropped", "pass"),
        ("self.flush()", "call dropped", "pass"),
        ("if a: return b", "check dropped", "if False: return b"),
        ("if a: self.b()", "condition dropped", "if True: self.b()"),
        ("self.a = None", "assignment dropped", "pass"),
        ("self.a.pop(b, None)", "stale", "self.a.get(b, None)"),
        ("del self.a[b]", "stale", "pass"),
        ("return True", "answer", "return False"),
    ],
)
def test_a_change_of_each_kind_is_made(body: str, kind: str, mutant: str) -> None:
    assert (kind, mutant) in changed(body)


@pytest.mark.parametrize("body", ["'''says < what'''", "log.info('a')", "raise ValueError(a - b)"])
def test_what_only_tells_people_is_left(body: str) -> None:
    assert changed(body) == set()


def test_an_exception_is_narrowed() -> None:
    source = "def f():\n    try: g()\n    except (OSError, ValueError): h()\n"
    assert [m.apply(source).split("except ")[1] for m in mutations(source)][1:3] == [
        "(ValueError,): h()\n", "(OSError,): h()\n",
    ]  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_the_mutants_of_a_room_can_be_compiled_and_its_tests_are_there(room: str) -> None:
    every = of_room(room)
    assert len(every) > 100
    for mutant in random.Random(0).sample(every, 20):
        ast.parse(mutant.mutation.apply((ROOT / mutant.path).read_text()))
        assert mutant.diff().count("\n-") + mutant.diff().startswith("-") >= 1
    assert all((ROOT / each).exists() for each in ROOMS[room]["tests"])


def test_a_seed_draws_the_same_mutants_of_all_rooms() -> None:
    first, again = (list(draw(list(ROOMS), 60, random.Random(7))) for _ in range(2))
    assert first == again
    assert len(first) == 60
    assert {mutant.room for mutant in first} == set(ROOMS)


def test_what_means_nothing_is_still_there() -> None:
    named = tomllib.loads((FOLDER / "equivalent.toml").read_text())
    every = {mutant.diff() for room in ROOMS for mutant in of_room(room)}
    assert all(each["diff"].strip("\n") in every for each in named.values())
