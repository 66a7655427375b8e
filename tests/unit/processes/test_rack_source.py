"""A broker of a cluster hears of racks while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from pulsark.metadata.bookie_racks import BookieRacks
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.paths import BOOKIES
from pulsark.processes.rack_source import RackSource
from tests.support.faulty_metadata import FaultyStore


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.mark.feature("F71")
def test_racks_are_heard_when_they_are_set_and_after_missed_changes() -> None:
    async def scenario() -> None:
        tree, told = MemoryTree(), list[Mapping[str, str]]()
        store, racks = FaultyStore(tree), BookieRacks(FaultyStore(tree))
        await racks.put("b1", "default", {"rack": "/one"})
        source = RackSource(store, told.append)
        await source.start()
        assert told == [{"b1": "/one"}]
        await racks.put("b2", "default", {"rack": "two"})
        await turns()
        assert told[-1] == {"b1": "/one", "b2": "/two"}
        await store.put(f"{BOOKIES}/place", b"an embedded bookie")
        await turns()
        assert len(told) == 2
        store.lose_watches()
        await racks.delete("b1")
        await turns()
        store.watch_again()
        await turns()
        assert told[-1] == {"b2": "/two"}
        source.close()
        await racks.delete("b2")
        await turns()
        assert told[-1] == {"b2": "/two"}

    asyncio.run(scenario())


def test_racks_that_cannot_be_read_keep_no_broker_from_starting() -> None:
    async def scenario() -> None:
        store, told = FaultyStore(MemoryTree()), list[Mapping[str, str]]()
        await store.put(BOOKIES, b"[1]")
        source = RackSource(store, told.append)
        await source.start()
        assert told == []
        await store.put(BOOKIES, b'{"g": {"b": {"rack": "/r"}}}')
        await turns()
        assert told == [{"b": "/r"}]
        source.close()

    asyncio.run(scenario())
