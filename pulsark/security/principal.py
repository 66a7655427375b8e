"""The principal: the result of a login."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pulsark.security.peer import TlsPeer


class Origin(NamedTuple):
    """The origin of a request or event."""

    via: str
    """``rest``, ``binary``, ``flight``, or ``broker`` itself."""
    address: str = ""
    """Host and port, or only the host."""
    client_version: str = ""
    tls: TlsPeer | None = None
    """How the connection is secured; ``None`` if it is not."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A client that has logged in. Without authentication there are no principals."""

    role: str
    original: str | None = None
    """The role that a proxy acts for; then ``role`` is the proxy's own."""
    method: str = "none"
    """The method of the login: ``token``, ``basic``, ``tls``; ``none`` if anonymous."""
    expires_ms: int | None = None
    """When the credentials expire, in milliseconds since the epoch; ``None``: never."""
    address: str = ""
    """Host and port of the client."""
    cn: str | None = None
    """The name in its verified client certificate, even if it logged in by another method."""
    tls: TlsPeer | None = field(default=None, compare=False)
    """How a Flight connection is secured; other ports know this of their connections."""
    token_id: str | None = field(default=None, compare=False)
    """The token's name in the audit: its ``jti``, or the start of its digest."""
