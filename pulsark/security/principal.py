"""Who asks: what a login comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pulsark.security.peer import TlsPeer


class Origin(NamedTuple):
    """Where something came from."""

    via: str
    """``rest``, ``binary``, ``flight``, or ``broker`` itself."""
    address: str = ""
    """Host and port, or the host alone."""
    client_version: str = ""
    tls: TlsPeer | None = None
    """How the connection is secured; ``None``: not at all."""


@dataclass(frozen=True, slots=True)
class Principal:
    """One client that has logged in. Only where authentication is on is there any."""

    role: str
    original: str | None = None
    """Whom a proxy asks for; then ``role`` is the proxy's own."""
    method: str = "none"
    """How it logged in: ``token``, ``basic``, ``tls``; ``none`` is anonymous."""
    expires_ms: int | None = None
    """When the credentials end, in milliseconds since the epoch; ``None``: never."""
    address: str = ""
    """Where it comes from: host and port."""
    cn: str | None = None
    """The name in its verified client certificate, also where that was not the login."""
    tls: TlsPeer | None = field(default=None, compare=False)
    """How the connection over Flight is secured; that of the other ports is known there."""
    token_id: str | None = field(default=None, compare=False)
    """By what an audit names the token: its ``jti``, or the begin of its digest."""
