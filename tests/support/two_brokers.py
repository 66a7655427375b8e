"""Two brokers over one metadata store, each with its HTTP port on loopback.

Topics are given to brokers by claiming their bundles, so a test says who serves what.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pulsark.admin.server import AdminServer
from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.producer import Producer
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.peers.whereabouts import Peer, Whereabouts
from pulsark.dispatch.topic.topic import Topic
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.support.admin_api import Answer, SteppedClock
from tests.support.fake_client import FakeClient
from tests.support.inline_table import inline_tables
from tests.support.memory_bookie import MemoryBookie

T = TypeVar("T")


class Told:
    """What a broker knows of the others, but for what a test tells it."""

    def __init__(self, known: Whereabouts) -> None:
        self._known = known
        self.forced: dict[str, list[Peer | None]] = {}
        """By topic who serves it; the last one for ever."""
        self.asked = 0

    @property
    def broker_id(self) -> str:
        return self._known.broker_id

    @property
    def instance(self) -> str:
        return self._known.instance

    async def where(self, topic: TopicName) -> Peer | None:
        return await self._forced(topic, self._known.where)

    async def find(self, topic: TopicName) -> Peer | None:
        return await self._forced(topic, self._known.find)

    async def _forced(
        self, topic: TopicName, known: Callable[[TopicName], Awaitable[Peer | None]]
    ) -> Peer | None:
        self.asked += 1
        forced = self.forced.get(str(topic))
        if forced is None:
            return await known(topic)
        return forced.pop(0) if len(forced) > 1 else forced[0]

    async def where_bundle(self, bundle: str) -> Peer | None:
        return await self._known.where_bundle(bundle)

    async def others(self) -> list[Peer]:
        return await self._known.others()

    async def leader(self) -> Peer | None:
        return await self._known.leader()


class Node:
    """One broker."""

    def __init__(self, broker: Broker, peer: Peer, server: AdminServer) -> None:
        self.broker = broker
        self.peer = peer
        self.server = server
        self.peers = broker.peers()
        self.knows = self.peers.knows = Told(self.peers.knows)


class TwoBrokers:
    """Both on a loop of their own; calls block, each on a connection of its own."""

    def __init__(self, second: dict[str, Any] | None = None, **changed: Any) -> None:
        """With these settings, of which the second broker has some others."""
        names = ("EnsembleSize", "WriteQuorum", "AckQuorum")
        quorums = {f"managedLedgerDefault{name}": 1 for name in names}
        self._settings = Settings(**{**quorums, "sealEnabled": False, **changed})
        self.loop = asyncio.new_event_loop()
        self.clock = SteppedClock()
        self.tree = MemoryTree()
        self.bookie = MemoryBookie()
        self.disk = SimDisk()
        of_both = self._settings
        self.a = self.run(self._start())
        self._settings = replace(of_both, **(second or {}))
        self.b = self.run(self._start())
        self.nodes = [self.a, self.b]
        self.run(self._meet())

    async def _meet(self) -> None:
        for node in self.nodes:
            await node.broker.registry.follow()
            assert not node.broker.registry.is_alone

    async def _start(self) -> Node:
        runtime = Runtime(clock=self.clock, disk=self.disk)
        metadata = MemoryMetadataStore(self.tree)
        tables = inline_tables(["/table"], metadata, runtime)
        ledgers = LedgerManager(metadata, {"b1": self.bookie}, runtime, tables)
        broker = Broker(self._settings, runtime, metadata, ledgers, tables)
        server = AdminServer(broker)
        web = f"http://127.0.0.1:{server.listen(['127.0.0.1'], 0)}"
        peer = Peer(urlsplit(web).netloc, web)
        flight = f"grpc://{peer.broker_id}"
        urls = ServiceUrls(f"pulsar://{peer.broker_id}", web, flight)
        await broker.start(urls, urls if self._settings.auditEnabled else None)
        return Node(broker, peer._replace(instance=broker.ownership.instance), server)

    def close(self) -> None:
        for node in self.nodes:
            self.run(node.server.close())
            self.run(node.broker.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(main, 60))

    # -- topics ---

    def give(self, name: str, node: Node) -> None:
        """A broker claims the bundle of a topic, unless it has it."""
        self.run(node.broker.ownership.own(TopicName.parse(name)))

    def topic(self, name: str, node: Node) -> Topic:
        """A topic, loaded by a broker, which claims it."""
        return self.run(node.broker.topics.load(TopicName.parse(name), create=True))

    def is_loaded(self, name: str, node: Node) -> bool:
        return node.broker.topics.get(TopicName.parse(name)) is not None

    def partitioned(self, name: str, partitions: int) -> list[str]:
        """A topic with partitions, which the brokers have in turns as far as bundles go."""
        self.run(
            self.a.broker.creation.create_partitioned_topic(TopicName.parse(name), partitions, {})
        )
        parts = TopicName.parse(name).partition_names(partitions)
        for part in parts:
            if self.run(self.owner(part)) is None:
                owned = [len(node.broker.ownership.owned()) for node in self.nodes]
                self.give(part, self.nodes[owned.index(min(owned))])
        assert all(node.broker.ownership.owned() for node in self.nodes)
        return parts

    async def owner(self, name: str) -> Node | None:
        """Who has claimed the bundle of a topic."""
        topic = TopicName.parse(name)
        for node in self.nodes:
            bundle = f"{topic.namespace_name}/{await node.broker.ownership.bundle_of(topic)}"
            if bundle in node.broker.ownership.owned():
                return node
        return None

    def connect_producer(self, name: str, node: Node) -> Producer:
        """A producer at a broker."""
        topic = self.topic(name, node)
        producer = Producer(
            topic,
            FakeClient(),
            7,
            "producer-1",
            epoch=0,
            user_provided_name=True,
            metadata={},
            schema_version=b"",
            connected_since_ms=self.clock.now_ms(),
        )
        self.run(topic.add_producer(producer))
        return producer

    # -- requests ---

    def call(
        self,
        node: Node,
        method: str,
        target: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """One request to a broker."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if content else {}
        return self.run(
            asyncio.to_thread(
                _call, node.peer, method, target, content, {**sent, **(headers or {})}
            )
        )


def _call(peer: Peer, method: str, target: str, content: bytes, headers: dict[str, str]) -> Answer:
    parts = urlsplit(peer.web_url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request(method, target, content or None, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()
