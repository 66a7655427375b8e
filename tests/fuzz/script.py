"""What one hostile client says: frames from the protocol's grammar, with a memory of the answers.

Most commands are such as a client might send in its state, so that they reach what is behind the
first check; some have one field bent; some are any command with any fields; a few are not frames.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random

from google.protobuf.message import Message

from pulsark.wire import pulsar_pb2 as pb
from tests.fuzz import entries, values

Command = pb.BaseCommand
Position = tuple[int, int]

NAMESPACES = ("public/default", "public/deduplicated")
TOPICS = tuple(
    f"persistent://{namespace}/{name}"
    for namespace in NAMESPACES
    for name in ("t0", "t1", "t2", "t3", "parts-partition-0", "parts-partition-1")
)
VOLATILE_TOPICS = tuple(f"non-persistent://public/default/v{i}" for i in range(3))
ODD_TOPICS = (
    "", "t0", "persistent://", "persistent://public/default/", "persistent://public/none/t",
    "persistent://none/default/t", "x://public/default/t0", "persistent://public/default/parts",
    "persistent://public/default/t0-partition-7", "persistent://public/default/\0",
    "persistent://public/../default/t", "persistent://public/default/" + "n" * 2000,
    "public/default",
)  # fmt: skip
SUBSCRIPTIONS = ("s0", "s1", "s2", "s3", "s4")
NAMES = ("alice", "bob", "", "producer-1")
WILDNESS = (0.0, 0.002, 0.02, 0.2)
"""The share of frames that are wrong on purpose: most of those end the connection."""

IDS = 6
"""Producers and consumers of one connection have ids below this one, so that they collide."""

POSITIONS_KEPT = 200
SENT_KEPT = 5000


class Script:
    """The frames of one connection, and what its answers taught.

    ``sent`` holds the last entries by the producer id and sequence id that their SEND named. Few
    of these come twice; which of several entries a receipt is for cannot be told then.
    """

    def __init__(
        self,
        rng: Random,
        introduce: Callable[[Random, pb.CommandConnect], None] = lambda rng, connect: None,
    ) -> None:
        """``introduce`` fills in who the client is."""
        self.rng = rng
        self._introduce = introduce
        self.sent: dict[tuple[int, int], list[bytes]] = {}
        self.positions: deque[Position] = deque([(0, 0)], maxlen=POSITIONS_KEPT)
        self.asked: dict[int, int] = {}  # producers that are being opened, by request id
        self.producers: set[int] = set()
        self.schema_versions: deque[bytes] = deque([b"", b"\0" * 8], maxlen=5)
        self._wildness = rng.choice(WILDNESS)
        self._request_ids = count(1)
        self._sequence_ids = count(rng.choice((0, 0, 0, 5, 2**40)))
        self._commands, self._weights = zip(*_WEIGHTS, strict=True)

    def hello(self) -> bytes:
        """What opens the connection; now and then it is not what a client says."""
        rng = self.rng
        command = Command(type=Command.CONNECT)
        connect = command.connect
        connect.client_version = rng.choice(("Pulsar-CPP-v3.7.0", "Pulsar-Java-v4.0.7", "fuzz"))
        connect.protocol_version = rng.choice((21, 21, 21, 19, 12, 0))
        connect.feature_flags.supports_topic_watchers = rng.random() < 0.8
        connect.feature_flags.supports_broker_entry_metadata = rng.random() < 0.3
        self._introduce(rng, connect)
        if rng.random() < 0.03:
            values.fill(rng, connect)
        if rng.random() < 0.02:
            return b""
        if rng.random() < 0.01:  # what comes too early
            return self.next_frame() + _frame(command)
        return _frame(command)

    def next_frame(self) -> bytes:
        """One more frame, or what only looks like one."""
        rng = self.rng
        chance = rng.random() / self._wildness if self._wildness else 1.0
        if chance < 0.5:
            return self._any_command()
        make = rng.choices(self._commands, self._weights)[0]
        made = make(self)
        if isinstance(made, bytes):
            frame = made
        else:
            if chance < 0.9:
                self._bend(made)
            frame = _frame(made)
        return self._broken(frame) if 0.9 <= chance < 1 else frame

    # -- what is wrong on purpose ------------------------------------------------------------

    def _any_command(self) -> bytes:
        command = Command()
        field = self.rng.choice([f for f in Command.DESCRIPTOR.fields if f.message_type])
        command.type = field.number  # type: ignore[assignment]
        values.fill_field(self.rng, command, field)
        frame = _frame(command)
        if self.rng.random() < 0.05:  # an entry where none belongs
            size = struct.pack(">I", len(frame) + 6)
            return size + frame[4:] + b"\x0e\x01" + self.rng.randbytes(8)
        return frame

    def _bend(self, command: Command) -> None:
        name = next(f.name for f in Command.DESCRIPTOR.fields if f.number == command.type)
        message: Message = getattr(command, name)
        if message.DESCRIPTOR.fields:
            values.fill_field(self.rng, message, self.rng.choice(message.DESCRIPTOR.fields))

    def _broken(self, frame: bytes) -> bytes:
        rng = self.rng
        if len(frame) < 8:
            return rng.randbytes(20)
        how = rng.randrange(4)
        if how == 0:
            return frame[: rng.randrange(len(frame))]
        if how == 1:
            return struct.pack(">I", values.integer(rng, 32, False)) + frame[4:]
        if how == 2:
            return frame[:4] + struct.pack(">I", values.integer(rng, 32, False)) + frame[8:]
        at = rng.randrange(len(frame))
        return frame[:at] + bytes([frame[at] ^ (1 << rng.randrange(8))]) + frame[at + 1 :]

    # -- what a client might say -------------------------------------------------------------

    def _topic(self) -> str:
        chance = self.rng.random()
        if chance < 0.03:
            return self.rng.choice(ODD_TOPICS)
        return self.rng.choice(VOLATILE_TOPICS if chance < 0.15 else TOPICS)

    def _id(self) -> int:
        return self.rng.randrange(IDS)

    def _request_id(self) -> int:
        return next(self._request_ids)

    def _position(self, message: pb.MessageIdData) -> None:
        rng = self.rng
        ledger_id, entry_id = rng.choice(self.positions)
        if rng.random() < 0.1:
            entry_id += rng.choice((-1, 1, 2, 1000))
        if rng.random() < 0.03:
            ledger_id, entry_id = values.integer(rng, 64, False), values.integer(rng, 64, False)
        message.ledgerId, message.entryId = ledger_id & (2**64 - 1), entry_id & (2**64 - 1)
        if rng.random() < 0.15:
            some = [values.integer(rng, 64, True) for _ in range(3)]
            message.ack_set.extend(rng.choices(some, k=rng.choice((1, 1, 2, 300))))
            message.batch_size = rng.choice((1, 2, 3, 10, 100, 2**31 - 1))

    def producer(self) -> Command:
        command = Command(type=Command.PRODUCER)
        request = command.producer
        request.topic, request.producer_id = self._topic(), self._id()
        request.request_id = self._request_id()
        if self.rng.random() < 0.3:
            request.producer_name = self.rng.choice(NAMES)
        if self.rng.random() < 0.15:
            request.producer_access_mode = self.rng.choice((1, 2, 3))  # type: ignore[assignment]
        if self.rng.random() < 0.05:
            values.fill(self.rng, request.schema)
        self.asked[request.request_id] = request.producer_id
        return command

    def send(self) -> Command | bytes:
        rng = self.rng
        if not self.producers:  # a SEND of an unknown producer ends the connection
            return self.flow() if self.asked else self.producer()
        producer_id = rng.choice(sorted(self.producers))
        sequence_id = next(self._sequence_ids)
        if rng.random() < 0.02:
            sequence_id = values.integer(rng, 64, False)
        data, messages = entries.make(rng, rng.choice(NAMES), sequence_id, 0.03 + self._wildness)
        command = Command(type=Command.SEND)
        command.send.producer_id, command.send.sequence_id = producer_id, sequence_id
        command.send.num_messages = messages
        if messages > 1 and rng.random() < 0.3:
            command.send.highest_sequence_id = (sequence_id + messages - 1) & (2**64 - 1)
        if rng.random() < 0.02:
            self._bend(command)
        key = command.send.producer_id, command.send.sequence_id
        self.sent.setdefault(key, []).append(data)
        if len(self.sent) > SENT_KEPT:
            del self.sent[next(iter(self.sent))]
        return _frame(command, data)

    def subscribe(self) -> Command:
        rng = self.rng
        command = Command(type=Command.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = self._topic(), rng.choice(SUBSCRIPTIONS)
        request.subType = rng.choice((0, 1, 1, 2, 3))  # type: ignore[assignment]
        request.consumer_id, request.request_id = self._id(), self._request_id()
        request.initialPosition = rng.choice((0, 1))  # type: ignore[assignment]
        if rng.random() < 0.3:
            request.durable = False
            request.subscription = f"reader-{rng.randrange(1000)}"
            self._position(request.start_message_id)
        if rng.random() < 0.1:
            request.priority_level = rng.choice((0, 1, 2, -1))
        if rng.random() < 0.1:
            request.consumer_name = rng.choice(NAMES)
        if rng.random() < 0.05:
            values.fill(rng, request.schema)
        if rng.random() < 0.05:
            request.read_compacted = True
        if rng.random() < 0.1:
            values.fill(rng, request.keySharedMeta)
        return command

    def flow(self) -> Command:
        command = Command(type=Command.FLOW)
        command.flow.consumer_id = self._id()
        command.flow.messagePermits = self.rng.choice((1, 10, 100, 1000, 2**31 - 1))
        return command

    def ack(self) -> Command:
        rng = self.rng
        command = Command(type=Command.ACK)
        command.ack.consumer_id = self._id()
        command.ack.ack_type = rng.choice((0, 0, 0, 1))  # type: ignore[assignment]
        for _ in range(rng.choice((1, 1, 1, 5, 50))):
            self._position(command.ack.message_id.add())
        if rng.random() < 0.5:
            command.ack.request_id = self._request_id()
        return command

    def redeliver(self) -> Command:
        command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = self._id()
        for _ in range(self.rng.choice((0, 1, 5, 50))):
            self._position(request.message_ids.add())
        return command

    def seek(self) -> Command:
        command = Command(type=Command.SEEK)
        command.seek.consumer_id, command.seek.request_id = self._id(), self._request_id()
        if self.rng.random() < 0.5:
            self._position(command.seek.message_id)
        else:
            command.seek.message_publish_time = values.integer(self.rng, 64, False)
        return command

    def unsubscribe(self) -> Command:
        command = Command(type=Command.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = self._id()
        command.unsubscribe.request_id = self._request_id()
        command.unsubscribe.force = self.rng.random() < 0.3
        return command

    def close_producer(self) -> Command:
        command = Command(type=Command.CLOSE_PRODUCER)
        command.close_producer.producer_id = self._id()
        command.close_producer.request_id = self._request_id()
        self.producers.discard(command.close_producer.producer_id)
        return command

    def close_consumer(self) -> Command:
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self._id()
        command.close_consumer.request_id = self._request_id()
        return command

    def lookup(self) -> Command:
        command = Command(type=Command.LOOKUP)
        command.lookupTopic.topic = self._topic()
        command.lookupTopic.request_id = self._request_id()
        return command

    def partitions(self) -> Command:
        command = Command(type=Command.PARTITIONED_METADATA)
        command.partitionMetadata.topic = self._topic()
        command.partitionMetadata.request_id = self._request_id()
        return command

    def last_message_id(self) -> Command:
        command = Command(type=Command.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = self._id()
        command.getLastMessageId.request_id = self._request_id()
        return command

    def consumer_stats(self) -> Command:
        command = Command(type=Command.CONSUMER_STATS)
        command.consumerStats.consumer_id = self._id()
        command.consumerStats.request_id = self._request_id()
        return command

    def topics(self) -> Command:
        command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.namespace = self.rng.choice((*NAMESPACES, "public/none", ""))
        request.request_id = self._request_id()
        if self.rng.random() < 0.5:
            request.topics_pattern = self.rng.choice(PATTERNS)
        return command

    def watch(self) -> Command:
        command = Command(type=Command.WATCH_TOPIC_LIST)
        request = command.watchTopicList
        request.namespace = self.rng.choice(NAMESPACES)
        request.topics_pattern = self.rng.choice(PATTERNS)
        request.watcher_id, request.request_id = self._id(), self._request_id()
        return command

    def unwatch(self) -> Command:
        command = Command(type=Command.WATCH_TOPIC_LIST_CLOSE)
        command.watchTopicListClose.watcher_id = self._id()
        command.watchTopicListClose.request_id = self._request_id()
        return command

    def schema(self) -> Command:
        command = Command(type=Command.GET_SCHEMA)
        command.getSchema.topic = self._topic()
        command.getSchema.request_id = self._request_id()
        if self.rng.random() < 0.5:
            command.getSchema.schema_version = self.rng.choice(self.schema_versions)
        return command

    def create_schema(self) -> Command:
        rng = self.rng
        command = Command(type=Command.GET_OR_CREATE_SCHEMA)
        request = command.getOrCreateSchema
        request.topic, request.request_id = self._topic(), self._request_id()
        schema = request.schema
        schema.name = values.text(rng)
        schema.type = rng.choice(list(pb.Schema.Type.values()))
        schema.schema_data = rng.choice(SCHEMAS)
        if rng.random() < 0.1:
            values.fill(rng, schema)
        return command

    def ping(self) -> Command:
        command = Command(type=Command.PING)
        command.ping.SetInParent()
        return command

    def connect_again(self) -> Command:
        command = Command(type=Command.CONNECT)
        command.connect.client_version = "again"
        return command

    def log_in_again(self) -> Command:
        command = Command(type=Command.AUTH_RESPONSE)
        connect = pb.CommandConnect(client_version="refresh")
        self._introduce(self.rng, connect)
        response = command.authResponse.response
        response.auth_method_name = connect.auth_method_name
        response.auth_data = connect.auth_data
        return command


PATTERNS = (
    "persistent://public/default/.*", ".*", "persistent://public/default/t[0-9]", "(a+)+$", "[",
    "", "x" * 5000, "(?i)T.*", "persistent://public/default/(" + "t|" * 300 + "u)",
)  # fmt: skip
SCHEMAS = (
    b"", b"{", b'"string"', b'{"type":"record","name":"R","fields":[]}',
    b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"],"default":null}]}',
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}', b"[" * 3000, b"\xff" * 90,
    b'{"type":"fixed","name":"F","size":1e999}',
)  # fmt: skip

_WEIGHTS: tuple[tuple[Callable[[Script], Command | bytes], float], ...] = (
    (Script.send, 30), (Script.producer, 7), (Script.subscribe, 7), (Script.flow, 10),
    (Script.ack, 12), (Script.redeliver, 4), (Script.seek, 1.5), (Script.unsubscribe, 1),
    (Script.close_producer, 3), (Script.close_consumer, 3), (Script.lookup, 2),
    (Script.partitions, 2), (Script.last_message_id, 3), (Script.consumer_stats, 3),
    (Script.topics, 1), (Script.watch, 1), (Script.unwatch, 1), (Script.schema, 2),
    (Script.create_schema, 1.5), (Script.ping, 2), (Script.connect_again, 0.05),
    (Script.log_in_again, 0.02),
)  # fmt: skip


def _frame(command: Command, entry: bytes = b"") -> bytes:
    """The frame of a command, also of one that lacks what is required."""
    body = command.SerializePartialToString()
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry
