"""A port without TLS: a few clients a turn, and a flood of refused ones in one go."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from pulsark.security import acceptor
from pulsark.security.acceptor import Acceptor
from pulsark.security.limits import REFUSED_PER_TURN_MAX
from pulsark.security.plain_listener import PlainListener
from pulsark.security.trials import Trial, Trials


class Greeter(asyncio.Protocol):
    """Tells each client that it is served, and closes."""

    def __init__(self, trial: Trial | None) -> None:
        self.trial = trial

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"served")
        transport.close()


async def said(port: int) -> bytes:
    """What a new client hears; nothing if it is closed at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def test_who_has_no_place_is_closed_before_anything_is_made_for_it() -> None:
    trials = Trials(10)
    made: list[Trial | None] = []

    def greeter(trial: Trial | None) -> Greeter:
        made.append(trial)
        return Greeter(trial)

    async def main() -> None:
        listener = PlainListener(greeter, lambda host: trials.begin(host, 0.0))
        port = listener.listen(["127.0.0.1"], 0, "brokerServicePort")
        listener.serve()
        assert await said(port) == b"served"
        for _ in range(2):
            trials.failed("127.0.0.1", 0.0)
        assert await said(port) == b""
        trials.give_back("127.0.0.1", 0.0)
        assert await said(port) == b"served"
        listener.close()

    asyncio.run(main())
    assert len(made) == 2
    assert made[0] is None
    assert isinstance(made[1], Trial)


class Taken:
    """An acceptor with clients that wait for it, which it serves or refuses."""

    def __init__(self, clients: int, per_turn: int, *, served: bool) -> None:
        self.count = 0
        self._served = served
        self._most = clients
        self.all = asyncio.Event()
        self.acceptor = Acceptor(self._take, per_turn)
        port = self.acceptor.listen(["127.0.0.1"], 0, "brokerServicePort")
        self._clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]

    def _take(self, client: socket.socket, host: str) -> bool:
        assert host == "127.0.0.1"
        client.close()
        self.count += 1
        if self.count == self._most:
            self.all.set()
        return self._served

    async def turns(self, number: int) -> int:
        """How many were accepted after some turns of the loop."""
        for _ in range(number):
            await asyncio.sleep(0)
        return self.count

    def close(self) -> None:
        self.acceptor.close()
        for client in self._clients:
            client.close()


@contextmanager
def taken(clients: int, per_turn: int, *, served: bool) -> Iterator[Taken]:
    found = Taken(clients, per_turn, served=served)
    try:
        yield found
    finally:
        found.close()


def test_a_few_are_served_in_each_turn() -> None:
    async def main() -> None:
        with taken(10, 3, served=True) as clients:
            clients.acceptor.open()
            counts = [await clients.turns(1) for _ in range(12)]
            assert max(b - a for a, b in pairwise([0, *counts])) == 3
            async with asyncio.timeout(10):
                await clients.all.wait()

    asyncio.run(main())


def test_a_flood_of_refused_ones_does_not_wake_the_loop_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = REFUSED_PER_TURN_MAX
    monkeypatch.setattr(acceptor, "REFUSED_PAUSE_SECONDS", 3600.0)

    async def main() -> None:
        with taken(2 * most + 1, 3, served=False) as clients:
            clients.acceptor.open()
            assert await clients.turns(20) == most
            monkeypatch.setattr(acceptor, "REFUSED_PAUSE_SECONDS", 0.0)
            clients.acceptor.open()
            async with asyncio.timeout(10):
                await clients.all.wait()

    asyncio.run(main())


def test_without_a_free_descriptor_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE_SECONDS", 0.0)

    async def main() -> None:
        with taken(1, 3, served=True) as clients:
            with no_descriptors():
                clients.acceptor.open()
                assert await clients.turns(20) == 0
                assert "cannot accept clients" in caplog.text
            async with asyncio.timeout(10):
                await clients.all.wait()

    asyncio.run(main())


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process may open no more files for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
