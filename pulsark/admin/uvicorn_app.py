"""The expensive half of the HTTP port: imports FastAPI and uvicorn when it is called."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, cast

from pulsark.limits import HTTP_CLOSE_SECONDS, HTTP_HEAD_BYTES_MAX, HTTP_LAST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn import Config

    from pulsark.admin.timed_connection import TimedConnection
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.stats.stats import Stats
    from pulsark.security.connection_slots import Slot
    from pulsark.security.peer import TlsPeer
    from pulsark.security.trials import Trial

KEEP_ALIVE_SECONDS = 60
"""A connection without requests is closed after this time. Spark and scrapers keep theirs open."""


def load(broker: Broker, stats: Stats) -> Config:
    """Import everything and build the application. Runs in a thread."""
    import anyio
    import uvicorn

    from pulsark.admin.app import build_app
    from pulsark.admin.http.stopping import Stopping
    from pulsark.admin.timed_connection import TimedConnection

    config = uvicorn.Config(
        Stopping(build_app(broker, stats)),
        http=TimedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # what clients do wrong is answered, not logged
        access_log=False,
        server_header=False,
        proxy_headers=False,  # where a request comes from, its connection says
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=HTTP_HEAD_BYTES_MAX,
    )
    config.load()
    # What these import and compile at their first use, the event loop would wait for.
    anyio.run(anyio.sleep, 0)
    with contextlib.suppress(OSError):
        inspect.getsourcelines(load)  # FastAPI looks for the source of what it calls, if there is
    return config


class Http:
    """uvicorn's connections, without its server."""

    def __init__(self, config: Config, run_queue: RunQueue) -> None:
        from uvicorn.server import ServerState

        self._run_queue = run_queue

        self._config = config
        self._state = ServerState()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._state.connections)

    def new_protocol(
        self,
        certificate: bytes | None,
        peer: TlsPeer | None,
        trial: Trial | None,
        slot: Slot,
        *,
        logs_in: bool,
        holds: Callable[[], int],
    ) -> TimedConnection:
        """A protocol for one connection; each of its requests has all these in its state.

        ``logs_in``: whether a complete request is as good as a login. ``holds`` returns how many
        bytes of a body the connection may hold that its request has not taken.
        """
        from pulsark.admin.http.requests import CERTIFICATE, SLOT, TLS_PEER, TRIAL
        from pulsark.admin.timed_connection import RUN_QUEUE

        new: Any = self._config.http_protocol_class
        state: dict[str, Any] = {CERTIFICATE: certificate, TLS_PEER: peer, TRIAL: trial, SLOT: slot}
        state[RUN_QUEUE] = self._run_queue
        made = new(self._config, self._state, state)
        made.take_slot(slot, logs_in=logs_in, holds=holds)
        return cast("TimedConnection", made)

    def make_room(self, most: int) -> bool:
        """Return whether there are fewer connections than ``most``.

        If not, one is closed first: the oldest whose client has not logged in, or one that waits
        for its next request, whose client connects again.
        """
        if len(self._state.connections) < most:
            return True
        rivals: list[Any] = list(self._state.connections)
        for may_go in (lambda c: not c.is_known, lambda c: c.is_idle):
            leaving = min(filter(may_go, rivals), key=lambda c: c.begun, default=None)
            if leaving is not None:
                leaving.abort()
                return True
        return False

    async def close(self) -> None:
        """Close idle connections at once, others when their response is out, or it is too late."""
        for connection in list(self._state.connections):
            shutdown: Any = connection.shutdown
            shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=HTTP_CLOSE_SECONDS)
        late = list(self._state.tasks)
        for task in late:
            task.cancel()
        if late:  # so that they can say so
            await asyncio.wait(late, timeout=HTTP_LAST_SECONDS)
