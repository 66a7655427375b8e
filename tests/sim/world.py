"""A broker, its clients and its faults at random: everything comes from one seed.

A run has several lives: a life ends with an orderly stop, or with a crash before some disk step,
after which the page cache is found again (a kill), or only what was synced, or a random part of
the rest (a power failure, also soon after a kill). Which faults there are, how many bookies and
topics, is drawn anew for each seed, so that they meet in all combinations. All that clients see is
checked as it happens; at the end every subscription is drained and the topics are read as a whole.

Faults stay inside what is promised: with three bookies only one of them has a disk that fails or
flips bits; a bookie alone has a disk that fails, which ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pulsark.config import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.subscription_type import SubType
from pulsark.errors import PulsarkError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.bookie_fleet import leave_when_failed
from pulsark.storage.embedded_bookie import EmbeddedBookie
from pulsark.storage.journal_settings import JournalSettings
from pulsark.storage.ledger import LedgerManager
from pulsark.storage.position import Position
from pulsark.wire.topic_name import TopicName
from tests.sim.actors import TOPIC, Gone, SimConsumer, SimProducer, read_topic
from tests.sim.clock import SimClock
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken, Deliveries, Identities
from tests.support.history import History, Id, Payload, violations

LIVES = 4
STEPS = 45
HOUR_MS = 3_600_000

JOURNAL = JournalSettings(journal_max_size=30_000, checkpoint_bytes=10_000, ledgers_a_turn=2)
SETTINGS = {
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


@dataclass(frozen=True)
class Faults:
    """What may happen in a run, beside crashes, lost connections and unloading."""

    bookies: int
    full_disk: bool
    failing_disk: bool
    flipped_bits: bool
    clock_steps: bool
    cancelled: bool
    """The caller of an unload goes away in the middle of it."""
    unruly: bool
    """A second topic whose cursors are moved: by seeks, and because messages are too old."""
    deleted: bool
    """A third topic that is deleted now and then, and used again."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        bookies = rng.choice([1, 1, 3])
        return cls(
            bookies,
            full_disk=rng.random() < 0.6,
            failing_disk=rng.random() < 0.4,
            flipped_bits=bookies > 1 and rng.random() < 0.5,
            clock_steps=rng.random() < 0.3,
            cancelled=rng.random() < 0.3,
            unruly=rng.random() < 0.3,
            deleted=rng.random() < 0.3,
        )


class _Unruly(Deliveries):
    """A subscription whose cursor is moved: messages come again, or not at all."""

    def delivered(self, consumer: int, id_: Id, payload: Payload, key: str) -> None:
        self.identities.check(id_, payload)
        self.seen.add(id_)
        self.held.setdefault(consumer, {})[id_] = key

    def finish(self, log: dict[Id, Payload], drained: set[Id]) -> None:
        phantoms = [id_ for id_ in self.seen if id_ not in log]
        if phantoms:
            raise Broken(f"C2: {self.name} delivered {phantoms[0]}, which the topic does not have")


class TopicWorld:
    """One topic: its clients, and all that was promised to them."""

    def __init__(self, name: str, *, prefix: str = "", unruly: bool = False) -> None:
        self.name = name
        self.history = History()
        identities = Identities(self.history.sent)
        names = (f"{prefix}p", f"{prefix}q")
        self.producers = [SimProducer(n, self.history, name) for n in names]
        self.consumers: list[SimConsumer] = []
        self.subscriptions: dict[int, Deliveries] = {}
        kind_of = _Unruly if unruly else Deliveries
        for subscription, kind, count in SUBSCRIPTIONS:
            ordered = kind in (SubType.Exclusive, SubType.Failover)
            deliveries = kind_of(subscription, ordered, kind == SubType.Key_Shared, identities)
            self.subscriptions[kind] = deliveries
            self.consumers += [SimConsumer(kind, deliveries, topic=name) for _ in range(count)]

    @property
    def clients(self) -> list[SimProducer | SimConsumer]:
        return [*self.producers, *self.consumers]

    def look(self) -> None:
        """Take what the broker sent."""
        for producer in self.producers:
            producer.look()
        # Those that were told to go first: what they had may be with others already.
        for consumer in sorted(self.consumers, key=lambda c: c.connected):
            consumer.look()

    async def finish(self, broker: BrokerInMemory, *, deduplicates: bool) -> None:
        """Everything heals: producers confirm all, subscriptions give what is left."""
        for producer in self.producers:
            for _ in range(10):
                await producer.connect(broker)
                await asyncio.sleep(0.1)
                producer.look()
            if producer.pending:
                raise Broken(f"C1: {producer.name} gets no receipt")
        self.history.log = await read_topic(broker, self.name)
        for kind, deliveries in self.subscriptions.items():
            await self._drain(broker, kind, deliveries)
        found = violations(self.history)
        if found:
            raise Broken(found[0])
        payloads = [payload for _, payload in self.history.log]
        for producer in self.producers:
            lost = producer.known_before - set(payloads)
            if lost:
                raise Broken(f"C1: {min(lost)} is not stored, and was taken for a duplicate")
        if deduplicates and len(payloads) > len(set(payloads)):
            raise Broken("C5: a message is stored twice")

    async def _drain(self, broker: BrokerInMemory, kind: int, deliveries: Deliveries) -> None:
        consumer = SimConsumer(kind, deliveries, permits=1000, topic=self.name)
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


class World:
    """What outlives a broker: its disk and metadata, the clients, and all that was promised."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.faults = Faults.drawn(self.rng)
        self.disk = SimDisk()
        self.tree = MemoryTree()
        self.session = MemoryMetadataStore(self.tree)
        self.deduplicates = seed % 2 == 0
        self.topics = [TopicWorld(TOPIC)]
        if self.faults.unruly:
            self.topics.append(TopicWorld(f"{TOPIC}-unruly", unruly=True))
        self.generation = 0
        self.brief: TopicWorld | None = None
        """The topic that is deleted now and then; nothing while that is under way."""
        if self.faults.deleted:
            self._next_generation()
        self.trace = hashlib.sha256()

    # A run.

    def run(self) -> None:
        """All lives, then the end; raises ``Broken``."""
        survival = ""
        for life in range(LIVES):
            with Simulation(self.seed * 100 + life) as sim:
                if life and self.rng.random() < 0.8:
                    soon = survival == "all" and self.rng.random() < 0.3
                    within = self.rng.randint(1, 12 if soon else 120)
                    self.disk.crash_at = self.disk.steps + within
                crashed = sim.run_until_crash(self._live(sim, STEPS))
            for topic in self._all_topics():
                for client in topic.clients:
                    client.lost()
            self._note_disk()
            survival = ""
            if crashed:
                self.session.expire()
                survival = self.rng.choice(SURVIVALS)
                self.disk = self.disk.after_crash(survival, self.rng)
            self._heal_disk()
            if self.faults.flipped_bits and self.rng.random() < 0.5:
                self._flip()
        with Simulation(self.seed * 100 + LIVES) as sim:
            try:
                sim.run(self._end(sim))
            except (Gone, TimeoutError) as error:
                raise Broken("C1: the topic cannot be used any more") from error
        self._note_disk()

    @property
    def digest(self) -> str:
        """Of all disk steps and all messages: a seed that is run again has the same."""
        for topic in self.topics:
            self.trace.update(repr(topic.history.log).encode())
        return self.trace.hexdigest()

    def _note_disk(self) -> None:
        self.trace.update("\n".join(self.disk.trace).encode())

    def _all_topics(self) -> list[TopicWorld]:
        return [*self.topics, *([self.brief] if self.brief is not None else [])]

    def _next_generation(self) -> None:
        self.generation += 1
        self.brief = TopicWorld(f"{TOPIC}-brief", prefix=f"g{self.generation}")

    # The disk.

    @property
    def _names(self) -> list[str]:
        return [f"b{n}" for n in range(1, self.faults.bookies + 1)]

    @property
    def _victim(self) -> str:
        """The bookie whose disk is a bad one."""
        return self._names[-1]

    def _heal_disk(self) -> None:
        self.disk.crash_at, self.disk.capacity = 0, None  # no bookie starts on a full disk
        self.disk.sync_errno_once, self.disk.faulty = 0, ""

    def _flip(self) -> None:
        files = [f for f in self.disk.files() if f.startswith(f"/{self._victim}/journal/0")]
        path = self.rng.choice(files)
        size = self.disk.size(path)
        if size:
            self.disk.flip(path, self.rng.randrange(size), 1 << self.rng.randrange(8))

    def _fault(self, clock: SimClock) -> None:
        rng, faults = self.rng, self.faults
        if faults.full_disk:
            if self.disk.capacity is not None:
                if rng.random() < 0.25:
                    self.disk.capacity = None
            elif rng.random() < 0.03:
                self.disk.capacity = self.disk.used() + rng.randint(0, 600)
        if faults.failing_disk and rng.random() < 0.01:
            self.disk.sync_errno_once = errno.EIO
            self.disk.faulty = f"/{self._victim}/journal"
        if faults.clock_steps and rng.random() < 0.05:
            clock.step_ms = rng.choice([-HOUR_MS, 0, HOUR_MS])

    # The broker.

    async def _broker(self, sim: Simulation, clock: SimClock) -> BrokerInMemory:
        made = BrokerInMemory.__new__(BrokerInMemory)
        runtime = sim.runtime(self.disk, clock=clock)
        fleet = {}
        for name in self._names:
            try:
                fleet[name] = await EmbeddedBookie.open(
                    name, f"/{name}/journal", f"/{name}/ledgers", JOURNAL, runtime
                )
            except PulsarkError:
                if len(self._names) == 1 or name != self._victim:
                    raise
        self._bookies = list(fleet.values())
        copies, needed = self.faults.bookies, self.faults.bookies // 2 + 1
        leave_when_failed(fleet, needed, _exit)
        made.metadata = self.session = MemoryMetadataStore(self.tree)
        ledgers = LedgerManager(made.metadata, fleet, runtime)
        settings = Settings(
            **SETTINGS,
            managedLedgerDefaultEnsembleSize=copies,
            managedLedgerDefaultWriteQuorum=copies,
            managedLedgerDefaultAckQuorum=needed,
            brokerDeduplicationEnabled=self.deduplicates,
        )
        made.broker = Broker(settings, runtime, made.metadata, ledgers)
        await made.start()
        return made

    async def _close(self, broker: BrokerInMemory) -> None:
        for topic in self._all_topics():
            topic.look()
        await broker.broker.close()
        for bookie in self._bookies:
            await bookie.close()
        await broker.metadata.close()

    async def _live(self, sim: Simulation, steps: int) -> None:
        clock = SimClock(sim.loop)
        broker = await self._broker(sim, clock)
        for topic in self._all_topics():
            if not topic.history.sent:
                for consumer in topic.consumers:
                    with contextlib.suppress(Gone, TimeoutError):
                        await consumer.connect(broker)
        for _ in range(steps):
            for topic in self._all_topics():
                topic.look()
            self._fault(clock)
            with contextlib.suppress(Gone, TimeoutError):
                await self._step(broker)
            await asyncio.sleep(self.rng.choice([0, 0.001, 0.002, 0.02]))
        self.disk.capacity = None
        await self._close(broker)

    # What happens.

    async def _step(self, broker: BrokerInMemory) -> None:
        rng = self.rng
        if self.faults.deleted and (self.brief is None or rng.random() < 0.02):
            await self._delete(broker)
            return
        topic = self.topics[0] if rng.random() < 0.6 else rng.choice(self._all_topics())
        if self.faults.unruly and topic is self.topics[-1] and rng.random() < 0.15:
            await self._move_a_cursor(broker, topic)
            return
        choice = rng.random()
        producer, consumer = rng.choice(topic.producers), rng.choice(topic.consumers)
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
            await self._perhaps_cancelled(
                lambda: broker.broker.unload_topic(TopicName.parse(topic.name))
            )

    async def _perhaps_cancelled(self, call: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(call())
        if self.faults.cancelled and self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice([0, 0, 0.0005, 0.002]))
            task.cancel()
        with contextlib.suppress(StorageError, asyncio.CancelledError):
            await task

    async def _move_a_cursor(self, broker: BrokerInMemory, topic: TopicWorld) -> None:
        loaded = broker.broker.loaded_topic(TopicName.parse(topic.name))
        if loaded is None or not loaded.subscriptions:
            return
        subscription = self.rng.choice(list(loaded.subscriptions.values()))
        places = sorted(topic.history.receipts.values())
        with contextlib.suppress(PulsarkError):
            if self.rng.random() < 0.5 and places:
                place = self.rng.choice(places)
                await subscription.seek(Position(place.ledger_id, place.entry_id))
            else:
                loaded.backlog.expire_older_than(0.05, [subscription])

    async def _delete(self, broker: BrokerInMemory) -> None:
        """Delete the brief topic; what is not known to be done is tried again, also later."""
        if self.brief is not None:
            name, self.brief = self.brief, None
            for client in name.clients:
                client.leave()
        try:
            await broker.broker.topic_admin.delete_topic(
                TopicName.parse(f"{TOPIC}-brief"), force=True
            )
        except StorageError:
            return
        except PulsarkError as error:
            if "does not exist" not in str(error):
                raise
        self._next_generation()

    async def _end(self, sim: Simulation) -> None:
        broker = await self._broker(sim, SimClock(sim.loop))
        for _ in range(5):
            if self.faults.deleted and self.brief is None:
                await self._delete(broker)
        if self.faults.deleted and self.brief is None:
            raise Broken("C9: a topic cannot be deleted")
        for topic in self._all_topics():
            await topic.finish(broker, deduplicates=self.deduplicates)
        await self._close(broker)


def _exit(error: StorageError) -> None:
    """As a standalone does that can store nothing any more."""
    raise SimulatedCrash(f"the process ends: {error}")
