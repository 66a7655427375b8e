"""Where the ports listen: what ``bindAddress`` means."""

from __future__ import annotations

import ipaddress
import socket

LOOPBACK = "localhost"


def hosts_of(bind_address: str, port: int) -> list[str]:
    """The addresses to listen on. ``localhost`` is both of this machine, as far as it has them.

    Port 0 takes a free one, which is free on one address only.
    """
    if bind_address != LOOPBACK:
        return [bind_address]
    return ["127.0.0.1", "::1"] if port and _has("::1") else ["127.0.0.1"]


def is_private(bind_address: str) -> bool:
    """Whether only processes of this machine can connect."""
    try:
        return ipaddress.ip_address(bind_address).is_loopback
    except ValueError:
        return bind_address == LOOPBACK


def _has(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
