"""One session over a connection whose server is told what to answer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Transaction

from pulsark.metadata.session import SURE_PART
from pulsark.metadata.zookeeper import client as client_module
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.client_config import ClientConfig, ZooKeeperTls
from pulsark.metadata.zookeeper.connection import Done, Listener
from pulsark.runtime import SystemClock
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate


class Connected:
    """Instead of ``Connection``: it is there at once, and has no nodes."""

    all: list[Connected]

    def __init__(
        self, hosts: str, seconds: float, listener: Listener, loop: Any, *, tls: Any, **_: Any
    ) -> None:
        self.listener = listener
        self.tls = tls
        self.zxid = 5
        self.client_id = (7, b"")
        self.held: list[Done] | None = None
        """Writes that are not answered, if the others have left this server."""
        self._loop = loop
        self._seconds = seconds
        Connected.all.append(self)

    def start(self) -> None:
        self.listener.connected(7, self._seconds)

    def submit(self, request: object, done: Done) -> None:
        if not isinstance(request, Transaction):
            self._loop.call_soon(done, "/", None, self.zxid)
        elif self.held is None:
            self.refuse(done)
        else:
            self.held.append(done)

    def refuse(self, done: Done) -> None:
        """What a multi is told whose node is not there. It is a transaction, too."""
        self.zxid += 1
        self._loop.call_soon(done, [NoNodeError()], None, self.zxid)

    def stop(self, stopped: Callable[[], None]) -> None:
        self._loop.call_soon(stopped)


@pytest.fixture(autouse=True)
def _connected(monkeypatch: pytest.MonkeyPatch) -> None:
    Connected.all = []
    monkeypatch.setattr(client_module, "Connection", Connected)


def test_what_tls_needs_is_read_once_for_a_session_and_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CAs of a machine take tens of milliseconds, and servers that start refuse for a while."""
    made: list[tuple[int, ssl.SSLContext]] = []

    def context(self: ZooKeeperTls) -> ssl.SSLContext:
        made.append((threading.get_ident(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)))
        return made[-1][1]

    monkeypatch.setattr(ZooKeeperTls, "context", context)
    address = ZooKeeperAddress("a:1", "", ClientConfig(ZooKeeperTls()))

    async def scenario() -> None:
        client = await ZooKeeperClient.connect(address, SystemClock())
        for _ in range(4):
            client.refused()
        assert client._asking is not None
        await client._asking
        assert not client.session.has_ended
        await client.close()

    asyncio.run(scenario())
    ((thread, only),) = made
    assert thread != threading.get_ident()
    assert [each.tls for each in Connected.all] == [only, only]


def test_a_leader_that_the_others_have_left_does_not_say_what_is_new() -> None:
    """It answers whatever needs no others, ZooKeeper's own sync as well."""

    async def scenario() -> None:
        client = await ZooKeeperClient.connect(ZooKeeperAddress("a:1"), SystemClock())
        (server,) = Connected.all
        server.held = held = []
        syncing = asyncio.create_task(client.sync())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not syncing.done()
        before = client.zxid
        for done in held:
            server.refuse(done)
        await syncing
        assert client.zxid > before
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("lost", "is_older"), [(0, False), (1, True)])
def test_data_that_lack_one_transaction_are_older(lost: int, *, is_older: bool) -> None:
    """What another client that looks does itself is not one of theirs."""

    async def scenario() -> None:
        client = await ZooKeeperClient.connect(ZooKeeperAddress("a:1"), SystemClock())
        Connected.all[0].zxid += lost
        for _ in range(4):
            client.refused()
        assert client._asking is not None
        await client._asking
        assert client.session.has_ended is is_older
        await client.close()

    asyncio.run(scenario())


def test_a_session_that_has_ended_asks_nobody() -> None:
    async def scenario() -> None:
        client = await ZooKeeperClient.connect(ZooKeeperAddress("a:1"), SystemClock())
        client.lost()
        for _ in range(20):
            client.refused()
        assert client._asking is None
        await client.close()

    asyncio.run(scenario())


def test_a_server_that_ends_sessions_sooner_is_believed() -> None:
    """As after a restart of one server after the other, with another longest time."""

    async def main(sim: Simulation) -> None:
        client = await ZooKeeperClient.connect(
            ZooKeeperAddress("a:1"), SimClock(sim.loop), session_seconds=30.0
        )
        session = client.session
        await asyncio.sleep(1)
        client.disconnected()
        client.connected(client.session_id, 10.0)
        assert client.session is session
        assert session.timeout_seconds == 10.0
        assert session.sure_seconds == pytest.approx(SURE_PART * 10.0)
        client.disconnected()
        client.connected(client.session_id, 40.0)
        assert session.timeout_seconds == 40.0
        assert session.sure_seconds == pytest.approx(SURE_PART * 10.0), "no sign was answered yet"
        await client.close()

    simulate(main)
