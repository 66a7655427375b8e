"""Two brokers in memory that own partitions of one topic, over one bookie and one disk.

Topics are given to brokers by claiming their bundles, so a test says who owns what. Calls between
the brokers are direct; a test may lose their answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.brokers.owners import BundleOwner
from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.tables.far_tables import FarAttach
from pulsark.errors import NotAttachedError, OutcomeUnknownError, PulsarkError
from pulsark.metadata.changes import Change, Put
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import bundle_owner_path, table_path
from pulsark.metadata.store import Versioned
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.storage.table.files.record import DataFile
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.memory_bookie import MemoryBookie
from tests.support.tables import attached_files, entry

BASE = TopicName.parse("persistent://public/default/t")
PARTITIONS = 4

T = TypeVar("T")


class AnswerLost(PulsarkError):
    """Nobody knows what became of a call."""


class Calls:
    """``CallsToOthers`` by their ids. ``before`` and ``after`` may fail, and so may ``at_step``."""

    def __init__(self, brokers: dict[str, Broker]) -> None:
        self._brokers = brokers
        self.before: Callable[[FarAttach], Coroutine[Any, Any, None]] = self.nothing
        self.after: Callable[[FarAttach], Coroutine[Any, Any, None]] = self.nothing
        self.attaches: list[FarAttach] = []
        self.at_step: Callable[[str], Coroutine[Any, Any, None]] = self.no_step
        """Hears of each step of a bulk publish, for instance ``before hold broker-id`` and ``after
        hold broker-id`` in partitions of others, ``before intent`` and ``after intent``."""

    async def attach(self, broker_id: str, asked: FarAttach) -> None:
        self.attaches.append(asked)
        await self.before(asked)
        await self._to(broker_id).sealing.for_others.attach(asked)
        await self.after(asked)

    async def existing(
        self, broker_id: str, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        others = self._to(broker_id).sealing.for_others
        return await others.existing(name, table_id, ledger_ids)

    async def work(self, broker_id: str, base: TopicName, what: Mapping[str, Any]) -> Any:
        works = self._to(broker_id).sealing.part_works
        told = json.loads(json.dumps(what))
        return await self._step(what["do"], broker_id, lambda: works.do(base, told))

    async def check_writable(
        self, broker_id: str, base: TopicName, partitions: Sequence[int]
    ) -> None:
        others = self._to(broker_id).bulk_publishing.for_others
        await self._step("check", broker_id, lambda: others.check_writable(base, partitions))

    async def reserve(
        self,
        broker_id: str,
        base: TopicName,
        asker: str,
        token: str,
        wanted: Mapping[int, Sequence[NewLedger]],
        rows: Mapping[int, int],
    ) -> dict[int, list[int]]:
        others = self._to(broker_id).bulk_publishing.for_others
        found = await self._step(
            "reserve", broker_id, lambda: others.reserve(base, asker, token, wanted, rows)
        )
        return {partition: list(ids) for partition, ids in found.items()}

    async def hold_appends(self, broker_id: str, base: TopicName, token: str) -> None:
        others = self._to(broker_id).bulk_publishing.for_others
        await self._step("hold", broker_id, lambda: others.hold_appends(token))

    async def decide(self, broker_id: str, base: TopicName, token: str, exist: bool | None) -> None:
        others = self._to(broker_id).bulk_publishing.for_others
        await self._step("decide", broker_id, lambda: others.decide(token, exist))

    def _to(self, broker_id: str) -> Broker:
        if broker_id not in self._brokers:
            raise NotAttachedError(f"the broker {broker_id} is gone")
        return self._brokers[broker_id]

    async def _step(
        self, what: str, broker_id: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        await self.at_step(f"before {what} {broker_id}")
        done = await call()
        await self.at_step(f"after {what} {broker_id}")
        return done

    async def no_step(self, _step: str) -> None:
        """A step goes well."""

    async def nothing(self, _asked: FarAttach) -> None:
        """A call goes well."""


class Store(MemoryMetadataStore):
    """The session of one broker, which may be away. Intents of the table are steps of ``calls``."""

    def __init__(self, tree: MemoryTree, calls: Calls) -> None:
        super().__init__(tree)
        self._calls = calls
        self.back_at = 0.0

    async def get(self, path: str) -> Versioned | None:
        self._check_there()
        return await super().get(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        self._check_there()
        intent = any(
            isinstance(change, Put)
            and change.path == table_path(BASE)
            and json.loads(change.value).get("intent") is not None
            for change in changes
        )
        if intent:
            await self._calls.at_step("before intent")
        made = await super().commit(changes)
        if intent:
            await self._calls.at_step("after intent")
        return made

    def _check_there(self) -> None:
        if asyncio.get_running_loop().time() < self.back_at:
            raise OutcomeUnknownError("the store does not answer")


class TableBrokers:
    """``a`` and ``b``; ``start`` gives ``a`` the table and every second partition."""

    def __init__(self, sim: Simulation, **changed: Any) -> None:
        names = ("EnsembleSize", "WriteQuorum", "AckQuorum")
        quorums = {f"managedLedgerDefault{name}": 1 for name in names}
        quiet = {"sealEnabled": False, "defaultNumberOfNamespaceBundles": 64}
        self._settings = Settings(**{**quorums, **quiet, **changed})
        self._runtime = sim.runtime(SimDisk())
        self.disk = self._runtime.disk
        self.tree = MemoryTree()
        self.bookie = MemoryBookie()
        self.brokers: dict[str, Broker] = {}
        self.calls = Calls(self.brokers)
        self.stores: dict[str, Store] = {}
        self.sent: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}

    async def start(self) -> None:
        self.a, self.b = await self.started("a"), await self.started("b")
        await self.a.creation.create_partitioned_topic(BASE, PARTITIONS, {})
        await self._own()
        names = [BASE, *map(self.name, range(PARTITIONS))]
        assert len({await self.a.ownership.bundle_named(name) for name in names}) == len(names)

    async def restart(self, tree: MemoryTree | None = None, *, own: bool = False) -> None:
        """All end, and with ``own`` begin again, over a metadata store that may be an older one."""
        for broker in self.brokers.values():
            await broker.close()
        self.brokers.clear()
        for store in self.stores.values():
            store.expire()
        self.tree = tree or self.tree
        if own:
            self.a, self.b = await self.started("a"), await self.started("b")
            await self._own()

    async def _own(self) -> None:
        await self.a.ownership.own(BASE)
        for number in range(PARTITIONS):
            await self.owner(number).ownership.own(self.name(number))

    async def started(self, host: str) -> Broker:
        """A broker under this name, beside those that there are."""
        metadata = self.stores[host] = Store(self.tree, self.calls)
        tables = inline_tables(["/table"], metadata, self._runtime)
        ledgers = LedgerManager(metadata, {"b1": self.bookie}, self._runtime, tables)
        broker = Broker(self._settings, self._runtime, metadata, ledgers, tables)
        broker.sealing.far.calls = lambda: self.calls
        urls = ServiceUrls(f"pulsar://{host}:6650", f"http://{host}:8080", f"grpc://{host}:8815")
        await broker.start(urls)
        await asyncio.sleep(0.1)
        self.brokers[urls.broker_id] = broker
        return broker

    def name(self, partition: int) -> TopicName:
        return BASE.with_partition(partition)

    def owner(self, partition: int) -> Broker:
        return (self.a, self.b)[partition % 2]

    async def publish(self, broker: Broker, partition: int, count: int) -> None:
        """Publish straight into the ledger, as a topic does."""
        topic = await broker.topics.load(self.name(partition), create=True)
        sent = self.sent[partition]
        for number in range(len(sent), len(sent) + count):
            data = entry(number, number % 3)
            topic.ledger.append(data, stored_entry(EARLIEST, data))
            sent.append(data)
            await asyncio.sleep(0.01)

    async def seal(self, broker: Broker, *partitions: int) -> None:
        """Seal all that there is of partitions that a broker owns."""
        topics = [await broker.topics.load(self.name(number)) for number in partitions]
        await broker.sealing.seal(BASE, topics, everything=True)

    async def take(self, broker: Broker, partition: int, before: Broker) -> None:
        """A partition's bundle moves; the former owner does not know it yet."""
        bundle = await broker.ownership.bundle_named(self.name(partition))
        await before.ownership._claims.end(before.ownership.guard_of(bundle))
        await broker.ownership.claim(bundle)

    # -- what there is ---

    async def read(self, broker: Broker, partition: int) -> list[tuple[Position, bytes]]:
        """All entries of a partition, as its consumers get them."""
        topic = await broker.topics.load(self.name(partition))
        found: list[tuple[Position, bytes]] = []
        position = EARLIEST
        while read := await topic.ledger.read(position, 1000, 1 << 20):
            found += read
            position = topic.ledger.next_position(read[-1][0])
        return found

    def files(self) -> list[DataFile]:
        """The files of the table, as its log has them."""
        (table,) = self.disk.list("/table/public/default")
        return attached_files(self.disk, f"/table/public/default/{table}")[1]

    def ranges(self) -> dict[int, list[tuple[int, int, int]]]:
        """By partition: ledger, first and last entry of each file of the table, in order."""
        found: dict[int, list[tuple[int, int, int]]] = {n: [] for n in range(PARTITIONS)}
        for file in self.files():
            place = (file.ledger_id, file.first_entry_id, file.last_entry_id)
            found[file.partition].append(place)
        return {partition: sorted(places) for partition, places in found.items()}

    def check_whole(self) -> None:
        """Every entry that was published is in the table, once."""
        for partition, places in self.ranges().items():
            assert sum(last - first + 1 for _, first, last in places) == len(self.sent[partition])
            ends: dict[int, int] = {}
            for ledger_id, first, last in places:
                assert first == ends.get(ledger_id, -1) + 1, (partition, places)
                ends[ledger_id] = last

    async def in_journal(self) -> int:
        """Entries that no broker has had released."""
        found = 0
        for number in range(PARTITIONS):
            topic = await self.owner(number).topics.load(self.name(number))
            found += sum(len(self.bookie.entries(i.ledger_id)) for i in topic.ledger.ledgers())
        return found


class ThreeBrokers:
    """``a`` has the table and partitions 0 and 2, ``b`` partition 1, a third one partition 3."""

    def __init__(self, brokers: TableBrokers) -> None:
        self.brokers = brokers
        self.all: list[Broker] = []

    async def start(self) -> None:
        brokers = self.brokers
        c = await brokers.started("c")
        bundle = await brokers.b.ownership.bundle_named(brokers.name(3))
        await brokers.b.bundle_release.release(bundle)
        await c.ownership.claim(bundle)
        self.all = [brokers.a, brokers.b, c]

    async def owner(self, name: TopicName) -> Broker:
        """Who has a bundle, as all will know; the last one claims what nobody has."""
        bundle = await self.all[-1].ownership.bundle_named(name)
        stored = await self.all[-1].metadata.get(bundle_owner_path(bundle))
        if stored is None:
            await self.claim(self.all[-1], name)
            return self.all[-1]
        broker_id = BundleOwner.decode(stored.value).broker_id
        return next(each for each in self.all if each.registry.own_id == broker_id)

    async def claim(self, broker: Broker, name: TopicName) -> None:
        """Also by one that has lost it and does not know."""
        held = broker.ownership.guard_of(await broker.ownership.bundle_named(name))
        if held is not None:
            broker.ownership.lost(held)
            await broker.bundle_release.settled()
        await broker.ownership.own(name)

    def lose(self, host: str) -> None:
        """The session of a broker ends: others may have all of its bundles from now on."""
        self.brokers.stores[host].expire()
        self.all.remove(self.brokers.brokers[f"{host}:8080"])
        del self.brokers.brokers[f"{host}:8080"]

    async def move(self, name: TopicName, to: Broker, *, in_order: bool) -> None:
        bundle = await to.ownership.bundle_named(name)
        before = await self.owner(name)
        if before is to:
            return
        if in_order:
            await before.bundle_release.release(bundle)
        else:  # it does not know
            await before.ownership._claims.end(before.ownership.guard_of(bundle))
        await self.claim(to, name)


def two_brokers(**changed: Any) -> Callable[..., Callable[[], None]]:
    """Run a test with brokers of its own, in virtual time."""

    def wrap(test: Callable[[TableBrokers], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            with Simulation() as sim:
                brokers = TableBrokers(sim, **changed)

                async def main() -> None:
                    await brokers.start()
                    await test(brokers)

                sim.run(main())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return wrap
