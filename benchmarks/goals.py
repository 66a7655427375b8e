"""What was found beside what is needed, as a small table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Literal, NamedTuple


class Goal(NamedTuple):
    """A number that was found, and the least or the most that it may be."""

    label: str
    found: float
    bound: Literal["at least", "at most"]
    needed: float

    @property
    def reached(self) -> bool:
        """Whether it is good enough."""
        if self.bound == "at least":
            return self.found >= self.needed
        return self.found <= self.needed


def goal_table(goals: Iterable[Goal]) -> str:
    """A line for each goal."""
    lines = [f"{'':<46}{'found':>10}  {'needed':<18}", "-" * 80]
    lines += [
        f"{goal.label:<46}{_number(goal.found):>10}  {goal.bound} {_number(goal.needed):<9}"
        f"{'ok' if goal.reached else 'FAIL'}"
        for goal in goals
    ]
    return "\n".join(lines)


def exit_code(goals: Iterable[Goal], check: bool) -> int:
    """Print the table; 1 if ``check`` and a goal is missed."""
    found = list(goals)
    print(f"\n{goal_table(found)}")
    return int(check and not all(goal.reached for goal in found))


def add_check(parser: argparse.ArgumentParser) -> None:
    """The flag that makes a missed goal an error."""
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")


def add_scenarios(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """``scenarios``: those that are named, or all of them."""
    known = list(names)

    def scenario(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return name

    # Not with ``choices``: to them the default of ``*`` would have to be one of them.
    parser.add_argument("scenarios", nargs="*", type=scenario, default=known, metavar="SCENARIO")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
