"""Roles in the log, anonymized if configured, because they may be names of people. Pure.

The audit and the statistics show them in full, because access to those is restricted.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsark.security.principal import Principal

REDACTED = "[REDACTED]"
_DIGITS = 32
"""Digits of a digest that are shown: enough to distinguish roles."""


def logged_role(principal: Principal | None, how: str) -> str:
    """A role as the log shows it, by the setting ``authenticationRoleLoggingAnonymizer``."""
    if principal is None:
        return "nobody"
    role = _anonymous(principal.role, how)
    if principal.original is None:
        return role
    return f"{role} for {_anonymous(principal.original, how)}"


def _anonymous(role: str, how: str) -> str:
    if how == "NONE":
        return role
    if how == "REDACTED":
        return REDACTED
    name = how.removeprefix("hash:").lower()
    # A digest does not keep a role secret: anyone can compute the digest of a guess.
    digest = hashlib.new(name, role.encode("utf-8", "replace"), usedforsecurity=False)
    return f"{name}:{digest.hexdigest()[:_DIGITS]}"
