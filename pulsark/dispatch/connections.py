"""The open connections of a broker, and how many there may be."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from pulsark.security.seldom_warnings import SeldomWarnings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.config.settings import Settings
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)


class CountedConnection(Protocol):
    """What is counted here."""

    host: str

    def close(self) -> None:
        """Close after what was written has been sent."""


class Connections:
    """All connections whose clients are served, counted by their address."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self.complaints = SeldomWarnings(log, clock.monotonic)
        """About clients."""
        self._open: set[CountedConnection] = set()
        self._of_host: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[CountedConnection]:
        return iter(self._open)

    def add(self, connection: CountedConnection) -> str | None:
        """A client has connected; says why it is refused, if it is."""
        host = connection.host
        settings = self._settings
        if 0 < settings.brokerMaxConnections <= len(self._open):
            return "Reached the maximum number of connections"
        if 0 < settings.brokerMaxConnectionsPerIp <= self._of_host[host]:
            return f"Reached the maximum number of connections on address {host}"
        self._open.add(connection)
        self._of_host[host] += 1
        return None

    def discard(self, connection: CountedConnection) -> None:
        """A connection is closed."""
        if connection in self._open:
            self._open.remove(connection)
            self._of_host[connection.host] -= 1
            if not self._of_host[connection.host]:
                del self._of_host[connection.host]
