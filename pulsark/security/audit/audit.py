"""What happened, as the ports tell it. Nothing here waits, and nothing here fails a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.security.audit.events import (
    Call,
    call_event,
    lifecycle_event,
    login_event,
)
from pulsark.security.audit.events_waiting import EventsWaiting
from pulsark.security.audit.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock
    from pulsark.security.audit.events import Event, Judged
    from pulsark.security.principal import Origin, Principal

DENIED = (401, 403)
"""Statuses with which HTTP denies."""


class Audit:
    """The audit of one broker, until it is written."""

    def __init__(self, clock: Clock, cluster: str, broker: str) -> None:
        self.waiting = EventsWaiting()
        self.written = 0
        """Events that are durable, since the start."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to write, or to wait for."""
        self._clock = clock
        self._whose = {"cluster": cluster, "broker": broker}
        self._sums = Sums()

    # -- what happened ---

    def call(
        self, origin: Origin, principal: Principal | None, call: Call, judged: Judged | None = None
    ) -> None:
        """A change, or the denial of anything."""
        event = call_event(origin, principal, call, judged)
        refused = judged is not None and not judged.decision.granted
        self._note(event, is_denial=refused or call.status in DENIED)

    def denied(
        self, origin: Origin, principal: Principal | None, operation: str, detail: str
    ) -> None:
        """A denial that is about no operation: of a connection, for instance."""
        self._note(
            {**call_event(origin, principal, Call(operation), None, detail), "status_id": 2},
            is_denial=True,
        )

    def login_failed(
        self, origin: Origin, reason: str, method: str = "", token_id: str = ""
    ) -> None:
        """Somebody is not let in, for the reason that statistics have, too."""
        event = login_event(origin, "login", reason, method=method, token_id=token_id)
        self._note(event, is_denial=True)

    def login_noted(
        self, origin: Origin, operation: str, detail: str, principal: Principal | None = None
    ) -> None:
        """What else there is to say of a login."""
        self._note(login_event(origin, operation, detail, principal=principal), is_denial=True)

    def broker(self, operation: str, detail: str = "", activity: int = 99) -> None:
        """What the broker itself did."""
        self._note(lifecycle_event(operation, detail, activity))

    # -- what is to be written ---

    def loss(self, count: int) -> Event:
        """That so many events before this found no room."""
        return {**self._stamped(lifecycle_event("lost", "no room")), "suppressed": count}

    @property
    def due_in_s(self) -> float | None:
        """After how long what is counted becomes events; ``None``: nothing is counted."""
        due = self._sums.due
        return None if due is None else max(due - self._clock.monotonic(), 0.0)

    def end_sums(self, *, at_once: bool = False) -> None:
        """What was counted becomes events, if it is time."""
        due = self._sums.due
        if due is not None and (at_once or self._clock.monotonic() >= due):
            for event in self._sums.end():
                self._put(event, is_denial=True)

    def _note(self, event: Event, *, is_denial: bool = False) -> None:
        if is_denial:
            self.end_sums()
        if not is_denial or self._sums.add(event, self._clock.monotonic()):
            self._put(event, is_denial=is_denial)
        self.wake()

    def _put(self, event: Event, *, is_denial: bool) -> None:
        self.waiting.put(self._stamped(event), is_denial=is_denial)

    def _stamped(self, event: Event) -> Event:
        return {"time": self._clock.now_ms(), **self._whose, **event}
