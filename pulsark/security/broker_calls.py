"""The signed header of requests between brokers of a cluster.

The header has claims, as JSON in base64, and an HMAC with a secret that only the cluster's brokers
know. The HMAC covers the claims, the method, the target and the type of the body. The claims name
the receiving process, the time, a nonce, and the digest of the body. So a stolen header is useless:
it is valid for no other request, no other broker or process, only once, and only for a short time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pulsark.errors import PulsarkError
from pulsark.security.peer import TlsPeer
from pulsark.security.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = "x-pulsark-broker-call"
WINDOW_MS = 30_000
"""The most that clock difference and transit time of a request may sum up to."""
HEADER_CHARS_MAX = 32 * 1024
_CONTEXT = b"pulsark broker call 1"


class CallRefusedError(PulsarkError):
    """A request claims to come from a broker, and its header is not valid."""


@dataclass(frozen=True, slots=True)
class BrokerCall:
    """The origin of a request."""

    sender: str
    """The broker that sent it."""
    is_part: bool = False
    """Whether it is a part of the sender's own work, which the sender has authorized and audits.
    Otherwise it is a forwarded request of a client, which the receiver authorizes and audits."""
    principal: Principal | None = None
    """The client, as the sender authenticated it."""
    address: tuple[str, int] | None = None
    """The client's address."""
    tls: TlsPeer | None = None
    """The client's TLS connection."""
    request_id: str = ""
    """The id of the request in the audit."""


@dataclass(frozen=True, slots=True)
class SignedCall:
    """The signed parts of a request other than the claims."""

    method: str
    target: str
    content_type: str
    digest: str
    """The digest of the body."""


def digest(body: bytes) -> str:
    """The digest of a body, as in the claims."""
    return hashlib.sha256(body).hexdigest()


def sealed(
    call: BrokerCall, message: SignedCall, *, secret: bytes, receiver: str, now_ms: int, once: str
) -> str:
    """The value of the header. ``once`` is the nonce."""
    claims = {
        "from": call.sender,
        "to": receiver,
        "atMs": now_ms,
        "once": once,
        "part": call.is_part,
        "principal": None if call.principal is None else asdict(call.principal),
        "address": call.address,
        "tls": call.tls,
        "request": call.request_id,
        "body": message.digest,
    }
    packed = base64.urlsafe_b64encode(json.dumps(claims).encode())
    return f"{packed.decode()}.{_signature(secret, packed, message)}"


def _signature(secret: bytes, packed: bytes, message: SignedCall) -> str:
    said = (message.method, message.target, message.content_type)
    # None of the parts contains a newline, so different requests are signed differently.
    text = b"\n".join((_CONTEXT, *(each.encode("latin-1") for each in said), packed))
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


class Unsealing:
    """Verifies the headers that one broker receives."""

    def __init__(self, receiver: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._receiver = receiver
        self._now_ms = now_ms
        self._used: set[str] = set()
        self._in_order: deque[tuple[int, str]] = deque()
        """Used nonces, with the time after which each is too old anyway."""

    def opened(
        self, value: str, method: str, target: str, content_type: str, secret: bytes
    ) -> tuple[BrokerCall, str]:
        """Verify a header: the origin, and the digest of the body; ``CallRefusedError``."""
        packed, _, signature = value.partition(".")
        if len(value) > HEADER_CHARS_MAX or not value.isascii():
            raise CallRefusedError("the header is not one of a broker")
        expected = _signature(secret, packed.encode(), SignedCall(method, target, content_type, ""))
        if not hmac.compare_digest(expected, signature):
            raise CallRefusedError("it is not signed by a broker of this cluster")
        try:
            claims = json.loads(base64.urlsafe_b64decode(packed))
            call, body = _call(claims), claims["body"]
            receiver, once, at_ms = claims["to"], claims["once"], claims["atMs"]
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise CallRefusedError("the brokers of this cluster have different versions") from None
        if receiver != self._receiver():
            raise CallRefusedError(f"it is meant for broker {receiver}")
        self._use(once, at_ms)
        return call, body

    def _use(self, once: str, at_ms: int) -> None:
        """Reject a replay. Only signed headers get here, so others cannot fill the memory."""
        now = self._now_ms()
        if abs(now - at_ms) > WINDOW_MS:
            raise CallRefusedError(
                f"it was signed {abs(now - at_ms) // 1000} s from now: the brokers' clocks differ, "
                "or it is a replay"
            )
        while self._in_order and self._in_order[0][0] < now:
            self._used.discard(self._in_order.popleft()[1])
        if once in self._used:
            raise CallRefusedError("it was used before")
        self._used.add(once)
        self._in_order.append((now + 2 * WINDOW_MS, once))


def _call(claims: dict[str, Any]) -> BrokerCall:
    principal, address = claims["principal"], claims["address"]
    if principal is not None:
        principal = Principal(**{**principal, "tls": _tls(principal["tls"])})
    return BrokerCall(
        claims["from"],
        claims["part"],
        principal,
        None if address is None else (address[0], address[1]),
        _tls(claims["tls"]),
        claims["request"],
    )


def _tls(found: list[str] | None) -> TlsPeer | None:
    return None if found is None else TlsPeer(*found)
