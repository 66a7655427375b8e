"""The topic cache against a plain list of entries."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.topic.cache import (
    CHUNK_ENTRIES,
    ENTRY_OVERHEAD_BYTES,
    READ_BYTES_MIN,
    CacheBudget,
    TopicCache,
)
from pulsark.wire.position import Position
from tests.support.broker_clients import TOPIC, Client, Command, scenario
from tests.support.wire_frames import publish


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
def test_oldest_blocks_of_all_topics_leave_first() -> None:
    budget = CacheBudget(100 + ENTRY_OVERHEAD_BYTES)
    old, new = TopicCache(budget), TopicCache(budget)
    old.append(1, 0, entries(1, 0, [60]), 60)
    new.append(2, 0, entries(2, 0, [60]), 60)
    assert old.read(Position(1, 0), 1, 1) is None
    assert positions(new.read(Position(2, 0), 1, 1)) == [Position(2, 0)]
    assert budget.used_bytes == 60 + ENTRY_OVERHEAD_BYTES
    new.clear()
    assert budget.used_bytes == 0


def test_a_read_crosses_blocks() -> None:
    cache = TopicCache(CacheBudget(1 << 30))
    cache.append(1, 0, entries(1, 0, [0] * CHUNK_ENTRIES), 0)
    cache.append(1, CHUNK_ENTRIES, entries(1, CHUNK_ENTRIES, [0] * 5), 0)
    found = cache.read(Position(1, CHUNK_ENTRIES - 1), 3, 1)
    assert positions(found) == [Position(1, CHUNK_ENTRIES - 1 + i) for i in range(3)]


@scenario()
async def test_what_slow_consumers_hold_is_bounded_for_all_of_them(broker) -> None:
    budget = broker.broker.loader.cache_budget
    budget.max_bytes = 1 << 20
    client, slow = Client(broker), Client(broker)
    await client.produce(TOPIC, 0)
    for number in range(100):
        client.send_bytes(publish(1, number, bytes(20_000)))
        await client.take(Command.SEND_RECEIPT)
    for number in range(30):
        command = slow.subscribe_command(TOPIC, f"s{number}", number)
        slow.send(command)
        assert await slow.outcome() == 0
        slow.flow(1, number)
    await asyncio.sleep(0.1)
    assert len(await slow.deliveries()) == 30
    assert 0 < budget.at_hand_bytes < budget.max_bytes // 2 + 30 * (READ_BYTES_MIN + 20_000)
    assert budget.at_hand_bytes < 30 * 1_980_000 / 4
    for number in range(30):
        slow.flow(99, number)
    await asyncio.sleep(1)
    assert len(await slow.deliveries()) == 30 * 99
    slow.hang_up()
    await asyncio.sleep(0.1)
    assert budget.at_hand_bytes == 0
