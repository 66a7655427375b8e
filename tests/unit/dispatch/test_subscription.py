"""The pump of a subscription, with a scripted topic, sockets that only note, and no clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsark.config import Settings
from pulsark.dispatch.cache import CacheBudget, TopicCache
from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.policies import effective
from pulsark.dispatch.subscription import Subscription
from pulsark.dispatch.subscription_type import SubType, TypeSpec
from pulsark.errors import ClientError, ServerError
from pulsark.storage.cursor import Cursor
from pulsark.storage.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName

LEDGER = 7


class FakeClock:
    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


class FakeLedger:
    """One open ledger with entries 0..n-1."""

    is_terminated = False

    def __init__(self) -> None:
        self.count = 0

    @property
    def last_confirmed(self) -> Position:
        return Position(LEDGER, self.count - 1) if self.count else Position(-1, -1)

    def next_position(self, position: Position) -> Position:
        return Position(LEDGER, position.entry_id + 1 if position.ledger_id == LEDGER else 0)

    def valid_position_at_or_after(self, position: Position) -> Position:
        return max(position, Position(LEDGER, 0))

    def entries_between(self, after: Position, last: Position) -> int:
        low = after.entry_id if after.ledger_id == LEDGER else -1
        return max(last.entry_id - low, 0) if last.ledger_id == LEDGER else 0


class FakeTopic:
    def __init__(self, **changed: object) -> None:
        self.name = TopicName.parse("persistent://public/default/t")
        self.settings = Settings(**{"activeConsumerFailoverDelayTimeMillis": 0, **changed})
        self.policies = effective(self.settings, {}, {})
        self.clock = FakeClock()
        self.ledger = FakeLedger()
        self.cache = TopicCache(CacheBudget(1 << 30))

    def publish(self, messages: int = 1, marker: bool = False) -> Position:
        entry_id = self.ledger.count
        entry = Entry(b"", messages, messages > 1, marker, ledger_id=LEDGER, entry_id=entry_id)
        self.ledger.count += 1
        self.cache.append(LEDGER, entry_id, [entry], 0)
        return entry.position

    def read_cached(self, position, max_entries, max_bytes):
        if position > self.ledger.last_confirmed:
            return []
        return self.cache.read(position, max_entries, max_bytes)

    def cached_entry(self, position):
        found = self.cache.read(position, 1, 1)
        return found[0] if found and found[0].position == position else None

    def acknowledged(self, subscription) -> None: ...

    def subscription_idle(self, subscription) -> None: ...


class FakeConnection:
    writable = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.actives: list[tuple[str, bool]] = []

    def send_message(self, consumer, entry, redeliveries, ack_set) -> None:
        self.sent.append((consumer.name, entry.entry_id, redeliveries))

    def send_active_change(self, consumer, is_active) -> None:
        self.actives.append((consumer.name, is_active))


class Bench:
    """A subscription with its consumers; ``taken`` are deliveries since the last call."""

    def __init__(self, sub_type: SubType, **changed: object) -> None:
        self.topic = FakeTopic(**changed)
        cursor = Cursor.non_durable("s", EARLIEST, self.topic.ledger, FakeClock())
        self.subscription = Subscription(self.topic, "s", cursor)
        self.connection = FakeConnection()
        self.sub_type = sub_type
        self.consumers: dict[str, Consumer] = {}

    def connect(self, name: str, priority: int = 0) -> Consumer:
        consumer = Consumer(
            self.subscription,
            self.connection,
            len(self.consumers),
            name,
            priority=priority,
            epoch=None,
            metadata={},
            connected_since_ms=0,
        )
        self.subscription.use_type(TypeSpec(self.sub_type))
        self.subscription.add_consumer(consumer)
        self.consumers[name] = consumer
        return consumer

    def publish(self, count: int = 1, messages: int = 1) -> None:
        for _ in range(count):
            self.topic.publish(messages)
        self.subscription.pump()

    def flow(self, name: str, permits: int) -> None:
        self.subscription.flow(self.consumers[name], permits, 0)

    def ack(self, name: str, *entry_ids: int) -> None:
        acks = [(Position(LEDGER, i), None, None) for i in entry_ids]
        self.subscription.ack(self.consumers[name], acks, None, 0)
        self.subscription.pump()

    def leave(self, name: str) -> None:
        self.subscription.remove_consumer(self.consumers.pop(name))

    def taken(self) -> list[tuple[str, int, int]]:
        sent, self.connection.sent = self.connection.sent, []
        return sent


@pytest.fixture(autouse=True)
def loop():
    """Subscriptions need a loop to schedule on; nothing here lets it run."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncio.events._set_running_loop(loop)
    yield loop
    asyncio.events._set_running_loop(None)
    loop.close()


@pytest.mark.feature("F13")
@pytest.mark.command("FLOW")
def test_nothing_goes_out_without_permits() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.publish(3)
    assert bench.taken() == []
    bench.flow("a", 2)
    assert bench.taken() == [("a", 0, 0), ("a", 1, 0)]
    bench.flow("a", 5)
    assert bench.taken() == [("a", 2, 0)]


@pytest.mark.feature("F13")
def test_a_batch_is_never_split_and_costs_its_messages() -> None:
    bench = Bench(SubType.Exclusive)
    consumer = bench.connect("a")
    bench.flow("a", 5)
    bench.publish(3, messages=4)
    assert [e for _, e, _ in bench.taken()] == [0, 1]
    assert consumer.permits == -3
    bench.flow("a", 3)
    assert bench.taken() == []
    bench.flow("a", 1)
    assert bench.taken() == [("a", 2, 0)]


def test_markers_are_skipped_and_acknowledged() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.flow("a", 9)
    bench.topic.publish(marker=True)
    bench.publish()
    assert bench.taken() == [("a", 1, 0)]
    bench.ack("a", 1)
    assert bench.subscription.cursor.backlog() == 0


def test_exclusive_redelivers_from_the_first_unacknowledged() -> None:
    bench = Bench(SubType.Exclusive)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(4)
    bench.ack("a", 0, 2)
    bench.taken()
    bench.subscription.redeliver(consumer, [Position(LEDGER, 3)], None)
    assert [e for _, e, _ in bench.taken()] == [1, 3]


def test_a_new_exclusive_consumer_gets_what_the_old_one_left() -> None:
    bench = Bench(SubType.Exclusive)
    bench.connect("a")
    bench.flow("a", 9)
    bench.publish(3)
    bench.ack("a", 0)
    bench.leave("a")
    bench.taken()
    bench.connect("b")
    bench.flow("b", 9)
    assert bench.taken() == [("b", 1, 0), ("b", 2, 0)]


@pytest.mark.feature("F31")
@pytest.mark.command("ACTIVE_CONSUMER_CHANGE")
def test_failover_tells_who_is_active_and_hands_over() -> None:
    bench = Bench(SubType.Failover)
    for name in ("a", "b"):
        bench.connect(name)
        bench.flow(name, 9)
    active = bench.subscription.type.active
    assert active is not None
    standby = next(c for c in bench.consumers.values() if c is not active)
    bench.publish(2)
    assert bench.taken() == [(active.name, 0, 0), (active.name, 1, 0)]
    bench.connection.actives.clear()
    bench.leave(active.name)
    assert bench.connection.actives == [(standby.name, True)]
    assert bench.taken() == [(standby.name, 0, 0), (standby.name, 1, 0)]


@pytest.mark.feature("F32")
def test_shared_replays_lowest_first_before_new_entries() -> None:
    bench = Bench(SubType.Shared)
    bench.connect("a")
    bench.connect("b")
    bench.flow("a", 2)
    bench.flow("b", 2)
    bench.publish(6)
    assert len(bench.taken()) == 4
    bench.leave("b")
    bench.flow("a", 9)
    assert [e for _, e, _ in bench.taken()] == [2, 3, 4, 5]


def test_shared_counts_only_redeliveries_that_were_asked_for() -> None:
    bench = Bench(SubType.Shared)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(2)
    bench.taken()
    bench.subscription.redeliver(consumer, [Position(LEDGER, 1), Position(LEDGER, 99)], None)
    bench.subscription.pump()
    assert bench.taken() == [("a", 1, 1)]
    bench.subscription.redeliver(consumer, None, None)
    bench.subscription.pump()
    assert bench.taken() == [("a", 0, 1), ("a", 1, 2)]


@pytest.mark.feature("F16")
def test_an_ack_from_another_consumer_releases_the_owner() -> None:
    bench = Bench(SubType.Shared)
    owner = bench.connect("a")
    bench.connect("b")
    bench.flow("a", 1)
    bench.publish(1)
    assert owner.unacked == 1
    bench.ack("b", 0)
    assert owner.unacked == 0
    assert owner.pending == {}
    bench.leave("a")
    bench.flow("b", 5)
    assert bench.taken() == [("a", 0, 0)]


def test_one_ack_may_name_many_entries_of_another_consumer_and_twice() -> None:
    bench = Bench(SubType.Shared)
    owner = bench.connect("a")
    bench.connect("b")
    bench.flow("a", 300)
    bench.publish(300)
    bench.ack("b", *range(200), *range(200), 999)
    assert owner.unacked == bench.subscription.unacked == 100
    assert min(owner.pending) == Position(LEDGER, 200)


def test_a_consumer_with_too_much_unacknowledged_waits_until_half() -> None:
    bench = Bench(SubType.Shared, maxUnackedMessagesPerConsumer=4)
    bench.subscription.cursor.identity = bench.subscription.cursor.identity._replace(cursor_id=1)
    bench.connect("a")
    bench.flow("a", 99)
    bench.publish(6)
    assert len(bench.taken()) == 4
    bench.ack("a", 0)
    assert bench.taken() == []
    bench.ack("a", 1)
    assert [e for _, e, _ in bench.taken()] == [4, 5]


@pytest.mark.feature("F19")
def test_cumulative_ack_is_refused_on_shared() -> None:
    bench = Bench(SubType.Shared)
    consumer = bench.connect("a")
    bench.publish(2)
    with pytest.raises(ClientError) as refused:
        bench.subscription.ack_cumulative(consumer, Position(LEDGER, 1), None, None, 0)
    assert refused.value.code == ServerError.NotAllowedError
    assert bench.subscription.cursor.backlog() == 2


def test_the_type_changes_only_without_consumers() -> None:
    bench = Bench(SubType.Shared)
    bench.connect("a")
    with pytest.raises(ClientError) as refused:
        bench.subscription.use_type(TypeSpec(SubType.Exclusive))
    assert refused.value.code == ServerError.ConsumerBusy
    bench.leave("a")
    bench.subscription.use_type(TypeSpec(SubType.Exclusive))


@pytest.mark.feature("F12")
def test_batch_index_acks_reach_the_consumer_again_in_part() -> None:
    bench = Bench(SubType.Shared, acknowledgmentAtBatchIndexLevelEnabled=True)
    consumer = bench.connect("a")
    bench.flow("a", 9)
    bench.publish(1, messages=3)
    bench.subscription.ack(consumer, [(Position(LEDGER, 0), [0b101], 3)], None, 0)
    assert consumer.unacked == 2
    bench.leave("a")
    again = bench.connect("b")
    bench.flow("b", 9)
    assert again.permits == 7


class SharedMachine(RuleBasedStateMachine):
    """Random life of a Shared subscription against the plain facts of what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.events._set_running_loop(self.loop)
        self.bench = Bench(SubType.Shared)
        self.acked: set[int] = set()
        self.numbers = 0

    def teardown(self) -> None:
        asyncio.events._set_running_loop(None)
        self.loop.close()

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        self.bench.publish(count)

    @rule(priority=st.integers(0, 1))
    def connect(self, priority: int) -> None:
        self.numbers += 1
        self.bench.connect(f"c{self.numbers}", priority)

    @precondition(lambda self: self.bench.consumers)
    @rule(data=st.data(), permits=st.integers(1, 5))
    def flow(self, data, permits: int) -> None:
        self.bench.flow(data.draw(st.sampled_from(sorted(self.bench.consumers))), permits)

    @precondition(lambda self: any(c.pending for c in self.bench.consumers.values()))
    @rule(data=st.data())
    def ack(self, data) -> None:
        name, position = data.draw(st.sampled_from(self.held()))
        self.bench.ack(name, position.entry_id)
        self.acked.add(position.entry_id)

    @precondition(lambda self: any(c.pending for c in self.bench.consumers.values()))
    @rule(data=st.data())
    def redeliver(self, data) -> None:
        name, position = data.draw(st.sampled_from(self.held()))
        self.bench.subscription.redeliver(self.bench.consumers[name], [position], None)
        self.bench.subscription.pump()

    @precondition(lambda self: self.bench.consumers)
    @rule(data=st.data())
    def leave(self, data) -> None:
        self.bench.leave(data.draw(st.sampled_from(sorted(self.bench.consumers))))

    def held(self) -> list[tuple[str, Position]]:
        return [(n, p) for n, c in sorted(self.bench.consumers.items()) for p in sorted(c.pending)]

    @invariant()
    def each_entry_has_at_most_one_owner_and_acked_ones_none(self) -> None:
        owned = [p.entry_id for _, p in self.held()]
        assert len(owned) == len(set(owned))
        assert not self.acked & set(owned)

    @invariant()
    def permits_are_kept_and_counts_agree(self) -> None:
        for consumer in self.bench.consumers.values():
            assert consumer.permits >= 0
            assert consumer.unacked == sum(consumer.pending.values())
        total = sum(c.unacked for c in self.bench.consumers.values())
        assert self.bench.subscription.unacked == total
        backlog = self.bench.topic.ledger.count - len(self.acked)
        assert self.bench.subscription.cursor.backlog() == backlog

    @invariant()
    def nothing_is_lost_and_nothing_waits_beside_free_permits(self) -> None:
        if not any(c.permits > 0 for c in self.bench.consumers.values()):
            return
        owned = {p.entry_id for _, p in self.held()}
        assert owned | self.acked == set(range(self.bench.topic.ledger.count))


SharedMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestSharedMachine = SharedMachine.TestCase
