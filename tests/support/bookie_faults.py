"""A topic on real bookies as its owner has it, and what can happen to a bookie below it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.paths import bundle_epoch_path
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.processes.java_process import HOST
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from pulsark.storage.bookkeeper.limits import ClientSettings
from pulsark.storage.bookkeeper.link import Address
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.wire.position import EARLIEST
from tests.support.bookkeeper import ROOT, Cluster, cluster_of
from tests.support.history import History, Id, Payload, violations
from tests.support.zookeeper import connected

PRODUCER = "p"
AS_IN_PRODUCTION = ClientSettings()
THREE_COPIES = ManagedLedgerConfig(3, 3, 2)


class Relay:
    """Stands before one bookie, or another server, and can hold up what that answers."""

    def __init__(self, address: Address) -> None:
        self.delay = 0.0
        """Seconds by which answers come later."""
        self._address = address
        self._server: asyncio.Server | None = None
        self._going = asyncio.Event()
        self._going.set()
        self._refusals = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        self._server = await asyncio.start_server(self._serve, HOST)
        return Address(HOST, self._server.sockets[0].getsockname()[1])

    def hold(self) -> None:
        """Pass on no more answers; connections stay."""
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    def refuse(self, connections: int) -> None:
        """Close so many new connections at once, as what has not quite started does."""
        self._refusals = connections

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusals:
            self._refusals -= 1
            writer.close()
            return
        there, back = await asyncio.open_connection(*self._address)
        for task in (
            asyncio.ensure_future(self._pass(reader, back, answers=False)),
            asyncio.ensure_future(self._pass(there, writer, answers=True)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if answers:
                    if self.delay:
                        await asyncio.sleep(self.delay)
                    await self._going.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


class RelayedRegistry(BookieRegistry):
    """Reaches the bookies that have one by a relay."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.relays: dict[str, Relay] = {}
        self._places: dict[str, Address] = {}

    async def address(self, bookie_id: str) -> Address:
        own = await super().address(bookie_id)
        relay = self.relays.get(bookie_id)
        if relay is None:
            return own
        if bookie_id not in self._places:
            self._places[bookie_id] = await relay.start()
        return self._places[bookie_id]

    async def relay(self, bookie_id: str) -> Relay:
        """Reach a bookie by a relay from its next connection on. Before it has any."""
        relay = self.relays[bookie_id] = Relay(await super().address(bookie_id))
        return relay


@dataclass
class Broker:
    """What one broker has of a cluster: its sessions, its bookies, its ledgers."""

    client: ZooKeeperClient
    metadata: ZooKeeperMetadataStore
    bookies: RelayedRegistry
    ledgers: LedgerManager
    lost: list[bool] = field(default_factory=list)

    async def owning(self, bundle: str = "b") -> tuple[GuardedMetadataStore, LedgerManager]:
        """Claim a bundle, as a new owner does; returns what writes as long as that holds."""
        path = bundle_epoch_path(bundle)
        version = await self.metadata.put(path, b"%d" % time.monotonic_ns())
        guard = Check(path, version)
        guarded = GuardedMetadataStore(self.metadata, guard, lambda: self.lost.append(True))
        return guarded, self.ledgers.over(guarded)

    async def open(
        self,
        path: str,
        listener: Publishing | None = None,
        config: ManagedLedgerConfig | None = None,
    ) -> ManagedLedger:
        """Own a topic."""
        guarded, ledgers = await self.owning()
        return await ManagedLedger.open(
            path, ledgers, guarded, config or THREE_COPIES, Runtime(), listener
        )


@asynccontextmanager
async def broker_of(
    cluster: Cluster, settings: ClientSettings = AS_IN_PRODUCTION, relayed: Sequence[str] = ()
) -> AsyncIterator[Broker]:
    """One more broker, in this process."""
    async with contextlib.AsyncExitStack() as cleanup:
        metadata = await ZooKeeperMetadataStore.open(
            cluster.address, Runtime(), session_seconds=10.0, timeout_seconds=10.0
        )
        cleanup.push_async_callback(metadata.close)
        client = await connected(cluster.address, session=10.0)
        cleanup.push_async_callback(client.close)
        registry = RelayedRegistry(client, ROOT, LedgerKeys(), settings)
        cleanup.push_async_callback(registry.close)
        for bookie_id in relayed:
            relay = await registry.relay(bookie_id)
            cleanup.push_async_callback(relay.close)
        await registry.start()
        for bookie in registry.values():
            await bookie.ready()
        guards = await GuardNodes.find(client, "", metadata.identity)
        shared = replace(cluster_of(client, registry.ledger_keys), guards=guards)
        store = BookKeeperLedgerStore(shared, metadata)
        ledgers = LedgerManager(metadata, registry, Runtime(), store=store, places=registry)
        yield Broker(client, metadata, registry, ledgers)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        await asyncio.sleep(0.01)


class Publishing:
    """A producer with several entries under way, which sends again what failed, as clients do.

    Listens to the managed ledger; notes how long each entry waited for its receipt.
    """

    def __init__(self, size: int = 200, window: int = 50, pause: float = 0.005) -> None:
        self.history = History()
        self.waits: list[tuple[float, float]] = []
        """When a receipt came, and after how long."""
        self.errors: list[Exception] = []
        self.topic: ManagedLedger | None = None
        self._padding = b"." * size
        self._window = window
        self._pause = pause
        self._next = 0
        self._began: dict[Payload, float] = {}
        self._again: list[Payload] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, topic: ManagedLedger) -> None:
        self.topic = topic
        topic.tell(self)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Send nothing new, and wait for all receipts."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

        def all_received() -> bool:
            self._repeat()
            return not self._began

        await until(all_received)

    @property
    def receipts(self) -> int:
        return len(self.history.receipts)

    async def until(self, more: int, seconds: float = 60.0) -> None:
        """Return after so many further receipts."""
        wanted = self.receipts + more
        await until(lambda: self.receipts >= wanted, seconds)

    def longest(self, since: float = 0.0) -> float:
        """The longest wait for a receipt; those that still wait count, too."""
        now = time.monotonic()
        waits = [wait for at, wait in self.waits if at >= since]
        return max([*waits, *(now - began for began in self._began.values())], default=0.0)

    async def _run(self) -> None:
        while True:
            self._repeat()
            while len(self._began) < self._window:
                payload = (PRODUCER, self._next)
                self._next += 1
                self.history.sent.add(payload)
                self._began[payload] = time.monotonic()
                self._append(payload)
            await asyncio.sleep(self._pause)

    def _repeat(self) -> None:
        again, self._again = self._again, []
        for payload in again:
            self._append(payload)

    def _append(self, payload: Payload) -> None:
        assert self.topic is not None
        self.topic.append(b"%s %d " % (payload[0].encode(), payload[1]) + self._padding, payload)

    # The listener of the managed ledger.

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        now = time.monotonic()
        for entry_id, payload in enumerate(contexts, first_entry_id):
            self.history.receipts[payload] = Id(0, ledger_id, entry_id)
            self.waits.append((now, now - self._began.pop(payload)))

    def append_failed(self, contexts: list[Any], error: Exception) -> None:
        self.errors.append(error)
        self._again += contexts

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None: ...

    def ledgers_attached(self, infos: Sequence[LedgerInfo]) -> None: ...

    def ledger_closed(self) -> None: ...


async def check(publishing: Publishing, topic: ManagedLedger) -> None:
    """Read a topic from its beginning, and keep it against all that was promised."""
    history = publishing.history
    history.log.clear()
    position = EARLIEST
    while batch := await topic.read(position, 500, 1 << 20):
        for at, entry in batch:
            name, number, padding = entry.split(b" ", 2)
            assert padding == publishing._padding, f"{at} is damaged"
            history.log.append((Id(0, at.ledger_id, at.entry_id), (name.decode(), int(number))))
        position = topic.next_position(batch[-1][0])
    assert violations(history) == []
    assert history.receipts
