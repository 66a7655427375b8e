"""The topic cache against a plain list of entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.cache import CHUNK_ENTRIES, ENTRY_OVERHEAD_BYTES, CacheBudget, TopicCache
from pulsark.dispatch.entry import Entry
from pulsark.storage.position import Position


def entries(ledger_id: int, first: int, sizes: list[int]) -> list[Entry]:
    return [
        Entry(bytes(size), 1, False, False, ledger_id=ledger_id, entry_id=first + i)
        for i, size in enumerate(sizes)
    ]


def positions(found: list[Entry] | None) -> list[Position] | None:
    return None if found is None else [e.position for e in found]


runs = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=6)), max_size=12
)


@pytest.mark.feature("F63")
@given(runs, st.integers(0, 60).map(lambda n: n * 50), st.integers(0, 9), st.integers(1, 12))
def test_reads_equal_those_of_a_list(run_list, limit, ledger_probe, count) -> None:
    budget = CacheBudget(limit)
    cache = TopicCache(budget)
    model: list[Entry] = []
    ledger_id, next_entry = 3, 0
    for new_ledger, sizes in run_list:
        if new_ledger:
            ledger_id, next_entry = ledger_id + 2, 0
        added = entries(ledger_id, next_entry, sizes)
        next_entry += len(sizes)
        cache.append(ledger_id, added[0].entry_id, added, sum(sizes))
        model += added
    for probe in [Position(ledger_probe, 0), *(e.position for e in model)]:
        found = positions(cache.read(probe, count, 1 << 30))
        if found is None:
            continue
        expected = [e.position for e in model if e.position >= probe][:count]
        assert found == expected
    assert budget.used_bytes <= max(limit, 0) or not model or budget.used_bytes == 0


def test_limits_bound_a_read_but_give_at_least_one_entry() -> None:
    cache = TopicCache(CacheBudget(1 << 20))
    cache.append(1, 0, entries(1, 0, [10, 10, 10]), 30)
    assert len(cache.read(Position(1, 0), 9, 15) or []) == 2
    assert len(cache.read(Position(1, 0), 9, 1) or []) == 1
    assert len(cache.read(Position(1, 1), 1, 99) or []) == 1
    assert cache.read(Position(1, 3), 9, 99) == []
    assert cache.read(Position(0, 0), 9, 99) is None


@pytest.mark.feature("F63")
def test_oldest_chunks_of_all_topics_leave_first() -> None:
    budget = CacheBudget(100 + ENTRY_OVERHEAD_BYTES)
    old, new = TopicCache(budget), TopicCache(budget)
    old.append(1, 0, entries(1, 0, [60]), 60)
    new.append(2, 0, entries(2, 0, [60]), 60)
    assert old.read(Position(1, 0), 1, 1) is None
    assert positions(new.read(Position(2, 0), 1, 1)) == [Position(2, 0)]
    assert budget.used_bytes == 60 + ENTRY_OVERHEAD_BYTES
    new.clear()
    assert budget.used_bytes == 0


def test_a_read_crosses_chunks() -> None:
    cache = TopicCache(CacheBudget(1 << 30))
    cache.append(1, 0, entries(1, 0, [0] * CHUNK_ENTRIES), 0)
    cache.append(1, CHUNK_ENTRIES, entries(1, CHUNK_ENTRIES, [0] * 5), 0)
    found = cache.read(Position(1, CHUNK_ENTRIES - 1), 3, 1)
    assert positions(found) == [Position(1, CHUNK_ENTRIES - 1 + i) for i in range(3)]
