"""Refuses requests that a web page may have made a user's browser send.

Without authentication, any client that reaches the port may do everything. So may a browser on the
same machine or network, which sends what any page asks for: directly (then it names the page in
``Origin`` or says ``cross-site``), or under a name in the page's domain whose owner points it here
(then that name is in ``Host``). Programs send neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

ANY_HOST = "*"
Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """Tells requests of programs from those of web pages."""

    def __init__(self, settings: Settings) -> None:
        names = {"localhost", settings.advertisedAddress, *settings.webServiceAllowedHosts}
        self._names = {name.lower().rstrip(".") for name in names}
        self._any = ANY_HOST in names

    def refusal(self, headers: Headers) -> str | None:
        """Why a request is not served; ``None``: it is."""
        host = origin = b""
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site" and value.strip().lower() == b"cross-site":
                return "A web page of another site made this request, which is refused"
        if host and not self._knows(host):
            return (
                f"The Host {_shown(host)} is not known here: use an address, advertisedAddress, or "
                "a name that webServiceAllowedHosts lists"
            )
        if origin and not self._is_own(origin, host):
            return (
                f"A web page of {_shown(origin)} made this request, which is refused unless "
                "webServiceAllowedHosts lists its host"
            )
        return None

    def _knows(self, netloc: bytes) -> bool:
        name = _name_in(netloc)
        return self._any or (name is not None and (name in self._names or _is_address(name)))

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        """Whether a page came from this server itself, or from a host that is listed."""
        scheme, separator, netloc = origin.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https"):
            return False
        if netloc.lower() == host.lower():
            return True
        name = _name_in(netloc)
        return self._any or (name in self._names and name != "localhost")


def _name_in(netloc: bytes) -> str | None:
    """The host in ``host:port``; ``None`` if there is none."""
    try:
        return (urlsplit(b"//" + netloc).hostname or b"").decode("ascii").rstrip(".") or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return value[:80].decode("ascii", "replace")
