"""Who follows what others tell of in ZooKeeper does so for as long as its session lives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

from pulsark.errors import MetadataRefusedError
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper.change_queue import ChangeQueue
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import CHANGE
from pulsark.metadata.zookeeper.nodes import Node
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper


class Client(MemoryZooKeeper):
    """One session. The next ``refusals`` reads are refused."""

    address = "memory"
    session_id = 7
    session: Session
    refusals = 0

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        if self.refusals:
            self.refusals -= 1
            raise MetadataRefusedError("ZooKeeper refuses it: NoAuthError")
        return await super().get(path, changed)

    async def tell(self, *paths: str) -> None:
        """As another session."""
        told = {"version": 1, "session": 1, "paths": paths, "ephemeral": []}
        await self.create(CHANGE, json.dumps(told).encode(), sequential=True)


def test_a_read_that_is_refused_does_not_end_it() -> None:
    async def main(sim: Simulation) -> None:
        client = Client()
        client.session = Session(SimClock(sim.loop))
        session = cast("ZooKeeperClient", client)
        await find_or_create(session, "identity", create=True)
        heard: list[str] = []
        queue = ChangeQueue(
            session, lambda paths, _: heard.extend(paths), lambda: heard.append("missed")
        )
        await queue.start()
        client.refusals = 2
        await client.tell("/a")
        await asyncio.sleep(5)
        await client.tell("/b")
        await asyncio.sleep(5)
        assert heard == ["missed", "/b"]
        client.session.end()
        client.refusals = 1
        await client.tell("/c")
        await asyncio.sleep(20)
        assert queue._task is not None
        assert queue._task.done()
        assert heard == ["missed", "/b"]

    simulate(main)
