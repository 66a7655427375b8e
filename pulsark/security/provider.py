"""The interface of authentication providers, for those of other packages, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import PulsarkError
from pulsark.security.limits import ROLE_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pulsark.security.principal import Principal


EXPIRED = "expired"
"""The reason of a ``LoginError`` for credentials that have expired."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client. Its ``repr`` hides them, because texts end up in logs."""

    method: str
    """The method's name, as the client sent it."""
    data: bytes = field(default=b"", repr=False)
    """As in CONNECT: a token, or ``user:password``."""
    address: str = ""
    certificate: bytes | None = field(default=None, repr=False)
    """The client's certificate in DER, if it was verified."""


class LoginError(PulsarkError):
    """These credentials are refused. The text is for the log; clients get the same for all."""

    def __init__(self, reason: str, text: str) -> None:
        """``reason`` is one word for statistics; neither contains any part of the credentials.

        With ``EXPIRED``, a connected client is asked for newer ones.
        """
        super().__init__(text)
        self.reason = reason
        self.method = "none"
        """The method, if known."""
        self.token_id = ""
        """The name of the token, if it was one."""


class Provider(Protocol):
    """One method of authentication."""

    name: str
    """The name in statistics."""
    method: str
    """The method that binary clients name. Several providers may share one."""
    scheme: str
    """The scheme of ``Authorization`` headers over HTTP and Flight; empty: none."""

    def log_in(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        """The principal, or an awaitable if that takes long. Raises ``LoginError``."""


def checked_role(found: object) -> str:
    """A valid role. Raises ``LoginError``."""
    if not isinstance(found, str) or not found.strip():
        raise LoginError("role", "the credentials name no role")
    if len(found) > ROLE_CHARS_MAX:
        raise LoginError("role", f"the role has more than {ROLE_CHARS_MAX} characters")
    if not found.isprintable():
        raise LoginError("role", "the role has characters that cannot be printed")
    return found
