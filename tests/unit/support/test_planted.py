"""The planted bugs fit the sources as they are: else nobody would know what catches them."""

from __future__ import annotations

import ast

import pytest

from tests.sim.planted.bugs import ROOT, STRONG_PLACES, PlantedBug, load

BUGS = load()
BUGS_MIN = 40


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: PlantedBug) -> None:
    source = (ROOT / bug.file).read_text()
    changed = bug.changed(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert bug.strong or bug.other
    for test in (*bug.strong, *bug.other):
        assert (ROOT / test.partition("::")[0]).exists(), test
    assert all(test.startswith(STRONG_PLACES) for test in bug.strong)


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= BUGS_MIN
