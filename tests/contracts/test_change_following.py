"""Whoever follows others' changes in ZooKeeper or etcd hears of each, or that some were missed.

Meanwhile connections are lost, servers refuse reads and delete old changes, and watches fire late,
twice or never. After each change the follower hears its path, or that changes were missed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, cast

import pytest

from pulsark.errors import MetadataRefusedError
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.connection import BrokenError
from pulsark.metadata.etcd.gateway import RefusedError
from pulsark.metadata.etcd.layout import Layout as EtcdLayout
from pulsark.metadata.etcd.marks import Marks
from pulsark.metadata.etcd.messages import TxnAnswer
from pulsark.metadata.etcd.watch import Watch
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper.change_queue import ChangeQueue, Ephemerals
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import CHANGE, CHANGES, Layout
from pulsark.metadata.zookeeper.nodes import Node
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper

SEEDS = 40
STEPS = 60
REST_SECONDS = 60.0
MISSED = "missed"


class Following(Protocol):
    """A server, and the follower of one session."""

    heard: list[str]

    async def start(self, sim: Simulation, rng: random.Random) -> None:
        """Follow from now on."""

    async def change(self, *paths: str) -> None:
        """Let another session make a change."""

    async def change_here(self, path: str) -> None:
        """Let this session make one, of which it knows by itself."""

    async def cut(self) -> None:
        """Lose the connection."""

    async def refuse(self, times: int) -> None:
        """Let the next reads fail."""

    async def forget(self) -> None:
        """Delete all changes, as if the follower were far behind."""

    def close(self) -> None:
        """Follow no longer."""


class FaultyZooKeeper(MemoryZooKeeper):
    """One session, whose watches come late, twice or never; some reads are refused."""

    address = "memory"
    session_id = 7
    session: Session
    refusals = 0
    rng: random.Random

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.choice([0.001, 0.01, 0.1]))
        if self.refusals:
            self.refusals -= 1
            raise MetadataRefusedError("ZooKeeper refuses it")
        return await super().get(path, changed)

    def _watch(self, where: str, changed: Callable[[], None] | None) -> None:
        if changed is None:
            return
        call = changed

        def fires() -> None:
            fate = self.rng.random()
            loop = asyncio.get_running_loop()
            if fate < 0.3:
                loop.call_later(self.rng.choice([0.01, 1.0]), call)
            if fate > 0.25 and (fate < 0.9 or "/changes" not in where):
                loop.call_soon(call)

        super()._watch(where, fires)


class InZooKeeper:
    """``ChangeQueue``."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.server = FaultyZooKeeper()

    async def start(self, sim: Simulation, rng: random.Random) -> None:
        self.server.session = Session(SimClock(sim.loop))
        self.server.rng = rng
        session = cast("Any", self.server)
        await find_or_create(session, "identity", create=True)
        self._queue = ChangeQueue(
            session,
            lambda paths, ephemeral: self.heard.extend([*paths, *ephemeral]),
            lambda: self.heard.append(MISSED),
        )
        await self._queue.start()

    async def change(self, *paths: str) -> None:
        told = {"version": 1, "session": 1, "paths": paths[1:], "ephemeral": paths[:1]}
        await self.server.create(CHANGE, json.dumps(told).encode(), sequential=True)

    async def change_here(self, path: str) -> None:
        told = {"version": 1, "session": 7, "paths": [path], "ephemeral": []}
        # Its answer may come behind the news of it, but before the next turn of who waits for it.
        node = await self.server.create(CHANGE, json.dumps(told).encode(), sequential=True)
        self._queue.created(node)

    async def cut(self) -> None:
        self.server.lose_connection()

    async def refuse(self, times: int) -> None:
        self.server.refusals = times

    async def forget(self) -> None:
        for name in await self.server.children(CHANGES):
            await self.server.delete(f"{CHANGES}/{name}")

    def close(self) -> None:
        self._queue.close()


class InEtcd:
    """``Watch``."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._layout = EtcdLayout("")
        self._made: list[list[str]] = []
        self._first = 0
        """The first revision that is kept, from 0."""
        self._refusals = 0
        self._cut = asyncio.Event()
        self._more = asyncio.Event()

    async def start(self, sim: Simulation, rng: random.Random) -> None:
        self._rng = rng
        self._watch = Watch(
            cast("Any", self), cast("Any", self), self._layout, Marks(), self.heard.extend,
            lambda: self.heard.append(MISSED),
        )  # fmt: skip
        self._watch.start(0)

    def on_moved(self, listener: Callable[[], None]) -> None:
        self._moved = listener

    async def read(self, operations: object, deadline: float) -> TxnAnswer:
        await asyncio.sleep(self._rng.choice([0, 0.01]))
        if self._refusals:
            self._refusals -= 1
            raise RefusedError(8, "etcdserver: too many requests")
        return TxnAnswer(True, len(self._made), [])

    async def stream(
        self, method: str, body: Any, seconds: float
    ) -> AsyncGenerator[messages.Json, None]:
        number = int(body["create_request"]["start_revision"]) - 1
        self._cut.clear()
        if self._refusals:
            self._refusals -= 1
            raise BrokenError("refused")
        if number < self._first:
            yield {"canceled": True, "compact_revision": str(self._first + 1)}
            raise BrokenError("its end")
        while True:
            while number < len(self._made):
                paths = self._made[number]
                split = self._rng.randint(0, len(paths) - 1)
                for part, fragment in ((paths[:split], True), (paths[split:], False)):
                    if self._cut.is_set():
                        raise BrokenError("cut")
                    if part:
                        yield self._answer(number + 1, part, fragment)
                    await asyncio.sleep(self._rng.choice([0, 0, 0.01]))
                number += 1
            self._more.clear()
            waiting = [asyncio.ensure_future(each.wait()) for each in (self._more, self._cut)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
            if self._cut.is_set():
                raise BrokenError("cut")

    def _answer(self, revision: int, paths: list[str], fragment: bool) -> messages.Json:
        keys = [messages._text(self._layout.key(path)) for path in paths]
        events = [{"kv": {"key": key, "mod_revision": str(revision)}} for key in keys]
        return {"events": events, "fragment": fragment}

    async def change(self, *paths: str) -> None:
        self._made.append(list(paths))
        self._more.set()

    async def change_here(self, path: str) -> None:
        await self.change(path)
        if not self._watch.made(len(self._made)):
            raise AssertionError("it was told before its answer came")

    async def cut(self) -> None:
        self._cut.set()
        if self._rng.random() < 0.3:
            self._moved()

    async def refuse(self, times: int) -> None:
        self._refusals = times

    async def forget(self) -> None:
        self._first = len(self._made)

    def close(self) -> None:
        self._watch.close()


@pytest.mark.parametrize("server", [InZooKeeper, InEtcd])
def test_each_change_is_told_or_known_to_be_missed(server: Callable[[], Following]) -> None:
    faults, misses = 0, 0
    for seed in range(SEEDS):
        rng = random.Random(seed)

        async def main(sim: Simulation, rng: random.Random = rng, seed: int = seed) -> Following:
            nonlocal faults
            following = server()
            await following.start(sim, rng)
            made: list[tuple[str, int]] = []
            own: set[str] = set()

            async def changes(count: int, *, here: bool) -> None:
                paths = [f"/c/{len(made) + i}" for i in range(count)]
                made.extend((path, len(following.heard)) for path in paths)
                if here:
                    own.add(paths[0])
                    await following.change_here(paths[0])
                else:
                    await following.change(*paths)

            disturbs: list[Callable[[], Awaitable[None]]] = [
                following.cut, following.forget, lambda: following.refuse(rng.randint(1, 3)),
            ]  # fmt: skip
            disturbed = rng.random() < 0.8
            for _ in range(STEPS):
                if disturbed and rng.random() < 0.15:
                    faults += 1
                    await rng.choice(disturbs)()
                else:
                    here = rng.random() < 0.3
                    await changes(1 if here else rng.randint(1, 3), here=here)
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.choice([0, 0.001, 0.1, 1.0, 5.0]))
            await following.refuse(0)
            await asyncio.sleep(REST_SECONDS)
            for path, before in made:
                later = following.heard[before:]
                assert path in later or path in own or MISSED in later, (seed, path)
            assert disturbed or set(following.heard).isdisjoint({*own, MISSED}), seed
            following.close()
            return following

        misses += simulate(main, seed=seed).heard.count(MISSED)
    assert faults > SEEDS
    assert misses


def test_an_ephemeral_value_that_vanishes_is_told_of_however_its_watch_comes() -> None:
    """Before it is watched, meanwhile, and behind a lost connection."""
    for seed in range(100):
        rng = random.Random(seed)

        async def main(sim: Simulation, rng: random.Random = rng, seed: int = seed) -> None:
            server = FaultyZooKeeper()
            server.rng = rng
            layout, heard = Layout(), list[str]()
            ephemerals = Ephemerals(
                cast("Any", server), layout, heard.append, lambda path: path != "/unwanted"
            )
            server.on_regained(lambda: heard.append(MISSED))
            node = layout.node("/a")
            await server.make(node.rpartition("/")[0])
            for turn in range(8):
                await server.create(node, b"", ephemeral=True)
                before = len(heard)
                ephemerals.watch("/a")
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02, 0.2]))
                if rng.random() < 0.3:
                    server.lose_connection()
                    ephemerals.watch("/a")  # as who reads it again does
                if rng.random() < 0.3:
                    ephemerals.watch("/a")
                await server.delete(node)
                await asyncio.sleep(5)
                assert {"/a", MISSED} & set(heard[before:]), (seed, turn)
            ephemerals.watch("/unwanted")
            assert not ephemerals._tasks
            ephemerals.close()

        simulate(main, seed=seed)
