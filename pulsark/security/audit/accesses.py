"""Which accesses to data were recorded today: only the first of each is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pulsark.security.audit.limits import AUDIT_ACCESSES_MAX

if TYPE_CHECKING:
    from pulsark.security.principal import Principal

_DAY_MS = 86_400_000


class AuditedAccess(NamedTuple):
    """Who did what with which topic; from where does not matter."""

    role: str
    original: str | None
    action: str
    topic: str

    @classmethod
    def of(cls, principal: Principal | None, action: str, topic: str) -> AuditedAccess:
        """The access of one role; without authentication there are no roles."""
        if principal is None:
            return cls("", None, action, topic)
        return cls(principal.role, principal.original, action, topic)


class Accesses:
    """The accesses of a day in UTC, a bounded number."""

    def __init__(self) -> None:
        self._day = -1
        self._known: dict[AuditedAccess, None] = {}

    def is_first(self, access: AuditedAccess, now_ms: int) -> bool:
        """Whether it is the first today, or was forgotten since."""
        day = now_ms // _DAY_MS
        if day != self._day:
            self._day = day
            self._known.clear()
        if access in self._known:
            return False
        if len(self._known) >= AUDIT_ACCESSES_MAX:
            del self._known[next(iter(self._known))]
        self._known[access] = None
        return True
