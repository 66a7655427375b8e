"""Requests about what several brokers serve: each does its part, and the answers become one.

A part is a request of this broker to the owner's own route for a partition, or to the same route of
another broker; for what this broker serves itself it is one to itself. The right was asked for
before, and the audit notes the whole. The first part that fails, in the order of partitions, is the
answer, and says which it was; other parts may be done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from pulsark.admin.http.broker_calls import CALL, target_of
from pulsark.admin.http.budgets import BUSY_BODY, account_of
from pulsark.admin.http.errors import status_of
from pulsark.admin.http.forwarding import WithClient
from pulsark.admin.http.inner import NAMED, answer_of, scope_of
from pulsark.admin.http.places import Merge, ToBrokers, ToPartitions
from pulsark.admin.http.requests import body_bytes
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.peers.http_call import (
    PeerBrokeOffError,
    PeerError,
    PeerGoneError,
    UnsendableError,
)
from pulsark.dispatch.peers.peers import NotBelievedError, NotOwnerError, Peers, reason_in
from pulsark.dispatch.peers.whereabouts import Peer
from pulsark.errors import PulsarkError
from pulsark.limits import JSON_ON_THE_LOOP_BYTES_MAX, PARTS_AT_ONCE_MAX
from pulsark.security.broker_calls import BrokerCall
from pulsark.wire.topic_name import TopicName

_TOPIC_SEGMENT = 6
"""``/admin/v2/persistent/tenant/namespace/topic``, cut at the slashes."""
_SAFE = ("GET", "HEAD")


class Part(NamedTuple):
    """What came of one part."""

    of: str
    """The partition or the broker."""
    nr: int
    status: int
    body: bytes

    @property
    def is_done(self) -> bool:
        """Whether it did not fail."""
        return self.status < 300

    @property
    def json(self) -> Any:
        """What it answered."""
        return json.loads(self.body)


async def to_partitions(request: Request, error: Exception) -> Response:
    """The answer about all partitions of a topic."""
    assert isinstance(error, ToPartitions)
    place, topic = error.place, error.topic
    spread = await _Spread.of(request)
    if spread is None:
        return _too_large()
    tail = place.tail
    segments = request.scope["raw_path"].decode("latin-1").split("/")
    after = "/".join(segments[_TOPIC_SEGMENT + 1 :]) if tail is None else tail
    before = "/".join(segments[:_TOPIC_SEGMENT])
    query = request.scope["query_string"].decode("latin-1")

    async def one(index: int) -> Part:
        name = topic.with_partition(index)
        target = f"{before}/{quote(name.local, safe='')}/{after}".rstrip("/")
        method = place.method or request.method
        status, body = await spread.at_owner(name, method, f"{target}?{query}" if query else target)
        return spread.hold(Part(str(name), index, status, body))

    async def all_of_them() -> Response:
        parts = await _several(one, error.partitions)
        return await _merged(place.merge, request, parts)

    return await _answer(request, all_of_them)


async def to_brokers(request: Request, error: Exception) -> Response:
    """The answer of all brokers."""
    assert isinstance(error, ToBrokers)
    spread = await _Spread.of(request)
    if spread is None:
        return _too_large()
    peers = [None, *await spread.peers.knows.others()]
    target = target_of(request.scope)

    async def one(index: int) -> Part:
        peer = peers[index]
        if peer is None:
            status, body = await spread.here(request.method, target)
            of = f"broker {spread.peers.knows.broker_id}"
            return spread.hold(Part(of, index, status, body))
        try:
            status, body = await spread.there(peer, request.method, target)
        except PeerError as failed:
            status, body = _unanswered(peer, failed, request.method)
        return spread.hold(Part(f"broker {peer.broker_id}", index, status, body))

    async def all_of_them() -> Response:
        parts = await _several(one, len(peers))
        return await _merged(error.place.merge, request, parts)

    return await _answer(request, all_of_them)


async def _merged(merge: Merge, request: Request, parts: Sequence[Part]) -> Response:
    """Make one answer of all parts, in a thread if they are large."""
    broker: Broker = request.app.state.broker
    if sum(len(part.body) for part in parts) <= JSON_ON_THE_LOOP_BYTES_MAX:
        return merge(broker, request, parts)
    return await broker.large_jobs.run(lambda: merge(broker, request, parts))


async def _answer(request: Request, make: Callable[[], Awaitable[Response]]) -> Response:
    """What is only read ends with the client; what was begun to be changed is changed."""
    return WithClient(make) if request.method in _SAFE else await make()


class _Spread:
    """One request, as several brokers work on it."""

    def __init__(self, request: Request, body: bytes) -> None:
        self.peers: Peers = request.app.state.broker.peers()
        self._request = request
        self._body = body
        self._held = 0
        self._call = BrokerCall(
            self.peers.knows.broker_id,
            is_part=True,
            request_id=getattr(request.state, NAMED, ""),
        )

    @classmethod
    async def of(cls, request: Request) -> _Spread | None:
        """With the body read; ``None``: it is too large."""
        try:
            return cls(request, await body_bytes(request))
        except HTTPException:
            return None

    async def at_owner(self, name: TopicName, method: str, target: str) -> tuple[int, bytes]:
        """Ask whoever serves a partition; if it moved, once more."""
        peer: Peer | None = None
        failed: PeerError | None = None
        for _ in range(2):
            try:
                peer = await self.peers.knows.find(name)
            except PulsarkError as error:
                return status_of(error), json.dumps({"reason": str(error)}).encode()
            if peer is None:
                return await self.here(method, target)
            try:
                return await self.there(peer, method, target)
            except (PeerGoneError, NotOwnerError, NotBelievedError) as error:
                failed = error
            except PeerError as error:
                failed = error
                break
        assert peer is not None
        assert failed is not None
        return _unanswered(peer, failed, method)

    def hold(self, part: Part) -> Part:
        """Count a part among the answers that its client has not read.

        If the client has its share of those, a part that only read something has failed.
        """
        self._held += len(part.body)
        has_room = account_of(self._request).hold_answer(self._held)
        if has_room or self._request.method not in _SAFE:
            return part
        self._held -= len(part.body)
        return part._replace(status=503, body=BUSY_BODY)

    async def here(self, method: str, target: str) -> tuple[int, bytes]:
        """Ask this broker itself."""
        headers = [(b"content-type", b"application/json")] if self._body else []
        scope = scope_of(self._request, method, target, headers, {CALL: self._call})
        return await answer_of(self._request, scope, self._body)

    async def there(self, peer: Peer, method: str, target: str) -> tuple[int, bytes]:
        """Ask another one; ``PeerError``."""
        return await self.peers.part(
            peer, method, target, self._body, request_id=self._call.request_id
        )


def _unanswered(peer: Peer, error: PeerError, method: str) -> tuple[int, bytes]:
    if isinstance(error, UnsendableError):
        return 400, json.dumps({"reason": f"The request is not understood: {error}"}).encode()
    advice = "try again in a moment"
    if isinstance(error, PeerBrokeOffError) and method not in _SAFE:
        advice = "it may have been done all the same: look before you try again"
    reason = f"broker {peer.broker_id}, which serves it, does not answer ({error}); {advice}"
    return 503, json.dumps({"reason": reason}).encode()


async def _several(one: Callable[[int], Awaitable[Part]], count: int) -> list[Part]:
    """All of them, a few at a time; if one raises, no further one begins."""
    found: list[Part] = []
    room = asyncio.Semaphore(PARTS_AT_ONCE_MAX)

    async def within(index: int) -> None:
        try:
            found.append(await one(index))
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for index in range(count):
            await room.acquire()
            group.create_task(within(index))
    return sorted(found, key=lambda part: part.nr)


def _too_large() -> Response:
    return JSONResponse({"reason": "The body is too large, or ends early"}, 413)


# -- answers become one -----------------------------------------------------------------------


def failure(parts: Sequence[Part], ignored: int = 0) -> Response | None:
    """What the first part that failed says; ``None``: none did.

    With this status it has not failed, unless it is that of all.
    """
    failed = [part for part in parts if not part.is_done]
    if ignored and len([part for part in failed if part.status == ignored]) == len(parts) > 0:
        return JSONResponse({"reason": reason_in(parts[0].body)}, ignored)
    first = next((part for part in failed if part.status != ignored), None)
    if first is None:
        return None
    return JSONResponse({"reason": f"{first.of}: {reason_in(first.body)}"}, first.status)
