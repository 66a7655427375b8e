"""Requests about what another broker serves: sent on to it, its answer passed back as it comes.

A request is sent on once: who gets it so serves it, or says that it moved. Then, and when the
owner cannot be reached, it is looked up once more. The owner judges the client's rights anew and
notes the request in the audit, as it knows what came of it; this broker notes it only if no answer
came. Bodies are small (``HTTP_BODY_BYTES_MAX``) and read first, because their digest is signed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from pulsark.admin.http.broker_calls import target_of
from pulsark.admin.http.inner import NAMED, REQUEST_ID, scope_of, serve
from pulsark.admin.http.requests import TLS_PEER, body_bytes
from pulsark.dispatch.peers.http_call import (
    PeerBrokeOffError,
    PeerError,
    PeerGoneError,
    PeerSlowError,
    UnsendableError,
)
from pulsark.dispatch.peers.peers import NotBelievedError, NotOwnerError, Peers
from pulsark.dispatch.peers.whereabouts import Peer
from pulsark.http_answer import HttpAnswer
from pulsark.security.broker_calls import BrokerCall

T = TypeVar("T")

log = logging.getLogger(__name__)

PASSED_ON = "passed-on"
"""Where a request's state says that another broker answers it, and notes it."""
AGAIN = "looked-up-again"
"""Where it says that it is not sent on any more."""
_SENT = (b"content-type", b"accept", b"user-agent", b"x-pulsar-listenername")
"""Headers of a client that the owner gets; who it is, the call says."""
_DROPPED = (
    b"connection",
    b"date",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    REQUEST_ID,
)
"""Headers of an answer that are about one connection, or that this broker says itself."""
_SAFE = ("GET", "HEAD")


class Elsewhere(Exception):
    """A request is to be served by another broker."""

    def __init__(self, peer: Peer, look_up: Callable[[], Awaitable[Peer | None]]) -> None:
        """``look_up`` says who that is now; ``None``: this broker."""
        super().__init__(peer.broker_id)
        self.peer = peer
        self.look_up = look_up


async def forward(request: Request, error: Exception) -> Response:
    """The answer of the broker that serves what a request is about."""
    assert isinstance(error, Elsewhere)
    peers: Peers = request.app.state.broker.peers()
    try:
        body = await body_bytes(request)
    except HTTPException as failed:
        return JSONResponse({"reason": failed.detail}, failed.status_code)
    return Forwarded(request, body, peers, error)


class Forwarded(Response):
    """An answer that another broker gives. Ends with the client."""

    def __init__(self, request: Request, body: bytes, peers: Peers, elsewhere: Elsewhere) -> None:
        super().__init__()
        self._request = request
        self._content = body
        self._peers = peers
        self._elsewhere = elsewhere
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask the owner, and pass on what it says."""
        await _with_client(self._work(send), receive)

    async def _work(self, send: Send) -> None:
        peer = self._elsewhere.peer
        try:
            if await self._ask(peer, send) is None:
                return
            again = await self._elsewhere.look_up()
            if again is None:
                await self._serve_here(send)
                return
            peer = again
            failed = await self._ask(peer, send)
            if failed is not None:
                raise failed
        except PeerError as error:
            await self._fail(peer, error, send)

    async def _ask(self, peer: Peer, send: Send) -> PeerError | None:
        """``None``: it has answered; else why not: it did nothing."""
        request = self._request
        sent = [(name, value) for name, value in request.scope["headers"] if name in _SENT]
        try:
            async with (
                self._peers.room(peer),
                self._peers.ask(
                    peer,
                    request.method,
                    target_of(request.scope),
                    self._call(),
                    headers=sent,
                    body=self._content,
                ) as answer,
            ):
                await self._pass_on(answer, send)
        except (PeerGoneError, NotOwnerError, NotBelievedError) as error:
            log.info("broker %s cannot serve %s: %s", peer.broker_id, request.url.path, error)
            return error
        except PeerBrokeOffError as error:
            if isinstance(error, PeerSlowError) or self._has_begun or request.method not in _SAFE:
                raise
            return error
        return None

    def _call(self) -> BrokerCall:
        request = self._request
        client = request.scope.get("client")
        return BrokerCall(
            self._peers.knows.broker_id,
            principal=getattr(request.state, "principal", None),
            address=None if client is None else (client[0], client[1]),
            tls=getattr(request.state, TLS_PEER, None),
            request_id=getattr(request.state, NAMED, ""),
        )

    async def _pass_on(self, answer: HttpAnswer, send: Send) -> None:
        self._has_begun = True
        setattr(self._request.state, PASSED_ON, True)
        headers = [(name, value) for name, value in answer.headers if name not in _DROPPED]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _serve_here(self, send: Send) -> None:
        """It is this broker's now, or nobody's."""
        request = self._request
        state = {**request.scope["state"], AGAIN: True}
        scope = scope_of(
            request,
            request.method,
            target_of(request.scope),
            list(request.scope["headers"]),
            state,
        )
        await serve(request, scope, self._content, send)

    async def _fail(self, peer: Peer, error: PeerError, send: Send) -> None:
        if self._has_begun:
            # The connection ends without the end of the answer, which says what there is to say.
            log.warning("the answer of broker %s was cut off: %s", peer.broker_id, error)
            return
        if isinstance(error, UnsendableError):
            await _refuse(400, f"The request is not understood: {error}", send)
            return
        status = 504 if isinstance(error, PeerSlowError) else 503
        advice = "Try again in a moment"
        if isinstance(error, PeerBrokeOffError) and self._request.method not in _SAFE:
            advice = "It may have been done all the same: look before you try again"
        reason = f"Broker {peer.broker_id}, which serves this, does not answer: {error}. {advice}"
        log.warning("%s %s: %s", self._request.method, self._request.url.path, reason)
        await _refuse(status, reason, send, (b"retry-after", b"1"))


async def _refuse(status: int, reason: str, send: Send, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"reason": reason}).encode()})


class WithClient(Response):
    """An answer that is made only for as long as the client waits for it."""

    def __init__(self, make: Callable[[], Awaitable[Response]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make it, and say it."""

        async def made() -> Response:
            return await self._make()

        found = await _with_client(made(), receive)
        if found is not None:
            await found(scope, receive, send)


async def _with_client(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """What comes of it; ``None``: the client has hung up, and it ended with that."""
    doing = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((doing, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        doing.cancel()
        await asyncio.wait((doing, watch))
    return None if doing.cancelled() else doing.result()


async def _gone(receive: Receive) -> None:
    """Return when the client has hung up."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
