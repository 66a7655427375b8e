"""Back-pressure: whether one connection is read, and what keeps it from being read.

`reading` has the states. Limits are reached as a whole and left by half, so that a connection does
not change between two states with each receipt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.connection.reading import Event, Reading, State, UnknownTransitionError
from pulsark.limits import (
    PENDING_PUBLISH_BYTES_MAX,
    PUBLISH_OVERHEAD_BYTES,
    REQUESTS_UNDER_WAY_MAX,
)

if TYPE_CHECKING:
    import asyncio

    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.connection.publish_hold import PublishHold
    from pulsark.dispatch.model.producer import Producer

_READING, _BEHIND, _STUCK, _QUEUED = State.READING, State.BEHIND, State.STUCK, State.QUEUED
_OVER_RATE = State.OVER_RATE


class Intake:
    """Reads, or does not read, the socket of one connection."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self.publishes = 0
        """Unanswered publishes, and their bytes."""
        self.bytes = 0
        self.hold: PublishHold | None = None
        """Once a rate applied to something that it published."""
        self._reading = Reading()
        self._connection: Connection | None = connection
        self._transport = transport
        self._requests = connection.requests
        self._producers = connection.opened.producers
        self._output = connection.output
        self._buffer = connection.broker.publish_buffer
        self._counted = 0
        """What is counted there of this connection."""
        self._frames = connection.broker.frame_room
        self._owner = connection.owner
        self._frame_bytes = 0
        """The size of a large frame that has not arrived whole."""
        self._waits_for_frame = False
        """Whether there is no room for it yet."""
        self._publishes_max = connection.settings.maxPendingPublishRequestsPerConnection

    @property
    def may_have_more(self) -> bool:
        """Whether the client may have sent what is not read, and would see an answer to it."""
        return self._reading.state is not _READING and self._output.takes_answers

    @property
    def waits_for_others(self) -> bool:
        """Whether publishes of all connections take too much memory to read more."""
        return self._buffer.is_full and bool(self._producers)

    def leave_rest(self, *, for_requests: bool = False) -> None:
        """A turn is over and commands are left: others come first, or requests under way."""
        full = for_requests or len(self._requests) >= self._requests.most
        self._on(Event.LEFT_FOR_REQUESTS if full else Event.LEFT)
        if full:
            self._requests.when_calm(self.request_ended)

    def rest_done(self) -> None:
        """What was left is carried out."""
        self._on(Event.DONE)
        self.check_room()

    def frame_begun(self, size: int) -> None:
        """Take room for a large frame that has begun; with 0 the last one has arrived."""
        if size == self._frame_bytes:
            return
        if self._frame_bytes:
            self._frames.give_back(self)
        self._frame_bytes = size
        self._waits_for_frame = bool(size) and not self._frames.take(self, self._owner(), size)

    def frame_has_room(self) -> None:
        """There is room for the large frame that has begun."""
        self._waits_for_frame = False
        if self._reading.state is State.NO_ROOM:
            self._on(Event.CALLED)
            self._go_on()

    def frame_is_late(self) -> None:
        """Others wait for the room of a frame that does not arrive."""
        self._frame_bytes = 0
        if self._connection is not None:
            self._connection.give_up_frame()

    def hold_back(self) -> None:
        """Read no more if too much waits: for the journal, for answers, for the client."""
        if self._reading.state is not _READING:
            return
        if (
            self.publishes >= self._publishes_max
            or self.bytes >= PENDING_PUBLISH_BYTES_MAX
            or len(self._requests) >= REQUESTS_UNDER_WAY_MAX
            or (self._output.lags and not self._output.takes_answers)
        ):
            self._on(Event.TOO_MUCH)
        elif self._buffer.is_full and self._producers:
            self._on(Event.ALL_TOO_MUCH)
        elif self._waits_for_frame:
            self._on(Event.TOO_LARGE)
        elif self.hold is not None and self.hold.is_due():
            self._on(Event.TOO_FAST)

    def answered(self, producer: Producer, count: int, size: int) -> None:
        """Publishes have their answers."""
        producer.pending -= count
        if not producer.pending and producer.drained is not None and not producer.drained.done():
            producer.drained.set_result(None)
        self.publishes -= count
        self.bytes -= size
        self.count()
        if self._reading.waits_for_room:
            self._go_on()

    def count(self) -> None:
        """Let what waits here count among that of all: once for what one read brought."""
        waiting = self.bytes + self.publishes * PUBLISH_OVERHEAD_BYTES
        self._buffer.change(waiting - self._counted)
        self._counted = waiting

    def check_room(self) -> None:
        """Read on, if there is room now and the connection waits for it."""
        if self._reading.waits_for_room:
            self._go_on()

    def request_ended(self) -> None:
        """One request less is under way."""
        if self._reading.waits_for_room:
            self._go_on()
        elif self._reading.state is _STUCK:
            self._on(Event.REQUEST_ENDED)

    def publishes_have_room(self) -> None:
        """Publishes of all connections take less memory: this is no longer a reason to wait."""
        self._on(Event.CALLED)
        self._go_on()

    def may_publish(self) -> None:
        """No rate holds it any longer: go on, as far as that is concerned."""
        self._on(Event.CALLED)
        self._go_on()

    def close(self) -> None:
        """The client is not served any more. What it published is still counted."""
        self.count()
        self.frame_begun(0)
        self._on(Event.CLOSE)
        self._connection = self.hold = None
        del self._owner

    def _go_on(self) -> None:
        """Read on, if half of each limit is free."""
        if (
            self.publishes <= self._publishes_max // 2
            and self.bytes <= PENDING_PUBLISH_BYTES_MAX // 2
            and len(self._requests) <= REQUESTS_UNDER_WAY_MAX // 2
            and (not self._output.lags or self._output.takes_answers)
        ):
            if self.waits_for_others:
                self._on(Event.ALL_TOO_MUCH)
            elif self._waits_for_frame:
                self._on(Event.TOO_LARGE)
            elif self.hold is not None and self.hold.is_due():
                self._on(Event.TOO_FAST)
            else:
                self._on(Event.ROOM)

    def _on(self, event: Event) -> None:
        """Do what an event leads to. A defect here costs this client its connection, no other."""
        before, connection = self._reading.state, self._connection
        if connection is None:
            return
        try:
            after = self._reading.on(event)
        except UnknownTransitionError as error:
            connection.give_up(error)
            return
        if before is _QUEUED and after is not _QUEUED:
            self._buffer.forget(self)
        if before is _OVER_RATE and self.hold is not None:
            self.hold.end()
        if after is _QUEUED:
            self._buffer.wait(self)
        elif after is _OVER_RATE and self.hold is not None:
            self.hold.begin()
            connection.turns.read_least()
        elif after is _BEHIND:
            connection.turns.go_on_later()
        if after is _READING:
            self._transport.resume_reading()
        elif before is _READING and after is not State.CLOSED:
            self._transport.pause_reading()
