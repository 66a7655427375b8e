"""Calls to other brokers over their admin APIs, signed with the cluster's secret.

The first broker that needs the secret creates it in the metadata store. Anyone who can read that
store can read everything else in the cluster, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.peers.http_call import (
    PeerError,
    PeerGoneError,
    Request,
    answered,
)
from pulsark.errors import BadVersionError, ClientError, ServerError
from pulsark.limits import CALLS_TO_A_PEER_MAX, PEER_ANSWER_BYTES_MAX
from pulsark.metadata.paths import BROKER_SECRET
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT
from pulsark.security.broker_calls import (
    HEADER,
    BrokerCall,
    CallRefusedError,
    SignedCall,
    Unsealing,
    digest,
    sealed,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.peers.whereabouts import Peer, Whereabouts
    from pulsark.http_answer import HttpAnswer
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime

log = logging.getLogger(__name__)

NOT_OWNER = b"x-pulsark-not-owner"
"""A header of the answer if the broker no longer serves the topic or bundle of the call."""
NOT_BELIEVED = b"x-pulsark-call-refused"
"""A header of the answer if the broker rejects the signature of the call."""
MISDIRECTED = 421
_TYPE = b"content-type"


class NotOwnerError(PeerError):
    """The broker does not serve the topic or bundle of the call."""


class NotBelievedError(PeerError):
    """The broker rejects the signature of the call."""


class Peers:
    """One broker's calls to others, and theirs to it."""

    def __init__(
        self, settings: Settings, runtime: Runtime, metadata: MetadataStore, knows: Whereabouts
    ) -> None:
        self.knows = knows
        self._settings = settings
        self._runtime = runtime
        self._metadata = metadata
        self._secret: bytes | None = None
        self._tls: ssl.SSLContext | None = None
        self._room: dict[str, asyncio.Semaphore] = {}
        self._unsealing = Unsealing(
            lambda: f"{knows.broker_id} {knows.instance}", runtime.clock.now_ms
        )

    @asynccontextmanager
    async def ask(
        self,
        peer: Peer,
        method: str,
        target: str,
        call: BrokerCall,
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
        body: bytes = b"",
    ) -> AsyncIterator[HttpAnswer]:
        """Send one request to a broker; ``PeerError``, for example ``NotOwnerError``."""
        sent = list(headers or ())
        content_type = next((v for k, v in sent if k == _TYPE), b"").decode("latin-1")
        message = SignedCall(method, target, content_type, digest(body))
        value = sealed(
            call,
            message,
            secret=await self.secret(),
            receiver=f"{peer.broker_id} {peer.instance}",
            now_ms=self._runtime.clock.now_ms(),
            once=f"{self._runtime.rng.getrandbits(128):032x}",
        )
        sent.append((HEADER.encode(), value.encode()))
        request = Request(method, target, sent, body)
        seconds = self._settings.adminForwardTimeoutSeconds
        async with answered(peer.web_url, request, seconds, self._context(peer)) as answer:
            marks = {name for name, _ in answer.headers}
            if NOT_OWNER in marks:
                raise NotOwnerError("it does not serve this topic: its bundle is moving")
            if NOT_BELIEVED in marks:
                raise NotBelievedError(reason_in(await answer.read(PEER_ANSWER_BYTES_MAX)))
            yield answer

    @asynccontextmanager
    async def room(self, peer: Peer) -> AsyncIterator[None]:
        """Room for one of a bounded number of calls to a broker; ``PeerGoneError``."""
        if len(self._room) > 1000:
            self._room.clear()  # brokers get new names; calls under way keep their semaphore
        room = self._room.setdefault(peer.broker_id, asyncio.Semaphore(CALLS_TO_A_PEER_MAX))
        try:
            async with asyncio.timeout(self._settings.adminForwardTimeoutSeconds):
                await room.acquire()
        except TimeoutError:
            raise PeerGoneError("too many calls to it are already under way") from None
        try:
            yield
        finally:
            room.release()

    async def part(
        self, peer: Peer, method: str, target: str, body: bytes = b"", request_id: str = ""
    ) -> tuple[int, bytes]:
        """Ask a broker for one part of a larger task; returns status and body."""
        call = BrokerCall(self.knows.broker_id, is_part=True, request_id=request_id)
        headers = [(_TYPE, b"application/json")] if body else []
        async with (
            self.room(peer),
            self.ask(peer, method, target, call, headers=headers, body=body) as answer,
        ):
            return answer.status, await answer.read(PEER_ANSWER_BYTES_MAX)

    def _context(self, peer: Peer) -> ssl.SSLContext | None:
        if not peer.web_url.startswith("https:"):
            return None
        if self._tls is None:
            import ssl

            path = self._settings.brokerClientTrustCertsFilePath
            self._tls = ssl.create_default_context(cafile=path or None)
        return self._tls

    async def opened(
        self, value: str, method: str, target: str, content_type: str
    ) -> tuple[BrokerCall, str]:
        """Verify a call's header: the caller, and the body's digest; ``CallRefusedError``."""
        secret = await self._known_secret()
        if secret is None:
            raise CallRefusedError("it is not signed by a broker of this cluster")
        return self._unsealing.opened(value, method, target, content_type, secret)

    async def secret(self) -> bytes:
        """The secret that only the brokers of this cluster know."""
        if await self._known_secret() is None:
            made = {"version": 1, "secret": f"{self._runtime.rng.getrandbits(256):064x}"}
            try:
                await put_settled(self._metadata, BROKER_SECRET, json.dumps(made).encode(), ABSENT)
            except BadVersionError:
                log.debug("another broker has created the cluster's secret")
        found = await self._known_secret()
        if found is None:
            raise ClientError(
                ServerError.MetadataError, "The cluster's secret is missing; try again"
            )
        return found

    async def _known_secret(self) -> bytes | None:
        """``None`` if no broker has made a call yet."""
        if self._secret is None:
            found = await self._metadata.get(BROKER_SECRET)
            if found is not None:
                self._secret = bytes.fromhex(json.loads(found.value)["secret"])
        return self._secret


def reason_in(body: bytes) -> str:
    """The reason in an error response of the admin API."""
    try:
        found: Any = json.loads(body)
        return str(found["reason"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
