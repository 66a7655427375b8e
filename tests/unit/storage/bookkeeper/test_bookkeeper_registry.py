"""Which bookies a cluster has: they come, go, turn read-only and are formatted anew."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pulsark.errors import BookieAwayError, NoSuchEntryError, StorageError
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.runtime import new_done
from pulsark.storage.bookie.bookie import Bookie, EntryRun
from pulsark.storage.bookie.known_bookies import BookieState
from pulsark.storage.bookkeeper import registry as registry_module
from pulsark.storage.bookkeeper.bookie import BookKeeperBookie
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.limits import ClientSettings
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.proto.bookkeeper_pb2 import BookieServiceInfoFormat
from tests.support.memory_zookeeper import MemoryZooKeeper

ROOT = "/ledgers"
SECONDS = 10
SETTINGS = ClientSettings(away_seconds=SECONDS, connect_seconds=SECONDS)


class FakeBookie:
    """Confirms all adds, and has no entry."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Without a word to its clients; it may start again at the same port."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                body = await reader.readexactly(size)
                (head,) = struct.unpack_from(">I", body)
                place = body[24:40] if head >> 16 == 0x0201 else body[4:20]
                code = 0 if head >> 16 == 0x0201 else 2
                writer.write(struct.pack(">IIi", 24, head & 0xFFFF0000, code) + place)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@dataclass
class World:
    """ZooKeeper in memory, and bookies that register there."""

    server: MemoryZooKeeper = field(default_factory=MemoryZooKeeper)
    bookies: dict[str, FakeBookie] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    async def add(self, bookie_id: str) -> None:
        """A new bookie, formatted and started."""
        bookie = self.bookies[bookie_id] = FakeBookie()
        await bookie.start()
        await self.server.create(f"{ROOT}/cookies/{bookie_id}")
        await self.register(bookie_id)

    async def register(self, bookie_id: str, directory: str = "available") -> None:
        info = BookieServiceInfoFormat()
        info.endpoints.add(id="http", host="elsewhere", port=1, protocol="http")
        info.endpoints.add(
            id="bookie", host="127.0.0.1", port=self.bookies[bookie_id].port, protocol="bookie-rpc"
        )
        await self.server.create(f"{ROOT}/{directory}/{bookie_id}", info.SerializeToString())

    async def unregister(self, bookie_id: str, directory: str = "available") -> None:
        await self.server.delete(f"{ROOT}/{directory}/{bookie_id}")

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[BookieRegistry]:
        client = cast("ZooKeeperClient", self.server)
        registry = BookieRegistry(client, ROOT, LedgerKeys(), SETTINGS)
        registry.on_lost(self.lost.append)
        try:
            await registry.start()
            yield registry
        finally:
            await registry.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110 - a few turns of the loop
                await asyncio.sleep(0)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        for directory in ("available/readonly", "cookies"):
            await world.server.make(f"{ROOT}/{directory}")
        for bookie_id in ("b1", "b2"):
            await world.add(bookie_id)
        try:
            await scenario(world)
        finally:
            for bookie in world.bookies.values():
                await bookie.stop()

    asyncio.run(main())


async def appended(bookie: Bookie) -> None:
    future, done = new_done()
    bookie.append(EntryRun(7, 0, -1, [b"x"]), done)
    await future


def test_a_bookie_that_registers_nonsense_is_reached_once_it_says_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        await world.unregister("b2")
        right, world.bookies["b2"].port = world.bookies["b2"].port, 99_999
        await world.register("b2")
        async with world.registry() as registry:
            await world.until(lambda: "cannot connect to bookie b2" in caplog.text)
            world.bookies["b2"].port = right
            await world.unregister("b2")
            await world.register("b2")
            await registry["b2"].ready()
            await appended(registry["b2"])

    run(scenario)


def test_a_defect_while_bookies_are_listed_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            children, calls = world.server.children, 0

            async def fails(*arguments: Any) -> list[str]:
                nonlocal calls
                calls += 1
                if calls == 1:
                    raise AttributeError("a defect")
                return list(await children(*arguments))

            monkeypatch.setattr(world.server, "children", fails)
            monkeypatch.setattr(registry_module, "RETRY_SECONDS", 0.0)
            await world.add("b3")
            await world.until(lambda: "b3" in registry)
        (told,) = (each for each in caplog.records if "a defect" in each.getMessage())
        assert told.exc_info

    run(scenario)


def test_a_defect_while_a_bookie_is_looked_for_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        get, calls = world.server.get, 0

        async def fails(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise AttributeError("a defect")
            return await get(*arguments)

        monkeypatch.setattr(world.server, "get", fails)
        async with world.registry() as registry:
            for bookie in registry.values():
                await bookie.ready()
        (told,) = (each for each in caplog.records if "a defect" in each.getMessage())
        assert told.exc_info

    run(scenario)


@pytest.mark.feature("F71")
def test_bookies_come_and_go() -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            assert list(registry) == ["b1", "b2"]
            await registry["b1"].ready()
            await appended(registry["b1"])
            await world.add("b3")
            await world.until(lambda: "b3" in registry)
            await registry["b3"].ready()
            await appended(registry["b3"])
            await world.unregister("b3")
            await world.until(lambda: "b3" not in registry)
            assert world.lost == ["b3"]
            assert len(registry) == 2
            await appended(registry["b3"])  # a lost session does not end its connections

    run(scenario)


def test_a_bookie_that_is_read_only_is_there_but_not_for_new_entries() -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            registry.racks = {"b1": "/rack-1"}
            assert (registry.rack("b1"), registry.rack("b2")) == ("/rack-1", "/default-rack")
            await world.register("b2", "available/readonly")
            await world.unregister("b2")
            await world.until(lambda: not registry.is_writable("b2"))
            assert world.lost == ["b2"]
            assert list(registry) == ["b1", "b2"]
            with pytest.raises(NoSuchEntryError):
                await registry["b2"].read(7, 0, 0, 1)
            await world.server.create(f"{ROOT}/cookies/b9")
            assert await registry.states() == {
                "b1": BookieState.AVAILABLE,
                "b2": BookieState.READ_ONLY,
                "b9": BookieState.AWAY,
            }

    run(scenario)


def test_a_bookie_that_ledgers_name_before_it_is_back_is_used_once_it_is() -> None:
    async def scenario(world: World) -> None:
        await world.unregister("b2")
        async with world.registry() as registry:
            bookie = registry["b2"]
            assert bookie.is_away
            assert "b2" not in registry
            await bookie.delete(7)
            with pytest.raises(BookieAwayError):
                await appended(bookie)
            await world.register("b2")
            await bookie.ready()
            await appended(bookie)
            assert registry["b2"] is bookie

    run(scenario)


def test_what_changed_without_a_watch_is_seen_when_the_connection_is_back() -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            world.server.nodes.pop(f"{ROOT}/available/b2")
            world.server.lose_connection()
            await world.until(lambda: "b2" not in registry)
            await world.register("b2")
            await world.until(lambda: "b2" in registry)

    run(scenario)


def test_a_bookie_that_was_restarted_is_the_same_one_at_its_new_address() -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            bookie = registry["b1"]
            await bookie.ready()
            await world.bookies["b1"].stop()
            await world.until(lambda: bookie.is_away)
            await world.unregister("b1")
            world.bookies["b1"].port = 0
            await world.bookies["b1"].start()
            await world.register("b1")
            await bookie.ready()
            await appended(bookie)

    run(scenario)


def test_a_bookie_that_was_formatted_anew_is_another_one() -> None:
    async def scenario(world: World) -> None:
        async with world.registry() as registry:
            former = registry["b1"]
            await former.ready()
            await appended(former)
            await world.bookies["b1"].stop()
            await world.server.delete(f"{ROOT}/cookies/b1")
            await world.server.create(f"{ROOT}/cookies/b1")
            await world.bookies["b1"].start()
            await world.until(lambda: registry["b1"] is not former)
            assert world.lost == ["b1"]
            with pytest.raises(StorageError):
                await appended(former)
            with pytest.raises(StorageError, match="closed"):
                await former.ready()
            await registry["b1"].ready()
            await appended(registry["b1"])
            assert isinstance(registry["b1"], BookKeeperBookie)

    run(scenario)
