"""Who follows what others tell of in ZooKeeper does so for as long as its session lives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from kazoo.protocol.states import ZnodeStat

from pulsark.errors import MetadataRefusedError
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper import change_queue
from pulsark.metadata.zookeeper.change_queue import ChangeQueue, node_of
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import CHANGE, CHANGES
from pulsark.metadata.zookeeper.nodes import DeleteNode, Node, Operation, Result
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
    writes = 0

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        self.writes += 1
        return await super().multi(operations)

    async def apply(self, operation: Operation) -> Result:
        return (await self.multi((operation,)))[0]

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


def test_who_starts_deletes_old_changes_that_nobody_has_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was to delete them has died, or ZooKeeper was away just then."""
    monkeypatch.setattr(change_queue, "METADATA_CHANGES_KEPT", 10)
    monkeypatch.setattr(change_queue, "_TRIM_EACH", 4)

    async def main(sim: Simulation) -> None:
        client = Client()
        client.session = Session(SimClock(sim.loop))
        session = cast("ZooKeeperClient", client)
        await find_or_create(session, "identity", create=True)
        for number in range(33):
            await client.tell(f"/{number}")
        await client.delete(node_of(2))
        await client.create(f"{CHANGES}/foreign")
        newest = [node_of(number).removeprefix(f"{CHANGES}/") for number in range(24, 33)]
        queue = ChangeQueue(session, lambda _, __: None, lambda: None)
        await queue.start()
        await asyncio.sleep(1)
        assert sorted(await client.children(CHANGES)) == ["foreign", *newest]
        queue.close()

    simulate(main)


def test_of_many_that_start_together_one_deletes_old_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_queue, "METADATA_CHANGES_KEPT", 10)
    monkeypatch.setattr(change_queue, "_TRIM_EACH", 4)

    async def main(sim: Simulation) -> None:
        client = Client()
        client.session = Session(SimClock(sim.loop))
        session = cast("ZooKeeperClient", client)
        await find_or_create(session, "identity", create=True)
        for number in range(50):
            await client.tell(f"/{number}")
        client.writes = 0
        queues = [ChangeQueue(session, lambda _, __: None, lambda: None) for _ in range(20)]
        await asyncio.gather(*(queue.start() for queue in queues))
        await asyncio.sleep(1)
        assert len(await client.children(CHANGES)) == 10
        assert client.writes == 40 / 4 + 19
        for queue in queues:
            queue.close()

    simulate(main)


@pytest.mark.parametrize("created", [0, 1, 7, (1 << 30) - 1, 1 << 30, (1 << 31) - 1])
@pytest.mark.parametrize("children", [0, 1, 5000])
def test_changes_are_counted_for_as_long_as_the_server_numbers_them(
    created: int, children: int
) -> None:
    """It tells creations and deletions together, in 32 bits with a sign: half as many."""

    async def main(_: Simulation) -> None:
        told = (2 * created - children + (1 << 31)) % (1 << 32) - (1 << 31)
        stat = ZnodeStat(1, 1, 0, 0, 0, told, 0, 0, 0, children, 1)

        class Calls:
            async def read_if_there(self, request: object, path: str) -> object:
                return b"", stat

        client = ZooKeeperClient.__new__(ZooKeeperClient)
        client._root = ""
        client._calls = cast("Any", Calls())
        found = await client.get("/changes")
        assert found is not None
        assert found.created_children == created

    simulate(main)


def test_whoever_tells_of_changes_deletes_old_ones_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few at a time, none twice, and none that somebody may still read."""
    monkeypatch.setattr(change_queue, "METADATA_CHANGES_KEPT", 10)
    monkeypatch.setattr(change_queue, "_TRIM_EACH", 4)
    deleted: list[int] = []

    class Counting(Client):
        async def multi(self, operations: Sequence[Operation]) -> list[Result]:
            names = [each.path for each in operations if isinstance(each, DeleteNode)]
            assert len(names) <= 4
            deleted.extend(int(name.removeprefix(CHANGE)) for name in names)
            return await super().multi(operations)

    async def main(sim: Simulation) -> None:
        client = Counting()
        client.session = Session(SimClock(sim.loop))
        session = cast("ZooKeeperClient", client)
        await find_or_create(session, "identity", create=True)
        queue = ChangeQueue(session, lambda _, __: None, lambda: None)
        await queue.start()
        for number in range(61):
            queue.created(await client.create(CHANGE, b"{}", sequential=True))
            await asyncio.sleep(1)
            assert all(each <= number - 10 for each in deleted)
        left = len(await client.children(CHANGES))
        assert 10 <= left <= 10 + 2 * 4
        assert sorted(deleted) == list(range(61 - left))
        queue.close()

    simulate(main)
