"""How `make chaos` keeps to its hours, and that it leaves no marked test out."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import LIVE, SIMULATED, Lane, Part, Ran, parts_of, table

ROOT = Path(__file__).parents[2]


class Runs:
    """Stands for commands: those of a share last as long as they may."""

    def __init__(self, minutes: float, code: int = 0) -> None:
        self.now = 0.0
        self.hours: list[float] = []
        self._minutes = minutes
        self._code = code

    def __call__(self, words: Sequence[str]) -> int:
        if "--hours" in words:
            self.hours.append(float(words[-1]))
            self.now += 3600 * self.hours[-1]
            return 0
        self.now += 60 * self._minutes
        return self._code


def lane(runs: Runs, hours: float) -> Lane:
    lane = Lane(parts_of(7, "python", ())[0], hours, runs, lambda: runs.now)
    lane.run_all()
    return lane


def test_hostile_clients_have_what_the_scenarios_leave() -> None:
    runs = Runs(minutes=30)
    lane(runs, 1.0)
    assert runs.hours == [0.25, 0.25]
    assert runs.now == 3600


def test_each_part_has_some_time_if_the_scenarios_take_all() -> None:
    runs = Runs(minutes=70)
    lane(runs, 1.0)
    assert runs.hours == [0.05, 0.05]


def test_a_part_that_fails_ends_no_other_one_and_is_named() -> None:
    runs = Runs(minutes=6, code=3)
    ran = lane(runs, 0.2).ran
    assert [each.code for each in ran] == [3, 0, 0]
    assert "scenarios               6.0 min  FAILED with exit code 3\n" in table(ran)
    assert table([Ran(Part("x", ()), 60.0, 0)]).endswith("1.0 min  passed")


def test_no_marked_test_is_left_out() -> None:
    covered = [ROOT / folder for folder in (*LIVE, *SIMULATED)]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if _has_chaos(path)]
    assert len(marked) > 20
    assert [path for path in marked if not any(path.is_relative_to(c) for c in covered)] == []


def _has_chaos(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "chaos"
        for node in ast.walk(ast.parse(path.read_text()))
    )
