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
from enum import Enum
from typing import TYPE_CHECKING, cast

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.handshake import connected
from pulsark.dispatch.connection.intake import Intake
from pulsark.dispatch.connection.keep_alive import KeepAlive
from pulsark.dispatch.connection.pending_requests import Requests
from pulsark.dispatch.connection.sends import Sends
from pulsark.dispatch.model.holdings import Holdings
from pulsark.errors import ClientError, ProtocolError, ServerError
from pulsark.limits import (
    FRAME_OVERHEAD_BYTES,
    HANDSHAKE_FRAME_BYTES_MAX,
    READ_WHILE_FULL_BYTES,
    REQUESTS_PER_TURN_MAX,
    REQUESTS_UNDER_WAY_MAX,
    UNREAD_OUTPUT_BYTES_MAX,
)
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import entry_without_checksum
from pulsark.wire.frames import FrameDecoder, encode_command, message_head, send_receipt
from pulsark.wire.successive_frames import send_receipts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.topics.topic_lists import TopicWatcher

log = logging.getLogger(__name__)

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

if TYPE_CHECKING:
    Handlers = Mapping[int, Callable[["Connection", pb.BaseCommand], None]]
    """What is done for each command after the handshake."""


class Connection(asyncio.BufferedProtocol):
    """The server's side of one TCP connection."""

    def __init__(self, broker: Broker, handlers: Handlers) -> None:
        self.broker = broker
        self._handlers = handlers
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
        self._out_bytes = 0
        self._flush_scheduled = False
        self._run_queue = broker.run_queue
        self._now = broker.clock.monotonic
        self._commands: Iterator[tuple[Command, bytes | None]] = iter(())
        self._steps: Iterator[bool] | None = None
        """Of the command that is being carried out, if that takes long."""
        self._polled_at = -1.0
        self._deadline = 0.0
        self._intake: Intake
        self.sends: Sends
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

    async def probe(self) -> bool:
        """Whether the client still answers; if not, the connection is closed."""
        return await self.keep_alive.probe()

    @property
    def may_have_answered(self) -> bool:
        """Whether an answer may be among what is not read, because too much waits here."""
        return self._intake.may_have_more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNREAD_OUTPUT_BYTES_MAX)
        self._intake = Intake(self, self._transport)
        self.sends = Sends(self, self._intake)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host, self.address = peer[0], f"/{peer[0]}:{peer[1]}"
        refused = self.broker.connections.add(self)
        if refused is not None:
            log.warning("%s: connection refused: %s", self.address, refused)
            self.send_request_error(
                notices.NO_REQUEST, ClientError(ServerError.NotAllowedError, refused)
            )
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes of this connection go."""
        if self._intake.waits_for_others:
            return self._decoder.get_buffer(READ_WHILE_FULL_BYTES)
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
        is_left = self._carry_out(self._deadline)
        self.keep_alive.heard()
        if is_left:
            decoder.read_less()
            return
        if full:
            decoder.read_more()
        self._intake.hold_back()

    def _carry_out(self, deadline: float) -> bool:
        """Carry out what was read, in order: as much as fits one turn, the rest in the next.

        Says whether something is left: then the next turn is for that, before more is read.
        """
        now, requests, sends = self._now, self.requests, self.sends
        most = min(REQUESTS_UNDER_WAY_MAX, len(requests) + REQUESTS_PER_TURN_MAX)
        is_left = False
        try:
            if self._steps is not None and not next(self._steps, False):
                self._steps = None
            if self._steps is not None:
                is_left = True
            else:
                for command, entry in self._commands:
                    if entry is not None and command.type == _SEND:
                        sends.carry_out(command.send, entry)
                        if now() >= deadline:
                            is_left = True
                            break
                    else:
                        self._on_command(command)
                        if now() >= deadline or len(requests) >= most or self._steps is not None:
                            is_left = True
                            break
                    if self.state is _CLOSED:
                        return False
        except ProtocolError as error:
            log.info("%s: protocol error, closing: %s", self.address, error)
            self.close()
            return False
        except Exception as error:  # noqa: BLE001 - a defect, which ``give_up`` reports
            self.give_up(error)
            return False
        # At the deadline, too, or the loop would read on, up to 32 times in a row.
        if is_left or now() >= deadline:
            is_left = True
            self._intake.leave_rest()
        if sends.published_to:
            sends.store()
        return is_left

    def give_up(self, error: Exception) -> None:
        """There is a defect: nobody knows what this client's state is, so it has to begin anew.

        All others go on.
        """
        self.broker.defects.report(error, "A command failed and its connection is closed")
        self.abort()

    def take_steps(self, steps: Iterator[bool]) -> None:
        """Carry out a command in steps, the first one now: others get their turns in between.

        An item says whether there is more to do. What the client sent behind it waits.
        """
        if next(steps, False):
            self._steps = steps

    def go_on_later(self) -> None:
        """Carry out what is left, when its turn comes."""
        self._run_queue.call(self._next_turn)

    def _next_turn(self) -> None:
        if self.state is not _CLOSED and not self._carry_out(self._run_queue.deadline()):
            self._intake.rest_done()

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
        self._intake.close()
        self.keep_alive.gone()
        self.requests.close()
        self.producers.clear()
        self.waiting_producers.clear()
        self.consumers.clear()
        self.holdings.close()
        self._run_queue.call_all(self.holdings.departures())
        for watcher in self.topic_watchers.values():
            watcher.close()
        self.topic_watchers.clear()
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)  # without what has come of a frame
        self._commands, self._steps = iter(()), None
        self.sends.close()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._intake.client_lags = True
        self.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._intake.client_caught_up()
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
        self._intake.answered(producer, len(entries), size)
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
        self._intake.answered(producer, 1, len(entry.data))
        if not producer.closed:
            sequence_id = max(entry.sequence_id, entry.highest_sequence_id or 0)
            self.send(notices.send_error(producer.producer_id, sequence_id, code, message))

    def send_ping(self) -> None:
        """Ask for a sign of life."""
        self.send(notices.ping())

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""
        if self.protocol_version >= _ACTIVE_CHANGE_VERSION:
            self.send(notices.active_change(consumer.consumer_id, is_active))

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Tell a consumer that the topic is terminated and nothing is left.

        The C++ client, and those for Python and Node.js that are made of it, does not know the
        command and gives the whole connection up for it.
        """
        if self.protocol_version >= _END_OF_TOPIC_VERSION and not self.client_version.startswith(
            _WITHOUT_END_OF_TOPIC
        ):
            self.send(notices.end_of_topic(consumer.consumer_id))

    def flush(self) -> None:
        """Give the socket what is queued, without waiting for the end of this turn."""
        self._flush_scheduled = False
        if self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)
            if self._intake.client_lags:
                self._intake.hold_back()
        if self._out_bytes:
            self._out_bytes = 0
            if not self.writable:
                self._became_writable()

    def _became_writable(self) -> None:
        if self._intake.client_lags or self.state is not State.CONNECTED:
            return
        self.writable = True
        for consumer in self.consumers.values():
            consumer.subscription.wake(consumer)

    def send_request_error(self, request_id: int, error: Exception) -> None:
        """Answer a request with an error."""
        self.send(notices.request_error(request_id, error))

    def send_success(self, request_id: int) -> None:
        """Answer a request with plain success."""
        self.send(notices.success(request_id))

    @contextlib.asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """Around a request whose answer may be large: the next one waits until it was read."""
        async with self._listing:
            yield
            self.flush()
            if self._intake.client_lags and self.state is State.CONNECTED:
                self._drained = self._loop.create_future()
                await self._drained

    def _request_ended(self) -> None:
        self._intake.request_ended()

    # -- commands ---

    def _on_command(self, command: Command) -> None:
        if self.state is State.CONNECTING:
            if command.type != Command.CONNECT:
                raise ProtocolError(f"command {command.type} before CONNECT")
            self._on_connect(command.connect)
            return
        handler = self._handlers.get(command.type)
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

    def close_producer(self, producer: Producer) -> None:
        """Tell the client to create the producer anew, unless it is closing it itself."""
        known = self.producers.get(producer.producer_id) is producer
        self.sends.forget(producer)
        producer.topic.remove_producer(producer)
        if known:
            self._say_closed(notices.producer_closed(producer.producer_id))

    def forget_producer(self, producer: Producer) -> None:
        """Drop a producer; its SENDs that are on their way are ignored."""
        self.sends.forget(producer)

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell the client to subscribe anew."""
        known = self.consumers.get(consumer.consumer_id) is consumer
        if known:
            del self.consumers[consumer.consumer_id]
        consumer.subscription.remove_consumer(consumer)
        if known:
            self._say_closed(notices.consumer_closed(consumer.consumer_id))

    def _say_closed(self, command: Command) -> None:
        if self.protocol_version >= _CLOSE_BY_BROKER_VERSION:
            self.send(command)
        else:
            self.close()
