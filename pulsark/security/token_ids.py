"""Names for tokens, where the token itself must not appear."""

from __future__ import annotations

import hashlib
from typing import Any

from pulsark.security.limits import TOKEN_ID_CHARS_MAX

_DIGITS = 16


def digest_id(token: bytes) -> str:
    """The first digits of the token's digest, which do not reveal the token."""
    return hashlib.sha256(token).hexdigest()[:_DIGITS]


def token_id(token: bytes, claims: dict[str, Any]) -> str:
    """The name of a verified token: its ``jti``, if that is suitable."""
    found = claims.get("jti")
    if isinstance(found, str) and 0 < len(found) <= TOKEN_ID_CHARS_MAX and found.isprintable():
        return found
    return digest_id(token)
