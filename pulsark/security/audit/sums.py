"""Equal denials, counted in place of noted one by one. Pure.

The first of each kind is noted at once; of those that follow within some seconds only how many
there were. Who varies what it is denied, so that no two are equal, has them counted together, by
its address, and of too many addresses all together: what a stranger can make the broker write is
bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.limits import (
    AUDIT_SUM_SECONDS,
    AUDIT_SUMMED_HOSTS_MAX,
    AUDIT_SUMMED_MAX,
    AUDIT_SUMMED_OF_HOST_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.security.audit.events import Event

_SAME = ("class_uid", "via", "operation", "status_detail", "actor", "resource", "authz")
_COMMON = ("class_uid", "activity_id", "type_uid", "severity_id", "status_id", "via")
VARIOUS = "various"
"""The operation of events that are counted together although they differ."""


class _Sum:
    __slots__ = ("count", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.count = 0


class Sums:
    """Those of one span of time, which begins with the first denial."""

    def __init__(self) -> None:
        self.due: float | None = None
        """When the span is over; ``None`` while nothing is counted."""
        self._of: dict[Any, _Sum] = {}
        self._of_host: dict[str, int] = {}
        """Kinds of denials by address."""
        self._kinds = 0

    def add(self, event: Event, now: float) -> bool:
        """Count it; says whether it is the first of its kind, which is to be noted itself."""
        if self.due is None:
            self.due = now + AUDIT_SUM_SECONDS
        host = event.get("src_endpoint", {}).get("ip", "")
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
        return self._together(event, host)

    def _together(self, event: Event, host: str) -> bool:
        if host not in self._of_host and len(self._of_host) >= AUDIT_SUMMED_HOSTS_MAX:
            host = ""
        self._of_host.setdefault(host, 0)
        known = self._of.get((host,))
        if known is None:
            common = {field: event[field] for field in _COMMON} | {"operation": VARIOUS}
            known = self._of[host,] = _Sum(
                common | ({"src_endpoint": {"ip": host}} if host else {})
            )
        known.count += 1
        return False

    def end(self) -> Iterator[Event]:
        """The span is over: what was counted, as events."""
        found = list(self._of.values())
        self.due = None
        self._of = {}
        self._of_host = {}
        self._kinds = 0
        for each in found:
            if each.count:
                yield {**each.event, "suppressed": each.count}
