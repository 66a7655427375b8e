"""One session over a connection whose server is told what to answer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsark.metadata.zookeeper import client as client_module
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.client_config import ClientConfig, ZooKeeperTls
from pulsark.metadata.zookeeper.connection import Done, Listener
from pulsark.runtime import SystemClock


class Connected:
    """Instead of ``Connection``: it is there at once, and answers each request alike."""

    all: list[Connected]

    def __init__(
        self, hosts: str, seconds: float, listener: Listener, loop: Any, *, tls: Any, **_: Any
    ) -> None:
        self.listener = listener
        self.tls = tls
        self.zxid = 5
        self._loop = loop
        self._seconds = seconds
        Connected.all.append(self)

    def start(self) -> None:
        self.listener.connected(7, self._seconds)

    def submit(self, request: object, done: Done) -> None:
        self._loop.call_soon(done, "/", None, self.zxid)

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
