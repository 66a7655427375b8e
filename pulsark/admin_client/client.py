"""Calls to the admin API of one broker, over one connection that is kept alive."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from pulsark.admin_client.credentials import Credentials
from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0
FIRST_CONTACT_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 0.5

CONNECT_SECONDS = 1.0
"""Seconds that one attempt to connect may take. The kernel accepts connections, however busy the
broker is; the pauses between its own attempts would grow with the outage."""

SILENT_SECONDS = 2
"""Seconds without a sign of life from the other machine, after which a connection is given up."""

_TOLD_SECONDS = 2.0
"""Seconds of waiting for an absent broker after which the log says so."""


class AdminError(PulsarkError):
    """The broker did not answer, or did not do what it was asked for."""


class Answer(NamedTuple):
    """What the broker answered."""

    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """Why a call failed, in the broker's words."""
        try:
            return str(json.loads(self.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return self.body[:200].decode("utf-8", "replace")


class AdminClient:
    """Calls a broker; not for several threads. Paths are below ``/admin/v2``.

    With ``patience_s`` it keeps its connection and survives restarts of the broker that are not
    longer: calls may then be made twice. ``patience_s`` may be changed at any time. A broker that
    never answered gets ``FIRST_CONTACT_SECONDS`` at most, because the address may be wrong, unless
    it is ``known``: another client of the same query had an answer from it. Without patience each
    call is made once, on its own connection.
    """

    refused: ClassVar[type[PulsarkError]] = AdminError
    """What is raised when the broker answers with a failure; a subclass may say otherwise."""

    unavailable: ClassVar[type[PulsarkError]] = AdminError
    """What is raised when the broker does not answer in time."""

    advice: ClassVar[str] = "is the broker running?"
    """What the text of ``unavailable`` ends with."""

    login_advice: ClassVar[str] = "set PULSARK_TOKEN_FILE, or PULSARK_AUTH_PLUGIN and _AUTH_PARAMS"
    """What to set where a broker wants a login and none was sent."""

    trust: ClassVar[str] = "--tls-trust-cert-path, or PULSARK_TLS_TRUST_CERTS,"
    """What names the CAs that are trusted."""

    def __init__(
        self,
        url: str,
        patience_s: float = 0.0,
        *,
        known: bool = False,
        credentials: Credentials | None = None,
        timeout_s: float | None = TIMEOUT_SECONDS,
    ) -> None:
        """``timeout_s``: how long each answer may take; ``None``: it is waited for."""
        self.url = url
        self._credentials = credentials or Credentials()
        self._timeout_s = timeout_s
        self.patience_s = patience_s
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self.refused(f"admin URL {url}: write http://HOST:PORT")
        self._parts = parts
        self._root = f"{parts.path.rstrip('/')}/admin/v2"
        self._connection: http.client.HTTPConnection | None = None
        self._answered = known
        self.waited_s = 0.0
        """Seconds spent so far on attempts without an answer, and on pauses between attempts."""

    def get(self, path: str) -> Any:
        """The JSON at a path; ``None`` if it is empty."""
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None, *, what: str = "") -> Any:
        """The answer to a call, which must succeed; ``what`` it is about, for the error."""
        return self.value_of(self.request(method, path, body), what)

    def value_of(self, answer: Answer, what: str = "") -> Any:
        """The JSON of an answer, which must be a success."""
        if not 200 <= answer.status < 300:
            about = f"{what}: " if what else ""
            reason = answer.reason
            if answer.status == 401:
                # The broker tells strangers nothing; this side knows what it has sent.
                reason = self._credentials.why_refused(self.login_advice)
            raise self.refused(f"{about}{self.url} answered {answer.status}: {reason}")
        return json.loads(answer.body) if answer.body else None

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        """The answer to a call, whatever it is; a server's error only when patience ends."""
        patience_s = self.patience_s
        if not self._answered:
            patience_s = min(patience_s, FIRST_CONTACT_SECONDS)
        began = time.monotonic()  # noqa: TID251 - its callers have no loop
        deadline = began + patience_s
        pause_s = 0.0  # a kept-alive connection that the broker has dropped is retried at once
        is_told = False
        while True:
            tried = time.monotonic()  # noqa: TID251
            try:
                answer = self._request(method, path, body)
                problem = ""
            except ssl.SSLCertVerificationError as error:
                raise self.unavailable(
                    f"{self.url}: the broker's certificate is not trusted "
                    f"({error.verify_message}); {self.trust} names the file with its CA"
                ) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error) or type(error).__name__
            else:
                if answer.status < 500:
                    self._answered = True
                    self.waited_s += tried - began
                    if is_told:
                        log.warning("%s answers again, after %.0f s", self.url, tried - began)
                    return answer
            now = time.monotonic()  # noqa: TID251
            if now + pause_s >= deadline:
                self.waited_s += now - began
                break
            if not is_told and now - began >= _TOLD_SECONDS:
                is_told = True
                log.warning(
                    "No answer from %s (%s), trying for %.0f s more",
                    self.url,
                    problem or answer.status,
                    deadline - now,
                )
            time.sleep(pause_s)  # noqa: TID251
            pause_s = min(max(pause_s * 2, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX)
        if problem:
            # The cause is told in the text: a second traceback would bury it.
            raise self.unavailable(
                f"no answer from the admin API at {self.url} ({problem}); {self.advice}"
            ) from None
        return answer

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, method: str, path: str, body: Any) -> Answer:
        # Only a connection whose answer was read to its end can be used again.
        connection, self._connection = self._connection or self._connect(), None
        try:
            text = None if body is None else json.dumps(body)
            headers = self._headers(has_body=body is not None)
            connection.request(method, self._root + path, text, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.read())
            if self.patience_s:
                self._connection = connection
        finally:
            if self._connection is None:
                connection.close()
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        """A connection, not yet open."""
        host, port = self._parts.hostname or "", self._parts.port
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            context = self._credentials.ssl_context()
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        if self.patience_s:
            # The only place that http.client has for options of a socket.
            connection._create_connection = _connected  # type: ignore[attr-defined]  # noqa: SLF001
        return connection

    def _headers(self, *, has_body: bool) -> dict[str, str]:
        """What each request carries."""
        headers = self._credentials.headers()
        return {**headers, "Content-Type": "application/json"} if has_body else headers


def _connected(
    address: tuple[str, int], timeout_s: float | None, source: tuple[str, int] | None = None
) -> socket.socket:
    """Return a socket that notices soon when the other machine is gone or back."""
    limit_s = CONNECT_SECONDS if timeout_s is None else min(CONNECT_SECONDS, timeout_s)
    found = socket.create_connection(address, limit_s, source)
    found.settimeout(timeout_s)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", SILENT_SECONDS),
        ("TCP_USER_TIMEOUT", 1000 * SILENT_SECONDS),
    ):
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all
            found.setsockopt(socket.IPPROTO_TCP, option, value)
    return found
