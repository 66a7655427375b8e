"""What is due to be sealed, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pulsark.dispatch.policies.policies import SealingPolicy
from pulsark.dispatch.tables.sealing_due import (
    DEFERRED_BYTES_MAX,
    DEFERRED_SECONDS_MAX,
    SMALL_BYTES,
    SMALL_TABLES_A_ROUND,
    due_ranges,
    first_of,
    in_order,
    may_wait,
)
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.wire.topic_name import TopicName

POLICY = SealingPolicy(enabled=True, target_file_bytes=1000, freshness_seconds=20)
CLOSED = LedgerInfo(5, 10, 100, 0)


def opened(entries: int, size: int) -> LedgerInfo:
    return LedgerInfo(7, entries, size, 0, open=True)


@pytest.mark.parametrize(
    ("ledgers", "through", "waited", "due"),
    [
        ([CLOSED], {}, 0, [(5, 0, 9, 100)]),
        ([CLOSED], {5: 3}, 0, [(5, 4, 9, 60)]),
        ([CLOSED], {5: 9}, 99, []),
        ([LedgerInfo(5, 0, 0, 0)], {}, 99, []),
        ([opened(10, 999)], {}, 19, []),
        ([opened(10, 999)], {}, 20, [(7, 0, 9, 999)]),
        ([opened(10, 1000)], {}, 0, [(7, 0, 9, 1000)]),
        ([opened(10, 1999)], {7: 4}, 0, []),
        ([CLOSED, opened(10, 10)], {}, 0, [(5, 0, 9, 100)]),
        ([CLOSED, opened(10, 10)], {5: 9, 7: 8}, 20, [(7, 9, 9, 1)]),
    ],
)
def test_what_is_due(
    ledgers: list[LedgerInfo],
    through: dict[int, int],
    waited: float,
    due: list[tuple[int, int, int, int]],
) -> None:
    assert due_ranges(POLICY, -1, ledgers, through, waited) == [
        SealRange(-1, *numbers) for numbers in due
    ]


def test_without_freshness_an_open_ledger_waits_for_a_file_unless_everything_is_asked_for() -> None:
    policy = SealingPolicy(enabled=True, target_file_bytes=1000, freshness_seconds=0)
    assert due_ranges(policy, 0, [opened(10, 10)], {}, 1e9) == []
    assert due_ranges(policy, 0, [opened(10, 10)], {}, 0, everything=True) == [
        SealRange(0, 7, 0, 9, 10)
    ]


@pytest.mark.parametrize(
    ("policy", "when_read", "seconds"), [(20, 5, 5), (3, 5, 3), (0, 5, 5), (20, 0, 20), (0, 0, 0)]
)
def test_a_table_that_is_read_is_never_less_fresh(
    policy: int, when_read: int, seconds: int
) -> None:
    sealing = SealingPolicy(enabled=True, target_file_bytes=1000, freshness_seconds=policy)
    assert sealing.when_read(when_read).freshness_seconds == seconds


def test_a_range_is_cut_to_the_room_there_is() -> None:
    wanted = SealRange(0, 7, 100, 199, 10_000)
    assert wanted.within(10_000) == wanted
    assert wanted.within(2500) == SealRange(0, 7, 100, 124, 2500)
    assert wanted.within(1).last == 100


@dataclass
class Table:
    size: int
    since: float
    namespace: str = "public/default"

    @property
    def base(self) -> TopicName:
        return TopicName.parse(f"persistent://{self.namespace}/t")


def test_a_hundred_thousand_nearly_empty_topics_wait_for_each_other() -> None:
    small = [Table(100, since=float(i)) for i in range(100_000)]
    large = [Table(SMALL_BYTES, since=1e9), Table(SMALL_BYTES + 1, since=1e9)]
    found = in_order([*small[50_000:], large[0], *small[:50_000], large[1]])
    assert found == large + small[:SMALL_TABLES_A_ROUND]


def test_namespaces_take_turns() -> None:
    many = [Table(SMALL_BYTES, since=float(i), namespace="a/much") for i in range(100)]
    busy = [Table(100, since=float(i), namespace="a/busy") for i in range(100)]
    few = [Table(100, since=50.0 + i, namespace="b/little") for i in range(2)]
    found = in_order([*many, *busy, *few])
    assert found[:6] == [many[0], busy[0], few[0], many[1], busy[1], few[1]]
    assert sum(work.size < SMALL_BYTES for work in found) == SMALL_TABLES_A_ROUND


def test_what_may_wait_for_clients() -> None:
    now = DEFERRED_SECONDS_MAX + 5
    assert may_wait(Table(DEFERRED_BYTES_MAX - 1, 6.0), now)
    assert not may_wait(Table(DEFERRED_BYTES_MAX, 6.0), now)
    assert not may_wait(Table(1, 5.0), now)


def test_much_is_sealed_in_parts() -> None:
    a, b = SealRange(0, 5, 0, 99, 1000), SealRange(0, 7, 0, 9, 100)
    assert first_of({"x": [a, b], "y": [b]}, 2000) == {"x": [a, b], "y": [b]}
    assert first_of({"x": [a, b], "y": [b]}, 500) == {"x": [SealRange(0, 5, 0, 49, 500)], "y": []}
    assert first_of({"x": [b, a]}, 110) == {"x": [b, SealRange(0, 5, 0, 0, 10)]}
