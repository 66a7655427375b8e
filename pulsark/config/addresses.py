"""Where the ports listen: what ``bindAddress`` means, and who can come in."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

LOOPBACK = "localhost"


def hosts_of(bind_address: str, port: int) -> list[str]:
    """The addresses to listen on. ``localhost`` is both of this machine, as far as it has them.

    Port 0 takes a free one, which is free on one address only.
    """
    if bind_address != LOOPBACK:
        return [bind_address]
    return ["127.0.0.1", "::1"] if port and _has("::1") else ["127.0.0.1"]


def listening(hosts: Sequence[str], port: int, key: str, backlog: int) -> list[socket.socket]:
    """A listening socket for each address, or ``ConfigError`` that names the setting ``key``."""
    opened: list[socket.socket] = []
    try:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            opened.append(socket.create_server((host, port), family=family, backlog=backlog))
    except OSError as error:
        for one in opened:
            one.close()
        raise ConfigError.cannot_listen(key, hosts, port, error) from error
    return opened


def is_private(bind_address: str) -> bool:
    """Whether only processes of this machine can connect."""
    try:
        return ipaddress.ip_address(bind_address).is_loopback
    except ValueError:
        return bind_address == LOOPBACK


def check_access(bind_address: str, *, insecure: bool) -> None:
    """``ConfigError`` if other machines could come in without a login."""
    if not is_private(bind_address) and not insecure:
        raise ConfigError(
            f"bindAddress={bind_address}: everyone who reaches this address could read, change and "
            "delete everything without a login; keep bindAddress=localhost, set "
            "authenticationEnabled=true (and, with anonymousUserRole, authorizationEnabled=true), "
            "or add --insecure (insecure=true) if only trusted machines reach it"
        )


def asks_for_login(settings: Settings) -> bool:
    """Whether nobody may do everything without a login."""
    may_be_anonymous = bool(settings.anonymousUserRole) and not settings.authorizationEnabled
    return settings.authenticationEnabled and not may_be_anonymous


def plain_ports(settings: Settings) -> list[str]:
    """The settings of the ports without TLS that are open."""
    ports = {
        "brokerServicePort": settings.brokerServicePort,
        "webServicePort": settings.webServicePort,
        "flightServicePort": settings.flightServicePort,
    }
    return [name for name, port in ports.items() if port is not None]


def who_may_come_in(settings: Settings) -> str:
    """One line for the operator."""
    bind_address = settings.bindAddress
    machines = (
        "this machine" if is_private(bind_address) else f"everyone who reaches {bind_address}"
    )
    if not settings.authenticationEnabled:
        return f"{machines}, without a login"
    role = settings.anonymousUserRole
    return f"{machines}, " + (f"as {role} without a login" if role else "with a login")


def _has(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
