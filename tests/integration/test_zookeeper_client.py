"""The client of ZooKeeper's raw nodes, against a real server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.zookeeper import client as client_module
from pulsark.metadata.zookeeper import connection
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.client_config import ClientConfig, ZooKeeperTls
from pulsark.metadata.zookeeper.digest_login import DigestLogin
from pulsark.metadata.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    EphemeralParentError,
    NodeExistsError,
    NodeVersionError,
    NoNodeError,
    NotEmptyError,
    SetNode,
)
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.processes.java_process import HOST
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.link import Address
from tests.support.bookie_faults import Relay
from tests.support.certificates import Authority
from tests.support.zookeeper import SESSION_SECONDS, connected, expire
from tests.support.zookeeper_tls import LOGIN, TlsZooKeeperServer, own_of

MANY_SECONDS = 60


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(MANY_SECONDS):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


def test_a_server_that_takes_a_connection_and_never_answers_is_left_soon(
    zookeeper: ZooKeeperAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has not quite started: the session's timeout would be too long a wait."""
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.3)
    taken: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) > 1:
            host, _, port = zookeeper.hosts.partition(":")
            server = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, server[1]), pump(server[0], writer))

    async def scenario() -> None:
        listener = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        address = ZooKeeperAddress(f"127.0.0.1:{port}", zookeeper.root)
        client = await connected(address, session=30)
        assert len(taken) == 2
        await client.close()
        listener.close()
        for writer in taken:
            writer.close()

    asyncio.run(scenario())


def test_nodes_are_created_changed_listed_and_deleted(zookeeper: ZooKeeperAddress) -> None:
    async def scenario() -> None:
        client = await connected(zookeeper)
        assert await client.get("/a") is None
        with pytest.raises(NoNodeError):
            await client.create("/a/b/c")
        await client.make("/a/b/c")
        await client.make("/a/b/c")
        assert await client.create("/a/x", b"one") == "/a/x"
        with pytest.raises(NodeExistsError):
            await client.create("/a/x")
        before = await client.get("/a/x")
        assert before is not None
        assert (before.data, before.version, before.owner) == (b"one", 0, 0)
        assert await client.set("/a/x", b"two", 0) == 1
        with pytest.raises(NodeVersionError):
            await client.set("/a/x", b"three", 0)
        after = await client.get("/a/x")
        assert after is not None
        assert after.created == before.created < after.changed <= client.zxid
        assert sorted(await client.children("/a")) == ["b", "x"]
        with pytest.raises(NotEmptyError):
            await client.delete("/a")
        await client.delete("/a/x", 1)
        with pytest.raises(NoNodeError):
            await client.children("/a/x")
        assert await client.create("/a/q-", sequential=True) == "/a/q-0000000002"
        await client.create("/e", ephemeral=True)
        found = await client.get("/e")
        assert found is not None
        assert found.owner == client.session_id
        with pytest.raises(EphemeralParentError):
            await client.create("/e/child")
        await client.close()
        with pytest.raises(MetadataRefusedError):
            await client.get("/a")

    asyncio.run(scenario())


def test_a_multi_does_all_or_nothing_and_names_what_is_refused(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        client = await connected(zookeeper)
        made = await client.multi(
            (CreateNode("/p"), CreateNode("/p/n-", b"", sequential=True), SetNode("/p", b"x"))
        )
        assert made == ["/p", "/p/n-0000000000", 1]
        assert await client.apply(CheckNode("/p", 1)) is None
        for last in (CheckNode("/p", 0), CreateNode("/p"), DeleteNode("/none")):
            with pytest.raises((NodeVersionError, NodeExistsError, NoNodeError)) as refused:
                await client.multi((DeleteNode("/p/n-0000000000"), last, SetNode("/p", b"")))
            assert refused.value.index == 1
            assert refused.value.path == last.path
        assert await client.children("/p") == ["n-0000000000"]
        await client.close()

    asyncio.run(scenario())


def test_a_watch_tells_once_what_appears_changes_and_vanishes(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        client, other = await connected(zookeeper), await connected(zookeeper)
        told: list[str] = []
        assert await client.get("/w", lambda: told.append("data")) is None
        await other.create("/w", b"1")
        await until(lambda: told == ["data"])
        await other.set("/w", b"2")
        await client.sync()
        found = await client.get("/w", lambda: told.append("again"))
        assert found is not None
        assert found.data == b"2"
        assert await client.children("/w", lambda: told.append("children")) == []
        await other.create("/w/c")
        await until(lambda: told == ["data", "children"])
        await other.delete("/w/c")
        await other.delete("/w")
        await until(lambda: told == ["data", "children", "again"])
        await client.close()
        await other.close()

    asyncio.run(scenario())


def test_many_calls_at_a_time_keep_their_order(zookeeper: ZooKeeperAddress) -> None:
    async def scenario() -> None:
        client = await connected(zookeeper, session=20.0)
        await client.create("/n")
        versions = await asyncio.gather(*(client.set("/n", b"%d" % n) for n in range(2000)))
        assert versions == list(range(1, 2001))
        cancelled = asyncio.create_task(client.get("/n"))
        await asyncio.sleep(0)
        cancelled.cancel()
        found = await client.get("/n")
        assert found is not None
        assert found.data == b"1999"
        await client.close()

    asyncio.run(scenario())


def test_after_a_cut_reads_go_on_watches_are_lost_and_the_session_stays(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        client = await connected(zookeeper)
        await client.give_signs("/alive")
        regained: list[bool] = []
        client.on_regained(lambda: regained.append(True))
        await client.create("/e", b"mine", ephemeral=True)
        told: list[bool] = []
        await client.get("/e", lambda: told.append(True))
        client._connection.drop()
        for _ in range(3):
            found = await client.get("/e")
            assert found is not None
            assert found.owner == client.session_id
        await until(lambda: regained)
        assert not told
        await client.set("/e", b"changed")
        assert client.session.is_sure
        await client.close()

    asyncio.run(scenario())


def test_a_write_in_a_broken_connection_is_unknown(zookeeper: ZooKeeperAddress) -> None:
    async def scenario() -> None:
        client = await connected(zookeeper)
        await client.create("/n")
        outcomes: set[type[BaseException] | None] = set()
        async with asyncio.timeout(MANY_SECONDS):
            while OutcomeUnknownError not in outcomes:
                writes = [asyncio.create_task(client.set("/n", b"")) for _ in range(200)]
                await asyncio.sleep(0.002)
                client._connection.drop()
                done = await asyncio.gather(*writes, return_exceptions=True)
                outcomes |= {
                    type(each) if isinstance(each, BaseException) else None for each in done
                }
        assert outcomes <= {None, OutcomeUnknownError}
        await client.close()

    asyncio.run(scenario())


def test_an_expired_session_is_noticed_and_never_lives_again(
    zookeeper: ZooKeeperAddress,
) -> None:
    async def scenario() -> None:
        client, other = await connected(zookeeper), await connected(zookeeper)
        await client.give_signs("/alive")
        ended: list[bool] = []
        client.session.on_end(lambda: ended.append(True))
        await client.create("/e", ephemeral=True)
        assert client.session.is_sure
        await expire(client)
        await until(lambda: ended)
        assert await other.get("/e") is None
        assert not client.session.is_sure
        for call in (client.get("/e"), client.create("/e"), client.children("/")):
            with pytest.raises(MetadataRefusedError):
                await call
        await client.close()
        await other.close()

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One that may be stopped. Each test leaves it running, with other contents perhaps."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    asyncio.run(server.ready())
    yield server
    server.process.stop()


def test_while_the_server_hangs_calls_end_and_the_session_is_not_sure_but_goes_on_afterwards(
    server: ZooKeeperServer,
) -> None:
    async def scenario() -> None:
        client = await connected(ZooKeeperAddress(server.address, "/root"))
        await client.give_signs("/alive")
        await client.create("/e", ephemeral=True)
        client._calls.deadline_seconds = 0.5
        server.process.pause()
        try:
            with pytest.raises(OutcomeUnknownError, match=r"0\.5 s"):
                await client.set("/e", b"x")
            with pytest.raises(MetadataError, match=r"0\.5 s"):
                await client.get("/e")
            await until(lambda: not client.session.is_sure)
            await until(lambda: not client.is_connected)
            with pytest.raises(MetadataRefusedError, match="nothing was written"):
                await client.set("/e", b"never")
        finally:
            server.process.resume()
        client._calls.deadline_seconds = 10
        await until(lambda: client.session.is_sure or client.session.has_ended)
        # The server may count its own pause as silence of the client, and end the session yet.
        with suppress(MetadataRefusedError):
            found = await client.get("/e")
            if found is None:
                await until(lambda: client.session.has_ended)
            else:
                assert found.data in (b"", b"x")
        await client.close()

    asyncio.run(scenario())


def test_a_server_that_was_killed_and_is_back_goes_on_with_the_session(
    server: ZooKeeperServer,
) -> None:
    async def scenario() -> None:
        client = await connected(ZooKeeperAddress(server.address, "/root"), session=10)
        await client.give_signs("/alive")
        await client.create("/e", ephemeral=True)
        server.process.kill()
        read = asyncio.create_task(client.get("/e"))
        server.start()
        await server.ready()
        found = await read
        assert found is not None
        assert found.owner == client.session_id
        assert not client.session.has_ended
        await client.close()

    asyncio.run(scenario())


async def connected_through_a_relay(server: ZooKeeperServer) -> tuple[Relay, ZooKeeperClient]:
    """The relay can refuse connections, as a server does that has not quite started."""
    relay = Relay(Address(HOST, server.port))
    where = await relay.start()
    address = ZooKeeperAddress(f"{where.host}:{where.port}", "/root")
    client = await connected(address, session=20)
    await client.give_signs("/alive")
    return relay, client


def test_a_server_that_refuses_connections_until_it_has_started_goes_on_with_the_session(
    server: ZooKeeperServer,
) -> None:
    """Others that ask in between get in before this client does."""

    async def scenario() -> None:
        starting, client = await connected_through_a_relay(server)
        for refusals in range(4, 8):
            starting.refuse(refusals)
            client._connection.drop()
            await until(lambda: not client.is_connected)
            await until(lambda: client.is_connected or client.session.has_ended)
            assert not client.session.has_ended
        await client.close()
        await starting.close()

    asyncio.run(scenario())


def test_who_is_let_in_while_it_asks_how_old_the_data_are_goes_on(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sees then is newer than what the other session was told."""

    async def scenario() -> None:
        starting, client = await connected_through_a_relay(server)
        asked = asyncio.Event()
        sync = ZooKeeperClient.sync

        async def late(self: ZooKeeperClient) -> None:
            await sync(self)
            await until(lambda: client.is_connected)
            await client.create("/later")
            asked.set()

        with monkeypatch.context() as patch:
            patch.setattr(ZooKeeperClient, "sync", late)
            starting.refuse(4)
            client._connection.drop()
            async with asyncio.timeout(10):
                await asked.wait()
                await until(lambda: client._asking is None)
        assert not client.session.has_ended
        client.session.end()
        for _ in range(100):
            client.refused()
        assert client._asking is None, "nobody needs to know any more"
        await client.close()
        await starting.close()

    asyncio.run(scenario())


@pytest.mark.feature("F68")
def test_a_server_that_comes_back_empty_ends_the_session_and_is_refused(
    server: ZooKeeperServer,
) -> None:
    async def scenario() -> None:
        address = ZooKeeperAddress(server.address, "/root")
        store = await ZooKeeperMetadataStore.open(address, Runtime(), session_seconds=20)
        await store.put("/kept", b"x")
        await store.put("/e", b"", ephemeral=True)
        server.process.kill()
        shutil.rmtree(server.data)
        server.start()
        await server.ready()
        await until(lambda: store.session.has_ended)
        with pytest.raises(MetadataRefusedError):
            await store.get("/kept")
        with pytest.raises(MetadataRefusedError):
            await store.put("/kept", b"y")
        with pytest.raises(MetadataError, match="has no metadata store"):
            await ZooKeeperMetadataStore.open(address, Runtime(), create=False)
        await store.close()

    asyncio.run(scenario())


def test_without_a_server_the_attempt_is_told_of_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = ZooKeeperServer(tmp_path)
    monkeypatch.setattr(client_module, "SAID_SECONDS", SESSION_SECONDS / 8)

    async def scenario() -> None:
        with pytest.raises(MetadataError, match="cannot be reached"):
            await connected(ZooKeeperAddress(nobody.address), operation=SESSION_SECONDS / 4)

    asyncio.run(scenario())
    assert f"ZooKeeper at {nobody.address} does not answer yet" in caplog.text


def test_a_session_over_tls_with_a_login(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = TlsZooKeeperServer(tmp_path / "server", authority)
    client_tls = ZooKeeperTls(str(authority.trust), own_of(authority, "client"))
    hosts = f"127.0.0.1:{server.secure_port}"

    async def scenario() -> None:
        await server.ready()
        client = await connected(
            ZooKeeperAddress(hosts, "/one", ClientConfig(client_tls, LOGIN)), session=30
        )
        names = [f"/n{number}" for number in range(500)]
        async with asyncio.timeout(10):  # far less than until the next ping
            # Answers that come together: TLS holds what the network has nothing of any more.
            await asyncio.gather(*(client.create(name, b"x" * 1000) for name in names))
            found = await asyncio.gather(*(client.get(name) for name in names))
        assert all(node is not None and node.data == b"x" * 1000 for node in found)
        client._connection.drop()
        assert await client.get(names[0]) is not None
        await client.close()
        stranger = Authority(tmp_path / "stranger")
        wrong = [
            ClientConfig(ZooKeeperTls(str(authority.trust)), LOGIN),
            ClientConfig(ZooKeeperTls(str(stranger.trust), client_tls.own), LOGIN),
            ClientConfig(None, LOGIN),
            ClientConfig(client_tls, DigestLogin(LOGIN.name, "another password")),
            ClientConfig(client_tls),
        ]
        refused = await asyncio.gather(
            *(connected(ZooKeeperAddress(hosts, "/one", each), operation=2) for each in wrong),
            return_exceptions=True,
        )
        assert all(isinstance(error, MetadataError) for error in refused), refused

    (tmp_path / "stranger").mkdir()
    server.start()
    try:
        asyncio.run(scenario())
    finally:
        server.process.kill()
