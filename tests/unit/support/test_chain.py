"""The comparison of a chain's ends sees what it is for."""

from __future__ import annotations

import pytest

from tests.support.chain import Row, differences

LOG = [Row("a", 0, "k"), Row("b", 0, "k"), Row("a", 1, "j"), Row("a", 2, "k"), Row("b", 1, "j")]
SENT = {"a": 3, "b": 2}


def test_equal_logs_are_well() -> None:
    # Keys may come in any order among themselves.
    other = [row for key in "jk" for row in LOG if row.key == key]
    assert differences(SENT, {"source": LOG, "sink": other}) == []
    assert Row.parse(LOG[0].encode()) == LOG[0]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (LOG[:-1], "lacks: 1"),
        ([*LOG, LOG[0]], "more than once: 1"),
        ([*LOG, Row("c", 0, "k")], "nobody sent: 1"),
        ([LOG[3], LOG[1], LOG[0], *LOG[2:3], LOG[4]], "k of a is out of order"),
        ([LOG[1], LOG[0], *LOG[2:]], "another order than source: 1, ['k']"),
    ],
)
def test_each_fault_is_seen(log: list[Row], said: str) -> None:
    assert any(said in found for found in differences(SENT, {"source": LOG, "sink": log}))
