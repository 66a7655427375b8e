"""Several brokers of one machine: the ports of each, and its part of what the machine has.

Clients reach all of them at the configured ports for the binary protocol and HTTP, with and without
TLS. Each broker also has such ports of its own, where nobody else answers, and its own for Flight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

BROKERS_MAX = 16

BROKER_NUMBERS = tuple(map(str, range(BROKERS_MAX)))

SHARED_PORTS = (
    "brokerServicePort",
    "brokerServicePortTls",
    "webServicePort",
    "webServicePortTls",
)
"""Settings of ports at which any broker answers."""

FLIGHT_PORTS = ("flightServicePort", "flightServicePortTls")
"""Settings of ports that a broker has alone; those of broker 0 are as configured."""

APART = 10
"""The distance of a broker's ports from those of the broker before."""

_PARTED = (
    "managedLedgerCacheSizeMB",
    "maxMessagePublishBufferSizeInMB",
    "maxUnreadOutputBufferSizeInMB",
)
"""Settings of memory of the machine."""


def own_ports(settings: Settings, number: int, *, shared: bool = True) -> dict[str, int]:
    """The ports of one broker, by setting, without those that are not open; 0 is any.

    ``shared``: the configured ports, but for Flight, are those that all brokers share, and none's
    own. Otherwise broker 0 has them.
    """
    found = {}
    for keys, first in ((SHARED_PORTS, APART if shared else 0), (FLIGHT_PORTS, 0)):
        for key in keys:
            configured: int | None = getattr(settings, key)
            if configured is not None:
                found[key] = configured and configured + first + APART * number
    return found


def of_broker(settings: Settings, number: int) -> Settings:
    """The settings of one broker of several: its ports, and its part of the memory."""
    changes: dict[str, object] = {**own_ports(settings, number), "standaloneBrokers": 1}
    changes["enablePersistentTopics"], changes["enableNonPersistentTopics"] = _kinds(
        settings, number
    )
    for key in _PARTED:
        whole: int = getattr(settings, key)
        if whole > 0:
            changes[key] = max(1, whole // settings.standaloneBrokers)
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


def check_kinds(settings: Settings) -> None:
    """``ConfigError`` if a broker would serve topics of neither kind."""
    for number in range(settings.standaloneBrokers if settings.standaloneBrokers > 1 else 0):
        if not any(_kinds(settings, number)):
            raise ConfigError(
                "standalonePersistentOnlyBrokers and standaloneNonPersistentOnlyBrokers: broker "
                f"{number} would serve topics of neither kind; name it in one of them, or in none"
            )


def _kinds(settings: Settings, number: int) -> tuple[bool, bool]:
    """Whether a broker serves persistent topics, and non-persistent ones."""
    name = str(number)
    return (
        settings.enablePersistentTopics and name not in settings.standaloneNonPersistentOnlyBrokers,
        settings.enableNonPersistentTopics and name not in settings.standalonePersistentOnlyBrokers,
    )


def check_own_ports(settings: Settings) -> None:
    """``ConfigError`` if brokers would need a port twice, or one that there is not."""
    if settings.standaloneBrokers == 1:
        return
    taken = {getattr(settings, key): key for key in SHARED_PORTS}
    for number in range(settings.standaloneBrokers):
        for key, port in own_ports(settings, number).items():
            if port > 65535 or (port and port in taken):
                other = f"is {taken[port]}, too" if port in taken else "is none"
                raise ConfigError(
                    f"{key}: that of broker {number} would be {port}, which {other}; choose ports "
                    f"that are further apart, or fewer brokers (standaloneBrokers)"
                )
            taken[port] = f"{key} of broker {number}"
