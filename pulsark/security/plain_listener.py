"""Accepts connections without TLS, unless their address failed to log in too often.

Connections of such addresses are closed before a protocol is created for them, which takes
hundredths of a millisecond (``trials``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import CrowdedOutError
from pulsark.security.acceptor import Acceptor
from pulsark.security.limits import ACCEPTS_PER_TURN_MAX

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pulsark.security.connection_slots import ConnectionSlots
    from pulsark.security.trials import Trial

    Protocol = asyncio.Protocol | asyncio.BufferedProtocol
log = logging.getLogger(__name__)


class PlainListener:
    """One port. Create, listen and close on the event loop."""

    def __init__(
        self,
        protocol: Callable[[Trial | None], Protocol],
        begin_trial: Callable[[str], Trial | None] | None = None,
        slots: ConnectionSlots | None = None,
    ) -> None:
        """``protocol`` gets the client's trial, if its address is on trial."""
        self._protocol = protocol
        self._begin_trial = begin_trial
        self._loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(self.take, ACCEPTS_PER_TURN_MAX, slots)
        self._attaching: set[asyncio.Task[None]] = set()

    def listen(self, hosts: Sequence[str], port: int, key: str) -> int:
        """As an ``Acceptor`` does it."""
        return self._acceptor.listen(hosts, port, key)

    def share(self, listeners: Sequence[socket.socket]) -> None:
        """Also accept clients of sockets that other processes share."""
        self._acceptor.share(listeners)

    def serve(self) -> None:
        """Accept clients."""
        self._acceptor.open()

    def close(self) -> None:
        """Accept no more clients."""
        self._acceptor.close()

    def take(self, client: socket.socket, host: str) -> bool:
        """Serve a connected client, or close its socket; returns whether it is served."""
        trial = None
        if self._begin_trial is not None:
            try:
                trial = self._begin_trial(host)
            except CrowdedOutError:
                client.close()
                return False
        task = self._loop.create_task(self._attach(client, trial))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)
        return True

    async def _attach(self, client: socket.socket, trial: Trial | None) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._protocol(trial), client)
        except OSError as error:
            log.debug("a client left before it was served: %s", error)
            client.close()
