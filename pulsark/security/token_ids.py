"""Names for tokens where the token itself must not be shown."""

from __future__ import annotations

import hashlib
from typing import Any

from pulsark.security.limits import TOKEN_ID_CHARS_MAX

_DIGITS = 16


def digest_id(token: bytes) -> str:
    """The first digits of its digest, from which the token cannot be computed."""
    return hashlib.sha256(token).hexdigest()[:_DIGITS]


def token_id(token: bytes, claims: dict[str, Any]) -> str:
    """Of a token that was verified: its ``jti``, if that is fit for a name."""
    found = claims.get("jti")
    if isinstance(found, str) and 0 < len(found) <= TOKEN_ID_CHARS_MAX and found.isprintable():
        return found
    return digest_id(token)
