"""uvicorn's connection, for clients that are slow on purpose, and for very many that are not.

Requests and answers have their time, and reading requests has its share of each turn of the loop.

uvicorn only bounds the pause between two requests. A client that sends a byte now and then, or that
does not read its answer, would keep its connection for ever, and there are only so many.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pulsark.dispatch.loop.run_queue import Lane, RunQueue
from pulsark.limits import (
    HTTP_REQUEST_SECONDS,
    HTTP_UNREAD_SECONDS,
    HTTP_UNSENT_BYTES_MAX,
)

RUN_QUEUE = "run-queue"
"""Where the state of a connection has the broker's run queue."""

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.security.connection_slots import Slot


class TimedConnection(H11Protocol):
    """One connection. Importing this module is expensive."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._run_queue: RunQueue = self.app_state[RUN_QUEUE]
        self._postponed: list[bytes] = []
        """What came and was not parsed yet."""
        self._unfinished: asyncio.TimerHandle | None = None
        """Ends a connection whose request does not come whole."""
        self._unread: asyncio.TimerHandle | None = None
        """Ends a connection whose answer is not read."""
        self._slot: Slot | None = None
        self._logs_in = False
        self._holds: Callable[[], int]
        self.begun = self.loop.time()
        """When the first request was there."""

    def take_slot(self, slot: Slot, *, logs_in: bool, holds: Callable[[], int]) -> None:
        """Have the slot of the connection. ``logs_in``: a complete request makes it known.

        ``holds`` returns how many bytes of a body may wait here for their request to take them.
        """
        self._slot, self._logs_in, self._holds = slot, logs_in, holds

    @property
    def is_known(self) -> bool:
        """Whether the client has logged in."""
        return self._slot is None or self._slot.is_known

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        done = self.cycle is None or self.cycle.response_complete
        return done and not self._postponed

    def abort(self) -> None:
        """Close the connection for another one, which has its place at once."""
        self.connections.discard(self)
        self.transport.abort()

    def on_response_complete(self) -> None:
        """An answer is complete."""
        if self._slot is not None:
            if self._logs_in:
                self._slot.log_in()
            self._slot.answered()
        super().on_response_complete()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The socket is open."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HTTP_UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Parse what came, or postpone it if the turn's share for that is spent."""
        if self._postponed:
            self._postponed.append(data)
        elif self._run_queue.is_late():
            self._postponed.append(data)
            self.transport.pause_reading()
            self._run_queue.postpone(self._receive_postponed, Lane.HTTP)
        else:
            super().data_received(data)

    def _receive_postponed(self) -> None:
        postponed, self._postponed = self._postponed, []
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.transport.resume_reading()
        super().data_received(b"".join(postponed))

    def handle_events(self) -> None:
        """More has come of a request, or the one before it is answered."""
        super().handle_events()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and len(cycle.body) >= self._holds():
            self.flow.pause_reading()
        if not self._waits_for_more():
            _cancel(self._unfinished)
            self._unfinished = None
        elif self._unfinished is None:
            self._unfinished = self.loop.call_later(HTTP_REQUEST_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(HTTP_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It caught up."""
        super().resume_writing()
        _cancel(self._unread)
        self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._postponed.clear()
        super().connection_lost(exc)
        if self._slot is not None:
            self._slot.leave()
        _cancel(self._unfinished)
        self._unfinished = None
        _cancel(self._unread)
        self._unread = None

    def _waits_for_more(self) -> bool:
        """Whether a request has begun, and its end is still to come."""
        if self.transport.is_closing():
            return False
        state = self.conn.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
