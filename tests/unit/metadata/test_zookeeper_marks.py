"""Marks while sessions of other processes begin."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.history import mark_of
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper.layout import HISTORY
from pulsark.metadata.zookeeper.marks import Marks
from pulsark.metadata.zookeeper.nodes import Node, NodeVersionError
from pulsark.runtime import Runtime, SystemClock
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate


class Server:
    """The history's node, as one client sees it; others write to it with ``begin``."""

    def __init__(self) -> None:
        self.session = Session(SystemClock())
        self.zxid = 10
        self.node = Node(b"", 0, 0, 0, 5, 5, 0)
        self.watches: list[Callable[[], None]] = []
        self.during_read: list[Callable[[], None]] = []
        self.regained: list[Callable[[], None]] = []
        self.seconds = 0.0
        """How long it takes to answer."""
        self.reads = self.writes = 0

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node:
        assert path == HISTORY
        self.reads += 1
        node = self.node
        if changed is not None:
            self.watches.append(changed)
        await asyncio.sleep(self.seconds)
        if self.during_read:
            self.during_read.pop(0)()
        return node

    async def set(self, path: str, data: bytes, version: int) -> int:
        self.writes += 1
        await asyncio.sleep(self.seconds)
        if version != self.node.version:
            raise NodeVersionError(path)
        self.write(data)
        return self.node.version

    def write(self, data: bytes) -> None:
        """The server tells of a change before it answers anything later."""
        zxid = self.zxid + 1
        self.node = Node(data, self.node.version + 1, 0, 0, 5, zxid, 0)
        watches, self.watches = self.watches, []
        for changed in watches:
            changed()
        self.zxid = zxid

    def begin(self, nonce: int) -> None:
        """Another process writes its session down."""
        document = json.loads(self.node.data)
        document["sessions"][-1][0] = self.node.changed
        document["sessions"].append([0, nonce])
        self.write(json.dumps(document).encode())

    def on_regained(self, listener: Callable[[], None]) -> None:
        self.regained.append(listener)


async def started(server: Server, seed: int = 0) -> Marks:
    marks = Marks(server, Runtime(rng=random.Random(seed)))  # type: ignore[arg-type]
    await marks.start(1)
    return marks


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        await scenario()

    simulate(main)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_no_mark_has_an_old_nonce_once_a_session_has_begun() -> None:
    async def scenario() -> None:
        server = Server()
        marks = await started(server)
        assert marks.mark == mark_of(11, 1)
        told: list[int] = []
        marks.listen(told.append)
        server.begin(2)
        server.zxid += 5
        assert marks.mark == mark_of(11, 1), "what is later belongs to a session not read yet"
        await turns()
        assert marks.mark == mark_of(17, 2) == told[-1]
        assert marks.knows(mark_of(11, 1))
        assert not marks.knows(mark_of(12, 1))

    run(scenario)


def test_a_session_that_began_while_the_connection_was_lost_is_noticed() -> None:
    async def scenario() -> None:
        server = Server()
        marks = await started(server)
        marks.follow()
        server.watches.clear()  # nobody tells of what happens meanwhile
        seen = server.zxid
        server.begin(2)
        server.zxid = seen
        for regained in server.regained:
            regained()
        server.zxid += 6
        assert marks.mark == mark_of(11, 1), "what is later belongs to a session not read yet"
        await turns()
        assert marks.mark == mark_of(17, 2)

    run(scenario)


def test_a_session_that_begins_while_the_history_is_read_is_read_too() -> None:
    async def scenario() -> None:
        server = Server()
        marks = await started(server)
        server.during_read.append(lambda: server.begin(3))
        server.begin(2)
        await turns()
        assert marks.mark == mark_of(13, 3)
        assert not marks.knows(mark_of(13, 2))

    run(scenario)


def test_after_an_adoption_marks_go_on_above_what_was_adopted() -> None:
    async def scenario() -> None:
        server = Server()
        marks = await started(server)
        strange = mark_of(1000, 7)
        assert not marks.knows(strange)
        await marks.start(4, [strange])
        assert marks.mark > strange
        assert marks.knows(marks.mark)
        adopted = marks.mark
        again = await started(server)  # as another process sees it
        await asyncio.sleep(2)
        assert again.knows(adopted)
        assert again.mark == marks.mark > adopted

    run(scenario)


def test_many_that_start_together_let_each_other_be_first() -> None:
    """Each start is one write that the others' are refused for, and one that all have to read."""
    brokers = 100

    async def scenario() -> None:
        server = Server()
        server.seconds = 0.002
        async with asyncio.timeout(60):
            all_marks: Sequence[Marks] = await asyncio.gather(
                *(started(server, seed) for seed in range(brokers))
            )
            await asyncio.sleep(2)
        assert len({marks.mark for marks in all_marks}) == 1
        assert server.writes < 8 * brokers
        assert server.reads < 20 * brokers

    run(scenario)


def test_who_is_never_the_first_gives_up() -> None:
    async def scenario() -> None:
        server = Server()

        async def refuse(path: str, data: bytes, version: int) -> int:
            raise NodeVersionError(path)

        server.set = refuse  # type: ignore[method-assign]
        with pytest.raises(MetadataError, match="others"):
            await started(server)

    run(scenario)
