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

from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.errors import PulsarkError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.fleet import leave_when_failed
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.sim.actors import TOPIC, Gone
from tests.sim.clock import SimClock
from tests.sim.compacted import CompactedTopic
from tests.sim.defects import no_defects
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.erased import ErasedTopic
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation
from tests.sim.topics import TopicWorld
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken
from tests.support.inline_table import inline_tables

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
    compacted: bool
    """A topic that is compacted, and trimmed of all that its subscription has acknowledged."""
    sealed: bool
    """Topics are sealed now and then: what is in a table leaves the journal. Of one more topic
    messages are erased."""

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
            compacted=rng.random() < 0.3,
            sealed=rng.random() < 0.2,
        )


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
        self.unruly: TopicWorld | None = None
        if self.faults.unruly:
            self.unruly = TopicWorld(f"{TOPIC}-unruly", unruly=True)
            self.topics.append(self.unruly)
        self.generation = 0
        self.compacted = CompactedTopic() if self.faults.compacted else None
        if self.compacted is not None:
            self.topics.append(self.compacted)
        self.erased = ErasedTopic() if self.faults.sealed else None
        if self.erased is not None:
            self.topics.append(self.erased)
        self.brief: TopicWorld | None = None
        """The topic that is deleted now and then; nothing while that is under way."""
        if self.faults.deleted:
            self._next_generation()
        self.trace = hashlib.sha256()

    # A run.

    def run(self) -> None:
        """All lives, then the end; raises ``Broken``."""
        with no_defects():
            self._run()

    def _run(self) -> None:
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
                self.session.vanish()
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
        tables = inline_tables(["/table"], made.metadata, runtime)
        ledgers = LedgerManager(made.metadata, fleet, runtime, tables)
        settings = Settings(
            **SETTINGS,
            managedLedgerDefaultEnsembleSize=copies,
            managedLedgerDefaultWriteQuorum=copies,
            managedLedgerDefaultAckQuorum=needed,
            brokerDeduplicationEnabled=self.deduplicates,
            sealEnabled=self.faults.sealed,
        )
        made.broker = Broker(settings, runtime, made.metadata, ledgers, tables)
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
            if not topic.history.sent and topic is not self.compacted:
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
        topic = rng.choice(self._all_topics()) if rng.random() < 0.4 else self.topics[0]
        if self.compacted is not None and rng.random() < 0.4:
            topic = self.compacted
        if topic is self.erased and rng.random() < 0.3:
            await topic.erase_some(broker, rng, self._perhaps_cancelled)
            return
        if topic is self.unruly and rng.random() < 0.15:
            await self._move_a_cursor(broker, topic)
            return
        if topic is self.compacted and (not topic.ready or rng.random() < 0.5):
            await (topic.tidy(broker, rng) if topic.ready else topic.prepare(broker))
            return
        if self.faults.sealed and rng.random() < 0.08:
            await self._seal(broker, TopicName.parse(topic.name))
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
        elif choice < 0.61:
            consumer.ack_unknown(rng)
        elif choice < 0.85:
            if consumer.deliveries.ordered and rng.random() < 0.6:
                consumer.ack_up_to(rng)
            else:
                consumer.ack_some(rng)
        elif choice < 0.96:
            await consumer.redeliver(rng)
        else:
            await self._perhaps_cancelled(
                lambda: broker.broker.topics.unload(TopicName.parse(topic.name))
            )

    async def _perhaps_cancelled(self, call: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(call())
        if self.faults.cancelled and self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice([0, 0, 0.0005, 0.002]))
            task.cancel()
        with contextlib.suppress(StorageError, asyncio.CancelledError):
            await task

    async def _seal(self, broker: BrokerInMemory, name: TopicName) -> None:
        loaded, sealing = broker.broker.topics.get_loaded(name), broker.broker.sealing
        if loaded is not None and self.faults.sealed:
            await self._perhaps_cancelled(
                lambda: sealing.seal(name.base, [loaded], everything=self.rng.random() < 0.7)
            )

    async def _move_a_cursor(self, broker: BrokerInMemory, topic: TopicWorld) -> None:
        loaded = broker.broker.topics.get_loaded(TopicName.parse(topic.name))
        if loaded is None or not loaded.subscriptions:
            return
        subscription = self.rng.choice(list(loaded.subscriptions.values()))
        places = sorted(topic.history.receipts.values())
        with contextlib.suppress(PulsarkError):
            if self.rng.random() < 0.5 and places:
                place = self.rng.choice(places)
                await subscription.seeking.to(Position(place.ledger_id, place.entry_id))
            else:
                loaded.backlog.expire_older_than(0.05, [subscription])

    async def _delete(self, broker: BrokerInMemory) -> None:
        """Delete the brief topic; what is not known to be done is tried again, also later."""
        if self.brief is not None:
            name, self.brief = self.brief, None
            for client in name.clients:
                client.leave()
        try:
            await broker.broker.deletion.delete_topic(TopicName.parse(f"{TOPIC}-brief"), force=True)
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
