"""Requests of other brokers: let in without a login, because they are signed.

A request is one of a broker if the header says so and the signature holds. One that says so in vain
is refused, and not taken for a client's: it would be sent on again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsark.admin.http.errors import fail
from pulsark.admin.http.requests import TLS_PEER
from pulsark.dispatch.peers.peers import NOT_BELIEVED, Peers
from pulsark.runtime import Clock
from pulsark.security.broker_calls import HEADER, BrokerCall, CallRefusedError
from pulsark.security.seldom_warnings import SeldomWarnings

log = logging.getLogger(__name__)

CALL = "broker-call"
"""Where a request's state has the ``BrokerCall`` that came with it, if it came from a broker."""
_HEADER = HEADER.encode()
_TYPE = b"content-type"


def call_of(request: Request) -> BrokerCall | None:
    """The call of another broker that a request is; ``None``: it is a client's."""
    found: BrokerCall | None = getattr(request.state, CALL, None)
    return found


def is_part(request: Request) -> bool:
    """Whether a broker asks for it, this one or another, as a part of something larger."""
    call = call_of(request)
    return call is not None and call.is_part


def check_is_broker(request: Request) -> None:
    """What only brokers may ask each other, as a part of what one of them does."""
    if not is_part(request):
        raise fail(403, "Only the brokers of a cluster ask this of each other")


def target_of(scope: Scope) -> str:
    """Path and query as they were sent."""
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


class BrokerGate:
    """Lets all requests through; those of brokers have their call in the state."""

    def __init__(self, app: ASGIApp, peers: Callable[[], Peers], clock: Clock) -> None:
        self._app = app
        self._peers = peers
        self._refusals = SeldomWarnings(log, clock.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        values = [value for name, value in scope.get("headers", ()) if name == _HEADER]
        if not values:
            await self._app(scope, receive, send)
            return
        content_type = next((value for name, value in scope["headers"] if name == _TYPE), b"")
        try:
            if len(values) > 1:
                raise CallRefusedError("it is there twice")
            call, body = await self._peers().opened(
                values[0].decode("latin-1"),
                scope["method"],
                target_of(scope),
                content_type.decode("latin-1"),
            )
        except CallRefusedError as error:
            self._refusals.note("refused a request that claims to come from a broker: %s", error)
            await _refuse(send, f"The header {HEADER} is refused: {error}")
            return
        state = {
            **scope.get("state", {}),
            CALL: call,
            "principal": call.principal,
            TLS_PEER: call.tls,
        }
        client = scope.get("client") if call.address is None else call.address
        await self._app(
            {**scope, "client": client, "state": state}, _as_signed(receive, body), send
        )


def _as_signed(receive: Receive, body: str) -> Receive:
    """The request, whose last piece does not come if the body is another than was signed.

    What is done with a body is done when all of it is there.
    """
    seen = hashlib.sha256()

    async def checked() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            seen.update(message.get("body", b""))
            if not message.get("more_body", False) and seen.hexdigest() != body:
                log.warning("refused a broker's request: its body does not match its signature")
                return {"type": "http.disconnect"}
        return message

    return checked


async def _refuse(send: Send, reason: str) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"connection", b"close"),
        (NOT_BELIEVED, b"1"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"reason": reason}).encode()})
