"""Clients of a shared port get to the broker that they name, or are told that it is not there."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop

from pulsark.dispatch.handover import lobby as lobby_module
from pulsark.dispatch.handover import receiver as receiver_module
from pulsark.dispatch.handover.lobby import Lobby
from pulsark.dispatch.handover.receiver import Receiver
from pulsark.dispatch.handover.sender import GIVEN, SocketSender
from pulsark.errors import ClientError, ServerError
from tests.unit.dispatch.handover.test_wanted import connect

THERE = 6670


class Served:
    """What the brokers' own servers got."""

    def __init__(self) -> None:
        self.clients: asyncio.Queue[socket.socket] = asyncio.Queue()

    async def bytes_of_next(self) -> bytes:
        client = await asyncio.wait_for(self.clients.get(), 10)
        with client:
            return await asyncio.get_running_loop().sock_recv(client, 65536)


class Brokers:
    """Two of them over one listening socket; only the lobby of the first one is open."""

    def __init__(self, directory: Path) -> None:
        self.address_of: Callable[[int], str] = lambda port: str(directory / f"broker-{port}")
        self.here, self.there = Served(), Served()
        self.refusals: asyncio.Queue[ClientError] = asyncio.Queue()
        self.sender = SocketSender("localhost", self.address_of)
        self.receiver = self.receive()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.lobby = Lobby([self.listener], self.here.clients.put_nowait, self.give)
        self.lobby.open()

    def receive(self) -> Receiver:
        return Receiver(self.address_of(THERE), self.there.clients.put_nowait)

    def give(self, client: socket.socket, url: str) -> None:
        try:
            self.sender.give(client, url)
        except ClientError as error:
            self.refusals.put_nowait(error)
            client.close()

    def client(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(10)
        return client

    def close(self) -> None:
        self.lobby.close()
        self.sender.close()
        self.receiver.close()


@asynccontextmanager
async def brokers(directory: Path) -> AsyncIterator[Brokers]:
    made = Brokers(directory)
    try:
        yield made
    finally:
        made.close()


def run(scenario: Callable[[Path], object]) -> Callable[[Path], None]:
    def test(tmp_path: Path) -> None:
        uvloop.run(scenario(tmp_path))  # type: ignore[arg-type]

    test.__name__ = scenario.__name__
    return test


async def ended(client: socket.socket) -> bool:
    """Whether the other side has closed the connection."""
    client.setblocking(False)
    try:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionResetError:
        return True


@run
async def test_the_broker_that_is_named_reads_from_the_first_byte_on(directory: Path) -> None:
    async with brokers(directory) as made:
        data = connect(f"localhost:{THERE}")
        with made.client() as client:
            client.sendall(data + b"rest")
            assert await made.there.bytes_of_next() == data + b"rest"
        assert made.here.clients.empty()


@run
async def test_who_names_none_is_served_by_the_one_who_accepted(directory: Path) -> None:
    async with brokers(directory) as made:
        with made.client() as client:
            client.sendall(connect())
            assert await made.here.bytes_of_next() == connect()
        with made.client() as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert await made.here.bytes_of_next() == b"GET / HTTP/1.1\r\n\r\n"


@run
async def test_a_connect_may_come_in_pieces(directory: Path) -> None:
    async with brokers(directory) as made:
        data = connect(f"pulsar://localhost:{THERE}")
        with made.client() as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(len(data)):
                client.sendall(data[number : number + 1])
                await asyncio.sleep(0)
            assert await made.there.bytes_of_next() == data


@pytest.mark.parametrize("port", [THERE, None], ids=["given away", "served here"])
def test_what_follows_a_connect_in_pieces_is_heard_however_short(
    tmp_path: Path, port: int | None
) -> None:
    """The lobby lets the system wait for the rest of a CONNECT; who serves waits for any byte."""

    @run
    async def test(directory: Path) -> None:
        async with brokers(directory) as made:
            data = connect(f"pulsar://localhost:{port}" if port else "")
            served = made.there if port else made.here
            for first in (1, 3, 4, 5, 8, 12, len(data) - 1):
                with made.client() as client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    client.sendall(data[:first])
                    await asyncio.sleep(0.01)
                    client.sendall(data[first:])
                    with await asyncio.wait_for(served.clients.get(), 10) as taken:
                        loop = asyncio.get_running_loop()
                        assert await loop.sock_recv(taken, len(data)) == data
                        client.sendall(b"!")
                        assert await asyncio.wait_for(loop.sock_recv(taken, 10), 10) == b"!"

    test(tmp_path)


@run
async def test_a_broker_that_is_not_there_is_refused(directory: Path) -> None:
    async with brokers(directory) as made:
        for url in ("localhost:7777", f"elsewhere:{THERE}", "nonsense", "x" * 5000):
            with made.client() as client:
                client.sendall(connect(url))
                error = await made.refusals.get()
                assert error.code == ServerError.ServiceNotReady
                assert "No broker" in str(error)
                assert len(str(error)) < 200
                assert await ended(client)


@run
async def test_another_process_may_take_the_place_of_one_that_died(directory: Path) -> None:
    async with brokers(directory) as made:
        data = connect(f"localhost:{THERE}")
        with made.client() as client:
            client.sendall(data)
            assert await made.there.bytes_of_next() == data
        made.receiver.close()
        with made.client() as client:
            client.sendall(data)
            assert "No broker" in str(await made.refusals.get())
        made.receiver = made.receive()
        with made.client() as client:
            client.sendall(data)
            assert await made.there.bytes_of_next() == data


@run
async def test_a_client_whose_broker_died_before_it_looked_sees_its_connection_end(
    directory: Path,
) -> None:
    async with brokers(directory) as made:
        frozen = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        frozen.bind(made.address_of(6680))
        frozen.listen()
        with made.client() as client:
            client.sendall(connect("localhost:6680"))
            assert await asyncio.to_thread(took_one, frozen)
            frozen.close()
            assert await ended(client)


def took_one(frozen: socket.socket) -> bool:
    """A process that accepts what it is sent, and dies."""
    with frozen.accept()[0] as way:
        return way.recv(1, socket.MSG_PEEK) == GIVEN


@run
async def test_more_clients_than_the_other_process_takes_at_once_wait_in_order(
    directory: Path,
) -> None:
    async with brokers(directory) as made:
        clients = [made.client() for _ in range(600)]
        for number, client in enumerate(clients):
            client.sendall(connect(f"localhost:{THERE}", version=f"{number:03}"))
        numbers = [await made.there.bytes_of_next() for _ in clients]
        assert len(set(numbers)) == 600
        for client in clients:
            client.close()
        assert made.refusals.empty()


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """In this process, whose lowest free one is the first that it may not have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def paused(receiver: Receiver) -> None:
    for _ in range(100_000):
        await asyncio.sleep(0)
        if receiver._resuming is not None:
            return
    raise AssertionError("it goes on")


@pytest.mark.parametrize("had_room", [False, True])
def test_clients_wait_while_the_other_process_has_no_free_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_room: bool
) -> None:
    """``had_room``: when it looked; somebody else took the descriptor in between."""

    async def scenario() -> None:
        async with brokers(tmp_path) as made:
            with made.client() as first:
                first.sendall(connect(f"localhost:{THERE}"))
                await made.there.bytes_of_next()
            here = []
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for _ in range(4):
                    here.append(socket.create_connection(listener.getsockname()))
                    made.sender.give(listener.accept()[0], f"localhost:{THERE}")
            if had_room:
                monkeypatch.setattr(receiver_module, "_has_room", lambda sender: True)
            with no_free_descriptor():
                await paused(made.receiver)
                monkeypatch.undo()
            for client in here[1 if had_room else 0 :]:
                client.sendall(b"x")
                assert await made.there.bytes_of_next() == b"x"
            if had_room:
                assert await ended(here[0])
            for client in here:
                client.close()

    uvloop.run(scenario())


@run
async def test_another_process_can_pass_clients_on_once_there_are_free_descriptors(
    directory: Path,
) -> None:
    async with brokers(directory) as made:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
            way.connect(made.address_of(THERE))
            with no_free_descriptor():
                await paused(made.receiver)
            with made.client() as client:
                client.sendall(connect(f"localhost:{THERE}"))
                assert await made.there.bytes_of_next() == connect(f"localhost:{THERE}")


@run
async def test_a_process_that_died_while_clients_waited_for_it_may_come_again(
    directory: Path,
) -> None:
    async with brokers(directory) as made:
        address = made.address_of(6680)
        frozen = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        frozen.bind(address)
        frozen.listen()
        ends = []
        for _ in range(600):  # more than the system keeps for it
            end, client = socket.socketpair()
            ends.append(end)
            made.sender.give(client, "localhost:6680")
        frozen.close()
        for end in ends:
            assert await ended(end)
            end.close()
        later = Receiver(address, made.there.clients.put_nowait)
        with made.client() as client:
            client.sendall(connect("localhost:6680"))
            assert await made.there.bytes_of_next() == connect("localhost:6680")
        later.close()


@run
async def test_who_leaves_in_the_middle_of_a_connect_is_let_go(directory: Path) -> None:
    async with brokers(directory) as made:
        for part in (b"", connect("localhost:1")[:7]):
            with made.client() as client:
                client.sendall(part)
                client.shutdown(socket.SHUT_WR)
                assert await ended(client)


def test_the_lobby_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby_module, "HANDOVER_LOBBY_MAX", 2)
    monkeypatch.setattr(lobby_module, "HANDSHAKE_SECONDS", 0.05)

    async def scenario() -> None:
        async with brokers(tmp_path) as made:
            silent = [made.client() for _ in range(3)]
            assert await ended(silent[0])  # the oldest made room
            assert await ended(silent[1])  # their time is over
            assert await ended(silent[2])
            for client in silent:
                client.close()

    uvloop.run(scenario())


@run
async def test_what_is_no_client_is_not_taken(directory: Path) -> None:
    """The socket is for processes of this user; one with a bug must not break another one."""
    async with brokers(directory) as made:
        loop = asyncio.get_running_loop()
        address = made.address_of(THERE)
        assert os.stat(address).st_mode & 0o777 == 0o600
        with made.client() as client, socket.socketpair()[0] as no_client:
            for data, descriptors, ends in (
                (GIVEN, [no_client.fileno()], False),
                (GIVEN, [], True),
                (b"\x02", [client.fileno()], True),
                (GIVEN * 2, [client.fileno()], True),
                (GIVEN, [client.fileno()] * 3, True),
            ):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
                    way.setblocking(False)
                    way.connect(address)
                    socket.send_fds(way, [data], descriptors)
                    if ends:
                        assert await asyncio.wait_for(loop.sock_recv(way, 1), 10) == b""
        with made.client() as client:
            client.sendall(connect(f"localhost:{THERE}"))
            assert await made.there.bytes_of_next()
        assert made.there.clients.empty()
