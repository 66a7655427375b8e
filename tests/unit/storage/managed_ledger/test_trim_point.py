"""Which ledgers may go: the pure decision."""

from __future__ import annotations

from collections.abc import Container
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.retention import Retention, trim_points
from pulsark.wire.position import EARLIEST, LATEST, Position

NOW = 1_000_000
MINUTE = 60_000

LEDGERS = [
    LedgerInfo(3, 10, 100, NOW - 30 * MINUTE),
    LedgerInfo(5, 10, 200, NOW - 20 * MINUTE),
    LedgerInfo(8, 10, 400, NOW - 10 * MINUTE),
    LedgerInfo(9, 4, 40, NOW - 5 * MINUTE, open=True),
]


def trim_point(
    ledgers: list[LedgerInfo],
    consumed: Position,
    retention: Retention,
    now_ms: int,
    of_table: Retention | None = None,
    in_table: Container[int] | None = None,
) -> Position | None:
    """The last position before which ledgers may be removed."""
    size = sum(info.size for info in ledgers)
    points = trim_points(ledgers, size, consumed, retention, now_ms, of_table, in_table)
    return max(points, default=None)


NOTHING, AFTER_3, AFTER_5, AFTER_8 = None, Position(3, 10), Position(5, 10), Position(8, 10)


@pytest.mark.feature("F51")
@pytest.mark.parametrize(
    ("consumed", "expected"),
    [
        (EARLIEST, NOTHING),
        (Position(3, 8), NOTHING),
        (Position(3, 9), AFTER_3),
        (Position(5, -1), AFTER_3),
        (Position(5, 3), AFTER_3),
        (Position(8, 9), AFTER_8),
        (Position(9, 3), AFTER_8),
        (LATEST, AFTER_8),
    ],
)
def test_without_retention_what_is_consumed_goes(
    consumed: Position, expected: Position | None
) -> None:
    assert trim_point(LEDGERS, consumed, Retention(), NOW) == expected


@pytest.mark.feature("F52")
@pytest.mark.parametrize(
    ("minutes", "size", "expected"),
    [
        (-1, -1, NOTHING),
        (30, -1, AFTER_3),
        (31, -1, NOTHING),
        (11, -1, AFTER_5),
        (0, -1, AFTER_8),
        (-1, 0, AFTER_8),
        (-1, 40, AFTER_8),
        (-1, 41, AFTER_5),
        (-1, 440, AFTER_5),
        (-1, 640, AFTER_3),
        (-1, 641, NOTHING),
        (25, 440, AFTER_5),
        (15, 640, AFTER_5),
    ],
)
def test_retention_keeps_by_time_and_by_size(
    minutes: int, size: int, expected: Position | None
) -> None:
    time_ms = minutes * MINUTE if minutes >= 0 else -1
    assert trim_point(LEDGERS, LATEST, Retention(time_ms, size), NOW) == expected


def test_a_topic_without_ledgers_has_nothing_to_trim() -> None:
    assert trim_point([], LATEST, Retention(), NOW) is None


FOR_EVER = Retention(-1, -1)


@pytest.mark.feature("F51", "F53")
@pytest.mark.parametrize(
    ("messages", "table", "in_table", "expected"),
    [
        (Retention(), FOR_EVER, None, NOTHING),
        (Retention(), FOR_EVER, set(), AFTER_8),
        (Retention(), FOR_EVER, {8}, AFTER_5),
        (Retention(), FOR_EVER, {3}, NOTHING),
        (FOR_EVER, Retention(), None, NOTHING),
        (Retention(), Retention(25 * MINUTE, -1), None, AFTER_3),
        (Retention(15 * MINUTE, -1), Retention(25 * MINUTE, -1), None, AFTER_3),
        (Retention(25 * MINUTE, -1), Retention(15 * MINUTE, -1), None, AFTER_3),
        (Retention(), Retention(-1, 440), None, AFTER_5),
        (Retention(), Retention(25 * MINUTE, -1), {8}, AFTER_5),
    ],
)
def test_what_is_in_the_table_goes_when_both_policies_let_it_go(
    messages: Retention, table: Retention, in_table: set[int] | None, expected: Position | None
) -> None:
    assert trim_point(LEDGERS, LATEST, messages, NOW, table, in_table) == expected


def test_a_policy_in_minutes_and_megabytes() -> None:
    assert Retention.of(-1, -1) == FOR_EVER
    assert Retention.of(2, 3) == Retention(120_000, 3 << 20)


MINUTES = st.integers(-1, 5)
RETENTIONS = st.builds(Retention, MINUTES.map(lambda n: n * MINUTE), st.integers(-1, 8))
LEDGERS_OF_ANY_AGE = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5), st.integers(1, 2)),
    max_size=6,
)


@given(
    LEDGERS_OF_ANY_AGE,
    st.booleans(),
    st.integers(0, 12),
    st.integers(-1, 3),
    RETENTIONS,
    st.none() | RETENTIONS,
    st.none() | st.sets(st.integers(0, 12)),
)
def test_what_goes_is_what_a_naive_look_at_each_ledger_says(
    drawn: list[tuple[int, int, int, int]],
    is_open: bool,
    consumed_ledger: int,
    consumed_entry: int,
    retention: Retention,
    of_table: Retention | None,
    in_table: set[int] | None,
) -> None:
    ledgers, ledger_id = list[LedgerInfo](), 0
    for entries, size, minutes, step in drawn:
        ledger_id += step
        ledgers.append(LedgerInfo(ledger_id, entries, size, NOW - minutes * MINUTE))
    if ledgers and is_open:
        ledgers[-1] = ledgers[-1]._replace(open=True)
    consumed = Position(consumed_ledger, consumed_entry)

    def may_go(number: int) -> bool:
        """Whether all up to a ledger may go, one entry and one rule at a time."""
        info, behind = ledgers[number], sum(each.size for each in ledgers[number + 1 :])
        if info.open or any(Position(info.ledger_id, n) > consumed for n in range(info.entries)):
            return False
        if not info.entries and info.ledger_id > consumed.ledger_id:
            return False
        rules = [retention]
        if of_table is not None and (in_table is None or info.ledger_id in in_table):
            rules.append(of_table)
        for rule in rules:
            old = rule.time_ms >= 0 and NOW - info.timestamp_ms >= rule.time_ms
            many = rule.size_bytes >= 0 and behind >= rule.size_bytes
            if not old and not many:
                return False
        return True

    going = list(takewhile(may_go, range(len(ledgers))))
    expected = [Position(ledgers[n].ledger_id, ledgers[n].entries) for n in going]
    found = trim_points(
        ledgers, sum(each.size for each in ledgers), consumed, retention, NOW, of_table, in_table
    )
    assert list(found) == expected
