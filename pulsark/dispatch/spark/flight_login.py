"""The login of each call over Flight, by the headers that HTTP has, too.

Importing this module is expensive; ``flight_server`` does it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow.flight as fl

from pulsark.limits import HANDSHAKE_SECONDS
from pulsark.security.provider import LoginError
from pulsark.security.request_login import REFUSED, log_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.security.logins import Logins
    from pulsark.security.principal import Principal

NAME = "login"
"""Under which a call's context has its ``LoggedIn``."""
_HOST = "flight"
"""A call does not say where it comes from: failures of all of them count together."""


class LoggedIn(fl.ServerMiddleware):  # type: ignore[misc]
    """Who makes one call."""

    def __init__(self, principal: Principal) -> None:
        super().__init__()
        self.principal = principal


class FlightLogin(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls through that bring credentials. Called by gRPC's threads."""

    def __init__(self, logins: Logins, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._logins = logins
        self._loop = loop

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> LoggedIn:
        """A call begins; ``FlightUnauthenticatedError`` ends it."""
        asked = asyncio.run_coroutine_threadsafe(
            log_in(self._logins, lambda name: headers.get(name, []), _HOST), self._loop
        )
        try:
            return LoggedIn(asked.result(HANDSHAKE_SECONDS))
        except LoginError:
            raise fl.FlightUnauthenticatedError(REFUSED) from None
        except TimeoutError:
            asked.cancel()
            raise fl.FlightUnavailableError("the login takes too long") from None
