"""Accepts connections over TLS, with a bounded number of handshakes, in total and per address.

A protocol's ``connection_made`` is called after the handshake, so the limits of connections do not
count clients that never finish theirs. At the limit here, the oldest handshake is ended if it takes
suspiciously long, so such clients keep others out only briefly. A handshake costs more than a
login, so addresses on trial are checked before it (``trials``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import CrowdedOutError
from pulsark.security.acceptor import Acceptor
from pulsark.security.limits import (
    TLS_ACCEPTS_PER_TURN_MAX,
    TLS_CLOSE_SECONDS,
    TLS_HANDSHAKE_SECONDS,
    TLS_HANDSHAKE_SURE_SECONDS,
    TLS_HANDSHAKES_MAX,
    TLS_HANDSHAKES_PER_ADDRESS_MAX,
)
from pulsark.security.networks import network_of
from pulsark.security.peer import refused_certificate

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from pulsark.security.connection_slots import ConnectionSlots
    from pulsark.security.trials import Trial

    Protocol = asyncio.Protocol | asyncio.BufferedProtocol
log = logging.getLogger(__name__)


class _Handshake(NamedTuple):
    """A handshake under way."""

    host: str
    begun: float


class TlsListener:
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
        self._context: ssl.SSLContext
        self._acceptor = Acceptor(self._take, TLS_ACCEPTS_PER_TURN_MAX, slots)
        self._slots = slots
        self._shaking: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], _Handshake] = {}
        """Handshakes under way, the oldest first."""
        self.told: Callable[[str, str], None] | None = None
        """Called with the address whose certificate was refused, and the reason."""
        self.failed_handshakes = 0
        self.refused_handshakes = 0
        """Connections that were closed at once because too many handshakes were under way."""

    def listen(self, hosts: Sequence[str], port: int, key: str, context: ssl.SSLContext) -> int:
        """Bind a port and return it (``port`` 0: any free one). No client is served yet.

        ``ConfigError`` names the setting ``key`` if the port is in use.
        """
        self._context = context
        return self._acceptor.listen(hosts, port, key)

    def share(self, listeners: Sequence[socket.socket]) -> None:
        """Also accept clients of sockets that other processes share."""
        self._acceptor.share(listeners)

    def serve(self) -> None:
        """Accept clients."""
        self._acceptor.open()

    def close(self) -> None:
        """Accept no more clients; handshakes under way end."""
        self._acceptor.close()
        for task in self._tasks:
            task.cancel()

    def _take(self, client: socket.socket, address: str) -> bool:
        host = network_of(address)
        if not self._has_room(host):
            self.refused_handshakes += 1
            client.close()
            return False
        try:
            trial = None if self._begin_trial is None else self._begin_trial(host)
        except CrowdedOutError:
            client.close()
            return False
        self._shaking[host] += 1
        task = self._loop.create_task(self._shake_hands(client, host, trial))
        self._tasks[task] = _Handshake(host, self._loop.time())
        task.add_done_callback(self._ended)
        if self._slots is not None:
            # The protocol takes a slot of its own once the handshake is done.
            slot = self._slots.take(partial(self._loop.call_soon_threadsafe, task.cancel))
            if slot is None:
                task.cancel()
            else:
                task.add_done_callback(lambda _: slot.leave())
        return True

    def _has_room(self, host: str) -> bool:
        """Whether a handshake of this address may begin, if necessary in place of the oldest."""
        crowded = self._shaking[host] >= TLS_HANDSHAKES_PER_ADDRESS_MAX
        if not crowded and len(self._tasks) < TLS_HANDSHAKES_MAX:
            return True
        rivals = (t for t, each in self._tasks.items() if not crowded or each.host == host)
        oldest = next(rivals, None)
        if oldest is None:
            return False
        if self._loop.time() - self._tasks[oldest].begun < TLS_HANDSHAKE_SURE_SECONDS:
            return False
        self._ended(oldest)
        oldest.cancel()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        ended = self._tasks.pop(task, None)
        if ended is not None:
            self._shaking[ended.host] -= 1
            if not self._shaking[ended.host]:
                del self._shaking[ended.host]

    async def _shake_hands(self, client: socket.socket, host: str, trial: Trial | None) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(trial),
                client,
                ssl=self._context,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS,
            )
        except OSError as error:  # ssl.SSLError and timeouts are subclasses
            self.failed_handshakes += 1
            log.debug("%s: no TLS handshake: %s", host, error)
            if self.told is not None and (why := refused_certificate(error)):
                self.told(host, why)
