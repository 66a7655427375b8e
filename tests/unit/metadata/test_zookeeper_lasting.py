"""Nodes over one session after the other: what happens when one is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from pulsark.errors import MetadataError, MetadataRefusedError
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.lasting import LastingNodes
from pulsark.metadata.zookeeper.nodes import Node
from pulsark.runtime import Clock
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper


class Client(MemoryZooKeeper):
    """One session with a server that all share."""

    def __init__(self, server: MemoryZooKeeper, clock: Clock) -> None:
        super().__init__(nodes=server.nodes, zxid=server.zxid)
        self.session = Session(clock)
        self.closed = False

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        if self.session.has_ended:
            raise MetadataRefusedError("over")
        return await super().get(path, changed)

    async def close(self) -> None:
        self.closed = True


class World:
    """A server that can be out of reach."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.server = MemoryZooKeeper()
        self.clients: list[Client] = []
        self.refusals = 0
        self.refusal: Exception = MetadataError("cannot be reached")
        self.went_back = 0

    async def connect(self) -> ZooKeeperClient:
        await asyncio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            raise self.refusal
        if self.clients:
            self.server.zxid = max(self.server.zxid, self.clients[-1].zxid) - self.went_back
        self.clients.append(Client(self.server, self.clock))
        return cast("ZooKeeperClient", self.clients[-1])


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        await scenario(World(sim.runtime(SimDisk()).clock))

    simulate(main)


@pytest.mark.parametrize("refusal", [MetadataError("cannot be reached"), AttributeError("defect")])
def test_after_a_session_another_one_is_used_and_all_is_looked_at_again(refusal: Exception) -> None:
    async def scenario(world: World) -> None:
        world.refusal = refusal
        nodes = await LastingNodes.connect(world.connect)
        told: list[int] = []
        nodes.on_regained(lambda: told.append(len(world.clients)))
        await nodes.create("/a", b"one")
        world.refusals = 3
        world.clients[0].session.end()
        with pytest.raises(MetadataRefusedError):
            await nodes.get("/a")
        await asyncio.sleep(2)
        assert told == []
        await asyncio.sleep(2)
        assert told == [2]
        assert world.clients[0].closed
        found = await nodes.get("/a")
        assert found is not None
        assert found.data == b"one"
        world.clients[1].lose_connection()
        assert told == [2, 2]
        world.clients[1].session.end()
        await asyncio.sleep(1)
        assert told == [2, 2, 3]
        assert await nodes.get("/a") is not None

    run(scenario)


def test_who_closes_gets_no_other_session() -> None:
    async def scenario(world: World) -> None:
        for refusals in (0, 1000):
            nodes = await LastingNodes.connect(world.connect)
            count = len(world.clients)
            world.refusals = refusals
            if refusals:
                world.clients[-1].session.end()
                await asyncio.sleep(5)
            await nodes.close()
            world.clients[-1].session.end()
            await asyncio.sleep(5)
            assert world.clients[-1].closed
            assert len(world.clients) == count

    run(scenario)


def test_a_server_that_went_back_is_asked_for_nothing_any_more() -> None:
    async def scenario(world: World) -> None:
        nodes = await LastingNodes.connect(world.connect)
        for name in ("/a", "/b", "/c"):
            await nodes.create(name)
        told: list[int] = []
        nodes.on_regained(lambda: told.append(len(world.clients)))
        world.went_back = 1
        world.clients[0].session.end()
        await asyncio.sleep(5)
        world.went_back = -10  # it counts its transactions on
        await asyncio.sleep(5)
        assert len(world.clients) == 2
        assert all(client.closed for client in world.clients)
        with pytest.raises(MetadataRefusedError):
            await nodes.get("/a")
        assert told == []
        await nodes.close()

    run(scenario)


def test_no_session_is_left_by_who_ends_while_a_former_one_is_closed() -> None:
    async def scenario(world: World) -> None:
        nodes = await LastingNodes.connect(world.connect)
        former = world.clients[0]
        closing = asyncio.Event()

        async def slow() -> None:
            closing.set()
            await asyncio.sleep(3)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(former, "close", slow)
            former.session.end()
            await closing.wait()
            await nodes.close()
        assert world.clients[1].closed

    run(scenario)
