"""The HTTP application over a real broker in memory, called without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.producer import Producer
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.stats.stats import Stats
from pulsark.dispatch.topic.topic import Topic
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.runtime import Runtime
from pulsark.security.authorization import StoredGrants
from pulsark.security.facts import Rules
from pulsark.security.peer import TlsPeer
from pulsark.security.principal import Principal
from pulsark.storage.cursor.cursor import Ack
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, parse_entry
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.support.fake_client import FakeClient
from tests.support.inline_table import inline_tables
from tests.support.memory_bookie import MemoryBookie

T = TypeVar("T")

NAMESPACE = "/admin/v2/persistent/public/default"


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


class SteppedClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class AdminApi:
    """One broker and its admin API on a loop of their own; calls block."""

    def __init__(self, *, rules: Rules | None = None, **changed: Any) -> None:
        """With ``rules`` there is authorization; ``principal`` is then whose requests they are."""
        self._rules = rules
        self.principal: Principal | None = None
        self.tls: TlsPeer | None = None
        """How requests come."""
        self.loop = asyncio.new_event_loop()
        self.clock = SteppedClock()
        self.stops = 0
        """How often the process was asked to stop."""
        names = ("EnsembleSize", "WriteQuorum", "AckQuorum")
        quorums = {f"managedLedgerDefault{name}": 1 for name in names}
        settings = Settings(**{**quorums, "sealEnabled": False, **changed})
        self.broker, self.stats, self._app = self.run(self._start(settings))

    async def _start(self, settings: Settings) -> tuple[Broker, Stats, Any]:
        from pulsark.admin.app import build_app

        metadata = MemoryMetadataStore()
        runtime = Runtime(clock=self.clock, disk=SimDisk(), stop_process=self._stop)
        tables = inline_tables(["/table"], metadata, runtime)
        ledgers = LedgerManager(metadata, {"b1": MemoryBookie()}, runtime, tables)
        broker = Broker(settings, runtime, metadata, ledgers, tables)
        if self._rules is not None:
            broker.authorization = StoredGrants(self._rules, metadata, broker.resources)
        await broker.start(
            ServiceUrls("pulsar://broker:6650", "http://broker:8080", "grpc://broker:8815")
        )
        stats = broker.stats
        return broker, stats, build_app(broker, stats)

    def _stop(self) -> None:
        self.stops += 1

    @property
    def app(self) -> Any:
        """The application behind what lets requests in."""
        return self._app._app._app._app._app

    def close(self) -> None:
        self.run(self.broker.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(main, 60))

    # -- requests ----------------------------------------------------------------------------

    def get(self, target: str, **headers: str) -> Answer:
        return self.call("GET", target, headers=headers)

    def put(self, target: str, body: Any = None) -> Answer:
        return self.call("PUT", target, body)

    def post(self, target: str, body: Any = None) -> Answer:
        return self.call("POST", target, body)

    def delete(self, target: str) -> Answer:
        return self.call("DELETE", target)

    def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request; ``body`` is sent as JSON, ``raw`` as it is."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if content and raw is None else {}
        return self.run(self._call(method, target, content, {**sent, **(headers or {})}))

    async def _call(
        self, method: str, target: str, content: bytes, headers: dict[str, str]
    ) -> Answer:
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1),
            "state": {"principal": self.principal, "tls": self.tls},
            "server": ("127.0.0.1", 8080),
        }
        pieces = [content[i : i + 65536] for i in range(0, len(content), 65536)] or [b""]
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not pieces:
                await asyncio.Event().wait()  # the client stays until it has its answer
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, send)
        return Answer(
            messages[0]["status"],
            {k.decode(): v.decode() for k, v in messages[0]["headers"]},
            b"".join(m.get("body", b"") for m in messages[1:]),
        )

    # -- what clients would do -----------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        return self.run(self.broker.topics.load(TopicName.parse(name), create=True))

    def publish(self, name: str, *payloads: bytes, publish_time: int = 0, batch: int = 0) -> None:
        """Store one entry for each payload; with ``batch`` each counts as so many messages."""
        entries = []
        for payload in payloads:
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=publish_time
            )
            if batch:
                metadata.num_messages_in_batch = batch
            entries.append(build_entry(metadata, payload))
        self.store(name, *entries)

    def store(self, name: str, *entries: bytes) -> None:
        """Store entries."""

        async def publish() -> None:
            topic = await self.broker.topics.load(TopicName.parse(name), create=True)
            for data in entries:
                head = parse_entry(data)
                before = topic.entries_in
                topic.publish(Entry(data, head.messages, head.batched, head.marker))
                for _ in range(100):
                    if topic.entries_in == before:
                        await asyncio.sleep(0)
                assert topic.entries_in > before

        self.run(publish())

    def connect_producer(self, name: str) -> Producer:
        topic = self.topic(name)
        producer = Producer(
            topic,
            FakeClient(),
            7,
            "producer-1",
            epoch=0,
            user_provided_name=True,
            metadata={"app": "test"},
            schema_version=b"",
            connected_since_ms=self.clock.now_ms(),
        )
        self.run(topic.add_producer(producer))
        return producer

    def connect_consumer(self, name: str, subscription: str, sub_type: int = 0) -> Consumer:
        request = pb.CommandSubscribe(
            topic=name,
            subscription=subscription,
            subType=sub_type,  # type: ignore[arg-type]
            consumer_id=3,
            request_id=1,
            consumer_name="consumer-1",
            durable=True,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        return self.run(self.broker.subscribing.subscribe(FakeClient(), request))

    def ack(self, consumer: Consumer, *acks: Ack) -> None:
        """Acknowledge as a consumer does."""

        async def ack() -> None:
            consumer.subscription.acks.individual(consumer, acks, None, self.clock.now_ms())

        self.run(ack())


def subscription_path(topic: str, subscription: str) -> str:
    """The path of a subscription, encoded twice as Java's client does."""
    twice = quote(quote(subscription, safe=""), safe="")
    return f"{NAMESPACE}/{quote(topic, safe='')}/subscription/{twice}"
