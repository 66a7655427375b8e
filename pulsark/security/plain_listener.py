"""Accepts connections without TLS, unless their address failed to log in too often.

Those are closed before anything is made for them, which costs hundredths of a millisecond
(``trials``).
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

    from pulsark.security.trials import Trial

    Protocol = asyncio.Protocol | asyncio.BufferedProtocol
log = logging.getLogger(__name__)


class PlainListener:
    """One port. Create, listen and close on the event loop."""

    def __init__(
        self,
        protocol: Callable[[Trial | None], Protocol],
        begin_trial: Callable[[str], Trial | None] | None = None,
    ) -> None:
        """A client's protocol knows its trial, if there are any."""
        self._protocol = protocol
        self._begin_trial = begin_trial
        self._loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(self.take, ACCEPTS_PER_TURN_MAX)
        self._attaching: set[asyncio.Task[None]] = set()

    def listen(self, hosts: Sequence[str], port: int, key: str) -> int:
        """As an ``Acceptor`` does it."""
        return self._acceptor.listen(hosts, port, key)

    def share(self, listeners: Sequence[socket.socket]) -> None:
        """Accept clients of these sockets, too, which listen in other processes as well."""
        self._acceptor.share(listeners)

    def serve(self) -> None:
        """Accept clients."""
        self._acceptor.open()

    def close(self) -> None:
        """Accept no more clients."""
        self._acceptor.close()

    def take(self, client: socket.socket, host: str) -> bool:
        """Serve a client that is connected, or close its socket; whether it is served."""
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
