"""Equal denials are counted instead of recorded one by one. Pure.

The first denial of each kind is recorded at once; of those that follow within a span of time,
only the number is. If a role or an address varies its denials so that no two are equal, they are
counted together, and with too many such roles and addresses, all of them are. The span grows with
the number of kinds. So what clients can make the broker write is bounded, in a moment and in a
year.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.security.audit.limits import (
    AUDIT_SUM_SECONDS,
    AUDIT_SUM_SECONDS_MAX,
    AUDIT_SUM_SECONDS_OF_KIND,
    AUDIT_SUMMED_HOSTS_MAX,
    AUDIT_SUMMED_MAX,
    AUDIT_SUMMED_OF_HOST_MAX,
)
from pulsark.security.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.security.audit.events import Event

_SAME = (
    "class_uid",
    "via",
    "operation",
    "status_detail",
    "actor",
    "resource",
    "authz",
    "http",
    "parameters",
)
_COMMON = ("class_uid", "activity_id", "type_uid", "severity_id", "status_id", "via")
VARIOUS = "various"
"""The operation of events that are counted together although they differ."""


def by_role(event: Event) -> Event:
    """Whose events of those that are known are counted together: a role's, from wherever."""
    return {"actor": {"role": event["actor"]["role"]}}


def by_network(event: Event) -> Event:
    """The part by which unknown clients are counted: the address, or the IPv6 network."""
    ip = event.get("src_endpoint", {}).get("ip", "")
    return {"src_endpoint": {"ip": network_of(ip)}} if ip else {}


class _Sum:
    __slots__ = ("count", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.count = 0


class Sums:
    """The sums of one span of time, which begins with the first denial."""

    def __init__(self, whose: Callable[[Event], Event]) -> None:
        """``whose``: the part of an event that says with which others it is counted."""
        self._whose = whose
        self._begun: float | None = None
        self._of: dict[Any, _Sum] = {}
        self._of_host: dict[str, int] = {}
        """Kinds of denials by whose they are."""
        self._kinds = 0

    @property
    def due(self) -> float | None:
        """When the span is over; ``None`` while nothing is counted."""
        if self._begun is None:
            return None
        seconds = max(self._kinds * AUDIT_SUM_SECONDS_OF_KIND, AUDIT_SUM_SECONDS)
        return self._begun + min(seconds, AUDIT_SUM_SECONDS_MAX)

    def add(self, event: Event, now: float) -> bool:
        """Count it; says whether it is the first of its kind, which is to be noted itself."""
        if self._begun is None:
            self._begun = now
        whose = self._whose(event)
        host = str(whose)
        key = (host, *(str(event.get(field)) for field in _SAME))
        known = self._of.get(key)
        if known is not None:
            known.count += 1
            return False
        of_host = self._of_host.get(host, 0)
        if self._kinds < AUDIT_SUMMED_MAX and of_host < AUDIT_SUMMED_OF_HOST_MAX:
            self._kinds += 1
            self._of_host[host] = of_host + 1
            self._of[key] = _Sum(event)
            return True
        self._together(event, host, whose)
        return False

    def _together(self, event: Event, host: str, whose: Event) -> None:
        if host not in self._of_host and len(self._of_host) >= AUDIT_SUMMED_HOSTS_MAX:
            host, whose = "", {}
        self._of_host.setdefault(host, 0)
        known = self._of.get((host,))
        if known is None:
            common = {field: event[field] for field in _COMMON} | {"operation": VARIOUS}
            known = self._of[host,] = _Sum(common | whose)
        known.count += 1

    def end(self) -> Iterator[Event]:
        """The span is over: what was counted, as events."""
        found = list(self._of.values())
        self._begun = None
        self._of = {}
        self._of_host = {}
        self._kinds = 0
        for each in found:
            if each.count:
                yield {**each.event, "suppressed": each.count}
