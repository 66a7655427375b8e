"""How many connections of an address with failed logins are still served. Pure.

A failed login costs the event loop as much as a hundred publishes, so a flood of them would take
that time from other clients. After a failure, an address is on *trial*: each of its connections
needs a place, and only a few places become free per second. A connection without a place is closed
when it is accepted, which costs a tenth. A client that logs in returns its place, so good clients
at the same address need only a place that the others leave. An address is forgotten once all its
places are free.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pulsark.errors import CrowdedOutError
from pulsark.security.limits import TRIALS_MAX
from pulsark.security.networks import network_of


class Trial:
    """One connection's place, of an address on trial."""

    __slots__ = ("_network", "_trials")

    def __init__(self, trials: Trials | None, network: str) -> None:
        self._trials = trials
        self._network = network

    @property
    def is_over(self) -> bool:
        """Whether the client has logged in."""
        return self._trials is None

    def passed(self, now: float) -> None:
        """The client has logged in and returns its place, once."""
        if self._trials is not None:
            self._trials.give_back(self._network, now)
            self._trials = None


PROBES_ONLY: Final = Trial(None, "")
"""Of a client whose address has no place left: it may ask how the broker is, and nothing else."""


class _Places(NamedTuple):
    """The free places of one address at some time."""

    free: float
    at: float


class Trials:
    """The trials of one broker."""

    def __init__(self, per_second: int) -> None:
        """``rate``: places per address that become free per second; 0: no trials."""
        self._per_second = per_second
        self._most = max(1.0, per_second / 5)
        self._places: dict[str, _Places] = {}
        """By IPv4 address or IPv6 network, in the order of the last failure."""
        self.refused = 0
        """The number of refused connections."""

    def __len__(self) -> int:
        return len(self._places)

    def begin(self, host: str, now: float) -> Trial | None:
        """A client connects: its trial, ``None`` if it needs none, or ``CrowdedOutError``."""
        if not self._places:
            return None
        network = network_of(host)
        free = self._free(network, now)
        if free is None:
            return None
        if free < 1:
            self.refused += 1
            raise CrowdedOutError
        self._places[network] = _Places(free - 1, now)
        return Trial(self, network)

    def failed(self, host: str, now: float) -> None:
        """A client without a trial has failed to log in. Clients on trial have used a place."""
        if not self._per_second:
            return
        network = network_of(host)
        free = self._free(network, now)
        self._places.pop(network, None)
        if len(self._places) >= TRIALS_MAX:
            del self._places[next(iter(self._places))]
        self._places[network] = _Places(max(0.0, (self._most if free is None else free) - 1), now)

    def give_back(self, network: str, now: float) -> None:
        """A client on trial has logged in and returns its place."""
        free = self._free(network, now)
        if free is not None:
            self._places[network] = _Places(min(self._most, free + 1), now)

    def _free(self, network: str, now: float) -> float | None:
        """The free places of an address; ``None`` once it is no longer on trial."""
        places = self._places.get(network)
        if places is None:
            return None
        free = places.free + max(0.0, now - places.at) * self._per_second
        if free >= self._most:
            del self._places[network]
            return None
        return free
