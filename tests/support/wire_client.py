"""A blocking client that speaks the protocol itself: for what official clients hide or refuse."""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from itertools import count
from types import TracebackType

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import FrameDecoder, encode_command
from tests.support.wire_frames import Received, publish, received

Command = pb.BaseCommand
MAX_FRAME_BYTES = 6 << 20
_HUNG_UP = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class Closed(Exception):
    """The broker closed the connection."""


class Refused(Exception):
    """The broker answered with an error; ``code`` is a ``ServerError``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {message}")  # type: ignore[arg-type]
        self.code = code


class WireClient:
    """One connection. Commands that are not asked for are kept, in order, for ``take``."""

    def __init__(
        self,
        port: int,
        *,
        handshake: bool = True,
        timeout: float = 60.0,
        token: str = "",
        connection: socket.socket | None = None,
    ) -> None:
        """``connection``: one that is open already, over TLS for example."""
        self.timeout = timeout
        self._socket = connection or socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder(MAX_FRAME_BYTES, texts_max=MAX_FRAME_BYTES)
        self._waiting: deque[tuple[pb.BaseCommand, bytes | None]] = deque()
        self._ids = count(1)
        if handshake:
            connect = Command(type=Command.CONNECT)
            connect.connect.client_version = "test"
            connect.connect.protocol_version = 21
            if token:
                connect.connect.auth_method_name = "token"
                connect.connect.auth_data = token.encode()
            self.send(connect)
            self.take(Command.CONNECTED)

    @property
    def address(self) -> str:
        """The client's side, as the broker's log has it."""
        host, port = self._socket.getsockname()
        return f"/{host}:{port}"

    # -- frames ------------------------------------------------------------------------------

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command without an entry."""
        self.send_bytes(encode_command(command))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are. A broker that has hung up is noticed by the next read."""
        try:
            self._socket.sendall(data)
        except _HUNG_UP:
            return

    def take(self, *types: int, timeout: float | None = None) -> pb.BaseCommand:
        """The next command of one of the types. Raises ``Closed`` or ``TimeoutError``."""
        return self._next(types, timeout)[0]

    def message(self, timeout: float | None = None) -> Received:
        """The next MESSAGE."""
        command, section = self._next((Command.MESSAGE,), timeout)
        return received(command, section or b"")

    def waiting(self, kind: int) -> pb.BaseCommand | None:
        """A command of this type that has already arrived. Never blocks."""
        item = self._arrived((kind,))
        return item and item[0]

    def waiting_message(self) -> Received | None:
        """A MESSAGE that has already arrived. Never blocks."""
        item = self._arrived((Command.MESSAGE,))
        return item and received(item[0], item[1] or b"")

    def closed_within(self, timeout: float) -> bool:
        """Whether the broker hangs up; what it still sends is dropped."""
        try:
            while True:
                self._next((), timeout)
        except Closed:
            return True
        except TimeoutError:
            return False

    def _next(
        self, types: tuple[int, ...], timeout: float | None
    ) -> tuple[pb.BaseCommand, bytes | None]:
        item = self._arrived(types)
        if item is not None:
            return item
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            fresh = deque(self._receive(deadline))
            while fresh:
                item = fresh.popleft()
                if item[0].type in types:
                    self._waiting += fresh
                    return item
                self._waiting.append(item)

    def _arrived(self, types: tuple[int, ...]) -> tuple[pb.BaseCommand, bytes | None] | None:
        for index, item in enumerate(self._waiting):
            if item[0].type in types:
                del self._waiting[index]
                return item
        return None

    def _receive(self, deadline: float) -> list[tuple[pb.BaseCommand, bytes | None]]:
        """Whole frames of one read; pings are answered here."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no such command from the broker")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            raise TimeoutError("no such command from the broker") from None
        except _HUNG_UP:
            data = b""
        if not data:
            raise Closed
        items = []
        for command, section in self._decoder.receive(data):
            if command.type == Command.PING:
                pong = Command(type=Command.PONG)
                pong.pong.SetInParent()
                self.send(pong)
            else:
                items.append((command, section))
        return items

    # -- requests ----------------------------------------------------------------------------

    def request(self, command: pb.BaseCommand, *answers: int) -> pb.BaseCommand:
        """Send and wait for an answer of one of the types. Raises ``Refused`` on ERROR."""
        self.send(command)
        answer = self.take(*answers, Command.ERROR)
        if answer.type == Command.ERROR:
            raise Refused(answer.error.error, answer.error.message)
        return answer

    def producer(self, topic: str, producer_id: int = 1, name: str | None = None) -> str:
        """Open a producer; its name."""
        command = Command(type=Command.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = next(self._ids)
        if name is not None:
            command.producer.producer_name = name
        answer = self.request(command, Command.PRODUCER_SUCCESS)
        return answer.producer_success.producer_name

    def publish(
        self, payload: bytes, producer_id: int = 1, sequence_id: int = 0, **metadata: object
    ) -> tuple[int, int]:
        """Publish one message and wait; (ledger id, entry id). Raises ``Refused``."""
        self.send_bytes(publish(producer_id, sequence_id, payload, **metadata))
        return self.receipt()

    def receipt(self, timeout: float | None = None) -> tuple[int, int]:
        """The next receipt as (ledger id, entry id). Raises ``Refused`` on SEND_ERROR."""
        answer = self.take(Command.SEND_RECEIPT, Command.SEND_ERROR, timeout=timeout)
        if answer.type == Command.SEND_ERROR:
            raise Refused(answer.send_error.error, answer.send_error.message)
        message_id = answer.send_receipt.message_id
        return message_id.ledgerId, message_id.entryId

    def subscribe(
        self,
        topic: str,
        subscription: str,
        kind: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
        consumer_id: int = 1,
        permits: int = 1000,
        **fields: object,
    ) -> None:
        """Open a consumer from the earliest message on and grant it permits."""
        command = Command(type=Command.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = topic, subscription, kind
        request.consumer_id, request.request_id = consumer_id, next(self._ids)
        request.initialPosition = pb.CommandSubscribe.Earliest
        for name, value in fields.items():
            setattr(request, name, value)
        self.request(command, Command.SUCCESS)
        self.flow(permits, consumer_id)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Grant permits; 0 sends nothing."""
        if permits:
            command = Command(type=Command.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
            self.send(command)

    def begin_ack(
        self,
        *positions: tuple[int, int],
        cumulative: bool = False,
        consumer_id: int = 1,
        receipt: bool = True,
    ) -> int:
        """Send an ACK; its request id, with which the ACK_RESPONSE comes."""
        command = Command(type=Command.ACK)
        request = command.ack
        request.consumer_id = consumer_id
        request.ack_type = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        for ledger_id, entry_id in positions:
            request.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        request_id = next(self._ids)
        if receipt:
            request.request_id = request_id
        self.send(command)
        return request_id

    def ack(self, *positions: tuple[int, int], cumulative: bool = False) -> None:
        """Acknowledge and wait for the ACK_RESPONSE. Raises ``Refused``."""
        request_id = self.begin_ack(*positions, cumulative=cumulative)
        answer = self.take(Command.ACK_RESPONSE).ackResponse
        assert answer.request_id == request_id
        if answer.HasField("error") or answer.HasField("message"):
            raise Refused(answer.error, answer.message)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
