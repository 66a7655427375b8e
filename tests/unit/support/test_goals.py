"""Goals of benchmarks: which are reached, and how they are shown."""

from __future__ import annotations

import pytest

from benchmarks.goals import Goal, exit_code, goal_table


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal("rows/s", 500_000, "at least", 500_000), True),
        (Goal("rows/s", 499_999, "at least", 500_000), False),
        (Goal("ratio", 1.5, "at most", 1.5), True),
        (Goal("ratio", 1.51, "at most", 1.5), False),
    ],
)
def test_a_goal_is_reached_up_to_its_bound(goal: Goal, reached: bool) -> None:
    assert goal.reached is reached
    assert exit_code([goal], check=True) == (0 if reached else 1)
    assert exit_code([goal], check=False) == 0


def test_one_missed_goal_of_several_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    goals = [Goal("a", 1, "at least", 1), Goal("b", 2, "at most", 1), Goal("c", 1, "at least", 0)]
    assert exit_code(goals, check=True) == 1
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[3:]] == [
        "ok",
        "FAIL",
        "ok",
    ]


def test_the_table_fits_80_columns() -> None:
    text = goal_table([Goal("x" * 45, 123_456_789, "at least", 1_000_000)])
    assert max(map(len, text.splitlines())) <= 80
