"""The open connections of a broker, and how many there may be."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from pulsark.limits import RECEIVED_BYTES_MAX, RECEIVED_BYTES_MIN
from pulsark.rates.shares import even_share
from pulsark.security.connection_slots import ConnectionSlots
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

    def abort(self) -> None:
        """Close at once."""


class Connections:
    """All connections whose clients are served, counted by their address.

    At a limit, the oldest connection whose client has not logged in is closed for the new one.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self.slots = ConnectionSlots()
        """What all ports of the broker share."""
        self.complaints = SeldomWarnings(log, clock.monotonic)
        """About clients."""
        self._open: set[CountedConnection] = set()
        self._of_host: Counter[str] = Counter()
        self._strangers: dict[CountedConnection, None] = {}
        """Those that have not logged in, the oldest first."""
        self.read_bytes = RECEIVED_BYTES_MAX
        """What one connection may read at a time: its part of what all may."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[CountedConnection]:
        return iter(self._open)

    def add(self, connection: CountedConnection) -> str | None:
        """A client has connected; says why it is refused, if it is."""
        refused = self._no_room(connection.host)
        if refused is not None:
            return refused
        self._open.add(connection)
        self._strangers[connection] = None
        self._of_host[connection.host] += 1
        self._share_reads()
        return None

    def logged_in(self, connection: CountedConnection) -> None:
        """The client has completed CONNECT: it keeps its place."""
        self._strangers.pop(connection, None)

    def discard(self, connection: CountedConnection) -> None:
        """A connection is closed."""
        if connection in self._open:
            self._open.remove(connection)
            self._strangers.pop(connection, None)
            self._of_host[connection.host] -= 1
            if not self._of_host[connection.host]:
                del self._of_host[connection.host]
            self._share_reads()

    def _share_reads(self) -> None:
        self.read_bytes = even_share(
            RECEIVED_BYTES_MAX, len(self._open), RECEIVED_BYTES_MIN, RECEIVED_BYTES_MAX
        )

    def _no_room(self, host: str) -> str | None:
        """Return why one more connection of an address is refused; strangers make room."""
        settings = self._settings
        if 0 < settings.brokerMaxConnections <= len(self._open):
            stranger = next(iter(self._strangers), None)
            if stranger is None:
                return "Reached the maximum number of connections"
            stranger.abort()
        if 0 < settings.brokerMaxConnectionsPerIp <= self._of_host[host]:
            stranger = next((s for s in self._strangers if s.host == host), None)
            if stranger is None:
                return f"Reached the maximum number of connections on address {host}"
            stranger.abort()
        return None
