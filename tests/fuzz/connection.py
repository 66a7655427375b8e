"""One hostile connection: it writes what its script says and learns from what it reads."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Iterator
from random import Random

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import FrameDecoder, encode_command
from tests.fuzz.doors import Doors
from tests.fuzz.script import Position, Script

Command = pb.BaseCommand
UNSENT_BYTES_MAX = 256 << 10
FRAMES_A_TURN = 20
FRAME_BYTES_MAX = 16 << 20
_HANG_UP_AT_ONCE = struct.pack("ii", 1, 0)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HostileConnection:
    """Frames left to write, a way to end, and the entries that the broker confirmed."""

    def __init__(self, doors: Doors, rng: Random, frames: int) -> None:
        self.script = Script(rng, doors.introduce)
        self.frames_left = frames
        self.closed = False
        self._rng = rng
        self._reads = rng.random() < 0.9  # some never read their answers
        self._socket = doors.open(rng)
        self._socket.setblocking(False)
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._unsent = bytearray(self.script.hello())

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether there is something to write."""
        return not self.closed and bool(self._unsent or self.frames_left)

    def write(self) -> int:
        """Write what the socket takes; the number of frames that were made for it."""
        made = 0
        while self.frames_left and len(self._unsent) < UNSENT_BYTES_MAX and made < FRAMES_A_TURN:
            self._unsent += self.script.next_frame()
            self.frames_left -= 1
            made += 1
        try:
            sent = self._socket.send(self._unsent)
            del self._unsent[:sent]
        except _NOT_NOW:
            pass
        except OSError:
            self.closed = True
        return made

    def read(self) -> Iterator[tuple[Position, bytes]]:
        """Read what has come; the entries that it confirms, with their message ids."""
        if not self._reads:
            return
        try:
            data = self._socket.recv(1 << 18)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(1 << 18)
        except _NOT_NOW:
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        try:
            commands = self._decoder.receive(data)
        except ProtocolError as error:
            raise AssertionError(f"the broker sent what is no frame: {error}") from error
        for command, _ in commands:
            yield from self._learn(command)

    def hang_up(self) -> None:
        """End as clients end: in order, at once, or in the middle of a frame."""
        if self._rng.random() < 0.3:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP_AT_ONCE)
        self._socket.close()
        self.closed = True

    def _learn(self, command: Command) -> Iterator[tuple[Position, bytes]]:
        script = self.script
        match command.type:
            case Command.SEND_RECEIPT:
                receipt = command.send_receipt
                waiting = script.sent.get((receipt.producer_id, receipt.sequence_id))
                found = (receipt.message_id.ledgerId, receipt.message_id.entryId)
                if found[0] < 2**63:  # else nothing was stored: it is a duplicate
                    script.positions.append(found)
                    # What a topic that is not persistent has handed on has this id, too.
                    for data in (waiting or ()) if found != (0, 0) else ():
                        yield found, data
            case Command.MESSAGE:
                found = command.message.message_id
                script.positions.append((found.ledgerId, found.entryId))
            case Command.PRODUCER_SUCCESS:
                opened = command.producer_success
                script.schema_versions.append(opened.schema_version)
                if opened.producer_ready and opened.request_id in script.asked:
                    script.producers.add(script.asked.pop(opened.request_id))
            case Command.ERROR:
                script.asked.pop(command.error.request_id, None)
            case Command.CLOSE_PRODUCER:
                script.producers.discard(command.close_producer.producer_id)
            case Command.PING:
                pong = Command(type=Command.PONG)
                pong.pong.SetInParent()
                self._unsent += encode_command(pong)


def turn(connections: list[HostileConnection], seconds: float) -> tuple[int, list[Confirmed]]:
    """Let each connection that can read or write do so once; frames made, entries confirmed."""
    readable, writable, _ = select.select(
        connections, [c for c in connections if c.wants_to_write], [], seconds
    )
    confirmed = [item for connection in readable for item in connection.read()]
    return sum(connection.write() for connection in writable if not connection.closed), confirmed


Confirmed = tuple[Position, bytes]
