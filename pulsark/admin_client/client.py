"""Calls to the admin API of one broker, over one connection that is kept alive."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from pulsark.admin_client.credentials import Credentials
from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from typing import Self

TIMEOUT_SECONDS = 30.0
FIRST_CONTACT_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0


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
            raise self.refused(f"{about}{self.url} answered {answer.status}: {answer.reason}")
        return json.loads(answer.body) if answer.body else None

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        """The answer to a call, whatever it is; a server's error only when patience ends."""
        patience_s = self.patience_s
        if not self._answered:
            patience_s = min(patience_s, FIRST_CONTACT_SECONDS)
        deadline = time.monotonic() + patience_s  # noqa: TID251 - its callers have no loop
        pause_s = 0.0  # a kept-alive connection that the broker has dropped is retried at once
        while True:
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
                    return answer
            if time.monotonic() + pause_s >= deadline:  # noqa: TID251
                break
            time.sleep(pause_s)  # noqa: TID251
            pause_s = min(max(pause_s * 2, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX)
        if problem:
            raise self.unavailable(
                f"no answer from the admin API at {self.url} ({problem}); {self.advice}"
            )
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
        if self._parts.scheme == "https":
            context = self._credentials.ssl_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _headers(self, *, has_body: bool) -> dict[str, str]:
        """What each request carries."""
        headers = self._credentials.headers()
        return {**headers, "Content-Type": "application/json"} if has_body else headers
