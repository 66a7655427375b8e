"""What happened, as the ports tell it. Nothing here waits, and nothing here fails a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.security.audit.accesses import Accesses, AuditedAccess
from pulsark.security.audit.events import (
    Call,
    access_event,
    call_event,
    is_of_clients,
    lifecycle_event,
    login_event,
    throttled_event,
)
from pulsark.security.audit.events_waiting import (
    ROOM_OF_ACCESSES,
    ROOM_OF_CHANGES,
    ROOM_OF_DENIALS,
    EventsWaiting,
)
from pulsark.security.audit.limits import AUDIT_STUCK_SECONDS
from pulsark.security.audit.sums import Sums, by_network, by_role
from pulsark.security.principal import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock
    from pulsark.security.audit.events import Event, Judged
    from pulsark.security.decisions import Target
    from pulsark.security.principal import Principal

DENIED = (401, 403)
"""Statuses with which HTTP denies."""


class Audit:
    """The audit of one broker, until it is written."""

    def __init__(
        self, clock: Clock, cluster: str, broker: str, *, notes_access: bool = False
    ) -> None:
        """``notes_access``: also who reads and writes data."""
        self.notes_access = notes_access
        self.failing = False
        """Whether the topic refused the last events that it was given."""
        self.given_at: float | None = None
        """Since when the topic has events that are not durable yet."""
        self.waiting = EventsWaiting()
        self.written = 0
        """Events that are durable, since the start."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to write, or to wait for."""
        self._clock = clock
        self._whose = {"cluster": cluster, "broker": broker}
        self._sums_of_roles = Sums(by_role)
        self._sums_of_strangers = Sums(by_network)
        self._sums_of_broker = Sums(by_network)
        # No kind of event can use up the room of the others.
        self._sums = (self._sums_of_roles, self._sums_of_strangers, self._sums_of_broker)
        self._accesses = Accesses()

    @property
    def broker_name(self) -> str:
        """Whose records these are; they are one chain."""
        return self._whose["broker"]

    def belong_to(self, broker: str) -> None:
        """Its name, from now on: brokers that share an address need names of their own."""
        self._whose = {**self._whose, "broker": broker}

    def call(
        self,
        origin: Origin,
        principal: Principal | None,
        call: Call,
        judged: Judged | None = None,
        *,
        held_back: bool = False,
    ) -> None:
        """A change, or the denial of anything. ``held_back``: refused because of `is_stuck`."""
        event = call_event(origin, principal, call, judged)
        refused = judged is not None and not judged.decision.granted
        # What fails changes nothing, and who may only consume shall not fill the disk.
        summed = refused or held_back or call.status >= 400
        summed = summed or (judged is not None and is_of_clients(judged.operation))
        self._note(event, is_denial=summed)

    def changed(
        self, origin: Origin, principal: Principal | None, call: Call, target: Target
    ) -> None:
        """What a producer or consumer changed, which needs no administrator."""
        self._note(call_event(origin, principal, call, None, target=target), is_denial=True)

    def denied(
        self, origin: Origin, principal: Principal | None, operation: str, detail: str
    ) -> None:
        """A denial of something other than an operation, such as a connection."""
        self._note(
            {**call_event(origin, principal, Call(operation), None, detail), "status_id": 2},
            is_denial=True,
        )

    def login_failed(
        self, origin: Origin, reason: str, method: str = "", token_id: str = ""
    ) -> None:
        """A login failed, for the reason that statistics also have."""
        event = login_event(origin, "login", reason, method=method, token_id=token_id)
        self._note(event, is_denial=True)

    def certificate_refused(self, via: str, host: str, why: str) -> None:
        """A client's certificate is missing, revoked, or from a CA that is not trusted."""
        self.login_failed(Origin(via, host), f"certificate: {why}", "tls")

    def login_noted(
        self, origin: Origin, operation: str, detail: str, principal: Principal | None = None
    ) -> None:
        """Something else about a login, such as an expiry."""
        self._note(login_event(origin, operation, detail, principal=principal), is_denial=True)

    def accessed(
        self, origin: Origin, principal: Principal | None, action: str, target: Target
    ) -> None:
        """A role reads or writes data. The first time in a day is recorded."""
        if not self.notes_access:
            return
        access = AuditedAccess.of(principal, action, target.topic)
        if self._accesses.is_first(access, self._clock.now_ms()):
            self._put(access_event(origin, principal, action, target), ROOM_OF_ACCESSES)
            self.wake()

    def throttled(self, kind: str, name: str, seconds: float) -> None:
        """A publish rate has held producers back for ``seconds``."""
        self._note(throttled_event(kind, name, seconds), is_denial=True)

    def broker(self, operation: str, detail: str = "", activity: int = 99) -> None:
        """What the broker itself did."""
        self._note(lifecycle_event(operation, detail, activity))

    @property
    def is_stuck(self) -> bool:
        """Whether the topic takes no events: it refuses them, is silent, or too far behind."""
        given = self.given_at
        late = given is not None and self._clock.monotonic() - given > AUDIT_STUCK_SECONDS
        return self.failing or late or self.waiting.is_full

    def loss(self, count: int) -> Event:
        """The event that ``count`` events before it were lost."""
        return {**self._stamped(lifecycle_event("lost", "no room")), "suppressed": count}

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the counts become events; ``None``: nothing is counted."""
        due = min((each.due for each in self._sums if each.due is not None), default=None)
        return None if due is None else max(due - self._clock.monotonic(), 0.0)

    def end_sums(self, *, at_once: bool = False) -> None:
        """Turn counts into events, if it is time."""
        for sums in self._sums:
            if sums.due is not None and (at_once or self._clock.monotonic() >= sums.due):
                for event in sums.end():
                    self._put(event, ROOM_OF_DENIALS)

    def _note(self, event: Event, *, is_denial: bool = False) -> None:
        if is_denial:
            self.end_sums()
        if not is_denial or self._sums_for(event).add(event, self._clock.monotonic()):
            self._put(event, ROOM_OF_DENIALS if is_denial else ROOM_OF_CHANGES)
        self.wake()

    def _sums_for(self, event: Event) -> Sums:
        if event["via"] == "broker":
            return self._sums_of_broker
        actor = event.get("actor", {})
        is_known = "role" in actor and actor.get("method") != "none"
        return self._sums_of_roles if is_known else self._sums_of_strangers

    def _put(self, event: Event, most: int) -> None:
        self.waiting.put(self._stamped(event), most)

    def _stamped(self, event: Event) -> Event:
        return {"time": self._clock.now_ms(), **self._whose, **event}
