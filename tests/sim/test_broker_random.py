"""Producers, consumers, disconnects and crashes at random, on one broker over a simulated disk.

Each seed is a run of several lives: a life ends with an orderly stop or with a crash before some
disk step, after which only what was synced, or a random part of the rest, is found again. All
that clients see is checked as it happens; at the end every subscription is drained and the topic
is read as a whole. ``SEEDS=20000 make sim`` runs longer, ``SEED=17 make sim`` only that seed.

Planted bugs show that the checks can fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from pulsark.config import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.deduplication import Deduplication
from pulsark.dispatch.dispatcher import Dispatcher
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.key_shared import KeyShared
from pulsark.dispatch.subscription_type import SubType
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.cursor_state import CursorState
from pulsark.storage.journal_format import GROUP_HEAD_SIZE
from pulsark.storage.journal_settings import JournalSettings
from pulsark.storage.ledger import LedgerManager
from pulsark.storage.position import Position
from pulsark.storage.segment_writer import SegmentWriter
from pulsark.wire.topic_name import TopicName
from tests.sim.actors import TOPIC, Gone, SimConsumer, SimProducer, read_topic
from tests.sim.bookies import open_bookie
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.simulation import Simulation
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken, Deliveries, Identities
from tests.support.history import History, violations

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "200"))
GROUPS = 10
LIVES = 4
STEPS = 45
PLANTED_SEEDS = 60
"""Every planted bug shows within so many seeds."""

JOURNAL = JournalSettings(journal_max_size=30_000, checkpoint_bytes=10_000)
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerMaxEntriesPerLedger": 12,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "acknowledgmentAtBatchIndexLevelEnabled": True,
    "activeConsumerFailoverDelayTimeMillis": 0,
    "maxUnackedMessagesPerConsumer": 12,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "brokerDeleteInactiveTopicsEnabled": False,
    "brokerDeduplicationEntriesInterval": 7,
}
SUBSCRIPTIONS = (
    ("exclusive", SubType.Exclusive, 1),
    ("failover", SubType.Failover, 2),
    ("shared", SubType.Shared, 3),
    ("key-shared", SubType.Key_Shared, 3),
)


class World:
    """What outlives a broker: its disk and metadata, the clients, and all that was promised."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.disk = SimDisk()
        self.tree = MemoryTree()
        self.session = MemoryMetadataStore(self.tree)
        self.history = History()
        self.deduplicates = seed % 2 == 0
        identities = Identities(self.history.sent)
        self.producers = [SimProducer(name, self.history) for name in ("p", "q")]
        self.consumers = []
        self.subscriptions = []
        for name, kind, count in SUBSCRIPTIONS:
            deliveries = Deliveries(
                name, kind in (SubType.Exclusive, SubType.Failover), kind == SubType.Key_Shared,
                identities,
            )  # fmt: skip
            self.subscriptions.append(deliveries)
            self.consumers += [SimConsumer(kind, deliveries) for _ in range(count)]

    def run(self) -> None:
        """All lives, then the end; raises ``Broken``."""
        for life in range(LIVES):
            self.disk.capacity = None  # a bookie does not start on a full disk
            with Simulation(self.seed * 100 + life) as sim:
                if life and self.rng.random() < 0.8:
                    self.disk.crash_at = self.disk.steps + self.rng.randint(1, 120)
                crashed = sim.run_until_crash(self._live(sim, STEPS))
            for client in (*self.producers, *self.consumers):
                client.lost()
            if crashed:
                self.session.expire()
                survival = self.rng.choice(SURVIVALS)
                self.disk = self.disk.after_crash(survival, self.rng)
        self.disk.crash_at, self.disk.capacity = 0, None
        with Simulation(self.seed * 100 + LIVES) as sim:
            try:
                sim.run(self._end(sim))
            except (Gone, TimeoutError) as error:
                raise Broken("C1: the topic cannot be used any more") from error

    async def _broker(self, sim: Simulation) -> BrokerInMemory:
        made = BrokerInMemory.__new__(BrokerInMemory)
        made.bookie = await open_bookie(sim, self.disk, JOURNAL)  # type: ignore[assignment]
        made.metadata = self.session = MemoryMetadataStore(self.tree)
        runtime = sim.runtime(self.disk)
        ledgers = LedgerManager(made.metadata, {"b": made.bookie}, runtime)
        settings = Settings(**SETTINGS, brokerDeduplicationEnabled=self.deduplicates)
        made.broker = Broker(settings, runtime, made.metadata, ledgers)
        await made.start()
        return made

    async def _close(self, broker: BrokerInMemory) -> None:
        self._look()
        await broker.broker.close()
        await broker.bookie.close()  # type: ignore[attr-defined]
        await broker.metadata.close()

    async def _live(self, sim: Simulation, steps: int) -> None:
        broker = await self._broker(sim)
        if not self.history.sent:
            for consumer in self.consumers:
                await consumer.connect(broker)
        for _ in range(steps):
            await self._step(broker)
        await self._close(broker)

    async def _step(self, broker: BrokerInMemory) -> None:
        rng = self.rng
        self._look()
        if self.disk.capacity is None:
            if rng.random() < 0.02:
                self.disk.capacity = self.disk.used() + rng.randint(0, 600)
        elif rng.random() < 0.25:
            self.disk.capacity = None
        with contextlib.suppress(Gone, TimeoutError):
            await self._act(broker, rng.random())
        await asyncio.sleep(rng.choice([0, 0.001, 0.002, 0.02]))

    async def _act(self, broker: BrokerInMemory, choice: float) -> None:
        rng = self.rng
        producer, consumer = rng.choice(self.producers), rng.choice(self.consumers)
        if choice < 0.35:
            for _ in range(rng.randint(1, 3)):
                await producer.publish(broker, rng)
        elif choice < 0.40:
            producer.leave()
        elif choice < 0.55:
            await consumer.connect(broker)
        elif choice < 0.60:
            consumer.leave()
        elif choice < 0.85:
            if consumer.deliveries.ordered and rng.random() < 0.6:
                consumer.ack_up_to(rng)
            else:
                consumer.ack_some(rng)
        elif choice < 0.96:
            await consumer.redeliver(rng)
        else:
            await broker.broker.unload_topic(TopicName.parse(TOPIC))

    def _look(self) -> None:
        for producer in self.producers:
            producer.look()
        # Those that were told to go first: what they had may be with others already.
        for consumer in sorted(self.consumers, key=lambda c: c.connected):
            consumer.look()

    async def _end(self, sim: Simulation) -> None:
        """Everything heals: producers confirm all, subscriptions give what is left."""
        broker = await self._broker(sim)
        for producer in self.producers:
            for _ in range(10):
                await producer.connect(broker)
                await asyncio.sleep(0.1)
                producer.look()
            if producer.pending:
                raise Broken(f"C1: {producer.name} gets no receipt")
        self.history.log = await read_topic(broker)
        for _, kind, _ in SUBSCRIPTIONS:
            deliveries = self.subscriptions[[k for _, k, _ in SUBSCRIPTIONS].index(kind)]
            await self._drain(broker, kind, deliveries)
        found = violations(self.history)
        if found:
            raise Broken(found[0])
        payloads = [payload for _, payload in self.history.log]
        for producer in self.producers:
            lost = producer.known_before - set(payloads)
            if lost:
                raise Broken(f"C1: {min(lost)} is not stored, and was taken for a duplicate")
        if self.deduplicates and len(payloads) > len(set(payloads)):
            raise Broken("C5: a message is stored twice")
        await self._close(broker)

    async def _drain(self, broker: BrokerInMemory, kind: int, deliveries: Deliveries) -> None:
        consumer = SimConsumer(kind, deliveries, permits=1000)
        consumer.drained = set()
        await consumer.connect(broker)
        quiet = 0
        while quiet < 3:
            before = len(consumer.drained)
            await asyncio.sleep(1.1)
            consumer.look()
            quiet = quiet + 1 if len(consumer.drained) == before else 0
        deliveries.finish(dict(self.history.log), consumer.drained)
        consumer.leave()


@pytest.mark.parametrize("group", range(min(GROUPS, SEEDS)))
def test_promises_hold(group: int) -> None:
    _run_all(range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


def _run_all(seeds: range) -> None:
    for seed in seeds:
        World(seed).run()


# -- planted bugs ------------------------------------------------------------------------------


def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """The journal says that a group is durable without having synced it."""

    def sync(self: SegmentWriter, size: int) -> None:
        self.size += GROUP_HEAD_SIZE + size

    patch.setattr(SegmentWriter, "sync", sync)


def read_position_is_mark_delete(patch: pytest.MonkeyPatch) -> None:
    """What was read for consumers counts as acknowledged."""
    dispatch = Dispatcher._dispatch

    def planted(self: Dispatcher, entries: list[Entry]) -> bool:
        done = dispatch(self, entries)
        read = self.read_position
        self._cursor.ack_cumulative(Position(read.ledger_id, read.entry_id - 1), None, None)
        return done

    patch.setattr(Dispatcher, "_dispatch", planted)


def ack_set_replaces(patch: pytest.MonkeyPatch) -> None:
    """A second acknowledgement inside a batch forgets the first."""
    ack_part = CursorState._ack_part

    def planted(self: CursorState, position: Position, *rest: Any) -> int:
        self.masks.discard(position)
        return ack_part(self, position, *rest)

    patch.setattr(CursorState, "_ack_part", planted)


def slots_do_not_drain(patch: pytest.MonkeyPatch) -> None:
    """The new owner of a key gets it at once."""
    choose = KeyShared.choose

    def planted(self: KeyShared, entry: Entry) -> Consumer | None:
        slot = self.selector.slot(entry.key_hash)
        if self._drains(slot, self._owner(slot)):
            del self._holdings[slot]
        return choose(self, entry)

    patch.setattr(KeyShared, "choose", planted)


def deduplication_marks_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A sequence id counts as stored as soon as its append begins."""
    admit = Deduplication.admit

    def planted(self: Deduplication, entry: Entry) -> bool:
        taken = admit(self, entry)
        mark = self._under_way.get(entry)
        if mark is not None:
            mark[0].store(mark[1])
        return taken

    patch.setattr(Deduplication, "admit", planted)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    ack_before_fsync: "C1|C2|C4|C6",
    read_position_is_mark_delete: "C1|C6",
    ack_set_replaces: "C6",
    slots_do_not_drain: "C3: key-shared",
    deduplication_marks_before_it_is_stored: "C1|C5",
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(Broken, match=PLANTED[bug]):
        _run_all(range(PLANTED_SEEDS))
