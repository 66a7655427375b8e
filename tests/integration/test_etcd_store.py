"""What only etcd does to the metadata store; ``test_metadata_servers`` has the rest."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata import paths
from pulsark.metadata.changes import Delete, Put
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.access import EtcdAccess, read_access
from pulsark.metadata.etcd.address import EtcdAddress, Server
from pulsark.metadata.etcd.store import EtcdMetadataStore
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT, Versioned
from pulsark.processes.java_process import HOST, free_port
from pulsark.runtime import Runtime
from tests.support.etcd import EtcdServer, expire, program
from tests.support.metadata_servers import MANY_SECONDS, Relay, open_on_etcd, raw, until

TOPIC = "/managed-ledgers/public/default/persistent/orders"


@pytest.mark.feature("F68")
def test_a_session_that_etcd_has_ended_writes_nothing_any_more(etcd: EtcdAddress) -> None:
    async def scenario() -> None:
        one, two = await open_on_etcd(etcd), await open_on_etcd(etcd)
        ended: list[bool] = []
        one.session.on_end(lambda: ended.append(True))
        await one.put("/e", b"", ephemeral=True)
        await one.put("/kept", b"")
        await expire(one)
        with pytest.raises(MetadataRefusedError):
            await one.put("/kept", b"late")
        assert ended == [True]
        for call in (one.get("/kept"), one.children("/"), one.put("/x", b"")):
            with pytest.raises(MetadataRefusedError):
                await call
        assert await two.children("/") == ["kept"]
        assert await two.get("/kept") == Versioned(b"", 0)
        three = await open_on_etcd(etcd, session=2)
        await expire(three)  # and it has nothing to write
        await until(lambda: three.session.has_ended)
        await two.close()

    asyncio.run(scenario())


def test_topics_are_told_as_they_come_and_go_and_their_ledgers_not(etcd: EtcdAddress) -> None:
    async def scenario() -> None:
        one, two = await open_on_etcd(etcd), await open_on_etcd(etcd)
        heard: list[str] = []
        one.watch("/", heard.append, lambda: heard.append("missed"))
        version = await two.put(TOPIC, b"1", ABSENT)
        await two.put(TOPIC, b"2", version)
        await two.put(paths.ledger_path(7), b"")
        await two.put("/admin/a", b"")
        await until(lambda: "/admin/a" in heard)
        assert heard == [TOPIC, "/admin/a"]
        await two.commit((Delete(TOPIC), Put("/admin/a", b"2")))
        await until(lambda: len(heard) == 4)
        assert sorted(heard[2:]) == ["/admin/a", TOPIC]
        assert await one.children("/") == ["admin", "ledgers"]
        assert await one.page("/", "", 1) == ["admin"]
        assert await one.page("/", "admin", 1) == ["ledgers"]
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_after_a_cut_the_watch_goes_on_where_it_was(etcd: EtcdAddress) -> None:
    async def scenario() -> None:
        relay = Relay(etcd.servers[0])
        one = await open_on_etcd(await relay.start(etcd.root))
        two = await open_on_etcd(etcd)
        heard: list[str] = []
        one.watch("/w", heard.append, lambda: heard.append("missed"))
        for n in range(20):
            await two.put(f"/w/{n}", b"")
            if n % 5 == 0:
                relay.cut()
        await until(lambda: "/w/19" in heard)
        assert list(dict.fromkeys(heard)) == [f"/w/{n}" for n in range(20)]
        assert await one.get("/w/3") is not None
        assert one.session.is_sure
        await one.close()
        await two.close()
        relay.close()

    asyncio.run(scenario())


def test_who_is_behind_what_etcd_has_forgotten_is_told_that_changes_were_missed(
    etcd: EtcdAddress,
) -> None:
    async def scenario() -> None:
        one, two = await open_on_etcd(etcd), await open_on_etcd(etcd)
        heard: list[str] = []
        one.watch("/w", heard.append, lambda: heard.append("missed"))
        one._watch.close()  # it does not listen for a while
        for n in range(5):
            await two.put(f"/w/{n}", b"")
        await raw(two, "kv/compaction", {"revision": str(two._marks.revision)})
        one._watch.start(one._watch._position)
        await until(lambda: "missed" in heard)
        await two.put("/w/x", b"")
        await until(lambda: heard[-1] == "/w/x")
        assert heard == ["missed", "/w/x"]
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_a_write_whose_answer_is_lost_is_unknown_and_may_have_been_made(etcd: EtcdAddress) -> None:
    async def scenario() -> None:
        relay = Relay(etcd.servers[0])
        one = await open_on_etcd(await relay.start(etcd.root))
        two = await open_on_etcd(etcd)
        await one.put("/n", b"0")
        relay.hold_answers()
        write = asyncio.create_task(one.put("/n", b"1", 0))
        made = asyncio.Event()
        two.watch("/n", lambda path: made.set(), made.set)
        if await two.get("/n") != Versioned(b"1", 1):
            await asyncio.wait_for(made.wait(), MANY_SECONDS)
        relay.cut()
        with pytest.raises(OutcomeUnknownError):
            await write
        assert await put_settled(one, "/n", b"2", 1) == 2
        await one.close()
        await two.close()
        relay.close()

    asyncio.run(scenario())


def test_a_store_that_vanishes_is_never_read_as_empty(etcd: EtcdAddress) -> None:
    async def vanishing(use: Callable[[EtcdMetadataStore], Awaitable[object]]) -> None:
        store = await open_on_etcd(etcd)
        await store.put("/kept", b"x")
        base = store._layout.instance[: -len(b"instance")]
        body = {"key": messages._text(base), "range_end": messages._text(messages.after(base))}
        await raw(store, "kv/deleterange", body)
        with pytest.raises(MetadataRefusedError):
            await use(store)
        assert store.session.has_ended
        with pytest.raises(MetadataError, match="has no metadata store"):
            await open_on_etcd(etcd, create=False)
        await store.close()

    async def scenario() -> None:
        await vanishing(lambda store: store.get("/kept"))
        await vanishing(lambda store: store.children("/"))
        await vanishing(lambda store: store.put("/kept", b"y"))

    asyncio.run(scenario())


# -- a server that may be stopped ---


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Each test leaves it running, with other contents perhaps."""
    program()
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.process.stop()


def test_while_the_server_hangs_calls_end_and_the_session_is_not_sure(server: EtcdServer) -> None:
    async def scenario() -> None:
        store = await open_on_etcd(server.address, session=2)
        heard: list[str] = []
        store.watch("/w", heard.append, lambda: heard.append("missed"))
        await store.put("/e", b"", ephemeral=True)
        store._timeout_seconds = 0.5
        server.process.pause()
        try:
            with pytest.raises(OutcomeUnknownError, match="not answered"):
                await store.put("/e", b"x", ephemeral=True)
            with pytest.raises(MetadataError, match="not answered"):
                await store.get("/e")
            await until(lambda: not store.session.is_sure)
        finally:
            server.process.resume()
        store._timeout_seconds = 10
        # etcd may count its own pause as silence of the client, and end the session.
        await until(lambda: store.session.is_sure or store.session.has_ended)
        with suppress(MetadataRefusedError):
            found = await store.get("/e")
            assert found is None or found.value in (b"", b"x")
            await store.put("/w/x", b"")
        await store.close()

    asyncio.run(scenario())


def test_a_server_that_was_killed_and_is_back_goes_on_with_the_session(server: EtcdServer) -> None:
    async def scenario() -> None:
        store, other = await open_on_etcd(server.address), await open_on_etcd(server.address)
        heard: list[str] = []
        store.watch("/w", heard.append, lambda: heard.append("missed"))
        await store.put("/e", b"", ABSENT, ephemeral=True)
        server.process.kill()
        read = asyncio.create_task(store.get("/e"))
        await asyncio.to_thread(server.start)
        assert await read is not None
        await other.put("/w/x", b"")
        await until(lambda: "/w/x" in heard)
        assert not store.session.has_ended
        await store.close()
        assert await other.get("/e") is None
        await other.close()

    asyncio.run(scenario())


def test_calls_go_to_the_next_server_when_one_is_away_or_hangs(server: EtcdServer) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, HOST, 0)
        port = silent.sockets[0].getsockname()[1]
        relay = Relay(server.address.servers[0])
        first = await relay.start("/failover")
        nobody = Server(HOST, free_port())
        servers = (nobody, *first.servers, Server(HOST, port), *server.address.servers)
        store = await open_on_etcd(EtcdAddress(servers, "/failover"), session=6)
        heard: list[str] = []
        store.watch("/w", heard.append, lambda: heard.append("missed"))
        other = await open_on_etcd(EtcdAddress(server.address.servers, "/failover"))
        relay.close()
        await until(lambda: store._gateway.server == servers[3])
        await other.put("/w/x", b"")
        await until(lambda: heard == ["/w/x"])
        assert await store.get("/w/x") is not None
        assert not store.session.has_ended
        await store.close()
        await other.close()
        silent.close()

    asyncio.run(scenario())


@pytest.mark.feature("F68")
def test_a_server_that_comes_back_empty_ends_the_session_and_is_refused(
    server: EtcdServer,
) -> None:
    async def scenario() -> None:
        store = await open_on_etcd(server.address, session=20)
        await store.put("/kept", b"x")
        server.process.kill()
        shutil.rmtree(server.data)
        await asyncio.to_thread(server.start)
        with pytest.raises(MetadataRefusedError):
            await store.get("/kept")
        assert store.session.has_ended
        with pytest.raises(MetadataRefusedError):
            await store.put("/kept", b"y")
        with pytest.raises(MetadataError, match="has no metadata store"):
            await open_on_etcd(server.address, create=False)
        await store.close()

    asyncio.run(scenario())


def test_over_tls_with_a_login(tmp_path: Path) -> None:
    program()
    authority = trustme.CA()
    issued = authority.issue_cert("etcd.example")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "access.yaml").write_text(
        f"useTls: true\ntlsTrustCertsFilePath: {tmp_path}/ca.pem\nauthority: etcd.example\n"
    )
    access = read_access(str(tmp_path / "access.yaml"))
    certificate = f"--cert-file={tmp_path}/certificate.pem", f"--key-file={tmp_path}/key.pem"
    server = EtcdServer(tmp_path / "etcd", *certificate, tls=True, access=access)

    async def scenario() -> None:
        async def open_as(access: EtcdAccess, seconds: float = 10) -> EtcdMetadataStore:
            return await EtcdMetadataStore.open(
                server.address, Runtime(), access=access, timeout_seconds=seconds
            )

        for other in (EtcdAccess(), replace(access, server_name="")):
            with pytest.raises(MetadataError, match="certificate verify failed"):
                await open_as(other, 0.5)
        store = await open_as(access)
        await store.put("/a", b"x")
        prefix = {"key": messages._text(b"/pulsark/"), "range_end": messages._text(b"/pulsark0")}
        for method, body in (
            ("user/add", {"name": "root", "password": "first"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "pulsark", "password": "secret"}),
            ("role/add", {"name": "brokers"}),
            ("role/grant", {"name": "brokers", "perm": {"permType": "READWRITE", **prefix}}),
            ("user/grant", {"user": "pulsark", "role": "brokers"}),
            ("enable", {}),
        ):
            await raw(store, f"auth/{method}", body)
        with pytest.raises(MetadataRefusedError, match="user name is empty"):
            await store.put("/a", b"y")
        with pytest.raises(MetadataRefusedError, match="the login failed"):
            await open_as(replace(access, user="pulsark", password="wrong"))
        mine = await open_as(replace(access, user="pulsark", password="secret"))
        heard: list[str] = []
        mine.watch("/w", heard.append, heard.clear)
        other = await open_as(replace(access, user="pulsark", password="secret"))
        assert await mine.get("/a") == Versioned(b"x", 0)
        mine._gateway._token = b"too-old.1"
        assert await mine.put("/a", b"y", 0) == 1
        await other.put("/w/x", b"", ephemeral=True)
        await until(lambda: heard == ["/w/x"])
        for each in (mine, other, store):
            await each.close()

    server.start()
    try:
        asyncio.run(scenario())
    finally:
        server.process.stop()


def test_without_a_server_the_attempt_ends() -> None:
    async def scenario() -> None:
        nobody = EtcdAddress((Server(HOST, free_port()), Server(HOST, free_port())))
        with pytest.raises(MetadataError, match="not answered in time"):
            await open_on_etcd(nobody, timeout=0.3)

    asyncio.run(scenario())
