"""Stores on a real server that several processes share, and what a test does to them from outside.

One class for each kind of server, with the same methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.address import EtcdAddress, Server
from pulsark.metadata.etcd.store import EtcdMetadataStore
from pulsark.metadata.store import MetadataStore
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.layout import INSTANCE, TREE
from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore
from pulsark.processes.java_process import HOST
from pulsark.runtime import Runtime
from tests.support import etcd as etcd_server
from tests.support import zookeeper as zookeeper_server

MANY_SECONDS = 60


async def until(holds: Callable[[], object]) -> None:
    """Return once another process has made it so."""
    async with asyncio.timeout(MANY_SECONDS):
        while not holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)


class Servers(Protocol):
    """Stores below one root, which nobody else uses."""

    FOREIGN: tuple[bytes, ...]
    """What cannot be a value on this server, besides what can be none on any."""

    async def open(self) -> MetadataStore:
        """One more store, with a session of its own."""

    async def open_behind_a_network(self) -> tuple[MetadataStore, Callable[[], None]]:
        """One more, and what cuts its connections; they may be made again at once."""

    async def end_session(self, store: MetadataStore) -> None:
        """End it at the server, as the server does after a time."""

    async def stored(self, path: str) -> bytes:
        """What the server has for a path."""

    async def store(self, path: str, data: bytes) -> None:
        """Write that, as somebody else might."""

    async def store_instance(self, data: bytes) -> None:
        """Write what says whose store it is, as somebody else might."""

    async def close(self) -> None:
        """Close everything."""


class OnZooKeeper:
    """See ``Servers``."""

    FOREIGN = ()  # nodes without data are parents

    def __init__(self, address: ZooKeeperAddress) -> None:
        self._address = address
        self._stores: list[ZooKeeperMetadataStore] = []

    async def open(self) -> ZooKeeperMetadataStore:
        store = await open_on_zookeeper(self._address)
        self._stores.append(store)
        return store

    async def open_behind_a_network(self) -> tuple[ZooKeeperMetadataStore, Callable[[], None]]:
        store = await self.open()
        return store, store._client._connection.drop

    async def end_session(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperMetadataStore)
        await zookeeper_server.expire(store._client)

    async def stored(self, path: str) -> bytes:
        client = await zookeeper_server.connected(self._address)
        found = await client.get(f"{TREE}{path}")
        await client.close()
        assert found is not None
        return found.data

    async def store(self, path: str, data: bytes) -> None:
        await self._set(f"{TREE}{path}", data)

    async def store_instance(self, data: bytes) -> None:
        await self._set(INSTANCE, data)

    async def _set(self, node: str, data: bytes) -> None:
        client = await zookeeper_server.connected(self._address)
        await client.set(node, data)
        await client.close()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class OnEtcd:
    """See ``Servers``."""

    FOREIGN = (b"",)

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._stores: list[EtcdMetadataStore] = []
        self._relays: list[Relay] = []

    async def open(self) -> EtcdMetadataStore:
        return await self._open(self._address)

    async def open_behind_a_network(self) -> tuple[EtcdMetadataStore, Callable[[], None]]:
        relay = Relay(self._address.servers[0])
        self._relays.append(relay)
        return await self._open(await relay.start(self._address.root)), relay.cut

    async def _open(self, address: EtcdAddress) -> EtcdMetadataStore:
        store = await open_on_etcd(address)
        self._stores.append(store)
        return store

    async def end_session(self, store: MetadataStore) -> None:
        assert isinstance(store, EtcdMetadataStore)
        await etcd_server.expire(store)

    async def stored(self, path: str) -> bytes:
        store = self._stores[0]
        read = messages.get(store._layout.key(path))["request_range"]
        return messages.key_value((await raw(store, "kv/range", read))["kvs"][0]).value

    async def store(self, path: str, data: bytes) -> None:
        await self._put(self._stores[0]._layout.key(path), data)

    async def store_instance(self, data: bytes) -> None:
        await self._put(self._stores[0]._layout.instance, data)

    async def _put(self, key: bytes, data: bytes) -> None:
        await raw(self._stores[0], "kv/put", messages.put(key, data)["request_put"])

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        for relay in self._relays:
            relay.close()


async def open_on_zookeeper(address: ZooKeeperAddress) -> ZooKeeperMetadataStore:
    """A store whose calls end soon."""
    return await ZooKeeperMetadataStore.open(address, Runtime(), timeout_seconds=10)


async def open_on_etcd(
    address: EtcdAddress, *, session: float = 30, timeout: float = 10, create: bool = True
) -> EtcdMetadataStore:
    """A store whose calls end soon."""
    return await EtcdMetadataStore.open(
        address, Runtime(), create=create, session_seconds=session, timeout_seconds=timeout
    )


async def raw(store: EtcdMetadataStore, method: str, body: messages.Json) -> Any:
    """An answer of etcd itself, with a store's login."""
    return await store._gateway.read(method, body, asyncio.get_running_loop().time() + 10)


class Relay:
    """Passes bytes on to a server, until it is told to cut all connections."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._writers: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._listener: asyncio.Server | None = None

    async def start(self, root: str) -> EtcdAddress:
        """Listen; the address to use in place of the server's."""
        self._listener = await asyncio.start_server(self._serve, HOST, 0)
        port = self._listener.sockets[0].getsockname()[1]
        return EtcdAddress((Server(HOST, port),), root)

    def hold_answers(self) -> None:
        """Requests reach the server, and no answer comes back."""
        self._answers.clear()

    def cut(self) -> None:
        """End all connections at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._answers.set()

    def close(self) -> None:
        """Listen no more."""
        self.cut()
        assert self._listener is not None
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            theirs, ours = await asyncio.open_connection(self._server.host, self._server.port)
            self._writers |= {writer, ours}
            await asyncio.gather(self._pump(reader, ours), self._pump(theirs, writer, True))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if answers:
                    await self._answers.wait()
                writer.write(data)
        writer.transport.abort()
