"""Counts failed logins by address, and delays the answers to later ones. Pure."""

from __future__ import annotations

from collections import Counter

from pulsark.security.limits import FAILED_LOGIN_DELAY_SECONDS, FAILED_LOGINS_PER_SECOND_MAX
from pulsark.security.networks import network_of


class Failures:
    """The counts of the current second."""

    def __init__(self) -> None:
        self._second = -1
        self._of_host: Counter[str] = Counter()

    def delay_s(self, host: str, now: float) -> float:
        """Count a failure; returns the delay of its answer in seconds."""
        if int(now) != self._second:
            self._second = int(now)
            self._of_host.clear()
        network = network_of(host)
        self._of_host[network] += 1
        too_many = self._of_host[network] > FAILED_LOGINS_PER_SECOND_MAX
        return FAILED_LOGIN_DELAY_SECONDS if too_many else 0.0
