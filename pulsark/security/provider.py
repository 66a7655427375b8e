"""One way to log in: what it gets, what it answers, how it refuses. For those of users, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import PulsarkError
from pulsark.security.limits import ROLE_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pulsark.security.principal import Principal


EXPIRED = "expired"
"""The reason of a ``LoginError`` for credentials that were good until a while ago."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client showed. They are in no text of this object: texts end in logs."""

    method: str
    """The name of the way, as the client said it."""
    data: bytes = field(default=b"", repr=False)
    """As in CONNECT: a token, or ``user:password``."""
    address: str = ""
    certificate: bytes | None = field(default=None, repr=False)
    """Its certificate in DER, only if it was verified."""


class LoginError(PulsarkError):
    """Who shows this is not let in. The text is for the log; all clients are told the same."""

    def __init__(self, reason: str, text: str) -> None:
        """``reason`` is one word for statistics; neither holds anything of the credentials.

        With ``EXPIRED`` a client that is connected is asked for newer ones.
        """
        super().__init__(text)
        self.reason = reason
        self.method = "none"
        """By which way, if it is known."""
        self.token_id = ""
        """By what to name the token, if it was one."""


class Provider(Protocol):
    """One way to log in."""

    name: str
    """As statistics show it."""
    method: str
    """The name that clients of the binary protocol send. Several providers may share one."""
    scheme: str
    """That of ``Authorization`` headers over HTTP and Flight; empty: none."""

    def log_in(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        """Who it is; raises ``LoginError``. What takes longer than a moment is awaited."""


def checked_role(found: object) -> str:
    """A role, if this is fit for one. Raises ``LoginError``."""
    if not isinstance(found, str) or not found.strip():
        raise LoginError("role", "the credentials name no role")
    if len(found) > ROLE_CHARS_MAX:
        raise LoginError("role", f"the role has more than {ROLE_CHARS_MAX} characters")
    if not found.isprintable():
        raise LoginError("role", "the role has characters in it that cannot be printed")
    return found
