"""Calls to etcd: connections that are kept, servers one after the other, deadlines and outcomes.

All calls and the watch go to one server for as long as it answers. A server that does not is left
for the next one, and everybody who follows it is told to move.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.etcd.connection import BrokenError, Connection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from pulsark.metadata.etcd.access import EtcdAccess
    from pulsark.metadata.etcd.address import EtcdAddress, Server
    from pulsark.metadata.etcd.messages import Json

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
CONNECT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0

NOT_FOUND: Final = 5
_UNAUTHENTICATED: Final = 16
_REFUSALS: Final = {
    3: "it is not valid",
    NOT_FOUND: "something of it is not there",
    7: "there is no right to it",
    8: "etcd has no room",
    9: "it is not possible now",
    12: "the server does not know it",
    _UNAUTHENTICATED: "the login is not valid",
}
"""Codes of gRPC with which etcd says that nothing was done."""
_OLD_LOGIN: Final = "revision of auth store is old"
_URGENT: Final = ("lease/keepalive", "lease/revoke")
"""What does not wait for its turn: a session must not end because there is much to do."""


class RefusedError(MetadataRefusedError):
    """etcd has done nothing of a request, and says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"etcd refuses it: {message or _REFUSALS[code]}")
        self.code = code


class Gateway:
    """The servers of one etcd cluster."""

    def __init__(self, address: EtcdAddress, access: EtcdAccess, answer_seconds: float) -> None:
        """``answer_seconds``: a server that is silent for so long is left, if there are others."""
        self.cluster = ""
        """The id of the cluster that has answered first. Another one is not listened to."""
        self._servers = address.servers
        self._access = access
        self._tls = access.tls
        if self._tls is None and any(server.tls for server in address.servers):
            self._tls = ssl.create_default_context()
        self._answer_seconds = answer_seconds
        self._at = 0
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._token = b""
        self._failed = False
        self._closed = False
        self._moved: list[Callable[[], None]] = []
        self._foreign: list[Callable[[], None]] = []

    @property
    def server(self) -> Server:
        """The one that is asked."""
        return self._servers[self._at]

    def on_moved(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` when another server is asked from now on."""
        self._moved.append(listener)

    def on_foreign(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` when another cluster answers at the same address."""
        self._foreign.append(listener)

    def close(self) -> None:
        """Close all connections; calls are refused."""
        self._closed = True
        self._drop_idle()

    async def read(self, method: str, body: Json, deadline: float) -> Json:
        """The answer to a request that may be repeated. ``MetadataError`` at the deadline."""
        return await self._call(method, body, deadline, repeats=True)

    async def write(self, method: str, body: Json, deadline: float) -> Json:
        """The answer to a request that is sent once.

        ``OutcomeUnknownError``: it may have been done, or be done a little later. ``RefusedError``
        and any other ``MetadataRefusedError``: it has no effect.
        """
        return await self._call(method, body, deadline, repeats=False)

    async def stream(self, method: str, body: Json, seconds: float) -> AsyncGenerator[Json, None]:
        """The answers to a request that has many. ``BrokenError`` when they end."""
        server = self.server
        try:
            connection = await self._connect(server, CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            self._leave(server, _said(error))
            raise BrokenError(_said(error)) from None
        data = json.dumps(body).encode()
        lines = connection.lines(f"/v3/{method}", self._headers(), data, seconds)
        async with aclosing(lines):
            async for line in lines:
                document = _document(line)
                if "result" not in document:
                    raise BrokenError(f"etcd ends it: {document.get('error', document)}")
                self._check_cluster(document["result"])
                yield document["result"]
        raise BrokenError("etcd has ended it")

    # -- one call ---

    async def _call(self, method: str, body: Json, deadline: float, *, repeats: bool) -> Json:
        data = json.dumps(body).encode()
        if method in _URGENT:
            return await self._call_in_turn(method, data, deadline, repeats=repeats)
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise _late("", repeats) from None
        try:
            return await self._call_in_turn(method, data, deadline, repeats=repeats)
        finally:
            self._slots.release()

    async def _call_in_turn(
        self, method: str, data: bytes, deadline: float, *, repeats: bool
    ) -> Json:
        loop = asyncio.get_running_loop()
        pause, trouble = 0.0, ""
        while not self._closed:
            if pause:
                await asyncio.sleep(min(pause, max(deadline - loop.time(), 0)))
            pause = min(2 * pause + _PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
            left = deadline - loop.time()
            if left <= 0:
                raise _late(trouble, repeats)
            server, sent = self.server, False
            try:
                await self._log_in(left)
                connection = await self._connection(server, min(left, CONNECT_SECONDS))
                sent = True
                answer = await self._ask(connection, method, data, left)
            except (OSError, TimeoutError, BrokenError) as error:
                trouble = _said(error)
            else:
                if "error" not in answer and "code" not in answer:
                    self._check_cluster(answer.get("result", answer))
                    if self._failed:
                        log.warning("etcd at %s answers again", server)
                        self._failed = False
                    return answer
                trouble = self._trouble_of(answer)
                if not trouble:
                    continue
            self._leave(server, trouble)
            if sent and not repeats:
                raise OutcomeUnknownError(f"no answer of etcd at {server}: {trouble}")
        raise MetadataRefusedError("the metadata store in etcd is closed")

    def _trouble_of(self, answer: Json) -> str:
        """Why nobody knows what became of a request; empty: it is to be sent again."""
        code, message = answer.get("code"), str(answer.get("message") or answer.get("error"))
        if self._token and (code == _UNAUTHENTICATED or _OLD_LOGIN in message):
            self._token = b""
            return ""
        if code in _REFUSALS:
            raise RefusedError(code, message)
        return message

    async def _ask(self, connection: Connection, method: str, data: bytes, left: float) -> Json:
        seconds = min(left, self._answer_seconds) if len(self._servers) > 1 else left
        answer = await connection.ask(f"/v3/{method}", self._headers(), data, seconds)
        if connection.is_usable and connection.server == self.server and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return _document(answer.body)

    async def _log_in(self, left: float) -> None:
        if not self._access.user or self._token:
            return
        body = json.dumps({"name": self._access.user, "password": self._access.password}).encode()
        connection = await self._connection(self.server, min(left, CONNECT_SECONDS))
        answer = await self._ask(connection, "auth/authenticate", body, left)
        if "token" not in answer:
            message = answer.get("message") or answer.get("error")
            raise RefusedError(_UNAUTHENTICATED, f"the login failed: {message}")
        self._token = str(answer["token"]).encode()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"authorization", self._token)] if self._token else []

    # -- servers ---

    async def _connection(self, server: Server, seconds: float) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return await self._connect(server, seconds)

    async def _connect(self, server: Server, seconds: float) -> Connection:
        return await Connection.open(server, self._tls, self._access.server_name, seconds)

    def _leave(self, server: Server, trouble: str) -> None:
        if server != self.server:
            return  # somebody did
        if not self._failed:
            log.warning("etcd at %s does not answer: %s", server, trouble)
        self._failed = True
        self._drop_idle()
        self._at = (self._at + 1) % len(self._servers)
        if len(self._servers) > 1:
            for listener in self._moved:
                listener()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _check_cluster(self, answer: Json) -> None:
        cluster = str(answer.get("header", {}).get("cluster_id", ""))
        if cluster and not self.cluster:
            self.cluster = cluster
        elif cluster and cluster != self.cluster:
            for listener in self._foreign:
                listener()
            raise OutcomeUnknownError("another cluster of etcd has answered")


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BrokenError(f"its answer is not etcd's: {data[:100]!r}")
    return found


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _late(trouble: str, repeats: bool) -> MetadataError:
    said = f"etcd has not answered in time{f': {trouble}' if trouble else ''}"
    return MetadataError(said) if repeats else MetadataRefusedError(f"{said}; nothing was written")
