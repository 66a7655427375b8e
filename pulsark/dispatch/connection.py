"""One client connection: the protocol's conversation, shell around the sans-io wire.

The handshake is a small state machine (`State`); after it each command type has a function in
``handlers``. Those that need storage run as tasks, so replies to different requests may be
reordered, as the protocol allows; SEND, ACK and FLOW are handled at once and in order.

Bytes for the socket are collected and written once a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, cast

from pulsark.dispatch.entry import Entry
from pulsark.dispatch.error_codes import error_code
from pulsark.dispatch.handlers import HANDLERS
from pulsark.dispatch.handlers.handshake import connected
from pulsark.dispatch.holdings import Holdings
from pulsark.dispatch.keep_alive import KeepAlive
from pulsark.dispatch.requests import Requests
from pulsark.errors import ClientError, ProtocolError, ServerError
from pulsark.limits import (
    FRAME_OVERHEAD_BYTES,
    HANDSHAKE_FRAME_BYTES_MAX,
    PENDING_PUBLISH_BYTES_MAX,
    RECENTLY_CLOSED_PRODUCERS_MAX,
    REQUESTS_PER_TURN_MAX,
    REQUESTS_UNDER_WAY_MAX,
    UNREAD_OUTPUT_BYTES_MAX,
)
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import checked_counts, entry_metadata, entry_without_checksum
from pulsark.wire.frames import FrameDecoder, encode_command, message_head, send_receipt
from pulsark.wire.successive_frames import send_receipts

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.consumer import Consumer
    from pulsark.dispatch.producer import Producer
    from pulsark.dispatch.topic_kinds import AnyTopic
    from pulsark.dispatch.topic_lists import TopicWatcher

log = logging.getLogger(__name__)

_NO_REQUEST = 2**64 - 1
_SEND = pb.BaseCommand.SEND
_OLD_CHECKSUM_VERSION = 11
_ACTIVE_CHANGE_VERSION = 12
_CLOSE_BY_BROKER_VERSION = 5
"""Older clients notice only that their connection is gone."""
_END_OF_TOPIC_VERSION = 9
_WITHOUT_END_OF_TOPIC = "Pulsar-CPP"

Command = pb.BaseCommand


class State(Enum):
    """``CONNECTING`` -> ``CONNECTED`` -> ``CLOSED``; a failed handshake skips the middle."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


_CLOSED = State.CLOSED


class Connection(asyncio.BufferedProtocol):
    """The server's side of one TCP connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.state = State.CONNECTING
        self.host = ""
        self.address = "/local"
        self.client_version = ""
        self.protocol_version = 0
        self.producers: dict[int, Producer] = {}
        self.waiting_producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.topic_watchers: dict[int, TopicWatcher] = {}
        self.holdings = Holdings(self.settings)
        self.writable = True
        self.non_persistent_in_flight = 0
        """Publishes to non-persistent topics that are not answered yet."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._out: list[bytes] = []
        self._published_to: set[AnyTopic] = set()
        self._out_bytes = 0
        self._socket_open = True
        self._flush_scheduled = False
        self._pending_publishes = 0
        self._pending_bytes = 0
        self._reading_paused = False
        self._run_queue = broker.run_queue
        self._now = broker.clock.monotonic
        self._commands: Iterator[tuple[Command, bytes | None]] = iter(())
        self._steps: Iterator[bool] | None = None
        """Of the command that is being carried out, if that takes long."""
        self._polled_at = -1.0
        self._deadline = 0.0
        self._unfinished = False
        """Whether the next turn is for what was read, before more is read."""
        self._recently_closed: dict[int, None] = {}
        self.requests = Requests(self, self._request_ended)
        self.keep_alive = KeepAlive(self)
        self._listing = asyncio.Lock()
        self._drained: asyncio.Future[None] | None = None

    # -- asyncio protocol ---

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the socket is not closed."""
        return self.state is State.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether nothing of this client counts any more."""
        return self.state is State.CLOSED

    @property
    def may_have_answered(self) -> bool:
        """Whether an answer may be among what is not read, because too much waits here."""
        return self._reading_paused and self._takes_answers()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host, self.address = peer[0], f"/{peer[0]}:{peer[1]}"
        refused = self.broker.connections.add(self)
        if refused is not None:
            log.warning("%s: connection refused: %s", self.address, refused)
            self.send_request_error(_NO_REQUEST, ClientError(ServerError.NotAllowedError, refused))
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes of this connection go."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived in the buffer that ``get_buffer`` gave."""
        decoder = self._decoder
        full = decoder.fills(nbytes)
        self._commands = decoder.buffer_updated(nbytes)
        polled_at = self._loop.time()
        if polled_at != self._polled_at:  # else the loop reads on in the same turn
            self._polled_at = polled_at
            self._deadline = self._run_queue.deadline()
        self._carry_out(self._deadline)
        self.keep_alive.heard()
        if self._unfinished:
            decoder.read_less()
        elif full:
            decoder.read_more()

    def _carry_out(self, deadline: float) -> None:
        """Carry out what was read, in order: as much as fits one turn, the rest in the next."""
        now, requests = self._now, self.requests
        most = min(REQUESTS_UNDER_WAY_MAX, len(requests) + REQUESTS_PER_TURN_MAX)
        self._unfinished = False
        try:
            if self._steps is not None and not next(self._steps, False):
                self._steps = None
            if self._steps is not None:
                self._stop_for_now()
            else:
                for command, entry in self._commands:
                    if entry is not None and command.type == _SEND:
                        self._on_send(command.send, entry)
                        if now() >= deadline:
                            self._stop_for_now()
                            break
                    else:
                        self._on_command(command)
                        if now() >= deadline or len(requests) >= most or self._steps is not None:
                            self._stop_for_now()
                            break
                    if self.state is _CLOSED:
                        return
        except ProtocolError as error:
            log.info("%s: protocol error, closing: %s", self.address, error)
            self.close()
            return
        except Exception as error:
            # A bug in the handling of one command: nobody knows what this client's state is
            # now, so it has to begin anew. All others go on.
            self.broker.defects.report(error, "A command failed and its connection is closed")
            self.abort()
            return
        if not self._unfinished and now() >= deadline:
            self._stop_for_now()  # or the loop would read on, up to 32 times in a row
        if self._published_to:
            self._store()
        self._hold_back()

    def take_steps(self, steps: Iterator[bool]) -> None:
        """Carry out a command in steps, the first one now: others get their turns in between.

        An item says whether there is more to do. What the client sent behind it waits.
        """
        if next(steps, False):
            self._steps = steps

    def _stop_for_now(self) -> None:
        """Others come first. What was read is gone on with before more is read."""
        self._unfinished = True
        if len(self.requests) < REQUESTS_UNDER_WAY_MAX:  # else when there are less
            self._run_queue.call(self._next_turn)

    def _next_turn(self) -> None:
        if self.state is not _CLOSED:
            self._carry_out(self._run_queue.deadline())
            if not self._unfinished:
                self._go_on_reading()

    def _store(self) -> None:
        """Let the journal have what one read brought, before the next read keeps the loop busy.

        The loop polls its sockets between two rounds of callbacks, and a poll may bring
        milliseconds of work: what waits for its round in between would wait for that, too.
        """
        for topic in self._published_to:
            topic.flush()
        self._published_to.clear()
        self.broker.ledgers.flush()

    def eof_received(self) -> bool:
        """The client closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._leave()
        self._out.clear()
        self.keep_alive.stop()

    def _leave(self) -> None:
        """Nothing of this client counts any more: not its producers, nor its consumers.

        What it had leaves here, and what refers to this object in a circle is taken apart, so
        that its memory is free as soon as the socket is: nobody looks for circles in a busy broker.
        """
        if self.state is _CLOSED:
            return
        self.state = State.CLOSED
        self.writable = False
        self.broker.connections.discard(self)
        self.keep_alive.gone()
        self.requests.close()
        self.producers.clear()
        self.waiting_producers.clear()
        self.consumers.clear()
        self.holdings.close()
        self._run_queue.take_steps(self.holdings.leave())
        for watcher in self.topic_watchers.values():
            watcher.close()
        self.topic_watchers.clear()
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)  # without what has come of a frame
        self._commands, self._steps = iter(()), None
        self._published_to.clear()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._socket_open = False
        self.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        self._socket_open = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._reading_paused:
            self._go_on_reading()
        self._became_writable()

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self.state is not State.CLOSED:
            self._leave()
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once: what was not sent is dropped."""
        self._leave()
        self._out.clear()
        self._transport.abort()

    # -- output ---

    def write(self, data: bytes) -> None:
        """Queue bytes for the socket; they leave in this turn of the event loop."""
        self._out.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def send(self, command: Command) -> None:
        """Queue a command."""
        if self.state is not State.CLOSED:
            self.write(encode_command(command))

    def send_frame(self, pieces: Iterable[bytes]) -> None:
        """Queue a frame that was made already."""
        if self.state is not State.CLOSED:
            for piece in pieces:
                self.write(piece)

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Deliver one entry."""
        data = entry.data
        if self.protocol_version < _OLD_CHECKSUM_VERSION:
            data = entry_without_checksum(data)
        if redeliveries or ack_set:
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
        else:
            head = consumer.heads.head(entry.ledger_id, entry.entry_id, consumer.epoch, len(data))
        self._out.append(head)
        self.write(data)
        self._out_bytes += len(data)
        if self._out_bytes > UNREAD_OUTPUT_BYTES_MAX:
            self.writable = False

    def send_receipts(
        self, producer: Producer, entries: list[Entry], successive: bool = True
    ) -> None:
        """Confirm SENDs of one producer, whose entries follow each other if ``successive``."""
        messages = size = 0
        plain = successive
        sequence_ids = []
        for entry in entries:
            entry.producer = None
            messages += entry.messages
            size += len(entry.data)
            sequence_ids.append(entry.sequence_id)
            if entry.highest_sequence_id is not None:
                plain = False
        producer.messages_in += messages
        producer.bytes_in += size
        self._published(producer, len(entries), size)
        if self.state is State.CONNECTED and not producer.closed:
            producer_id = producer.producer_id
            first = entries[0]
            if plain:
                receipts = send_receipts(producer_id, first.ledger_id, first.entry_id, sequence_ids)
            else:
                receipts = b"".join(
                    [
                        send_receipt(
                            producer_id,
                            entry.sequence_id,
                            entry.highest_sequence_id,
                            entry.ledger_id,
                            entry.entry_id,
                        )
                        for entry in entries
                    ]
                )
            self._out.append(receipts)
            self.flush()

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        """Refuse one SEND that was waiting for storage."""
        self._published(producer, 1, len(entry.data))
        if not producer.closed:
            self._send_error(
                producer.producer_id,
                max(entry.sequence_id, entry.highest_sequence_id or 0),
                code,
                message,
            )

    def send_ping(self) -> None:
        """Ask for a sign of life."""
        command = Command(type=Command.PING)
        command.ping.SetInParent()
        self.send(command)

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""
        if self.protocol_version >= _ACTIVE_CHANGE_VERSION:
            command = Command(type=Command.ACTIVE_CONSUMER_CHANGE)
            command.active_consumer_change.consumer_id = consumer.consumer_id
            command.active_consumer_change.is_active = is_active
            self.send(command)

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Tell a consumer that the topic is terminated and nothing is left.

        The C++ client, and those for Python and Node.js that are made of it, does not know the
        command and gives the whole connection up for it.
        """
        if self.protocol_version >= _END_OF_TOPIC_VERSION and not self.client_version.startswith(
            _WITHOUT_END_OF_TOPIC
        ):
            command = Command(type=Command.REACHED_END_OF_TOPIC)
            command.reachedEndOfTopic.consumer_id = consumer.consumer_id
            self.send(command)

    def flush(self) -> None:
        """Give the socket what is queued, without waiting for the end of this turn."""
        self._flush_scheduled = False
        if self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)
            if not self._socket_open and not self._reading_paused:
                self._hold_back()
        if self._out_bytes:
            self._out_bytes = 0
            if not self.writable:
                self._became_writable()

    def _became_writable(self) -> None:
        if not self._socket_open or self.state is not State.CONNECTED:
            return
        self.writable = True
        for consumer in self.consumers.values():
            consumer.subscription.wake(consumer)

    def send_request_error(self, request_id: int, error: Exception) -> None:
        """Answer a request with an error."""
        command = Command(type=Command.ERROR)
        command.error.request_id = request_id
        command.error.error = int(error_code(error))  # type: ignore[assignment]
        command.error.message = str(error)
        self.send(command)

    def send_success(self, request_id: int) -> None:
        """Answer a request with plain success."""
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

    def _hold_back(self) -> None:
        """Read no more while too much waits: for the journal, for answers, for the client."""
        if not self._reading_paused and (
            self._unfinished
            or self._pending_publishes >= self.settings.maxPendingPublishRequestsPerConnection
            or self._pending_bytes >= PENDING_PUBLISH_BYTES_MAX
            or len(self.requests) >= REQUESTS_UNDER_WAY_MAX
            or not (self._socket_open or self._takes_answers())
        ):
            self._reading_paused = True
            self._transport.pause_reading()

    def _takes_answers(self) -> bool:
        """Whether the client reads at all: more than its messages and one large one waits."""
        limit = 2 * UNREAD_OUTPUT_BYTES_MAX + self.settings.maxMessageSize
        return self._transport.get_write_buffer_size() <= limit

    @contextlib.asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """Around a request whose answer may be large: the next one waits until it was read."""
        async with self._listing:
            yield
            self.flush()
            if not self._socket_open and self.state is State.CONNECTED:
                self._drained = self._loop.create_future()
                await self._drained

    def _published(self, producer: Producer, count: int, size: int) -> None:
        """Publishes have their answers."""
        producer.pending -= count
        if not producer.pending and producer.drained is not None and not producer.drained.done():
            producer.drained.set_result(None)
        self._pending_publishes -= count
        self._pending_bytes -= size
        if self._reading_paused:
            self._go_on_reading()

    def _request_ended(self) -> None:
        if self._unfinished:
            if len(self.requests) == REQUESTS_UNDER_WAY_MAX - 1:
                self._run_queue.call(self._next_turn)
        elif self._reading_paused:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        if (
            self._pending_publishes <= self.settings.maxPendingPublishRequestsPerConnection // 2
            and self._pending_bytes <= PENDING_PUBLISH_BYTES_MAX // 2
            and len(self.requests) <= REQUESTS_UNDER_WAY_MAX // 2
            and (self._socket_open or self._takes_answers())
            and not self._unfinished
            and self.state is not _CLOSED
        ):
            self._reading_paused = False
            self._transport.resume_reading()

    # -- commands ---

    def _on_command(self, command: Command) -> None:
        if self.state is State.CONNECTING:
            if command.type != Command.CONNECT:
                raise ProtocolError(f"command {command.type} before CONNECT")
            self._on_connect(command.connect)
            return
        handler = HANDLERS.get(command.type)
        if handler is None:
            if command.type == Command.CONNECT:
                raise ProtocolError("second CONNECT")
            raise ProtocolError(f"unexpected command {command.type}")
        handler(self, command)

    def _on_connect(self, connect: pb.CommandConnect) -> None:
        self.client_version = connect.client_version[:128]
        answer = connected(connect, self.settings)
        self.protocol_version = answer.connected.protocol_version
        self.state = State.CONNECTED
        self._decoder.max_frame_size = self.settings.maxMessageSize + FRAME_OVERHEAD_BYTES
        self.send(answer)

    def _on_send(self, send: pb.CommandSend, data: bytes) -> None:
        producer = self.producers.get(send.producer_id)
        if producer is None or producer.closed:
            self._on_send_without_producer(send)
            return
        counts = checked_counts(data)
        if counts is None:
            self._refuse_send(
                send,
                ServerError.ChecksumError,
                "The message's checksum is wrong: it was damaged on its way",
            )
            return
        if send.HasField("txnid_most_bits") and send.HasField("txnid_least_bits"):
            self._refuse_send(
                send, ServerError.NotAllowedError, "Transactions are not enabled on this broker"
            )
            return
        if producer.inspected and (refused := producer.refusal(data, is_chunk=send.is_chunk)):
            self._refuse_send(send, *refused)
            return
        messages, batched, marker, deliver_at, is_chunk = counts
        if marker and not producer.is_replicator:
            self._refuse_send(
                send,
                ServerError.NotAllowedError,
                "Messages with a marker_type are for brokers; clients do not publish them",
            )
            return
        if deliver_at:
            limit_ms = producer.topic.policies.delayed_delivery.limit_ms
            if limit_ms and deliver_at - entry_metadata(data).publish_time > limit_ms:
                self._refuse_send(
                    send,
                    ServerError.NotAllowedError,
                    f"Exceeds max allowed delivery delay of {limit_ms} milliseconds",
                )
                return
        # Absent and 0 are the same to the client that reads the receipt.
        highest = send.highest_sequence_id or None
        entry = Entry(
            data,
            messages,
            batched,
            marker,
            producer,
            send.sequence_id,
            highest,
            deliver_at,
            is_chunk,
        )
        producer.pending += 1
        self._pending_publishes += 1
        self._pending_bytes += len(data)
        topic = producer.topic
        topic.publish(entry)
        self._published_to.add(topic)

    def _on_send_without_producer(self, send: pb.CommandSend) -> None:
        if self.state is not State.CONNECTED:
            raise ProtocolError("SEND before CONNECT")
        # What was on its way when the broker closed the producer will be sent again.
        if send.producer_id not in self._recently_closed:
            raise ProtocolError(f"SEND for unknown producer {send.producer_id}")

    def _refuse_send(self, send: pb.CommandSend, code: ServerError, message: str) -> None:
        highest = max(send.sequence_id, send.highest_sequence_id)
        self._send_error(send.producer_id, highest, code, message)

    def remember_producer(self, producer: Producer) -> None:
        """A producer is ready: its SENDs count again."""
        self.producers[producer.producer_id] = producer
        self._recently_closed.pop(producer.producer_id, None)

    def close_producer(self, producer: Producer) -> None:
        """Tell the client to create the producer anew, unless it is closing it itself."""
        known = self.producers.get(producer.producer_id) is producer
        self.forget_producer(producer)
        producer.topic.remove_producer(producer)
        if not known:
            return
        if self.protocol_version < _CLOSE_BY_BROKER_VERSION:
            self.close()
            return
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

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell the client to subscribe anew."""
        known = self.consumers.get(consumer.consumer_id) is consumer
        if known:
            del self.consumers[consumer.consumer_id]
        consumer.subscription.remove_consumer(consumer)
        if not known:
            return
        if self.protocol_version < _CLOSE_BY_BROKER_VERSION:
            self.close()
            return
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.consumer_id
        command.close_consumer.request_id = _NO_REQUEST
        self.send(command)
