"""One real ZooKeeper for all tests of a run, also if several pytest workers run them."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.connection import Connection
from pulsark.processes.zookeeper_server import HOST, ZooKeeperServer
from pulsark.runtime import SystemClock

SESSION_SECONDS = 2.0
"""Short, so that tests see the end of a session; far longer than a busy machine stalls."""

_numbers = itertools.count()


def start_server(directory: Path) -> dict[str, Any]:
    """A server for ``one_for_all``."""
    server = ZooKeeperServer(directory / "server", heap="256m")
    server.start()
    asyncio.run(server.ready())
    return {"port": server.port, "pids": [server.process.pid]}


def address_of(started: Mapping[str, Any]) -> ZooKeeperAddress:
    """Where that server is."""
    return ZooKeeperAddress(f"{HOST}:{started['port']}")


def below_a_root_of_its_own(address: ZooKeeperAddress) -> ZooKeeperAddress:
    """An address with a root that nobody else uses."""
    return replace(address, root=f"{address.root}/test-{os.getpid()}-{next(_numbers)}")


async def connected(
    address: ZooKeeperAddress, *, session: float = SESSION_SECONDS, operation: float = 10.0
) -> ZooKeeperClient:
    """A client with a short session."""
    return await ZooKeeperClient.connect(
        address, SystemClock(), session_seconds=session, operation_seconds=operation
    )


async def expire(client: ZooKeeperClient) -> None:
    """End a client's session at the server: another client resumes it and closes it."""
    client_id = client.client_id
    assert client_id is not None
    loop = asyncio.get_running_loop()
    resumed: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()

    class Twin:
        def connected(self, session_id: int, timeout_seconds: float) -> None:
            resumed.set_result(None)

        def disconnected(self) -> None: ...

        def refused(self) -> None: ...

        def lost(self) -> None: ...

    twin = Connection(
        client.address.hosts, client.session.timeout_seconds, Twin(), loop, client_id=client_id
    )
    twin.start()
    await resumed
    twin.stop(lambda: ended.set_result(None))
    await ended
