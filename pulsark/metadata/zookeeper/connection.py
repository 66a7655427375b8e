"""One kazoo client, and all that is known here of its inside.

Kazoo has one thread that connects, sends, reads and pings. Answers, events of watches and changes
of the connection go from there to the event loop in the order in which the server sent them: one
hop for all that arrive before the loop gets to them. In the other direction, too, the thread is
woken once for all requests that are made before it gets to them, and sends them together. Kazoo's
own threads for callbacks do not run.

What kazoo would do and this module prevents: its pauses between attempts grow to an hour; it
calls a connection ready before the logins are sent; it does not tell the session's timeout; it
waits for ever where a server is there but refuses each connection, because its data are older than
what the client has seen.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from pulsark.metadata.zookeeper.sockets import ReadAhead, wait_for

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable, Iterable

    from pulsark.metadata.zookeeper.digest_login import DigestLogin

log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger("pulsark.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_PAUSE_SECONDS_MAX: Final = 1.0
_STOP_SECONDS: Final = 3.0
HANDSHAKE_SECONDS: Final = 5.0
"""How long a server may take to accept a connection, and to answer the first request. One that has
not quite started may never answer; kazoo would wait for the session's timeout."""
AT_ONCE: Final = 500
"""Answers that one turn of the event loop takes: a few milliseconds."""
SEND_BYTES: Final = 256 << 10
READS_AT_ONCE: Final = 100
"""Kazoo's thread goes on sending after so many bytes, and after so many answers that were there."""
_REFUSING: Final = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)
_WAKES: Final = 4096
_XID_MAX: Final = 2**31 - 1
_HEAD: Final = struct.Struct("!iii")


class Listener(Protocol):
    """Who is told about the connection, on the event loop."""

    def connected(self, session_id: int, timeout_seconds: float) -> None:
        """The session begins or goes on; logins are done. The timeout is the server's."""

    def disconnected(self) -> None:
        """The session may go on. All watches are lost."""

    def refused(self) -> None:
        """A server was there and closed the connection instead of taking it."""

    def lost(self) -> None:
        """The session is over, or kazoo's thread has died."""


Done: TypeAlias = "Callable[[Any, BaseException | None, int], None]"
"""Takes an answer or an error, and the last transaction that the server had made."""


class Call:
    """Gets the outcome of one request: kazoo calls ``set`` or ``set_exception`` in its thread."""

    __slots__ = ("_connection", "_done")

    def __init__(self, connection: Connection, done: Done) -> None:
        self._connection = connection
        self._done = done

    def set(self, value: object = None) -> None:
        """The answer."""
        self._connection.post(self._done, value, None, self._connection.zxid)

    def set_exception(self, error: BaseException) -> None:
        """Why there is none."""
        self._connection.post(self._done, None, error, self._connection.zxid)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threading without its threads for callbacks."""

    def __init__(self, post: Callable[..., None], tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._post = post
        self._tls = tls
        self._said = ""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        self._post(callback.func, *callback.args)

    def create_connection(
        self, address: Any, *, hostname: str, timeout: float, **kwargs: Any
    ) -> Any:
        timeout = min(timeout, HANDSHAKE_SECONDS)
        if self._tls is None:
            return ReadAhead(
                super().create_connection(address, hostname=hostname, timeout=timeout, **kwargs)
            )
        # Not kazoo's TLS, which also trusts the CAs of the machine, whichever were named.
        plain = socket.create_connection(address, timeout)
        try:
            return ReadAhead(self._tls.wrap_socket(plain, server_hostname=hostname))
        except OSError as error:
            plain.close()
            if str(error) != self._said:
                self._said = str(error)
                log.error("no TLS with ZooKeeper at %s: %s", hostname, error)
            raise

    def select(
        self, reading: Any, writing: Any, failing: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        return *wait_for(reading, writing, timeout), []


class Connection:
    """A connection that is made again whenever it breaks, until the session is over."""

    def __init__(
        self,
        hosts: str,
        timeout_seconds: float,
        listener: Listener,
        loop: asyncio.AbstractEventLoop,
        *,
        auth: Iterable[tuple[str, str]] = (),
        client_id: tuple[int, bytes] | None = None,
        tls: ssl.SSLContext | None = None,
        login: DigestLogin | None = None,
    ) -> None:
        self._loop = loop
        self._login = login
        self._listener = listener
        self._arrived: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waking = False
        self._woken = False
        """Whether kazoo's thread has been woken for what is queued."""
        self._waking_later = False
        """Whether it is about to be, at the end of this turn."""
        self._over = False
        handler = _Handler(self.post, tls)
        self._client = KazooClient(
            hosts=hosts,
            timeout=timeout_seconds,
            handler=handler,
            client_id=client_id,
            auth_data=list(auth),
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, backoff=2, max_delay=_PAUSE_SECONDS_MAX,
                sleep_func=handler.sleep_func,
            ),
            logger=_kazoo_log,
        )  # fmt: skip
        inner = self._client._connection
        self._connect = inner._connect
        inner._connect = self._connect_once
        self._invoke = inner._invoke
        inner._invoke = self._invoke_soon
        self._read_one = inner._read_socket
        inner._read_socket = self._read_all
        inner._send_request = self._send_all
        self._client.add_listener(self._changed)

    @property
    def zxid(self) -> int:
        """The last transaction that the server has answered with."""
        return int(self._client.last_zxid)

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """The session's id and password while there is a connection."""
        found: tuple[int, bytes] | None = self._client.client_id
        return found

    def start(self) -> None:
        """Begin to connect."""
        self._client.start_async()

    def submit(self, request: Any, done: Done) -> None:
        """Send a request; ``done`` is called on the event loop, where this is called, too."""
        client, call = self._client, Call(self, done)
        if client._state in _REFUSING or client._connection._write_sock is None:
            client._call(request, call)  # which tells ``call`` why not
            return
        client._queue.append((request, call))
        if not self._waking_later:
            self._waking_later = True
            self._loop.call_soon(self._wake)

    def stop(self, stopped: Callable[[], None]) -> None:
        """End the session. ``stopped()`` is called, but not if the server does not answer."""
        self._over = True

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:  # noqa: BLE001 - kazoo's, of any kind: the end is the end
                log.debug("kazoo does not end in order: %s", error)
            self.post(stopped)

        self._client.handler.spawn(stop)

    def drop(self) -> None:
        """Close the socket, as a network that fails; kazoo connects again."""
        with suppress(AttributeError, OSError):
            self._client._connection._socket.shutdown(2)

    # -- in kazoo's thread ---

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call something on the event loop, after all that was posted before. From any thread."""
        self._arrived.append((call, arguments))
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _read_all(self, timeout: float) -> Any:
        """Kazoo's step for one answer, for all that are there."""
        inner = self._client._connection
        found = self._read_one(timeout)
        for _ in range(READS_AT_ONCE):
            if found is not None or not inner._socket.pending():
                break
            found = self._read_one(timeout)
        return found

    def _send_all(self, read_timeout: float, timeout: float) -> None:
        """Kazoo's step for one request, for all that are queued."""
        inner, queue = self._client._connection, self._client._queue
        inner._read_sock.recv(_WAKES)
        # Before the look, and after the bytes that woke this thread are gone: what is queued from
        # now on wakes it again.
        self._woken = False
        out = bytearray()
        while queue and len(out) < SEND_BYTES:
            request, call = queue[0]
            if request.type == Auth.type:
                xid = AUTH_XID
            else:
                xid = inner._xid = inner._xid % _XID_MAX + 1
            body = request.serialize()
            out += _HEAD.pack(len(body) + 8, xid, request.type)
            out += body
            # From here on kazoo gives it up with the connection, as what was sent.
            self._client._pending.append((request, call, xid))
            queue.popleft()
        if queue and not self._woken:
            self._woken = True
            inner._write_sock.send(b"\0")
        if out:
            inner._write(out, timeout)

    def _log_in(self, login: DigestLogin) -> None:
        """Kazoo's own way needs a package more. Whoever is refused is told so by an error, or by
        the end of the connection."""
        challenge = self._exchange(b"", 1)
        answer, wanted = login.answer(challenge, secrets.token_hex(16))
        if self._exchange(answer, 2) != wanted:
            raise AuthFailedError("ZooKeeper does not know the password itself")

    def _exchange(self, token: bytes, number: int) -> bytes:
        inner = self._client._connection
        inner._submit(SASL(token), HANDSHAKE_SECONDS, number)
        header, buffer, offset = inner._read_header(HANDSHAKE_SECONDS)
        if header.err:
            log.error("ZooKeeper refuses the login: error %d", header.err)
            raise AuthFailedError(f"error {header.err}")
        found, _ = SASL.deserialize(buffer, offset)
        return bytes(found)

    def _connect_once(self, *address: Any) -> tuple[float, float]:
        try:
            read_timeout, connect_timeout = self._connect(*address)
        except BaseException as error:
            # With a socket, a server has taken the connection and then closed it.
            was_there = self._client._connection._socket is not None
            if was_there and isinstance(error, ConnectionDropped):
                self.post(self._told, self._listener.refused)
            raise
        if self._login is not None:
            self._log_in(self._login)
        self.post(
            self._told, self._listener.connected, self._client._session_id,
            read_timeout * 1.5 / 1000,
        )  # fmt: skip
        return read_timeout, connect_timeout

    def _invoke_soon(self, timeout: float, *request: Any) -> Any:
        return self._invoke(min(timeout, HANDSHAKE_SECONDS), *request)

    def _changed(self, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self.post(self._told, self._listener.disconnected)
        elif state == KazooState.LOST:
            # Kazoo would begin another session in this client. Here a client has one session.
            self._client._stopped.set()
            self.post(self._told, self._listener.lost)

    # -- on the event loop ---

    def _wake(self) -> None:
        """Wake kazoo's thread for the requests of one turn, unless it has not looked since."""
        self._waking_later = False
        if not self._woken:
            self._woken = True
            with suppress(AttributeError, OSError):  # it has stopped, and given up what was queued
                self._client._connection._write_sock.send(b"\0")

    def _told(self, tell: Callable[..., None], *arguments: Any) -> None:
        if not self._over:
            tell(*arguments)

    def _drain(self) -> None:
        self._waking = False  # before the look: what is posted from now on wakes the loop again
        for _ in range(min(len(self._arrived), AT_ONCE)):
            call, arguments = self._arrived.popleft()
            call(*arguments)
        if self._arrived and not self._waking:
            self._waking = True
            self._loop.call_soon(self._drain)
