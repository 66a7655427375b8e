"""Producers and consumers of a simulation: they outlive connections and brokers.

What a client would remember is kept over crashes: messages without a receipt are sent again,
consumers subscribe again. All they see goes to the checkers at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.ack_set import full_mask, mask_of_words, words_of_mask
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.frames import send_frame
from tests.support.broker_clients import BrokerInMemory, Client, Command
from tests.support.deliveries import Deliveries
from tests.support.history import History, Id, Payload
from tests.support.wire_frames import Received, publish, send_command

TOPIC = "persistent://public/default/t"
KEYS = ("a", "b", "c", "d")
ALIVE_SECONDS = 8.0


class Gone(Exception):
    """The connection ended, or the broker has no answer now: the next step tries again."""


@dataclass(slots=True)
class Sent:
    """A SEND without its receipt: the messages' sequence ids and their key."""

    first: int
    count: int
    key: str

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class SimProducer:
    """Publishes with rising sequence ids; what has no receipt is sent again, in order."""

    def __init__(
        self, name: str, history: History, topic: str = TOPIC, keys: Sequence[str] = KEYS
    ) -> None:
        self.name = name
        self.key_of: dict[Payload, str] = {}
        self._keys = keys
        self._topic = topic
        self._history = history
        self._client: Client | None = None
        self._next = 0
        self._pending: list[Sent] = []
        self.known_before: set[Payload] = set()
        """Confirmed as duplicates, so without an id."""

    def lost(self) -> None:
        """The broker died."""
        self._client = None

    @property
    def pending(self) -> int:
        """Sends without a receipt."""
        return len(self._pending)

    async def connect(self, broker: BrokerInMemory) -> None:
        """Be connected, all that waits for a receipt on its way."""
        if self._client is not None and self._client.connection.opened.producers:
            return
        if self._client is None or self._client.transport.closed:
            self._client = Client(broker)
        opened = await self._client.open_producer(self._topic, self.name, seconds=ALIVE_SECONDS)
        if isinstance(opened, int):
            raise Gone
        for sent in self._pending:
            self._send(sent)

    async def publish(self, broker: BrokerInMemory, rng: random.Random) -> None:
        """Publish one message or a batch."""
        await self.connect(broker)
        sent = Sent(self._next, rng.choice([1, 1, 3]), rng.choice(self._keys))
        self._next += sent.count
        payloads = [(self.name, i) for i in range(sent.first, sent.last + 1)]
        self._history.sent.update(payloads)
        self.key_of.update(dict.fromkeys(payloads, sent.key))
        self._pending.append(sent)
        self._send(sent)

    def _send(self, sent: Sent) -> None:
        assert self._client is not None
        if sent.count == 1:
            payload = b"%s %d" % (self.name.encode(), sent.first)
            key = {"partition_key": sent.key, "producer_name": self.name}
            self._client.send_bytes(publish(1, sent.first, payload, **key))
            return
        metadata = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=sent.first,
            highest_sequence_id=sent.last,
            publish_time=1,
            partition_key=sent.key,
        )
        members = [
            (
                pb.SingleMessageMetadata(sequence_id=i, partition_key=sent.key),
                b"%s %d" % (self.name.encode(), i),
            )
            for i in range(sent.first, sent.last + 1)
        ]
        command = send_command(1, sent.first, sent.count)
        command.send.highest_sequence_id = sent.last
        self._client.send_bytes(send_frame(command, build_batch(metadata, members)))

    def leave(self) -> None:
        """Lose the connection."""
        if self._client is not None:
            self._client.hang_up()
            self._client = None

    def look(self) -> None:
        """Take what the broker answered."""
        if self._client is None:
            return
        self._client._read()
        for answer in self._client.answers:
            if answer.type == Command.SEND_RECEIPT:
                self._confirm(answer.send_receipt)
        self._client.answers.clear()

    def _confirm(self, receipt: pb.CommandSendReceipt) -> None:
        if not self._pending or receipt.sequence_id != self._pending[0].first:
            # A client that gets a receipt out of turn begins anew.
            if self._pending and receipt.sequence_id > self._pending[0].first:
                self.leave()
            return
        sent = self._pending.pop(0)
        place = receipt.message_id
        if place.ledgerId == 2**64 - 1:
            # The broker says that it has it from an earlier attempt.
            self.known_before |= {(self.name, i) for i in range(sent.first, sent.last + 1)}
            return
        for index in range(sent.count):
            id_ = Id(-1, place.ledgerId, place.entryId, index if sent.count > 1 else -1)
            self._history.receipts[(self.name, sent.first + index)] = id_


@dataclass(slots=True)
class HeldEntry:
    """An entry that a consumer has: indexes not acknowledged yet, of how many; -1 is no batch."""

    size: int
    indexes: set[int] = field(default_factory=set)


class SimConsumer:
    """One consumer of a subscription, connected or not."""

    _numbers = iter(range(1, 1 << 60))

    def __init__(
        self, kind: int, deliveries: Deliveries, permits: int = 5, topic: str = TOPIC
    ) -> None:
        self.deliveries = deliveries
        self._topic = topic
        self._kind = kind
        self._permits = permits
        self._number = 0
        self._client: Client | None = None
        self._held: dict[tuple[int, int], HeldEntry] = {}
        self._asked: dict[int, list[Id]] = {}
        self._owed = 0
        self.drained: set[Id] | None = None
        """While it is a set, everything is acknowledged and noted here."""

    @property
    def connected(self) -> bool:
        """Whether the broker knows it."""
        return self._client is not None and bool(self._client.connection.opened.consumers)

    def lost(self) -> None:
        """The connection is gone, with what was delivered on it."""
        self.deliveries.returned(self._number)
        self._client = None
        self._held.clear()
        self._asked.clear()

    async def connect(self, broker: BrokerInMemory) -> None:
        """Subscribe, if the broker lets it."""
        if self.connected:
            return
        if self._client is not None:
            self._client.hang_up()
            self.lost()
        self._client = Client(broker)
        self._number = next(self._numbers)
        command = self._client.subscribe_command(self._topic, self.deliveries.name, kind=self._kind)
        self._client.send(command)
        if await self._client.outcome(ALIVE_SECONDS) != 0:
            self._client.hang_up()
            self.lost()
            raise Gone
        self._client.flow(self._permits)
        self._owed = 0

    def leave(self) -> None:
        """Lose the connection."""
        if self._client is not None:
            self.look()
            if self._client is not None:
                self._client.hang_up()
                self.lost()

    def look(self) -> None:
        """Take what the broker sent, and make room for as much."""
        self._read()
        if self._client is not None and self._owed:
            self._client.flow(self._owed)
            self._owed = 0

    def _read(self) -> None:
        client = self._client
        if client is None:
            return
        client._read()
        answers, client.answers = client.answers, []
        received, client._deliveries = client._deliveries, []
        messages = iter(received)
        for answer in answers:
            if answer.type == Command.MESSAGE:
                message = next(messages)
                if self.connected:  # else it is nobody's any more, and goes to others
                    self._take(message)
            elif answer.type == Command.ACTIVE_CONSUMER_CHANGE:
                # The newly active one gets what the other did not acknowledge.
                self.deliveries.returned(self._number)
                self._held.clear()
            elif answer.type == Command.ACK_RESPONSE:
                ids = self._asked.pop(answer.ackResponse.request_id)
                if not answer.ackResponse.HasField("error"):
                    self.deliveries.ack_confirmed(ids)
        if not self.connected:
            client.hang_up()
            self.lost()

    def _take(self, message: Received) -> None:
        place = message.message.message_id
        size = message.metadata.num_messages_in_batch
        batched = message.metadata.HasField("num_messages_in_batch")
        words = message.message.ack_set
        left = mask_of_words(words) if words else full_mask(size)
        entry = HeldEntry(size if batched else -1)
        for index, (_, data) in enumerate(read_messages(message.entry, 1 << 20)):
            if not left >> index & 1:
                continue
            entry.indexes.add(index if batched else -1)
            id_ = Id(-1, place.ledgerId, place.entryId, index if batched else -1)
            name, number = data.decode().split()
            key = message.metadata.partition_key
            self.deliveries.delivered(self._number, id_, (name, int(number)), key)
            if self.drained is not None:
                self.drained.add(id_)
        self._owed += len(entry.indexes)
        self._held[(place.ledgerId, place.entryId)] = entry
        if self.drained is not None:
            self._ack((place.ledgerId, place.entryId), set(entry.indexes))

    # -- what a consumer may do ---

    def ack_some(self, rng: random.Random) -> None:
        """Acknowledge an entry, or some messages of a batch."""
        if not self.connected or not self._held:
            return
        place = rng.choice(list(self._held))
        entry = self._held[place]
        indexes = set(entry.indexes)
        if entry.size > 1 and rng.random() < 0.7:
            indexes = {rng.choice(sorted(indexes))}
        self._ack(place, indexes)

    def _ack(self, place: tuple[int, int], indexes: set[int]) -> None:
        """As the C++ client does it: an ack set says what this one acknowledgement leaves."""
        entry = self._held[place]
        words: tuple[int, ...] = ()
        if entry.size > 0 and len(indexes) < entry.size:
            mask = full_mask(entry.size)
            for index in indexes:
                mask &= ~(1 << index)
            words = tuple(words_of_mask(mask))
        entry.indexes -= indexes
        if not entry.indexes:
            del self._held[place]
        ids = [Id(-1, *place, index) for index in sorted(indexes)]
        self._send_ack(place, ids, words, entry.size)

    def ack_up_to(self, rng: random.Random) -> None:
        """Acknowledge everything up to an entry."""
        if not self.connected or not self._held:
            return
        self._ack_through(rng.choice(sorted(self._held)))

    def ack_all(self) -> None:
        """Acknowledge everything that there is."""
        if self.connected and self._held:
            self._ack_through(max(self._held))

    def _ack_through(self, place: tuple[int, int]) -> None:
        for earlier in sorted(self._held):
            if earlier <= place:
                del self._held[earlier]
        ids = [id_ for id_ in self.deliveries.seen if id_[1:3] <= place]
        self._send_ack(place, ids, (), -1, cumulative=True)

    def ack_unknown(self, rng: random.Random) -> None:
        """Acknowledge what the topic never had, of which nothing follows: no message is named."""
        if self.connected:
            place = rng.choice([(2**63 - 1, 2**63 - 1), (2**40, 0)])
            cumulative = self.deliveries.ordered and rng.random() < 0.5
            self._send_ack(place, [], (), -1, cumulative=cumulative)

    def _send_ack(
        self,
        place: tuple[int, int],
        ids: list[Id],
        words: tuple[int, ...],
        size: int,
        *,
        cumulative: bool = False,
    ) -> None:
        assert self._client is not None
        command = self._client.ack_command(place, cumulative=cumulative, ack_set=words)
        if words:
            command.ack.message_id[0].batch_size = size
        self._asked[command.ack.request_id] = ids
        self.deliveries.acked(self._number, ids)
        self._client.send(command)

    async def redeliver(self, rng: random.Random) -> None:
        """Ask for some of what it has again; of an ordered subscription for all."""
        # What is on its way comes before the answer to this.
        while self._client is not None and self._client.connection.output._pieces:  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._read()
        if not self.connected:
            return
        assert self._client is not None
        command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = 1
        places = list(self._held)
        if not self.deliveries.ordered and places and rng.random() < 0.7:
            places = rng.sample(places, rng.randint(1, len(places)))
            for ledger_id, entry_id in places:
                request.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        given = list(self._ids(places))
        for place in places:
            del self._held[place]
        self.deliveries.returned(self._number, None if self.deliveries.ordered else given)
        self._owed += len(given)
        self._client.send(command)

    def _ids(self, places: list[tuple[int, int]]) -> Iterator[Id]:
        for place in places:
            for index in self._held[place].indexes:
                yield Id(-1, *place, index)


async def read_topic(
    broker: BrokerInMemory, topic: str = TOPIC, *, compacted: bool = False
) -> list[tuple[Id, Payload]]:
    """Every message of the topic, or what compaction left of them, as a new reader gets it."""
    client = Client(broker)
    fields: dict[str, Any] = {"durable": False, "kind": pb.CommandSubscribe.Exclusive}
    name = "compacted" if compacted else "final"
    assert await client.subscribe(topic, name, read_compacted=compacted, **fields) == 0
    found: list[tuple[Id, Payload]] = []
    quiet = 0
    while quiet < 3:
        await asyncio.sleep(1.1)
        messages = await client.deliveries()
        quiet = 0 if messages else quiet + 1
        for message in messages:
            place = message.message.message_id
            batched = message.metadata.HasField("num_messages_in_batch")
            words = message.message.ack_set
            left = mask_of_words(words) if words else -1
            for index, (single, data) in enumerate(read_messages(message.entry, 1 << 20)):
                if not left >> index & 1 or (single is not None and single.compacted_out):
                    continue
                name, number = data.decode().split()
                id_ = Id(-1, place.ledgerId, place.entryId, index if batched else -1)
                found.append((id_, (name, int(number))))
        client.flow(len(messages) * 3)
    client.hang_up()
    return found
