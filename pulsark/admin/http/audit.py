"""The one place where HTTP is audited: around all routes, when it is known how a request ended.

Noted is every denial, every request whose right is one to change something, whatever comes of it,
and every change that another request made: the code that makes a change reports it. So requests
that read, publish or acknowledge are noted if they created a topic or moved a cursor, for example.
Each response names its request, as the audit does.

Of several brokers one notes a request: the one that serves it, and what it asks others to do as a
part of that is not noted there. If it is sent on, that is the owner of what it is about. The broker
that the client asked notes it if it denied it, or if no answer came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsark.admin.http.broker_calls import CALL
from pulsark.admin.http.changes import TOLD
from pulsark.admin.http.errors import fail
from pulsark.admin.http.forwarding import PASSED_ON
from pulsark.admin.http.guard import NOTE, of_path
from pulsark.admin.http.inner import NAMED, REQUEST_ID
from pulsark.admin.http.requests import TLS_PEER, name_part
from pulsark.errors import PulsarkError
from pulsark.metadata.resources import SYSTEM_TENANT
from pulsark.runtime import Runtime
from pulsark.security.audit.audit import DENIED, Audit
from pulsark.security.audit.changes import AuditedChanges
from pulsark.security.audit.effects import CHANGED, AuditedEffects
from pulsark.security.audit.events import (
    ACCESSES,
    Call,
    Judged,
    is_change,
    is_of_clients,
    shows_body,
)
from pulsark.security.audit.limits import AUDIT_BODY_BYTES_MAX
from pulsark.security.broker_calls import BrokerCall
from pulsark.security.decisions import Decision, Target
from pulsark.security.effects import watched
from pulsark.security.operations import GeneralOperation, Operation
from pulsark.security.principal import Origin, Principal

_NO_PARAMETERS = ("domain", "tenant", "namespace", "topic", "content")
"""The first are what the event is about; the last is a value, which may be secret."""
_WORK = "/table/work/{ident}"
"""To erase and to repair: the body says which."""
_SAFE = ("GET", "HEAD")
_Told = tuple[Origin, Principal | None, Call, Judged | None]
_STUCK = (
    "The audit topic takes no events, and auditFailClosed is on: nothing was changed. Try again in "
    "a minute; the broker's log says why"
)


class AuditGate:
    """Lets all requests through, and tells the audit what is worth it."""

    def __init__(
        self, app: ASGIApp, audit: Audit, runtime: Runtime, *, fail_closed: bool = False
    ) -> None:
        """``fail_closed``: refuse changes while the audit cannot be written."""
        self._fail_closed = fail_closed
        self._app = app
        self._audit = audit
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        call: BrokerCall | None = scope.get("state", {}).get(CALL)
        if call is not None and call.is_part:
            await self._app(scope, receive, send)  # noted by the broker whose part it is
            return
        drawn = f"{self._runtime.rng.getrandbits(64):016x}" if call is None else call.request_id
        seen = _Seen(scope, drawn, self._judge)
        began = self._runtime.clock.monotonic()

        async def receive_noting() -> Message:
            message = await receive()
            seen.received(message)
            return message

        async def send_noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                headers = [*message.get("headers", ()), (REQUEST_ID, seen.request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        changes = scope["method"] not in _SAFE
        telling = TOLD.set(seen.changes.add)
        try:
            with watched(seen.effects.add):
                await self._app(seen.scope, receive_noting if changes else receive, send_noting)
        finally:
            TOLD.reset(telling)
            seen.effects.end()
            took_ms = int((self._runtime.clock.monotonic() - began) * 1000)
            for told in seen.told(took_ms):
                self._audit.call(*told, held_back=seen.held_back)

    def _judge(self, seen: _Seen, judged: Judged) -> None:
        """Something may go on, as far as rights are concerned. 503 if it may not all the same."""
        operation, target, _ = judged
        action = ACCESSES.get(operation)
        # What was sent on is an access at the broker that the client asked.
        is_first = CALL not in seen.scope["state"]
        if action is not None and self._audit.notes_access and is_first:
            self._audit.accessed(seen.origin, seen.principal, action, target)
        # What producers and consumers may do themselves is no administration.
        if not self._fail_closed or not seen.changes_with(operation) or is_of_clients(operation):
            return
        # Who mends the audit topic itself has to get through.
        if target.tenant != SYSTEM_TENANT and self._audit.is_stuck:
            seen.held_back = True
            raise fail(503, _STUCK)


class _Seen:
    """What is seen of one request."""

    def __init__(
        self, scope: Scope, request_id: str, allowed: Callable[[_Seen, Judged], None]
    ) -> None:
        """``allowed`` hears what is granted, before it is done."""
        self.request_id = request_id
        self.held_back = False
        self._allowed = allowed
        self.status = 500
        """Until a response begins: what fails before is answered so."""
        state = {**scope.get("state", {}), NOTE: self.note, NAMED: request_id}
        self.scope: Scope = {**scope, "state": state}
        """What the application gets; it leaves the route there."""
        self.changes = AuditedChanges()
        self.effects = AuditedEffects()
        self._judged: Judged | None = None
        self._body = b""

    def note(self, operation: Operation, target: Target, decision: Decision) -> None:
        """Hear of a decision. The first says what the request is about, unless one is a denial.

        That somebody has to log in says nothing.
        """
        known = self._judged
        if (
            known is None
            or not decision.granted
            or (known.operation is GeneralOperation.LOGIN and known.decision.granted)
        ):
            self._judged = Judged(operation, target, decision)
        if decision.granted:
            self._allowed(self, Judged(operation, target, decision))

    def changes_with(self, operation: Operation) -> bool:
        """Whether the request changes something if it does this."""
        return self.scope["method"] not in _SAFE and is_change(operation)

    @property
    def principal(self) -> Principal | None:
        """Who sent it."""
        found: Principal | None = self.scope["state"].get("principal")
        return found

    @property
    def origin(self) -> Origin:
        """From where."""
        host, port = self.scope.get("client") or ("", 0)
        address = f"{host}:{port}" if port else host
        agent = next((v for k, v in self.scope["headers"] if k == b"user-agent"), b"")
        tls = self.scope["state"].get(TLS_PEER)
        return Origin("rest", address, agent.decode("latin-1"), tls)

    def received(self, message: Message) -> None:
        """Keep the begin of the body; one byte more says that it is not all of it."""
        room = AUDIT_BODY_BYTES_MAX + 1 - len(self._body)
        if room > 0:
            self._body += message.get("body", b"")[:room]

    def _is_worth_noting(self) -> bool:
        """Whether it was denied, or was to change something."""
        judged = self._judged
        if self.status in DENIED or (judged is not None and not judged.decision.granted):
            return True
        return judged is not None and self.changes_with(judged.operation)

    def told(self, took_ms: int) -> Iterator[_Told]:
        """What the audit is told: of the request, or else of each thing that it changed."""
        if self.scope["state"].get(PASSED_ON):
            return  # who answered has noted it
        if not (self.effects or self._is_worth_noting()):
            return
        origin, principal, call, judged = self._told(took_ms)
        if self._is_worth_noting():
            changed = self.effects.summary
            parameters = {**call.parameters, **({CHANGED: changed} if changed else {})}
            yield origin, principal, call._replace(parameters=parameters), judged
            return
        for target, changed in self.effects.each():
            each = call._replace(parameters={**call.parameters, CHANGED: changed})
            yield origin, principal, each, judged and judged._replace(target=target)

    def _told(self, took_ms: int) -> _Told:
        scope = self.scope
        route = getattr(scope.get("route"), "path", "")
        method: str = scope["method"]
        call = Call(
            f"{method} {route}".rstrip(),
            self.request_id,
            method,
            route,
            self.status,
            took_ms,
            _parameters(scope.get("path_params", {})),
            self._shown(self.changes.before),
            self._shown(self.changes.after or self._shown_body()),
        )
        judged = self._judged
        if judged is not None and not judged.target.namespace:
            found = _target(scope.get("path_params", {}))
            judged = judged._replace(target=found if any(found) else judged.target)
        return self.origin, self.principal, call, judged

    def _shown(self, text: str) -> str:
        return text if self.status < 300 else ""

    def _shown_body(self) -> str:
        judged = self._judged
        if judged is None:
            return ""
        route = getattr(self.scope.get("route"), "path", "")
        if not shows_body(judged.operation) and not route.endswith(_WORK):
            return ""
        text = self._body[:AUDIT_BODY_BYTES_MAX].decode("utf-8", "replace")
        return text if len(self._body) <= AUDIT_BODY_BYTES_MAX else f"{text}..."


def _parameters(found: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in found.items() if key not in _NO_PARAMETERS}


def _target(path: Mapping[str, str]) -> Target:
    """What a path names, where the right is one on a tenant, or on nothing."""
    try:
        if "namespace" in path:
            return of_path(path)
        return Target(name_part("tenant", path["tenant"])) if "tenant" in path else Target()
    except (HTTPException, PulsarkError):  # that it is no name was answered already
        return Target()
