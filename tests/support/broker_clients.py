"""A broker in memory and in virtual time, and clients whose sockets are lists of commands."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, cast

from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.connection.connection import Connection
from pulsark.dispatch.connection.handlers import handlers_of
from pulsark.dispatch.connection.login import Login
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.security.authorization import StoredGrants
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.table.files.table_limits import DEFAULT_LIMITS, TableLimits
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.frames import FrameDecoder, encode_command, send_frame
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables
from tests.support.memory_bookie import MemoryBookie
from tests.support.wire_frames import Received, publish, received, send_command

Command = pb.BaseCommand
MAX_FRAME_BYTES = 16 << 20

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
EXCLUSIVE = pb.CommandSubscribe.Exclusive
SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
KEY_SHARED = pb.CommandSubscribe.Key_Shared
TYPES = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]
SINGLE_ACTIVE = [EXCLUSIVE, FAILOVER]
SHARING = [SHARED, KEY_SHARED]
EARLIEST_ID = (2**64 - 1, 2**64 - 1)
LATEST_ID = (2**63 - 1, 2**63 - 1)


class BrokerInMemory:
    """One broker over one bookie. ``started`` makes it; ``Client`` talks to it."""

    def __init__(
        self,
        sim: Simulation,
        limits: TableLimits = DEFAULT_LIMITS,
        rules: Rules | None = None,
        **changed: Any,
    ) -> None:
        """With ``rules`` there is authorization."""
        names = ("EnsembleSize", "WriteQuorum", "AckQuorum")
        quorums = {f"managedLedgerDefault{name}": 1 for name in names}
        quiet = {"activeConsumerFailoverDelayTimeMillis": 0, "sealEnabled": False}
        settings = {**quorums, **quiet, **changed}
        runtime = sim.runtime(SimDisk())
        self.bookie = MemoryBookie()
        self._tree = MemoryTree()
        self.metadata = MemoryMetadataStore(self._tree)
        self._settings = Settings(**settings)
        self._runtime = runtime
        self._limits = limits
        self._rules = rules
        self.broker = self._new_broker()

    def _new_broker(self) -> Broker:
        tables = inline_tables(["/table"], self.metadata, self._runtime, limits=self._limits)
        ledgers = LedgerManager(self.metadata, {"b1": self.bookie}, self._runtime, tables)
        broker = Broker(self._settings, self._runtime, self.metadata, ledgers, tables)
        if self._rules is not None:
            broker.authorization = StoredGrants(self._rules, self.metadata, broker.resources)
        return broker

    async def restart(self) -> None:
        """Stop the broker and start another one over the same storage. Connections are lost."""
        await self.broker.close()
        await self.metadata.close()
        self.metadata = MemoryMetadataStore(self._tree)
        self.broker = self._new_broker()
        await self.start()

    async def another(self) -> BrokerInMemory:
        """A second broker over the same storage; both know each other."""
        other = copy(self)
        other.metadata = MemoryMetadataStore(self._tree)
        other.broker = other._new_broker()
        await other.broker.start(
            ServiceUrls("pulsar://b2:6650", "http://b2:8080", "grpc://b2:8815")
        )
        await asyncio.sleep(0.01)
        return other

    async def keep_nothing(self) -> None:
        """Let what all have acknowledged be trimmed, in ``public/default`` and its tables."""
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        policies = dict.fromkeys(("retention_policies", "table_retention"), nothing)
        await self.broker.resources.namespaces.update(
            "public/default", lambda old: replace(old, policies={**old.policies, **policies})
        )

    async def start(self) -> None:
        await self.broker.start(ServiceUrls("pulsar://b:6650", "http://b:8080", "grpc://b:8815"))


Scenario = Callable[..., Coroutine[Any, Any, None]]


def scenario(**changed: Any) -> Callable[[Scenario], Callable[..., None]]:
    """Run a test against a broker of its own, in virtual time. Markers go above it.

    The broker is the test's first argument; pytest gives the others.
    """

    def wrap(test: Scenario) -> Callable[..., None]:
        def run(**given: Any) -> None:
            with Simulation() as sim:
                broker = BrokerInMemory(sim, **changed)

                async def main() -> None:
                    await broker.start()
                    await test(broker, **given)

                sim.run(main())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        _, *others = inspect.signature(test).parameters.values()
        cast(Any, run).__signature__ = inspect.Signature(others)
        return run

    return wrap


class FakeTransport(asyncio.Transport):
    """What was written, and whether the client reads: a client that does not lets it pile up."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self._protocol: asyncio.BaseProtocol = protocol
        self._loop = asyncio.get_running_loop()
        self.written = bytearray()
        self.unread = 0
        self.reads = True
        self.paused = False
        self.on_reading: Callable[[], None] = lambda: None
        self.closed = False
        self._lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1234) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def writelines(self, list_of_data: Any) -> None:
        assert not self._lost, "written after connection_lost"
        if self.closed:
            return
        data = b"".join(list_of_data)
        self.written += data
        if not self.reads:
            before, self.unread = self.unread, self.unread + len(data)
            if before <= self._high < self.unread:
                self._protocol.pause_writing()

    def read_all(self) -> None:
        """The client reads again, all there is."""
        self.reads, self.unread = True, 0
        self._protocol.resume_writing()

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self._loop.call_soon(self.on_reading)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        self._protocol.connection_lost(None)
        self._lost = True
        del self._protocol, self.on_reading  # as real ones do


class KnownLogin:
    """Lets a client in without looking at what it shows."""

    def __init__(self, connection: Connection, principal: Principal) -> None:
        self.principal = principal
        self._connection = connection

    def begin(self, connect: pb.CommandConnect) -> None:
        self._connection.connected()

    def close(self) -> None:
        del self._connection


class Client:
    """One connection, its handshake done. It answers pings unless ``mute``."""

    def __init__(
        self,
        broker: BrokerInMemory,
        *,
        handshake: bool = True,
        principal: Principal | None = None,
    ) -> None:
        self.connection = Connection(broker.broker, handlers_of(broker.broker))
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)
        if principal is not None:
            self.connection.login = cast(Login, KnownLogin(self.connection, principal))
        self.mute = False
        self.answers: list[pb.BaseCommand] = []
        self._deliveries: list[Received] = []
        self._decoder = FrameDecoder(MAX_FRAME_BYTES, texts_max=MAX_FRAME_BYTES)
        self._unread = bytearray()
        self.transport.on_reading = self._arrive
        self._ids = count(1)
        if handshake:
            command = Command(type=Command.CONNECT)
            command.connect.client_version = "test"
            command.connect.protocol_version = 21
            self.send(command)

    # -- bytes ---------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        """Give bytes to the broker as soon as it reads, unless the connection is closed."""
        self._unread += data
        self._arrive()

    def _arrive(self) -> None:
        while self._unread and not (self.transport.closed or self.transport.paused):
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(self._unread))
            buffer[:size] = self._unread[:size]
            del self._unread[:size]
            self.connection.buffer_updated(size)

    def send(self, *commands: pb.BaseCommand) -> None:
        """Send commands in one piece."""
        self.send_bytes(b"".join(map(encode_command, commands)))

    def hang_up(self) -> None:
        """The connection is lost."""
        self.transport.close()

    async def take(self, *types: int, seconds: float = 1.0) -> pb.BaseCommand:
        """The next answer of one of the types; ``TimeoutError`` if none comes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            self._read()
            for command in self.answers:
                if command.type in types:
                    self.answers.remove(command)
                    return command
            if loop.time() >= end:
                raise TimeoutError(f"no {types} among {self.answers}")
            await asyncio.sleep(0.001)

    def has(self, kind: int) -> bool:
        """Whether a command of this type has arrived and was not taken."""
        self._read()
        return any(command.type == kind for command in self.answers)

    async def deliveries(self) -> list[Received]:
        """All messages that came since the last call."""
        await asyncio.sleep(0.001)
        self._read()
        self.answers = [a for a in self.answers if a.type != Command.MESSAGE]
        found, self._deliveries = self._deliveries, []
        return found

    def _read(self) -> None:
        data = bytes(self.transport.written)
        self.transport.written.clear()
        for command, section in self._decoder.receive(data):
            if section is not None:
                self._deliveries.append(received(command, section))
            if command.type != Command.PING:
                self.answers.append(command)
            elif not self.mute:
                self.send(pong())

    # -- commands ------------------------------------------------------------------------------

    def subscribe_command(
        self, topic: str, subscription: str = "s", consumer_id: int = 1, **fields: Any
    ) -> pb.BaseCommand:
        command = Command(type=Command.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = topic, subscription
        request.subType = fields.pop("kind", pb.CommandSubscribe.Exclusive)
        request.consumer_id, request.request_id = consumer_id, next(self._ids)
        request.initialPosition = pb.CommandSubscribe.Earliest
        for name, value in fields.items():
            if name == "start":
                request.start_message_id.ledgerId, request.start_message_id.entryId = value
            else:
                setattr(request, name, value)
        return command

    async def subscribe(self, topic: str, subscription: str = "s", **fields: Any) -> int:
        """Subscribe with 1000 permits; 0, or the code of the refusal."""
        command = self.subscribe_command(topic, subscription, **fields)
        self.send(command)
        code = await self.outcome(seconds=8)
        if code == 0:
            self.flow(1000, command.subscribe.consumer_id)
        return code

    async def outcome(self, seconds: float = 1.0) -> int:
        """The next SUCCESS (0) or ERROR (its code)."""
        answer = await self.take(Command.SUCCESS, Command.ERROR, seconds=seconds)
        return answer.error.error if answer.type == Command.ERROR else 0

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = Command(type=Command.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
        self.send(command)

    def producer_command(
        self, topic: str, name: str, producer_id: int = 1, **fields: Any
    ) -> pb.BaseCommand:
        command = Command(type=Command.PRODUCER)
        request = command.producer
        request.topic, request.producer_id, request.producer_name = topic, producer_id, name
        request.request_id = next(self._ids)
        for field, value in fields.items():
            setattr(request, field, value)
        return command

    async def open_producer(
        self, topic: str, name: str, producer_id: int = 1, *, seconds: float = 1.0, **fields: Any
    ) -> pb.CommandProducerSuccess | int:
        """Ask for a producer: what it is told, or the code of the refusal."""
        self.send(self.producer_command(topic, name, producer_id, **fields))
        answer = await self.take(Command.PRODUCER_SUCCESS, Command.ERROR, seconds=seconds)
        if answer.type == Command.ERROR:
            return answer.error.error
        return answer.producer_success

    async def produce(self, topic: str, count_: int, producer_id: int = 1) -> list[tuple[int, int]]:
        """Open a producer and publish; the message ids."""
        name = f"p-{id(self)}-{producer_id}"
        self.send(self.producer_command(topic, name, producer_id))
        await self.take(Command.PRODUCER_SUCCESS)
        return [await self.publish(i, producer_id) for i in range(count_)]

    async def publish(
        self, sequence_id: int = 0, producer_id: int = 1, **metadata: Any
    ) -> tuple[int, int]:
        producer = self.connection.opened.producers.get(producer_id)
        if producer is not None and self.connection.broker.settings.brokerDeduplicationEnabled:
            metadata.setdefault("producer_name", producer.name)  # else it is refused
        self.send_bytes(publish(producer_id, sequence_id, b"x", **metadata))
        receipt = (await self.take(Command.SEND_RECEIPT)).send_receipt
        return receipt.message_id.ledgerId, receipt.message_id.entryId

    async def publish_batch(
        self, size: int, sequence_id: int = 0, producer_id: int = 1, **metadata: Any
    ) -> tuple[int, int]:
        """Publish a batch of messages with payloads b"0", b"1", ...; its id."""
        fields = {"producer_name": "p", "sequence_id": sequence_id, "publish_time": 1, **metadata}
        messages = [(pb.SingleMessageMetadata(), b"%d" % number) for number in range(size)]
        entry = build_batch(pb.MessageMetadata(**fields), messages)
        self.send_bytes(send_frame(send_command(producer_id, sequence_id, size), entry))
        receipt = (await self.take(Command.SEND_RECEIPT)).send_receipt
        return receipt.message_id.ledgerId, receipt.message_id.entryId

    async def received(self, number: int) -> list[tuple[int, int]]:
        """The ids of the next messages."""
        ids = [(await self.take(Command.MESSAGE)).message.message_id for _ in range(number)]
        return [(i.ledgerId, i.entryId) for i in ids]

    def close_command(self, kind: str, number: int = 1) -> pb.BaseCommand:
        """CLOSE_CONSUMER or CLOSE_PRODUCER."""
        if kind == "consumer":
            command = Command(type=Command.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = number
            command.close_consumer.request_id = next(self._ids)
        else:
            command = Command(type=Command.CLOSE_PRODUCER)
            command.close_producer.producer_id = number
            command.close_producer.request_id = next(self._ids)
        return command

    def seek_command(self, position: tuple[int, int], consumer_id: int = 1) -> pb.BaseCommand:
        command = Command(type=Command.SEEK)
        command.seek.consumer_id, command.seek.request_id = consumer_id, next(self._ids)
        command.seek.message_id.ledgerId, command.seek.message_id.entryId = position
        return command

    def ack_command(
        self,
        *positions: tuple[int, int],
        cumulative: bool = False,
        ack_set: tuple[int, ...] = (),
        consumer_id: int = 1,
    ) -> pb.BaseCommand:
        command = Command(type=Command.ACK)
        request = command.ack
        request.consumer_id, request.request_id = consumer_id, next(self._ids)
        request.ack_type = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        for ledger_id, entry_id in positions:
            request.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=ack_set)
        return command

    async def ack(self, *positions: tuple[int, int], **fields: Any) -> int:
        """Acknowledge and wait for the answer: 0, or the code of the error in it."""
        command = self.ack_command(*positions, **fields)
        self.send(command)
        answer = (await self.take(Command.ACK_RESPONSE)).ackResponse
        assert answer.request_id == command.ack.request_id
        assert answer.consumer_id == command.ack.consumer_id
        assert answer.HasField("error") == answer.HasField("message") == bool(answer.message)
        return answer.error if answer.HasField("error") else 0

    def redeliver(self, *positions: tuple[int, int], consumer_id: int = 1, **fields: Any) -> None:
        """Ask for messages again; without ids for all."""
        command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = consumer_id
        for ledger_id, entry_id in positions:
            request.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        for name, value in fields.items():
            setattr(request, name, value)
        self.send(command)

    async def close(self, kind: str = "consumer", number: int = 1) -> None:
        """Close a consumer or a producer."""
        self.send(self.close_command(kind, number))
        assert await self.outcome() == 0


async def consuming(
    broker: BrokerInMemory, messages: int, **fields: Any
) -> tuple[Client, list[tuple[int, int]]]:
    """A client that has published so many messages and subscribes to them; and their ids."""
    client = Client(broker)
    ids = await client.produce(TOPIC, messages)
    assert await client.subscribe(TOPIC, **fields) == 0
    return client, ids


def replicate(client: Client, producer_id: int = 1) -> None:
    """Let a producer be a broker of another cluster: it may publish markers."""
    client.connection.opened.producers[producer_id].is_replicator = True


def pong() -> pb.BaseCommand:
    command = Command(type=Command.PONG)
    command.pong.SetInParent()
    return command


@contextmanager
def held(broker: BrokerInMemory) -> Iterator[None]:
    """While it is open, nothing becomes durable."""
    broker.bookie.held = True
    yield
    broker.bookie.held = False
    cast(Any, broker.bookie).release_held()
