"""A process hears of its own changes in ZooKeeper, whatever it hears of their outcomes."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from pulsark.errors import OutcomeUnknownError
from pulsark.metadata.session import Session
from pulsark.metadata.store import ABSENT
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import SESSIONS, Layout
from pulsark.metadata.zookeeper.nodes import ANY
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


def test_of_many_that_start_together_few_try_a_large_request_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper holds what it has not answered in memory."""
    brokers, seconds = 200, 0.01

    class Server(Client):
        large = large_max = sessions = 0

        async def give_signs(self, directory: str) -> None:
            self.sessions += 1
            await self.make(directory)
            await self.create(f"{directory}/{self.sessions}", ephemeral=True)

        async def set(self, path: str, data: bytes, version: int = ANY) -> int:
            if len(data) > 1 << 20:
                self.large += 1
                self.large_max = max(self.large_max, self.large)
                await asyncio.sleep(seconds)
                self.large -= 1
            return await super().set(path, data, version)

        async def close(self) -> None:
            """Its session is that of the others."""

    async def main(sim: Simulation) -> None:
        server = Server()
        server.session = Session(SimClock(sim.loop))

        async def connect(*_: object, **__: object) -> ZooKeeperClient:
            return cast("ZooKeeperClient", server)

        monkeypatch.setattr(ZooKeeperClient, "connect", connect)
        runtimes = [sim.runtime(SimDisk()) for _ in range(brokers)]
        begun = sim.loop.time()
        stores = await asyncio.gather(
            *(ZooKeeperMetadataStore.open(ZooKeeperAddress("a:1"), each) for each in runtimes)
        )
        assert len(await server.children(SESSIONS)) == brokers
        assert 0 < server.large_max < brokers / 4
        assert sim.loop.time() - begun < 10
        for store in stores:
            await store.close()
        begun = sim.loop.time()
        server.nodes = {path: node for path, node in server.nodes.items() if not node.owner}
        await ZooKeeperMetadataStore.open(ZooKeeperAddress("a:1"), runtimes[0])
        assert sim.loop.time() - begun < 2 * seconds, "who is alone waits for nobody"

    simulate(main)
