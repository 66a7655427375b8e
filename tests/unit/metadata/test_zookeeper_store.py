"""A process hears of its own changes in ZooKeeper, whatever it hears of their outcomes."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from pulsark.errors import OutcomeUnknownError
from pulsark.metadata.session import Session
from pulsark.metadata.store import ABSENT
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import Layout
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper


class Client(MemoryZooKeeper):
    """One session."""

    address = "memory"
    session_id = 7
    session: Session


async def store_of(client: Client, sim: Simulation) -> ZooKeeperMetadataStore:
    client.session = Session(SimClock(sim.loop))
    session = cast("ZooKeeperClient", client)
    await find_or_create(session, "identity", create=True)
    runtime = sim.runtime(SimDisk())
    store = ZooKeeperMetadataStore(session, runtime, Layout(), "identity", 30.0)
    await store._start()
    return store


def test_it_hears_of_what_was_made_after_its_caller_had_gone() -> None:
    async def main(sim: Simulation) -> None:
        store = await store_of(Client(), sim)
        heard: list[str] = []
        store.watch("/", heard.append, lambda: heard.append("missed"))
        for turns in range(8):
            writing = asyncio.create_task(store.put(f"/a/{turns}", b"", ABSENT))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.sleep(60)
        made = await store.children("/a")
        assert made != []
        assert heard == [f"/a/{name}" for name in made]

    simulate(main)


def test_it_hears_once_of_what_was_made_and_of_what_was_not_answered() -> None:
    """The connection is as it was: nobody says that changes were missed."""

    async def main(sim: Simulation) -> None:
        client = Client()
        store = await store_of(client, sim)
        heard: list[str] = []
        store.watch("/", heard.append, lambda: heard.append("missed"))
        await store.put("/a", b"", ABSENT)
        client.fates.append(Fate.UNHEARD)
        with pytest.raises(OutcomeUnknownError):
            await store.put("/b", b"", ABSENT)
        await store.put("/c", b"", ABSENT)
        await asyncio.sleep(60)
        assert sorted(heard) == ["/a", "/b", "/c"]

    simulate(main)
