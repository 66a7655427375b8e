"""Whether a client is still there: the time for its handshake, pings, and questions by others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.limits import HANDSHAKE_SECONDS, PROBE_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection

log = logging.getLogger(__name__)


class KeepAlive:
    """Closes a connection whose client says nothing for too long. Any byte counts as an answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._interval = connection.settings.keepAliveIntervalSeconds
        self._pinged = self._stopped = False
        self._probe: asyncio.Future[bool] | None = None
        self._timer = asyncio.get_running_loop().call_later(
            min(HANDSHAKE_SECONDS, self._interval), self._on_timer
        )

    def heard(self) -> None:
        """Bytes came from the client."""
        self._pinged = False
        self._answer(True)

    def gone(self) -> None:
        """The client is not served any more; what is still written to it has its time."""
        self._answer(False)

    def stop(self) -> None:
        """The socket is closed."""
        self._timer.cancel()
        del self._connection
        self._stopped = True

    async def probe(self) -> bool:
        """Whether the client still answers; if not, the connection is closed."""
        if self._stopped or not self._connection.is_open:
            return False
        if self._probe is None:
            self._probe = asyncio.get_running_loop().create_future()
            self._ping()
        done, _ = await asyncio.wait([self._probe], timeout=PROBE_TIMEOUT_SECONDS)
        if done:
            return done.pop().result()
        if self._stopped:
            return False
        if self._connection.intake.may_have_more:
            return True
        self._connection.abort()
        return False

    def _answer(self, alive: bool) -> None:
        if self._probe is not None:
            self._probe.set_result(alive)
            self._probe = None

    def _ping(self) -> None:
        self._pinged = True
        self._connection.output.send(notices.ping())

    def _on_timer(self) -> None:
        connection = self._connection
        if connection.is_closed:
            connection.abort()  # it does not read what is left for it
        elif not connection.is_open:
            log.info("%s: no handshake in time, closing", connection.address)
            connection.close()
        elif self._pinged and not connection.intake.may_have_more:
            log.info("%s: no answer to a ping, closing", connection.address)
            connection.abort()
        else:
            self._ping()
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._on_timer)
