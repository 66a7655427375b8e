"""What a broker says with a request to another broker of its cluster, and why that one believes it.

One header has the claims, as JSON in base64, and an HMAC with a secret that only the brokers of
the cluster know. The HMAC covers the claims, the method, the target and the type of the body; the
claims name the receiver's process, the time, a number that is used once, and the digest of the
body. So a header that is overheard serves for nothing: not for another request, nor at another
broker or its next process, nor again, nor later.
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
"""How far the clocks of two brokers may be apart, and a request be on its way, together."""
HEADER_CHARS_MAX = 32 * 1024
_CONTEXT = b"pulsark broker call 1"


class CallRefusedError(PulsarkError):
    """A request says that it comes from a broker, and that is not to be believed."""


@dataclass(frozen=True, slots=True)
class BrokerCall:
    """Whose request it is."""

    sender: str
    """The broker that sends it."""
    is_part: bool = False
    """A piece of what the sender does itself: it asked for the right and notes it in the audit.
    Otherwise a client's request that is only sent on, to be judged and noted by the receiver."""
    principal: Principal | None = None
    """The client that the sender let in."""
    address: tuple[str, int] | None = None
    """Where the client is."""
    tls: TlsPeer | None = None
    """How it is connected."""
    request_id: str = ""
    """By what the audit names the request."""


@dataclass(frozen=True, slots=True)
class SignedCall:
    """What is signed beside the claims."""

    method: str
    target: str
    content_type: str
    digest: str
    """Of the body; see ``digest``."""


def digest(body: bytes) -> str:
    """What the claims say of a body."""
    return hashlib.sha256(body).hexdigest()


def sealed(
    call: BrokerCall, message: SignedCall, *, secret: bytes, receiver: str, now_ms: int, once: str
) -> str:
    """The header's value. ``once`` is used for no other request."""
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
    # None of them has a line's end in it, so no two requests read the same.
    text = b"\n".join((_CONTEXT, *(each.encode("latin-1") for each in said), packed))
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


class Unsealing:
    """Reads such headers at one broker."""

    def __init__(self, receiver: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._receiver = receiver
        self._now_ms = now_ms
        self._used: set[str] = set()
        self._in_order: deque[tuple[int, str]] = deque()
        """With the time from which each is refused as too old anyway."""

    def opened(
        self, value: str, method: str, target: str, content_type: str, secret: bytes
    ) -> tuple[BrokerCall, str]:
        """Who sends a request, and the digest that its body has; ``CallRefusedError``."""
        packed, _, signature = value.partition(".")
        if len(value) > HEADER_CHARS_MAX or not value.isascii():
            raise CallRefusedError("it is no header of a broker")
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
            raise CallRefusedError(f"it is for broker {receiver}")
        self._use(once, at_ms)
        return call, body

    def _use(self, once: str, at_ms: int) -> None:
        """Nobody but a broker gets here, so that nobody else can fill what is kept."""
        now = self._now_ms()
        if abs(now - at_ms) > WINDOW_MS:
            raise CallRefusedError(
                f"it was signed {abs(now - at_ms) // 1000} s from now: the clocks of the brokers "
                "differ, or it is sent again"
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
