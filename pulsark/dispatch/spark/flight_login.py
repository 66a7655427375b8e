"""The login of each call over Flight, by the headers that HTTP has, too, or by a certificate.

Importing this module is expensive; ``flight_server`` does it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.flight as fl

from pulsark.dispatch.spark.flight_relay import name_of
from pulsark.limits import HANDSHAKE_SECONDS
from pulsark.security.provider import LoginError
from pulsark.security.request_login import REFUSED, log_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.spark.flight_relay import Relays
    from pulsark.security.logins import Logins
    from pulsark.security.principal import Principal

NAME = "headers"
"""Under which a call's context has its ``Headers``."""
_SERVED = (fl.FlightMethod.GET_FLIGHT_INFO, fl.FlightMethod.DO_GET)


class Headers(fl.ServerMiddleware):  # type: ignore[misc]
    """The headers of one call."""

    def __init__(self, found: Mapping[str, list[str]]) -> None:
        super().__init__()
        self.found = found


class FlightGate(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps the headers of calls. Called by gRPC's threads."""

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> Headers:
        """A call begins; one of a method that nobody may use ends here."""
        if info.method not in _SERVED:
            raise fl.FlightUnauthorizedError("This port serves GetFlightInfo and DoGet")
        return Headers(headers)


class FlightLogins:
    """Who makes calls. Called by gRPC's threads."""

    def __init__(self, logins: Logins, loop: asyncio.AbstractEventLoop, relays: Relays) -> None:
        self._logins = logins
        self._loop = loop
        self._relays = relays

    def of_call(self, context: Any) -> Principal:
        """Who makes this one. ``FlightUnauthenticatedError`` if nobody knows."""
        relay = self._relays.find(name_of(context.peer()))
        if relay is None:  # its client is gone, or never came through the port
            raise fl.FlightUnauthenticatedError(REFUSED)
        headers = context.get_middleware(NAME).found
        asked = asyncio.run_coroutine_threadsafe(
            log_in(
                self._logins,
                lambda name: headers.get(name, []),
                relay.host,
                relay.port,
                relay.certificate,
                via="flight",
                tls=relay.tls,
            ),
            self._loop,
        )
        try:
            found = asked.result(HANDSHAKE_SECONDS)
        except LoginError:
            raise fl.FlightUnauthenticatedError(REFUSED) from None
        except TimeoutError:
            asked.cancel()
            raise fl.FlightUnavailableError("the login takes too long") from None
        relay.known()
        return found if relay.tls is None else replace(found, tls=relay.tls)
