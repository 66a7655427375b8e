"""One client connection: the protocol's conversation, shell around the sans-io wire.

The handshake is a small state machine (`State`); after it each command type has a handler in
``_HANDLERS``. Handlers that need storage run as tasks, so replies to different requests may be
reordered, as the protocol allows; SEND, ACK and FLOW are handled at once and in order.

Bytes for the socket are collected and written once a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from pulsark import __version__
from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.message_ids import fill_message_id, position_of
from pulsark.dispatch.producer import Producer
from pulsark.dispatch.subscription_type import SubType
from pulsark.errors import (
    ClientError,
    MetadataError,
    ProtocolError,
    PulsarkError,
    ServerError,
    StorageError,
)
from pulsark.limits import (
    CONSUMER_METADATA_CHARS_MAX,
    FRAME_OVERHEAD_BYTES,
    HANDSHAKE_FRAME_BYTES_MAX,
    PROBE_TIMEOUT_SECONDS,
    RECENTLY_CLOSED_PRODUCERS_MAX,
    UNREAD_OUTPUT_BYTES_MAX,
)
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import checksum_ok, entry_without_checksum, parse_entry
from pulsark.wire.frames import FrameDecoder, encode_command, message_head, send_receipt
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 21
SERVER_VERSION = f"Pulsark-{__version__}"
_NO_REQUEST = 2**64 - 1
_OLD_CHECKSUM_VERSION = 11
_ACTIVE_CHANGE_VERSION = 12
_END_OF_TOPIC_VERSION = 9

Command = pb.BaseCommand
Handler = Callable[["Connection", Any], None]


class State(Enum):
    """``CONNECTING`` -> ``CONNECTED`` -> ``CLOSED``; a failed handshake skips the middle."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class Connection(asyncio.BufferedProtocol):
    """The server's side of one TCP connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.state = State.CONNECTING
        self.address = ""
        self.client_version = ""
        self.protocol_version = 0
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.writable = True
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self.get_buffer = self._decoder.get_buffer_hint  # type: ignore[method-assign]
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._socket_open = True
        self._flush_scheduled = False
        self._pending_publishes = 0
        self._pending_bytes = 0
        self._reading_paused = False
        self._opening: set[tuple[str, int]] = set()
        self._recently_closed: dict[int, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_frame_at = self._loop.time()
        self._ping_sent = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self._probe: asyncio.Future[bool] | None = None

    # -- asyncio protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "/local"
        self.broker.connections.add(self)
        self._arm_keep_alive()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived in the buffer that ``get_buffer`` gave."""
        try:
            for command, entry in self._decoder.buffer_updated(nbytes):
                if entry is not None:
                    self._on_send(command.send, entry)
                else:
                    self._on_command(command)
                if self.state is State.CLOSED:
                    return
        except ProtocolError as error:
            log.info("%s: protocol error, closing: %s", self.address, error)
            self.close()
        self._ping_sent = False
        if self._probe is not None:
            self._probe.set_result(True)
            self._probe = None

    def eof_received(self) -> bool:
        """The client closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: so are its producers and consumers."""
        self.state = State.CLOSED
        self.writable = False
        self.broker.connections.discard(self)
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self._probe is not None:
            self._probe.set_result(False)
            self._probe = None
        for task in self._tasks:
            task.cancel()
        for producer in self.producers.values():
            producer.topic.remove_producer(producer)
        self.producers.clear()
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            consumer.subscription.remove_consumer(consumer)

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._socket_open = False
        self.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        self._socket_open = True
        self._became_writable()

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._flush()
            self._transport.close()

    # -- output ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue bytes for the socket; they leave in this turn of the event loop."""
        self._out.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send(self, command: Command) -> None:
        """Queue a command."""
        if self.state is not State.CLOSED:
            self.write(encode_command(command))

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Deliver one entry."""
        data = entry.data
        if self.protocol_version < _OLD_CHECKSUM_VERSION:
            data = entry_without_checksum(data)
        head = message_head(
            consumer.consumer_id,
            entry.ledger_id,
            entry.entry_id,
            consumer.subscription.topic.name.partition,
            redeliveries,
            ack_set,
            consumer.epoch,
            len(data),
        )
        self._out.append(head)
        self.write(data)
        self._out_bytes += len(data)
        if self._out_bytes > UNREAD_OUTPUT_BYTES_MAX:
            self.writable = False

    def send_receipt(self, producer: Producer, entry: Entry) -> None:
        """Confirm one SEND."""
        self._published(len(entry.data))
        producer.pending -= 1
        if self.state is State.CONNECTED and not producer.closed:
            self.write(
                send_receipt(
                    producer.producer_id,
                    entry.sequence_id,
                    entry.highest_sequence_id,
                    entry.ledger_id,
                    entry.entry_id,
                )
            )

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        """Refuse one SEND that was waiting for storage."""
        self._published(len(entry.data))
        producer.pending -= 1
        if not producer.closed:
            self._send_error(
                producer.producer_id,
                max(entry.sequence_id, entry.highest_sequence_id or 0),
                code,
                message,
            )

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""
        if self.protocol_version >= _ACTIVE_CHANGE_VERSION:
            command = Command(type=Command.ACTIVE_CONSUMER_CHANGE)
            command.active_consumer_change.consumer_id = consumer.consumer_id
            command.active_consumer_change.is_active = is_active
            self.send(command)

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Tell a consumer that the topic is terminated and nothing is left."""
        if self.protocol_version >= _END_OF_TOPIC_VERSION:
            command = Command(type=Command.REACHED_END_OF_TOPIC)
            command.reachedEndOfTopic.consumer_id = consumer.consumer_id
            self.send(command)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)
        if self._out_bytes:
            self._out_bytes = 0
            if not self.writable:
                self._became_writable()

    def _became_writable(self) -> None:
        if not self._socket_open or self.state is not State.CONNECTED:
            return
        self.writable = True
        for consumer in self.consumers.values():
            consumer.subscription.schedule_pump()

    def _error(self, request_id: int, error: Exception) -> None:
        command = Command(type=Command.ERROR)
        command.error.request_id = request_id
        command.error.error = int(error_code(error))  # type: ignore[assignment]
        command.error.message = str(error)
        self.send(command)

    def _success(self, request_id: int) -> None:
        command = Command(type=Command.SUCCESS)
        command.success.request_id = request_id
        self.send(command)

    def _send_error(
        self, producer_id: int, sequence_id: int, code: ServerError, message: str
    ) -> None:
        command = Command(type=Command.SEND_ERROR)
        command.send_error.producer_id = producer_id
        command.send_error.sequence_id = sequence_id
        command.send_error.error = int(code)  # type: ignore[assignment]
        command.send_error.message = message
        self.send(command)

    # -- back-pressure ---------------------------------------------------------------------------

    def _publishing(self, size: int) -> None:
        self._pending_publishes += 1
        self._pending_bytes += size
        if not self._reading_paused and (
            self._pending_publishes >= self.settings.maxPendingPublishRequestsPerConnection
            or self._pending_bytes >= self.broker.pending_bytes_max
        ):
            self._reading_paused = True
            self._transport.pause_reading()

    def _published(self, size: int) -> None:
        self._pending_publishes -= 1
        self._pending_bytes -= size
        if (
            self._reading_paused
            and self._pending_publishes <= self.settings.maxPendingPublishRequestsPerConnection // 2
            and self._pending_bytes <= self.broker.pending_bytes_max // 2
        ):
            self._reading_paused = False
            if self.state is State.CONNECTED:
                self._transport.resume_reading()

    # -- keep-alive --------------------------------------------------------------------------------

    def _arm_keep_alive(self) -> None:
        self._keep_alive = self._loop.call_later(
            self.settings.keepAliveIntervalSeconds, self._on_keep_alive
        )

    def _on_keep_alive(self) -> None:
        if self.state is State.CONNECTING:
            log.info("%s: no handshake in time, closing", self.address)
            self.close()
            return
        if self._ping_sent and not self._reading_paused:
            log.info("%s: no answer to a ping, closing", self.address)
            self._transport.abort()
            return
        self._ping()
        self._arm_keep_alive()

    def _ping(self) -> None:
        command = Command(type=Command.PING)
        command.ping.SetInParent()
        self._ping_sent = True
        self.send(command)

    async def probe(self) -> bool:
        """Whether the client still answers; if not, the connection is closed."""
        if self.state is not State.CONNECTED:
            return False
        if self._probe is None:
            self._probe = self._loop.create_future()
            self._ping()
        done, _ = await asyncio.wait([self._probe], timeout=PROBE_TIMEOUT_SECONDS)
        if done:
            return done.pop().result()
        self._transport.abort()
        return False

    # -- commands --------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        if self.state is State.CONNECTING:
            if command.type != Command.CONNECT:
                raise ProtocolError(f"command {command.type} before CONNECT")
            self._on_connect(command.connect)
            return
        handler = _HANDLERS.get(command.type)
        if handler is None:
            if command.type == Command.CONNECT:
                raise ProtocolError("second CONNECT")
            raise ProtocolError(f"unexpected command {command.type}")
        handler(self, command)

    def _on_connect(self, connect: pb.CommandConnect) -> None:
        self.client_version = connect.client_version[:128]
        self.protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
        self.state = State.CONNECTED
        self._decoder.max_frame_size = self.settings.maxMessageSize + FRAME_OVERHEAD_BYTES
        command = Command(type=Command.CONNECTED)
        connected = command.connected
        connected.server_version = SERVER_VERSION
        connected.protocol_version = self.protocol_version
        connected.max_message_size = self.settings.maxMessageSize
        connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        self.send(command)

    def _on_ping(self, command: Command) -> None:
        pong = Command(type=Command.PONG)
        pong.pong.SetInParent()
        self.send(pong)

    def _on_pong(self, command: Command) -> None:
        """Any frame counts as the answer; nothing else to do."""

    # -- metadata and lookup

    def _on_partitioned_metadata(self, command: Command) -> None:
        request = command.partitionMetadata

        async def answer() -> None:
            reply = Command(type=Command.PARTITIONED_METADATA_RESPONSE)
            response = reply.partitionMetadataResponse
            response.request_id = request.request_id
            try:
                name = TopicName.parse(request.topic)
                response.partitions = await self.broker.partition_count(
                    name, create=request.metadata_auto_creation_enabled
                )
                response.response = pb.CommandPartitionedTopicMetadataResponse.Success
            except PulsarkError as error:
                response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
                response.error = int(error_code(error))  # type: ignore[assignment]
                response.message = str(error)
            self.send(reply)

        self._run(answer(), request.request_id)

    def _on_lookup(self, command: Command) -> None:
        request = command.lookupTopic

        async def answer() -> None:
            reply = Command(type=Command.LOOKUP_RESPONSE)
            response = reply.lookupTopicResponse
            response.request_id = request.request_id
            try:
                found = await self.broker.lookup(TopicName.parse(request.topic))
                response.response = pb.CommandLookupTopicResponse.Connect
                response.authoritative = True
                response.brokerServiceUrl = found.broker_url
                response.proxy_through_service_url = found.through_service_url
            except PulsarkError as error:
                response.response = pb.CommandLookupTopicResponse.Failed
                response.error = int(error_code(error))  # type: ignore[assignment]
                response.message = str(error)
            self.send(reply)

        self._run(answer(), request.request_id)

    def _on_get_topics(self, command: Command) -> None:
        request = command.getTopicsOfNamespace

        async def answer() -> None:
            found = await self.broker.topics_of_namespace(request.namespace, request.mode)
            reply = Command(type=Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            response = reply.getTopicsOfNamespaceResponse
            response.request_id = request.request_id
            response.topics_hash = found.hash
            response.changed = request.topics_hash != found.hash
            if response.changed:
                response.topics.extend(found.topics)
            self.send(reply)

        self._run(answer(), request.request_id)

    # -- schemas

    def _on_get_schema(self, command: Command) -> None:
        request = command.getSchema

        async def answer() -> None:
            reply = Command(type=Command.GET_SCHEMA_RESPONSE)
            response = reply.getSchemaResponse
            response.request_id = request.request_id
            try:
                name = TopicName.parse(request.topic)
                version = request.schema_version if request.HasField("schema_version") else None
                schema, number = await self.broker.schemas.get(name, version)
                response.schema.CopyFrom(schema)
                response.schema_version = number
            except PulsarkError as error:
                response.error_code = int(error_code(error))  # type: ignore[assignment]
                response.error_message = str(error)
            self.send(reply)

        self._run(answer(), request.request_id)

    def _on_get_or_create_schema(self, command: Command) -> None:
        request = command.getOrCreateSchema

        async def answer() -> None:
            reply = Command(type=Command.GET_OR_CREATE_SCHEMA_RESPONSE)
            response = reply.getOrCreateSchemaResponse
            response.request_id = request.request_id
            try:
                name = TopicName.parse(request.topic)
                response.schema_version = await self.broker.schemas.register(name, request.schema)
            except PulsarkError as error:
                response.error_code = int(error_code(error))  # type: ignore[assignment]
                response.error_message = str(error)
            self.send(reply)

        self._run(answer(), request.request_id)

    # -- producers

    def _on_producer(self, command: Command) -> None:
        request = command.producer
        known = self.producers.get(request.producer_id)
        if known is not None and not known.closed:
            self._producer_ready(known, request.request_id)
            return
        self._open("producer", request.producer_id, request.request_id, self._create_producer(request))

    async def _create_producer(self, request: pb.CommandProducer) -> None:
        name = TopicName.parse(request.topic)
        topic = await self.broker.topic_for_clients(name)
        topic.check_writable()
        if request.producer_access_mode != 0:
            raise ClientError(
                ServerError.NotAllowedError, "Only the Shared producer access mode is supported"
            )
        schema_version = b""
        if request.HasField("schema"):
            schema_version = await self.broker.schemas.register(name, request.schema)
        if request.initial_subscription_name:
            await self.broker.ensure_subscription(topic, request.initial_subscription_name)
        producer_name = request.producer_name or await self.broker.new_producer_name()
        producer = Producer(
            topic,
            self,
            request.producer_id,
            producer_name,
            epoch=request.epoch,
            user_provided_name=request.user_provided_producer_name,
            metadata={m.key: m.value for m in request.metadata},
            schema_version=schema_version,
            connected_since_ms=self.broker.clock.now_ms(),
        )
        await topic.add_producer(producer)
        if self.state is not State.CONNECTED:
            topic.remove_producer(producer)
            return
        self.producers[request.producer_id] = producer
        self._recently_closed.pop(request.producer_id, None)
        self._producer_ready(producer, request.request_id)

    def _producer_ready(self, producer: Producer, request_id: int) -> None:
        command = Command(type=Command.PRODUCER_SUCCESS)
        success = command.producer_success
        success.request_id = request_id
        success.producer_name = producer.name
        success.last_sequence_id = -1
        success.schema_version = producer.schema_version
        success.producer_ready = True
        self.send(command)

    def _on_send(self, send: pb.CommandSend, data: bytes) -> None:
        if self.state is not State.CONNECTED:
            raise ProtocolError("SEND before CONNECT")
        producer = self.producers.get(send.producer_id)
        if producer is None or producer.closed:
            if send.producer_id in self._recently_closed:
                return  # on its way when the broker closed the producer; it will be sent again
            raise ProtocolError(f"SEND for unknown producer {send.producer_id}")
        sequence_id = send.sequence_id
        highest = send.highest_sequence_id if send.HasField("highest_sequence_id") else None
        if not checksum_ok(data):
            self._send_error(
                send.producer_id,
                max(sequence_id, highest or 0),
                ServerError.ChecksumError,
                "The message's checksum is wrong: it was damaged on its way",
            )
            return
        head = parse_entry(data)
        if send.HasField("txnid_most_bits") and send.HasField("txnid_least_bits"):
            self._send_error(
                send.producer_id,
                max(sequence_id, highest or 0),
                ServerError.NotAllowedError,
                "Transactions are not enabled on this broker",
            )
            return
        producer.messages_in += head.messages
        producer.bytes_in += len(data)
        producer.pending += 1
        self._publishing(len(data))
        producer.topic.publish(
            Entry(
                data, head.messages, head.batched, head.marker, producer, sequence_id, highest
            )
        )

    def _on_close_producer(self, command: Command) -> None:
        request = command.close_producer
        producer = self.producers.pop(request.producer_id, None)
        if producer is None:
            self._success(request.request_id)
            return
        self._run(self._close_when_drained(producer, request.request_id), request.request_id)

    async def _close_when_drained(self, producer: Producer, request_id: int) -> None:
        while producer.pending and not producer.closed:
            await asyncio.sleep(0.001)
        producer.topic.remove_producer(producer)
        self._success(request_id)

    def close_producer(self, producer: Producer) -> None:
        """Tell the client to create the producer anew."""
        self.forget_producer(producer)
        producer.topic.remove_producer(producer)
        command = Command(type=Command.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer.producer_id
        command.close_producer.request_id = _NO_REQUEST
        self.send(command)

    def forget_producer(self, producer: Producer) -> None:
        """Drop a producer; its SENDs that are on their way are ignored."""
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self._recently_closed[producer.producer_id] = None
            while len(self._recently_closed) > RECENTLY_CLOSED_PRODUCERS_MAX:
                del self._recently_closed[next(iter(self._recently_closed))]

    # -- consumers

    def _on_subscribe(self, command: Command) -> None:
        request = command.subscribe
        known = self.consumers.get(request.consumer_id)
        if known is not None and not known.closed:
            self._success(request.request_id)
            return
        self._open("consumer", request.consumer_id, request.request_id, self._subscribe(request))

    async def _subscribe(self, request: pb.CommandSubscribe) -> None:
        if sum(len(m.key) + len(m.value) for m in request.metadata) > CONSUMER_METADATA_CHARS_MAX:
            raise ClientError(
                ServerError.MetadataError,
                f"Consumer metadata is longer than {CONSUMER_METADATA_CHARS_MAX} characters",
            )
        consumer = await self.broker.subscribe(self, request)
        subscription = consumer.subscription
        if self.state is not State.CONNECTED:
            subscription.remove_consumer(consumer)
            return
        self.consumers[request.consumer_id] = consumer
        self._success(request.request_id)
        subscription.announce_active(consumer)
        if subscription.topic.ledger.is_terminated and subscription.cursor.backlog() == 0:
            self.send_end_of_topic(consumer)

    def _on_flow(self, command: Command) -> None:
        flow = command.flow
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None and flow.messagePermits:
            consumer.subscription.flow(
                consumer, flow.messagePermits, self.broker.clock.now_ms()
            )

    def _on_ack(self, command: Command) -> None:
        ack = command.ack
        consumer = self.consumers.get(ack.consumer_id)
        if consumer is None:
            return
        done: Callable[[BaseException | None], None] | None = None
        if ack.HasField("request_id"):
            done = self._ack_answerer(ack.consumer_id, ack.request_id)
        if ack.HasField("txnid_most_bits") and ack.HasField("txnid_least_bits"):
            if done is not None:
                done(
                    ClientError(
                        ServerError.NotAllowedError, "Transactions are not enabled on this broker"
                    )
                )
            return
        if ack.HasField("validation_error"):
            log.warning(
                "%s: consumer %s discarded a corrupt message: %s",
                consumer.subscription.topic.name,
                consumer.name,
                [f"{m.ledgerId}:{m.entryId}" for m in ack.message_id],
            )
        now_ms = self.broker.clock.now_ms()
        subscription = consumer.subscription
        try:
            if ack.ack_type == pb.CommandAck.Cumulative:
                if len(ack.message_id) != 1:
                    raise ClientError(
                        ServerError.NotAllowedError,
                        "A cumulative acknowledgement takes exactly one message id",
                    )
                message_id = ack.message_id[0]
                ack_set = list(message_id.ack_set) or None
                subscription.ack_cumulative(
                    consumer, position_of(message_id), ack_set, done, now_ms
                )
            else:
                acks = [
                    (position_of(m), list(m.ack_set) or None, m.batch_size or None)
                    for m in ack.message_id
                ]
                subscription.ack(consumer, acks, done, now_ms)
        except ClientError as error:
            if done is not None:
                done(error)

    def _ack_answerer(
        self, consumer_id: int, request_id: int
    ) -> Callable[[BaseException | None], None]:
        def answer(error: BaseException | None) -> None:
            command = Command(type=Command.ACK_RESPONSE)
            response = command.ackResponse
            response.consumer_id = consumer_id
            response.request_id = request_id
            if error is not None:
                response.error = int(error_code(error))  # type: ignore[assignment]
                response.message = str(error) or type(error).__name__
            self.send(command)

        return answer

    def _on_redeliver(self, command: Command) -> None:
        request = command.redeliverUnacknowledgedMessages
        consumer = self.consumers.get(request.consumer_id)
        if consumer is not None:
            ids = [position_of(m) for m in request.message_ids] or None
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, ids, epoch)

    def _on_seek(self, command: Command) -> None:
        request = command.seek

        async def answer() -> None:
            consumer = self.consumers.get(request.consumer_id)
            if consumer is None:
                raise ClientError(ServerError.MetadataError, "Consumer not found")
            subscription = consumer.subscription
            ack_set: list[int] | None = None
            if request.HasField("message_id"):
                target = position_of(request.message_id)
                ack_set = list(request.message_id.ack_set) or None
            elif request.HasField("message_publish_time"):
                ledger = subscription.topic.ledger
                target = await ledger.find_by_publish_time(request.message_publish_time)
            else:
                raise ClientError(
                    ServerError.MetadataError, "A seek needs a message id or a publish time"
                )
            await subscription.seek(target, ack_set)
            self._success(request.request_id)

        self._run(answer(), request.request_id)

    def _on_unsubscribe(self, command: Command) -> None:
        request = command.unsubscribe

        async def answer() -> None:
            consumer = self.consumers.get(request.consumer_id)
            if consumer is None:
                raise ClientError(ServerError.MetadataError, "Consumer not found")
            subscription = consumer.subscription
            others = [c for c in subscription.consumers if c is not consumer]
            if others and not request.force:
                raise ClientError(
                    ServerError.MetadataError,
                    "Unconnected or shared consumer attempting to unsubscribe",
                )
            del self.consumers[request.consumer_id]
            subscription.remove_consumer(consumer)
            await subscription.topic.delete_subscription(subscription)
            self._success(request.request_id)

        self._run(answer(), request.request_id)

    def _on_close_consumer(self, command: Command) -> None:
        request = command.close_consumer
        consumer = self.consumers.pop(request.consumer_id, None)
        if consumer is not None:
            consumer.subscription.remove_consumer(consumer)
        self._success(request.request_id)

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell the client to subscribe anew."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
        consumer.subscription.remove_consumer(consumer)
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.consumer_id
        command.close_consumer.request_id = _NO_REQUEST
        self.send(command)

    def _on_last_message_id(self, command: Command) -> None:
        request = command.getLastMessageId

        async def answer() -> None:
            consumer = self.consumers.get(request.consumer_id)
            if consumer is None:
                raise ClientError(ServerError.MetadataError, "Consumer not found")
            subscription = consumer.subscription
            found = await self.broker.last_message_id(subscription.topic)
            reply = Command(type=Command.GET_LAST_MESSAGE_ID_RESPONSE)
            response = reply.getLastMessageIdResponse
            response.request_id = request.request_id
            fill_message_id(response.last_message_id, found.position, found.batch_index)
            response.last_message_id.partition = subscription.topic.name.partition
            mark_delete = subscription.cursor.state.mark_delete
            if mark_delete.ledger_id >= 0:
                fill_message_id(response.consumer_mark_delete_position, mark_delete, -1)
            self.send(reply)

        self._run(answer(), request.request_id)

    def _on_consumer_stats(self, command: Command) -> None:
        request = command.consumerStats
        reply = Command(type=Command.CONSUMER_STATS_RESPONSE)
        response = reply.consumerStatsResponse
        response.request_id = request.request_id
        consumer = self.consumers.get(request.consumer_id)
        if consumer is None:
            response.error_code = int(ServerError.ConsumerNotFound)  # type: ignore[assignment]
            response.error_message = "Consumer not found"
        else:
            response.consumerName = consumer.name
            response.availablePermits = max(consumer.permits, 0)
            response.unackedMessages = consumer.unacked
            response.blockedConsumerOnUnackedMsgs = consumer.blocked
            response.address = self.address
            response.connectedSince = self.broker.iso_time(consumer.connected_since_ms)
            response.type = consumer.subscription.type.sub_type.name
            response.msgBacklog = consumer.subscription.cursor.backlog()
        self.send(reply)

    def _on_transaction(self, command: Command) -> None:
        """Transactions are off: every request is told so, as the protocol asks."""
        for _, request in command.ListFields():
            request_id = getattr(request, "request_id", None)
            if request_id is not None:
                self._error(
                    request_id,
                    ClientError(
                        ServerError.NotAllowedError,
                        "Transactions are not enabled on this broker",
                    ),
                )
                return

    # -- tasks -----------------------------------------------------------------------------------------

    def _open(
        self, kind: str, client_id: int, request_id: int, work: Coroutine[Any, Any, None]
    ) -> None:
        """Run the creation of a producer or consumer; a second attempt has to wait for it."""
        key = (kind, client_id)
        if key in self._opening:
            work.close()
            self._error(
                request_id,
                ClientError(ServerError.ServiceNotReady, f"This {kind} is already being created"),
            )
            return
        self._opening.add(key)
        self._run(work, request_id, lambda: self._opening.discard(key))

    def _run(
        self,
        work: Coroutine[Any, Any, None],
        request_id: int,
        finally_: Callable[[], None] | None = None,
    ) -> None:
        """Run a request that awaits; its failure is the request's answer."""

        async def guarded() -> None:
            try:
                await work
            except PulsarkError as error:
                self._error(request_id, error)
            except Exception as error:
                # A bug: the client gets an answer, the log gets the trace.
                log.exception("%s: request %d failed", self.address, request_id)
                self._error(
                    request_id,
                    ClientError(ServerError.UnknownError, f"Internal error: {type(error).__name__}"),
                )
            finally:
                if finally_ is not None:
                    finally_()

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_HANDLERS: dict[int, Handler] = {
    Command.PING: Connection._on_ping,
    Command.PONG: Connection._on_pong,
    Command.PARTITIONED_METADATA: Connection._on_partitioned_metadata,
    Command.LOOKUP: Connection._on_lookup,
    Command.GET_TOPICS_OF_NAMESPACE: Connection._on_get_topics,
    Command.GET_SCHEMA: Connection._on_get_schema,
    Command.GET_OR_CREATE_SCHEMA: Connection._on_get_or_create_schema,
    Command.PRODUCER: Connection._on_producer,
    Command.CLOSE_PRODUCER: Connection._on_close_producer,
    Command.SUBSCRIBE: Connection._on_subscribe,
    Command.FLOW: Connection._on_flow,
    Command.ACK: Connection._on_ack,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: Connection._on_redeliver,
    Command.SEEK: Connection._on_seek,
    Command.UNSUBSCRIBE: Connection._on_unsubscribe,
    Command.CLOSE_CONSUMER: Connection._on_close_consumer,
    Command.GET_LAST_MESSAGE_ID: Connection._on_last_message_id,
    Command.CONSUMER_STATS: Connection._on_consumer_stats,
    Command.TC_CLIENT_CONNECT_REQUEST: Connection._on_transaction,
    Command.NEW_TXN: Connection._on_transaction,
    Command.ADD_PARTITION_TO_TXN: Connection._on_transaction,
    Command.ADD_SUBSCRIPTION_TO_TXN: Connection._on_transaction,
    Command.END_TXN: Connection._on_transaction,
}


def error_code(error: BaseException) -> ServerError:
    """The protocol's code for an error."""
    if isinstance(error, ClientError):
        return error.code
    if isinstance(error, MetadataError):
        return ServerError.MetadataError
    if isinstance(error, StorageError):
        return ServerError.PersistenceError
    return ServerError.UnknownError
