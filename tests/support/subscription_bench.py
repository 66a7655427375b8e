"""A subscription with a scripted topic, sockets that only note, and no clock."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from typing import Any

from pulsark.config.settings import Settings
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.subscription_type import SubType, TypeSpec
from pulsark.dispatch.policies.policies import effective
from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
from pulsark.dispatch.subscription.delayed_delivery import DelayedDelivery
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.topic.cache import CacheBudget, TopicCache
from pulsark.storage.cursor.cursor import Cursor
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.fake_client import FakeClient

LEDGER = 7
"""The first ledger of a topic."""


class FakeClock:
    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


class FakeLedger:
    """Ledgers of a topic, the last one open, as a plain list of positions."""

    is_terminated = False

    def __init__(self) -> None:
        self.positions: list[Position] = []
        self._end = Position(LEDGER, 0)

    def append(self) -> Position:
        """The position of the next entry."""
        position = self._end
        self.positions.append(position)
        self._end = Position(position.ledger_id, position.entry_id + 1)
        return position

    def roll_over(self) -> None:
        """Go on in a new ledger."""
        self._end = Position(self._end.ledger_id + 1, 0)

    @property
    def last_confirmed(self) -> Position:
        return self.positions[-1] if self.positions else Position(-1, -1)

    def next_position(self, position: Position) -> Position:
        return self._at(bisect_right(self.positions, position))

    def valid_position_at_or_after(self, position: Position) -> Position:
        return self._at(bisect_left(self.positions, position))

    def entries_between(self, after: Position, last: Position) -> int:
        return max(bisect_right(self.positions, last) - bisect_right(self.positions, after), 0)

    def position_at(self, index: int) -> Position:
        return self.positions[index]

    def _at(self, index: int) -> Position:
        return self.positions[index] if index < len(self.positions) else self._end


class FakeTopic:
    """Its entries are in a cache, and for whoever awaits them in a dictionary."""

    compacted = None

    def __init__(
        self,
        name: str = "persistent://public/default/t",
        run_queue: RunQueue | None = None,
        **changed: Any,
    ) -> None:
        self.name = TopicName.parse(name)
        self.settings = Settings(**{"activeConsumerFailoverDelayTimeMillis": 0, **changed})
        self.policies = effective(self.settings, {}, {})
        self.ledger = FakeLedger()
        self.clock = FakeClock()
        self.run_queue = RunQueue(self.clock) if run_queue is None else run_queue
        self.cache_budget = CacheBudget(1 << 30)
        self.cache = TopicCache(self.cache_budget)
        self.delayed = DelayedDelivery(self)
        self.broker_unacked = BrokerUnacked(0, 0)
        self.dispatch_limits = ()
        self.stored: dict[Position, tuple[bytes, int, bool]] = {}
        self.entries = self.registry = self

    def publish(self, messages: int = 1, marker: bool = False, key: str | None = None) -> Entry:
        """Store an entry and put it into the cache."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        if key is not None:
            metadata.partition_key = key
        if marker:
            metadata.marker_type = 10
        data = build_entry(metadata, b"")
        position = self.ledger.append()
        self.stored[position] = (data, messages, marker)
        entry = self._entry(position)
        self.cache.append(*position, [entry], len(data))
        return entry

    def _entry(self, position: Position) -> Entry:
        data, messages, marker = self.stored[position]
        ledger_id, entry_id = position
        return Entry(data, messages, messages > 1, marker, ledger_id=ledger_id, entry_id=entry_id)

    def valid_position_at_or_after(self, position: Position) -> Position:
        return self.ledger.valid_position_at_or_after(position)

    def read_cached(self, position: Position, max_entries: int, max_bytes: int):
        if position > self.ledger.last_confirmed:
            return []
        return self.cache.read(position, max_entries, max_bytes)

    def cached_entry(self, position: Position) -> Entry | None:
        found = self.cache.read(position, 1, 1)
        return found[0] if found and found[0].position == position else None

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        await self._later()
        first = bisect_left(self.ledger.positions, position)
        return [self._entry(p) for p in self.ledger.positions[first : first + max_entries]]

    def _later(self) -> asyncio.Future[None]:
        """A future that is done in a later turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.run_queue.call(lambda: future.done() or future.set_result(None))
        return future

    def idle(self, subscription: Subscription) -> None: ...


class Bench:
    """A subscription with its consumers; ``taken`` are deliveries since the last call."""

    def __init__(self, sub_type: SubType | TypeSpec, *, durable: bool = False, **changed: Any):
        self.spec = sub_type if isinstance(sub_type, TypeSpec) else TypeSpec(sub_type)
        self.topic = FakeTopic(**changed)
        cursor = Cursor.non_durable("s", EARLIEST, self.topic.ledger, self.topic.clock)
        if durable:
            cursor.identity = cursor.identity._replace(cursor_id=1)
        self.subscription = Subscription(self.topic, "s", cursor)
        self.connection = FakeClient()
        self.consumers: dict[str, Consumer] = {}

    def connect(
        self,
        name: str,
        priority: int = 0,
        key_ranges: tuple[tuple[int, int], ...] = (),
        connection: FakeClient | None = None,
    ) -> Consumer:
        consumer = Consumer(
            self.subscription,
            connection or self.connection,
            len(self.consumers),
            name,
            priority=priority,
            epoch=None,
            metadata={},
            connected_since_ms=0,
            key_ranges=key_ranges,
        )
        consumer.greeted = True
        self.subscription.use_type(self.spec)
        self.subscription.add_consumer(consumer)
        self.consumers[name] = consumer
        return consumer

    def publish(self, count: int = 1, messages: int = 1, key: str | None = None) -> list[Entry]:
        """Publish entries that become durable together."""
        entries = [self.topic.publish(messages, key=key) for _ in range(count)]
        first = entries[0]
        self.subscription.dispatcher.published(first.ledger_id, first.entry_id, entries)
        return entries

    def flow(self, name: str, permits: int) -> None:
        self.subscription.flow(self.consumers[name], permits, 0)

    def ack(self, name: str, *entry_ids: int) -> None:
        """Acknowledge entries of the first ledger."""
        acks = [(Position(LEDGER, i), None, None) for i in entry_ids]
        self.subscription.acks.individual(self.consumers[name], acks, None, 0)
        self.subscription.dispatcher.pump()

    def leave(self, name: str) -> None:
        self.subscription.remove_consumers((self.consumers.pop(name),))

    def taken(self) -> list[tuple[str, int, int]]:
        """Consumer, entry id and redelivery count of what was sent."""
        received, self.connection.received = self.connection.received, []
        return [(consumer.name, entry.entry_id, times) for consumer, entry, times, _ in received]
