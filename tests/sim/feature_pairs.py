"""Two features of a topic at a time, beside a small model of what its client should see.

A topic has one durable subscription with one client. After each step everything comes to rest, and
the client holds exactly what the model says: all that was published, is due, and was neither
acknowledged nor erased. A feature is a few steps that a run may take; steps are drawn at random.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pulsark.dispatch.topic.topic import Topic
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.storage.table.staging.staged_ledger import STAGING
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.ack_set import full_mask, mask_of_words, words_of_mask
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import build_entry, entry_metadata
from pulsark.wire.frames import send_frame
from pulsark.wire.hashes import murmur3_32
from tests.sim.simulation import Simulation
from tests.support.broker_clients import (
    EARLIEST_ID,
    EXCLUSIVE,
    KEY_SHARED,
    LATEST_ID,
    NAME,
    SHARED,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
)
from tests.support.client_view import client_view
from tests.support.staged import stage
from tests.support.wire_frames import send_command

STEPS: Final = 24
REST_SECONDS: Final = 1.5
"""After this long, virtual, nothing happens by itself but that delayed messages are due."""
DELAYS: Final = (2000, 7000, 60_000)
KEYS: Final = ("a", "b", "c", "d", "e", "f")
RANGES: Final = 65536
PLACE_MAX: Final = 2**40
NAMESPACE: Final = "public/default"
PRODUCER: Final = "p"
SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": 2,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
    "sealEnabled": True,
    "keepAliveIntervalSeconds": 1_000_000,
}


class Id(NamedTuple):
    """A message; ``index`` is that in its batch, or 0."""

    ledger: int
    entry: int
    index: int

    @property
    def place(self) -> tuple[int, int]:
        return self.ledger, self.entry


class Message(NamedTuple):
    """What was published."""

    payload: bytes
    key: str
    time_ms: int
    deliver_at: int
    size: int
    """Messages of its entry."""
    uuid: str
    """Of a message in chunks."""


class Wrong(AssertionError):
    """A client sees something else than it should."""


@dataclass
class Model:
    """What should be in the topic, and what its subscription has done with it."""

    delays: bool
    """Whether messages come when they are due; else they come at once."""
    messages: dict[Id, Message] = field(default_factory=dict)
    """All, by their order."""
    acked: set[Id] = field(default_factory=set)
    erased: set[Id] = field(default_factory=set)
    trimmed: set[Id] = field(default_factory=set)
    horizon: Id | None = None
    """The last message that compaction has seen."""
    compacted: dict[str, list[Id]] = field(default_factory=dict)
    """By key, the newest message, or all of its chunks."""

    def expected(self, now_ms: int) -> list[Id]:
        """What a consumer holds that acknowledges nothing."""
        done = self.acked | self.erased | self.trimmed
        return [
            id_
            for id_, message in self.messages.items()
            if id_ not in done and not (self.delays and message.deliver_at > now_ms)
        ]

    def seek(self, target: Id) -> None:
        """Let all from a message on be unread, and all before it be read."""
        self.acked = {id_ for id_ in self.messages if id_ < target}

    def compact(self) -> None:
        """Keep of each key the newest message, of all that there are by now."""
        for id_, message in self.messages.items():
            if id_ in self.erased or id_ in self.trimmed:
                continue
            if self.horizon is None or id_ > self.horizon:
                before = self.compacted.get(message.key, [])
                is_next = bool(message.uuid) and before and self._uuid(before[0]) == message.uuid
                self.compacted[message.key] = [*before, id_] if is_next else [id_]
        if self.messages:
            self.horizon = max(self.messages)

    def _uuid(self, id_: Id) -> str:
        return self.messages[id_].uuid

    def read_compacted(self) -> list[Id]:
        """Return the messages that a reader of the compacted topic gets."""
        newest = sorted(
            id_
            for ids in self.compacted.values()
            for id_ in ids
            if id_ not in self.erased and self.messages[id_].payload
        )
        return newest + [
            id_
            for id_ in self.messages
            if (self.horizon is None or id_ > self.horizon)
            and id_ not in self.erased | self.trimmed
        ]


Step = Callable[["Run"], Awaitable[object]]


class Run:
    """A broker, the client of a topic, and the model."""

    def __init__(self, broker: BrokerInMemory, features: Collection[str], seed: int) -> None:
        self.broker = broker
        self.features = features
        self.rng = random.Random(seed)
        shared = [SHARED, KEY_SHARED] if "delay" in features else [EXCLUSIVE, SHARED, KEY_SHARED]
        self.kind = KEY_SHARED if "ranges" in features else self.rng.choice(shared)
        self.model = Model(self.kind != EXCLUSIVE)
        self.held: dict[Id, tuple[int, bytes]] = {}
        """What the client has: of which consumer, and the payload."""
        self.sent: list[tuple[int, int, bytes]] = []
        """Sequence id, messages and entry of each SEND."""
        self.trace: list[str] = []
        self._client: Client | None = None
        self._acked_before: set[Id] = set()
        """What was acknowledged before the present step: a seek may have taken it back since."""
        self._cut = RANGES // 2
        self._sequence = 0
        self._bulk = 0
        self._payloads = 0

    # -- the client ---

    @property
    def now_ms(self) -> int:
        return self.broker.broker.runtime.clock.now_ms()

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def connect(self) -> None:
        """Have a new connection with a producer and the consumers."""
        if self._client is not None:
            self._client.hang_up()
        await asyncio.sleep(0.01)
        self._client = Client(self.broker)
        opened = await self._client.open_producer(TOPIC, PRODUCER, seconds=8)
        if isinstance(opened, int):
            raise Wrong(f"the producer is refused: {opened}")
        if "deduplication" in self.features and opened.last_sequence_id != self._sequence - 1:
            raise Wrong(f"the last sequence id is {opened.last_sequence_id}, not {self._sequence}")
        await self.subscribe()

    async def subscribe(self) -> None:
        """Subscribe again. The broker sends the consumers all unread messages."""
        self.held.clear()
        await self.client.deliveries()
        for number, ranges in enumerate(self.ranges, 1):
            command = self.client.subscribe_command(TOPIC, "s", number, kind=self.kind)
            for start, end in ranges:
                command.subscribe.keySharedMeta.keySharedMode = pb.STICKY
                command.subscribe.keySharedMeta.hashRanges.add(start=start, end=end)
            self.client.send(command)
            if await self.client.outcome(seconds=8):
                raise Wrong("the consumer is refused")
            self.client.flow(1000, number)

    @property
    def ranges(self) -> list[list[tuple[int, int]]]:
        """Those of each consumer; none, where keys go to anybody."""
        if "ranges" not in self.features:
            return [[]]
        return [[(0, self._cut - 1)], [(self._cut, RANGES - 1)]]

    async def rest(self) -> None:
        """Let everything come to rest, and see that the client has what it should."""
        await asyncio.sleep(REST_SECONDS)
        topic = await self.topic()
        gone = {id_ for id_ in self.model.messages if topic.ledger.ledger(id_.ledger) is None}
        may_go = self._acked_before | self.model.acked | self.model.erased | self.model.trimmed
        if unread := gone - may_go:
            raise Wrong(f"{sorted(unread)} were trimmed unread")
        self.model.trimmed |= gone
        self._acked_before = set(self.model.acked)
        for received in await self.client.deliveries():
            place = received.message.message_id
            size = max(received.metadata.num_messages_in_batch, 1)
            words = received.message.ack_set
            left = mask_of_words(words) if words else full_mask(size)
            for index, (_, payload) in enumerate(read_messages(received.entry, 1 << 20)):
                if left >> index & 1:
                    id_ = Id(place.ledgerId, place.entryId, index)
                    self._take(id_, payload, received.message.consumer_id)
        expected = self.model.expected(self.now_ms)
        if lost := [id_ for id_ in expected if id_ not in self.held]:
            raise Wrong(f"{lost} do not come")
        if extra := sorted(self.held.keys() - set(expected)):
            raise Wrong(f"{extra} came, which should not: {self._why_not(extra[0])}")

    def _why_not(self, id_: Id) -> str:
        for kind in ("acked", "erased", "trimmed"):
            if id_ in getattr(self.model, kind):
                return kind
        return "it is not due, or was never published"

    def _take(self, id_: Id, payload: bytes, consumer: int) -> None:
        if id_ in self.held:
            raise Wrong(f"{id_} came twice")
        if id_ not in self.model.messages:
            raise Wrong(f"{id_} was never published: {payload!r}")
        message = self.model.messages[id_]
        if payload != message.payload:
            raise Wrong(f"{id_} is {payload!r}, not {message.payload!r}")
        if self.kind == EXCLUSIVE and self.held and id_ < max(self.held):
            raise Wrong(f"{id_} came after {max(self.held)}")
        (start, end), *_ = self.ranges[consumer - 1] or [(0, RANGES)]
        if not start <= murmur3_32(message.key.encode()) % RANGES <= end:
            raise Wrong(f"{id_} came to another consumer than that of its key")
        self.held[id_] = consumer, payload

    async def topic(self) -> Topic:
        return await self.broker.broker.topics.load(NAME, create=True)

    # -- publishing ---

    def payloads(self, count: int, *, emptied: bool = True) -> list[bytes]:
        self._payloads += count
        found = [b"m%d" % number for number in range(self._payloads - count, self._payloads)]
        if emptied and "compaction" in self.features and self.rng.random() < 0.2:
            found[-1] = b""
        return found

    async def publish(self, batch: int = 0, key: str = "", **metadata: Any) -> None:
        """Publish one message, or a batch."""
        payloads = self.payloads(max(batch, 1), emptied=not key)
        one_key = self.kind == KEY_SHARED or not batch
        keys = [key or self.rng.choice(KEYS)] * len(payloads)
        if not one_key:
            keys = [self.rng.choice(KEYS) for _ in payloads]
        sequence, self._sequence = self._sequence, self._sequence + len(payloads)
        entry = self.entry(PRODUCER, sequence, payloads, keys, batch=bool(batch), **metadata)
        self.sent.append((sequence, len(payloads), entry))
        place = await self.send(sequence, len(payloads), entry)
        self.published(place, entry)

    def entry(
        self,
        producer: str,
        sequence: int,
        payloads: list[bytes],
        keys: list[str],
        *,
        batch: bool,
        **metadata: Any,
    ) -> bytes:
        head = pb.MessageMetadata(
            producer_name=producer,
            sequence_id=sequence,
            publish_time=self.now_ms,
            partition_key=keys[0],
            **metadata,
        )
        if not batch:
            head.null_value = not payloads[0]
            return build_entry(head, payloads[0])
        head.highest_sequence_id = sequence + len(payloads) - 1
        members = [
            (
                pb.SingleMessageMetadata(
                    sequence_id=number, partition_key=key, null_value=not payload
                ),
                payload,
            )
            for number, (key, payload) in enumerate(zip(keys, payloads, strict=True), sequence)
        ]
        return build_batch(head, members)

    async def send(self, sequence: int, count: int, entry: bytes) -> tuple[int, int]:
        command = send_command(1, sequence, count)
        command.send.highest_sequence_id = sequence + count - 1
        self.client.send_bytes(send_frame(command, entry))
        receipt = (await self.client.take(Command.SEND_RECEIPT, seconds=8)).send_receipt
        return receipt.message_id.ledgerId, receipt.message_id.entryId

    def published(self, place: tuple[int, int], entry: bytes) -> None:
        """Tell the model of an entry."""
        head = entry_metadata(entry)
        members = list(read_messages(entry, 1 << 20))
        for index, (single, payload) in enumerate(members):
            key = head.partition_key if single is None else single.partition_key
            self.model.messages[Id(*place, index)] = Message(
                payload, key, head.publish_time, head.deliver_at_time, len(members), head.uuid
            )

    # -- acknowledging ---

    async def acknowledge(self, ids: Iterable[Id]) -> None:
        """Acknowledge messages; of a batch all that are held, unless parts can be."""
        by_entry: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        for id_ in ids:
            by_entry[(self.held[id_][0], *id_.place)].add(id_.index)
        for (consumer, ledger, entry), indexes in by_entry.items():
            held = {id_.index for id_ in self.held if id_.place == (ledger, entry)}
            if "batch index" not in self.features:
                indexes |= held
            size = self.model.messages[Id(ledger, entry, min(indexes))].size
            words = self._left(size, indexes) if indexes != held else ()
            await self.ack((ledger, entry), words, consumer)
            done = {Id(ledger, entry, index) for index in indexes}
            self.model.acked |= done
            for id_ in done:
                del self.held[id_]

    async def acknowledge_up_to(self, last: Id) -> None:
        """Acknowledge cumulatively; up to a message of a batch, where parts can be."""
        size = self.model.messages[last].size
        words: tuple[int, ...] = ()
        if "batch index" in self.features and last.index < size - 1:
            words = self._left(size, range(last.index + 1))
        else:
            last = Id(*last.place, size - 1)
        await self.ack(last.place, words, 1, cumulative=True)
        self.model.acked |= {id_ for id_ in self.model.messages if id_ <= last}
        for id_ in [id_ for id_ in self.held if id_ <= last]:
            del self.held[id_]

    @staticmethod
    def _left(size: int, without: Iterable[int]) -> tuple[int, ...]:
        mask = full_mask(size)
        for index in without:
            mask &= ~(1 << index)
        return tuple(words_of_mask(mask))

    async def ack(
        self,
        place: tuple[int, int],
        words: tuple[int, ...],
        consumer: int,
        *,
        cumulative: bool = False,
    ) -> None:
        command = self.client.ack_command(
            place, cumulative=cumulative, ack_set=words, consumer_id=consumer
        )
        self.client.send(command)
        answer = (await self.client.take(Command.ACK_RESPONSE, seconds=8)).ackResponse
        if answer.HasField("error"):
            raise Wrong(f"an acknowledgement is refused: {answer.message}")

    async def seek(self, command: pb.BaseCommand) -> None:
        self.client.send(command)
        if await self.client.outcome(seconds=8):
            raise Wrong("the seek is refused")
        await self.client.take(Command.CLOSE_CONSUMER)
        await self.subscribe()

    # -- a run ---

    async def go(self) -> None:
        """Take steps at random; raises ``Wrong``."""
        steps = list(BASE)
        for feature in sorted(self.features):
            steps += FEATURES[feature]
        await self.connect()
        await self.rest()
        try:
            for _ in range(STEPS):
                step = self.rng.choice(steps)
                self.trace.append(step.__name__)
                await step(self)
                await self.rest()
        except (Wrong, TimeoutError) as error:
            raise Wrong(f"{' '.join(sorted(self.features))}: {error}; {self.trace}") from error

    async def bulk(self, *, again: bool) -> None:
        """Publish a few entries in bulk, or the last ones again."""
        broker = self.broker.broker
        producer = f"pulsark.bulk.{self._bulk}"
        payloads = self.payloads(3)
        key = self.rng.choice(KEYS)
        entries = [
            self.entry(producer, 0, payloads[:1], [key], batch=False),
            self.entry(producer, 1, payloads[1:], [key] * 2, batch=True),
        ]
        staging = await broker.bulk_publishing.staging(NAME)
        roots = [directory.removesuffix(f"/{STAGING}") for directory in staging.directories]
        nonce = f"n{len(self.trace)}"
        staged = [stage(broker.runtime.disk, roots, -1, entries, nonce)]
        number = self._bulk - 1 if again else self._bulk
        topic = await self.topic()
        before = topic.ledger.last_confirmed
        done = await broker.bulk_publishing.publish(
            NAME, staging.topic_id, staging.partitions, "q", number, staged
        )
        if done == again:
            raise Wrong(f"the bulk publish {number} says {done}")
        if done:
            self._bulk += 1
            found = await topic.ledger.read(topic.ledger.next_position(before), 10, 1 << 20)
            if [client_view(data) for _, data in found] != list(map(client_view, entries)):
                raise Wrong(f"the bulk publish left {found}")
            for position, data in found:
                self.published((position.ledger_id, position.entry_id), data)


# -- steps that every run may take -------------------------------------------------------------


async def publishes(run: Run) -> None:
    await run.publish()


async def publishes_a_batch(run: Run) -> None:
    await run.publish(batch=run.rng.randint(1, 4))


async def acknowledges_some(run: Run) -> None:
    held = sorted(run.held)
    await run.acknowledge(run.rng.sample(held, min(len(held), run.rng.randint(1, 4))))


async def acknowledges_up_to_one(run: Run) -> None:
    if run.held and run.kind == EXCLUSIVE:
        await run.acknowledge_up_to(run.rng.choice(sorted(run.held)))
    else:
        await acknowledges_some(run)


async def asks_for_all_again(run: Run) -> None:
    await run.client.deliveries()
    run.held.clear()
    for number in range(1, len(run.ranges) + 1):
        run.client.redeliver(consumer_id=number)


async def connects_again(run: Run) -> None:
    await run.connect()


BASE: Final[tuple[Step, ...]] = (
    publishes, publishes, publishes_a_batch, publishes_a_batch, acknowledges_some,
    acknowledges_up_to_one, asks_for_all_again, connects_again,
)  # fmt: skip


# -- features ----------------------------------------------------------------------------------


async def seeks_to_a_message(run: Run) -> None:
    if not run.model.messages:
        return
    found = list(run.model.messages)
    if run.rng.random() < 0.7:  # a place that was trimmed
        found = sorted(run.model.trimmed) or found
    if run.rng.random() < 0.5:  # within a batch
        found = [id_ for id_ in found if id_.index] or found
    target = run.rng.choice(found)
    command = run.client.seek_command(target.place)
    if "batch index" in run.features and target.index:
        size = run.model.messages[target].size
        command.seek.message_id.ack_set.extend(run._left(size, range(target.index)))
    else:
        target = Id(*target.place, 0)
    run.model.seek(target)
    await run.seek(command)


async def seeks_to_a_time(run: Run) -> None:
    if not run.model.messages:
        return
    wanted = run.rng.choice(list(run.model.messages.values())).time_ms + run.rng.choice([-1, 0, 1])
    command = run.client.seek_command((0, 0))
    command.seek.ClearField("message_id")
    command.seek.message_publish_time = wanted
    later = [id_ for id_, message in run.model.messages.items() if message.time_ms >= wanted]
    run.model.seek(later[0] if later else Id(PLACE_MAX, 0, 0))
    await run.seek(command)


async def seeks_to_an_end(run: Run) -> None:
    earliest = run.rng.random() < 0.5
    run.model.seek(Id(-1, 0, 0) if earliest else Id(PLACE_MAX, 0, 0))
    await run.seek(run.client.seek_command(EARLIEST_ID if earliest else LATEST_ID))


async def acknowledges_a_message_of_a_batch(run: Run) -> None:
    members = sorted(id_ for id_ in run.held if run.model.messages[id_].size > 1)
    if members:
        await run.acknowledge([run.rng.choice(members)])


async def trims(run: Run) -> None:
    """Acknowledge most messages before, so that a ledger may go."""
    held = sorted(run.held)
    await run.acknowledge(held[: max(run.rng.randint(0, len(held)), len(held) - 4)])
    topic = await run.topic()
    await topic.retention.trim()


async def compacts(run: Run) -> None:
    topic = await run.topic()
    await topic.compactor.run()
    run.model.compact()


async def reads_compacted(run: Run) -> None:
    expected = run.model.read_compacted()
    reader = Client(run.broker)
    code = await reader.subscribe(TOPIC, "r", read_compacted=True, durable=False)
    if code:
        raise Wrong(f"the reader is refused: {code}")
    await asyncio.sleep(REST_SECONDS)
    found = []
    for received in await reader.deliveries():
        place = received.message.message_id
        size = max(received.metadata.num_messages_in_batch, 1)
        words = received.message.ack_set
        left = mask_of_words(words) if words else full_mask(size)
        for index, (single, payload) in enumerate(read_messages(received.entry, 1 << 20)):
            if left >> index & 1 and not (single is not None and single.compacted_out):
                id_ = Id(place.ledgerId, place.entryId, index)
                found.append(id_)
                if run.model.messages[id_].payload != payload:
                    raise Wrong(f"{id_} is {payload!r} once compacted")
    reader.hang_up()
    if found != expected:
        lost = [id_ for id_ in expected if id_ not in found]
        extra = [id_ for id_ in found if id_ not in expected]
        raise Wrong(f"who reads compacted lacks {lost}, and gets {extra} beyond")


async def erases(run: Run) -> None:
    there = [id_ for id_ in run.model.messages if id_ not in run.model.trimmed]
    if not there:
        return
    ids = run.rng.sample(there, min(len(there), run.rng.randint(1, 3)))
    erasure = run.broker.broker.erasure
    batched = {id_: run.model.messages[id_].size > 1 for id_ in ids}
    await erasure.erase(
        NAME, erased_ids((*id_.place, id_.index if batched[id_] else -1) for id_ in ids)
    )
    await erasure.finish(NAME, None)
    run.model.erased |= set(ids)
    for id_ in ids:
        run.held.pop(id_, None)


async def publishes_chunks(run: Run) -> None:
    count, uuid, key = run.rng.randint(2, 3), f"u{len(run.trace)}", run.rng.choice(KEYS)
    for number in range(count):
        await run.publish(
            key=key, uuid=uuid, chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=100
        )


async def publishes_for_later(run: Run) -> None:
    await run.publish(
        batch=run.rng.choice([0, 0, 2]), deliver_at_time=run.now_ms + run.rng.choice(DELAYS)
    )


async def waits(run: Run) -> None:
    await asyncio.sleep(run.rng.choice(DELAYS) / 1000)


async def sends_again(run: Run) -> None:
    if run.sent:
        place = await run.send(*run.rng.choice(run.sent))
        if place != (2**64 - 1, 2**64 - 1):
            raise Wrong(f"what was sent before is stored again, at {place}")


async def publishes_in_bulk(run: Run) -> None:
    await run.bulk(again=False)


async def publishes_in_bulk_again(run: Run) -> None:
    if run._bulk:
        await run.bulk(again=True)


async def divides_keys_anew(run: Run) -> None:
    run._cut = run.rng.randrange(1, RANGES)
    await run.connect()


async def is_unloaded(run: Run) -> None:
    await run.broker.broker.topics.unload(NAME)
    await run.connect()


async def starts_again(run: Run) -> None:
    await run.broker.restart()
    await run.connect()


async def is_sealed(run: Run) -> None:
    topic = await run.topic()
    await run.broker.broker.sealing.seal(NAME, [topic], everything=True)


async def is_sealed_and_read_again(run: Run) -> None:
    await is_sealed(run)
    await is_unloaded(run)


FEATURES: Final[dict[str, tuple[Step, ...]]] = {
    "seek": (seeks_to_a_message, seeks_to_a_message, seeks_to_a_time, seeks_to_an_end),
    "batch index": (acknowledges_a_message_of_a_batch,) * 3,
    "trimming": (trims, trims),
    "compaction": (compacts, reads_compacted, reads_compacted),
    "erasure": (erases, erases),
    "chunks": (publishes_chunks, publishes_chunks),
    "delay": (publishes_for_later, publishes_for_later, waits),
    "deduplication": (sends_again, sends_again),
    "bulk": (publishes_in_bulk, publishes_in_bulk, publishes_in_bulk_again),
    "ranges": (divides_keys_anew, divides_keys_anew),
    "hand-over": (is_unloaded, starts_again),
    "sealing": (is_sealed, is_sealed_and_read_again),
}


def run(features: Collection[str], seed: int) -> None:
    """Make one run. Raises ``Wrong``."""
    with Simulation(seed) as sim:
        changed: dict[str, Any] = dict(SETTINGS)
        changed["acknowledgmentAtBatchIndexLevelEnabled"] = "batch index" in features
        changed["brokerDeduplicationEnabled"] = "deduplication" in features
        broker = BrokerInMemory(sim, **changed)

        async def main() -> None:
            await broker.start()
            if "trimming" in features:
                await broker.keep_nothing()
            await Run(broker, features, seed).go()

        sim.run(main())
