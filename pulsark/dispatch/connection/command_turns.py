"""The commands that arrived from one client: carried out in order, and a bounded part a turn.

A turn has a deadline, and a number of requests that may begin in it. What is left when it is over
waits in the broker's run queue, and the socket is not read meanwhile. If other connections have
used up the time for new commands, everything that arrived waits there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.run_queue import Lane
from pulsark.errors import ProtocolError
from pulsark.limits import (
    HANDSHAKE_FRAME_BYTES_MAX,
    LIGHT_READ_BYTES,
    READ_WHILE_FULL_BYTES,
    REQUESTS_PER_TURN_MAX,
    TURN_SECONDS,
)
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import RECEIVE_BYTES, FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.dispatch.connection.connection import Connection

log = logging.getLogger(__name__)

_SEND = pb.BaseCommand.SEND


class CommandTurns:
    """From the bytes of one connection's socket to the commands in them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sends = connection.sends
        self._requests = connection.requests
        self._intake = connection.intake
        self._connections = connection.broker.connections
        self._run_queue = connection.broker.run_queue
        self._now = connection.broker.clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._commands: Iterator[tuple[pb.BaseCommand, bytes | None]] = iter(())
        self._steps: Iterator[bool] | None = None
        """The remaining steps of the current command, if it takes long."""
        self._began_enough = False
        """Whether as many requests began as may in one turn."""
        self._polled_at = -1.0
        self._deadline = self._large_deadline = 0.0
        self._is_heavy = False
        """Whether what is left takes long, as far as that can be told."""
        self._is_costly = False
        """Whether the last read brought much."""
        self._waits = False
        """Whether it is not known yet who the client is."""
        self._closed = False

    def wait(self) -> None:
        """Carry out nothing more, and read nothing, until ``wait_no_more``."""
        self._waits = True

    def wait_no_more(self) -> None:
        """Go on, with what is left first: as soon as the request ends that was waited for."""
        self._waits = False

    def set_max_frame_size(self, size: int) -> None:
        """From the next frame on, frames may have up to ``size`` bytes."""
        self._decoder.max_frame_size = size

    def read_least(self) -> None:
        """Read little next: what one read brings is taken as a whole."""
        self._decoder.read_least()

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the socket go."""
        if self._intake.waits_for_others:
            return self._decoder.get_buffer(READ_WHILE_FULL_BYTES)
        most = self._connections.read_bytes
        return self._decoder.get_buffer(most if most < RECEIVE_BYTES else -1)

    def received(self, nbytes: int) -> None:
        """Bytes are in the buffer that ``get_buffer`` gave: begin with the commands in them."""
        decoder = self._decoder
        large = decoder.is_in_large_frame
        full = decoder.fills(nbytes)
        self._commands = decoder.buffer_updated(nbytes)
        # Bytes decide, not time: on a busy machine a small command may take long, too.
        self._is_costly = nbytes > LIGHT_READ_BYTES or self._began_enough
        if (
            decoder.has_large_command
            or self._run_queue.is_late()
            or (self._is_costly and self._run_queue.is_crowded)
        ):
            self._is_heavy = self._is_costly or large
            self._began_enough = False
            self._intake.leave_rest()
            return
        polled_at = self._loop.time()
        if polled_at != self._polled_at:  # else the loop reads on in the same turn
            self._polled_at = polled_at
            self._deadline = self._run_queue.deadline()
            # A large frame can be left after each piece of it, at no cost, so its turns are short.
            self._large_deadline = min(self._deadline, self._now() + TURN_SECONDS / 4)
        if self._carry_out(self._large_deadline if large else self._deadline):
            decoder.read_less()
            return
        if full:
            decoder.read_more()
        if large or decoder.large_frame_bytes:
            self._intake.frame_begun(decoder.large_frame_bytes)
        self._intake.hold_back()

    def go_on_later(self) -> None:
        """Carry out what is left, in a later turn.

        The run queue gives out what is left of this one, but does not know how long the requests
        that began will take: they come first.
        """
        lane = Lane.HEAVY if self._is_heavy else Lane.LIGHT
        if self._began_enough:
            self._loop.call_soon(self._run_queue.postpone, self._go_on, lane)
        else:
            self._run_queue.postpone(self._go_on, lane, is_begun=self._steps is not None)

    def take_steps(self, steps: Iterator[bool]) -> None:
        """Carry out a command in steps, the first one now, with the work of others in between.

        An item says whether there is more to do. What the client sent behind it waits.
        """
        if next(steps, False):
            self._steps = steps

    def close(self) -> None:
        """Forget what arrived, also the part of a frame: the client is not served any more."""
        self._closed = True
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._commands, self._steps = iter(()), None
        del self._connection

    def _go_on(self) -> None:
        if self._closed:
            return
        begun = self._now()
        is_left = self._carry_out(self._run_queue.deadline())
        is_long = self._now() - begun > TURN_SECONDS / 2
        self._is_heavy = is_long or self._is_costly or self._steps is not None
        if not is_left:
            self._intake.frame_begun(self._decoder.large_frame_bytes)
            self._intake.rest_done()

    def _carry_out(self, deadline: float) -> bool:
        """Carry out commands until all are done or the turn is over.

        Says whether something is left: then the next turn is for that, before more is read.
        """
        now, requests, connection = self._now, self._requests, self._connection
        most = len(requests) + REQUESTS_PER_TURN_MAX
        is_left = self._began_enough = False
        try:
            if self._steps is not None and not next(self._steps, False):
                self._steps = None
            if self._steps is not None or self._waits:
                is_left = True
            else:
                send, carry_out = self._sends.carry_out, connection.carry_out
                for command, entry in self._commands:
                    if entry is not None and command.type == _SEND:
                        send(command.send, entry)
                        if now() >= deadline:
                            is_left = True
                            break
                    else:
                        carry_out(command)
                        self._began_enough = len(requests) >= min(most, requests.most)
                        if (
                            self._began_enough
                            or now() >= deadline
                            or self._steps is not None
                            or self._waits
                        ):
                            is_left = True
                            break
                    if self._closed:
                        return False
            # At the deadline, too, or the loop would read on, up to 32 times in a row.
            if is_left or now() >= deadline:
                is_left = True
                self._intake.leave_rest(for_requests=self._waits)
            if self._sends.published_to:
                self._sends.store()
        except ProtocolError as error:
            log.info("%s: protocol error, closing: %s", connection.address, error)
            connection.close()
            return False
        except Exception as error:  # noqa: BLE001 - a defect, which ``give_up`` reports
            connection.give_up(error)
            return False
        return is_left
