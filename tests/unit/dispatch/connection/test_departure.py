"""Very many consumers, producers or entries leave in many turns, and all of them leave."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise

import pytest

from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.model.subscription_type import SubType, TypeSpec
from pulsark.dispatch.subscription import dispatcher, pending
from pulsark.dispatch.subscription.hash_ranges import range_slot
from pulsark.dispatch.subscription.reader import READ_ENTRIES
from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX, CONSUMERS_TOLD_AT_ONCE_MAX, TURN_SECONDS
from pulsark.wire.hashes import murmur3_32
from pulsark.wire.position import Position
from tests.support.broker_clients import (
    FAILOVER,
    KEY_SHARED,
    NAME,
    SHARED,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
    scenario,
)
from tests.support.subscription_bench import LEDGER, Bench
from tests.support.ticking_clock import TickingClock, use_queue_of

STEPS_PER_TURN = 2

Keys = dict[str, str]
"""Keys by the consumer that gets them."""


def use_slow_steps(broker: BrokerInMemory) -> None:
    """Each step of what stands in the run queue takes half a turn. For topics loaded later."""
    use_queue_of(broker, TickingClock(TURN_SECONDS / STEPS_PER_TURN))


async def join_all(client: Client, count: int, kind: int, topic: str = TOPIC) -> None:
    for number in range(count):
        fields = {"kind": kind, "consumer_id": number, "consumer_name": f"c{number}"}
        client.send(client.subscribe_command(topic, **fields))
    for _ in range(count):
        await client.take(Command.SUCCESS)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("kind", [FAILOVER, SHARED, KEY_SHARED])
def test_many_consumers_leave_some_in_each_turn(kind: int, domain: str) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        use_slow_steps(broker)
        topic = TOPIC.replace("persistent", domain)
        client, other = Client(broker), Client(broker)
        await other.subscribe(topic, kind=kind, consumer_name="d")
        await join_all(client, 100, kind, topic)
        subscription = other.connection.opened.consumers[1].subscription
        count = [subscription.type.consumer_count]
        client.connection.connection_lost(None)
        while len(broker.broker.run_queue):
            count.append(subscription.type.consumer_count)
            await asyncio.sleep(0)
        assert count[0] == 101
        most = max(before - after for before, after in pairwise(count))
        assert most <= STEPS_PER_TURN * CONSUMERS_LEAVING_AT_ONCE_MAX
        assert subscription.type.consumers == [other.connection.opened.consumers[1]]

    run()


@pytest.mark.parametrize("how", ["leaves", "asks again", "leaves, and a seek"])
@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
def test_very_many_entries_are_given_back_some_in_each_turn(sub_type, how, monkeypatch) -> None:
    count = 3 * READ_ENTRIES + 7

    async def run() -> None:
        bench = Bench(sub_type)
        bench.topic.run_queue = RunQueue(TickingClock(TURN_SECONDS / STEPS_PER_TURN))
        bench.connect("a")
        bench.flow("a", count)
        bench.publish(count)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(bench.consumers["a"].pending) == count
        bench.connect("b")
        bench.taken()
        given_back: list[Position] = []
        give_back = bench.subscription.type.give_back
        monkeypatch.setattr(
            bench.subscription.type, "give_back", lambda p: [given_back.append(p), give_back(p)]
        )
        left = bench.consumers["a"]
        if how == "asks again":
            left.permits = 0
            bench.subscription.redeliver(left, None, None)
        else:
            bench.leave("a")
        bench.flow("b", 2 * count)
        assert bench.taken() == []  # not before all wait
        # Somebody acknowledges one that is on its way, and one that waits.
        acked = [Position(LEDGER, 0), Position(LEDGER, count - 1)]
        bench.subscription.acks.erased([(p, None, None) for p in acked])
        if how == "leaves, and a seek":
            bench.subscription.dispatcher.rewind()
        most = 0
        while len(bench.topic.run_queue):
            before = len(given_back)
            await asyncio.sleep(0)
            most = max(most, len(given_back) - before)
        assert most <= STEPS_PER_TURN * READ_ENTRIES
        taken = bench.taken()
        if how == "asks again" and sub_type == SubType.Key_Shared:
            return  # what becomes of slots that drain is told elsewhere
        assert [name for name, _, _ in taken] == ["b"] * (count - 2)
        assert [entry_id for _, entry_id, _ in taken] == list(range(1, count - 1))
        assert {again for _, _, again in taken} == {1 if how == "asks again" else 0}

    asyncio.run(run())


@pytest.mark.parametrize("then", ["goes on", "redelivers", "seeks back"])
@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
def test_very_many_pending_entries_are_skipped_some_in_each_turn(sub_type, then, monkeypatch):
    count = 6 * READ_ENTRIES + 7
    through = count - 3

    async def run() -> None:
        bench = Bench(sub_type)
        bench.topic.run_queue = RunQueue(TickingClock(TURN_SECONDS / STEPS_PER_TURN))
        consumer = bench.connect("a")
        bench.flow("a", 2 * count)
        bench.publish(count)
        subscription, type_ = bench.subscription, bench.subscription.type
        if then == "redelivers":  # each entry has a redelivery count, too
            subscription.redeliver(consumer, None, None)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(consumer.pending) == consumer.unacked == count
        bench.taken()
        forgotten: list[Position] = []
        forget = type_.forget
        monkeypatch.setattr(type_, "forget", lambda p: [forgotten.append(p), forget(p)])

        subscription.acks.pass_over(Position(LEDGER, through))
        most = len(forgotten)
        if then == "seeks back":
            subscription.cursor.state.reset(Position(LEDGER, -1))
            subscription.dispatcher.rewind()
            subscription.pending.clear()
            bench.flow("a", count)
            subscription.dispatcher.pump()
        while len(bench.topic.run_queue):
            before = len(forgotten)
            await asyncio.sleep(0)
            most = max(most, len(forgotten) - before)
        assert most <= 2 * STEPS_PER_TURN * READ_ENTRIES
        left = range(count) if then == "seeks back" else range(through + 1, count)
        assert sorted(p.entry_id for p in consumer.pending) == list(left)
        assert consumer.unacked == len(left)

    asyncio.run(run())


def three_who_share_keys(monkeypatch: pytest.MonkeyPatch, look_ahead: int) -> tuple[Bench, Keys]:
    """Key_Shared consumers a, b and c, and a key of each. Each step of the run queue is a turn."""
    name = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
    monkeypatch.setattr(dispatcher, "READ_ENTRIES", 4)
    bench = Bench(TypeSpec(SubType.Key_Shared, sticky=True), **{name: look_ahead})
    bench.topic.run_queue = RunQueue(TickingClock(TURN_SECONDS))
    keys: Keys = {}
    for number, consumer in enumerate("abc"):
        bench.connect(consumer, key_ranges=((20000 * number, 20000 * number + 19999),))
        slots = range(20000 * number, 20000 * number + 20000)
        keys[consumer] = next(k for k in map(str, count()) if range_slot(murmur3_32(k)) in slots)
    return bench, keys


async def settle(bench: Bench) -> None:
    """Go on until nothing is under way."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not len(bench.topic.run_queue)


@pytest.mark.parametrize("how", ["put aside", "given back", "asked for again"])
def test_skipped_entries_do_not_use_up_the_look_ahead(how: str, monkeypatch) -> None:
    """A consumer without permits holds nobody up with entries that are skipped."""

    async def run() -> None:
        bench, keys = three_who_share_keys(monkeypatch, look_ahead=30)
        bench.flow("c", 100)
        if how == "given back":
            bench.flow("a", 10)
        bench.publish(10, key=keys["a"])
        if how == "given back":
            bench.leave("a")
            bench.connect("a", key_ranges=((0, 19999),))
        bench.flow("b", 20)
        bench.publish(20, key=keys["b"])
        await settle(bench)
        if how == "asked for again":  # many redelivery counts of entries that are not skipped
            bench.subscription.redeliver(bench.consumers["b"], None, None)
        else:
            bench.publish(20, key=keys["a"])
        await settle(bench)
        assert bench.subscription.type.replay_count == 30
        bench.taken()
        last = bench.publish(3, key=keys["c"])
        await settle(bench)
        assert bench.taken() == []

        bench.subscription.acks.pass_over(Position(LEDGER, 9))
        await settle(bench)
        assert [entry_id for _, entry_id, _ in bench.taken()] == [e.entry_id for e in last]
        assert bench.subscription.type.replay_count == 20

    asyncio.run(run())


def test_skipped_entries_that_a_consumer_asks_for_again_are_forgotten(monkeypatch) -> None:
    async def run() -> None:
        bench, keys = three_who_share_keys(monkeypatch, look_ahead=30)
        monkeypatch.setattr(pending, "READ_ENTRIES", 4)
        bench.flow("a", 20)
        bench.publish(20, key=keys["a"])
        await settle(bench)
        subscription = bench.subscription
        subscription.acks.pass_over(Position(LEDGER, 14))
        subscription.redeliver(bench.consumers["a"], None, None)
        await settle(bench)
        assert subscription.type.replay_count == 5
        assert len(subscription.dispatcher._redeliveries) == 5
        assert subscription.dispatcher.unacked.messages == 0

    asyncio.run(run())


def test_acknowledging_all_that_waits_makes_room_to_look_ahead(monkeypatch) -> None:
    async def run() -> None:
        bench, keys = three_who_share_keys(monkeypatch, look_ahead=2)
        bench.flow("a", 2)
        bench.flow("b", 9)
        bench.publish(2, key=keys["a"])
        bench.subscription.redeliver(bench.consumers["a"], None, None)
        bench.publish(3, key=keys["b"])
        await settle(bench)
        assert [entry_id for _, entry_id, _ in bench.taken()] == [0, 1]
        acks = [(Position(LEDGER, entry_id), None, None) for entry_id in (0, 1)]
        bench.subscription.acks.individual(bench.consumers["a"], acks, None, 0)
        await settle(bench)
        assert [entry_id for _, entry_id, _ in bench.taken()] == [2, 3, 4]

    asyncio.run(run())


@pytest.mark.parametrize("sub_type", list(SubType))
def test_a_skip_during_a_read_reads_nothing_of_what_it_skips(sub_type: SubType) -> None:
    async def run() -> None:
        bench = Bench(sub_type)
        bench.connect("a")
        bench.publish(3 * READ_ENTRIES)
        bench.topic.cache.clear()
        bench.flow("a", 10)
        await asyncio.sleep(0)
        dispatcher = bench.subscription.dispatcher
        assert dispatcher._read.position == Position(LEDGER, 0)
        bench.subscription.acks.pass_over(Position(LEDGER, 3 * READ_ENTRIES - 3))
        places = []
        while not bench.connection.received:
            await asyncio.sleep(0)
            places.append(dispatcher.reader.position.entry_id)
        assert min(places) >= 3 * READ_ENTRIES - 2
        assert [entry_id for _, entry_id, _ in bench.taken()] == [
            3 * READ_ENTRIES - 2,
            3 * READ_ENTRIES - 1,
        ]

    asyncio.run(run())


@scenario()
async def test_many_producers_leave_some_in_each_turn(broker: BrokerInMemory) -> None:
    use_slow_steps(broker)
    client = Client(broker)
    for number in range(100):
        await client.open_producer(TOPIC, f"p{number}", number)
    producers = (await broker.broker.topics.load(NAME)).producers
    count = [len(producers)]
    client.connection.connection_lost(None)
    while producers:
        count.append(len(producers))
        await asyncio.sleep(0)
    assert count[0] == 100
    assert max(before - after for before, after in pairwise(count)) <= STEPS_PER_TURN


@scenario()
async def test_many_hear_of_a_new_active_one_some_in_each_turn_and_the_last_word_is_right(
    broker: BrokerInMemory,
) -> None:
    use_slow_steps(broker)
    client, first, best = Client(broker), Client(broker), Client(broker)
    await join_all(client, 400, FAILOVER)
    for one, level in ((first, -1), (best, -2)):
        fields = {"kind": FAILOVER, "consumer_name": "best", "priority_level": level}
        await one.subscribe(TOPIC, **fields)
    await asyncio.sleep(1)
    client.has(Command.ACTIVE_CONSUMER_CHANGE)
    client.answers.clear()
    told = []
    first.connection.connection_lost(None)
    best.connection.connection_lost(None)
    while not told or len(broker.broker.run_queue):
        await asyncio.sleep(0)
        client.has(Command.ACTIVE_CONSUMER_CHANGE)
        told.append(len(client.answers))
    await asyncio.sleep(0.001)
    client.has(Command.ACTIVE_CONSUMER_CHANGE)
    most = max(after - before for before, after in pairwise([0, *told]))
    assert most <= STEPS_PER_TURN * CONSUMERS_TOLD_AT_ONCE_MAX
    last_words = {}
    for answer in client.answers:
        change = answer.active_consumer_change
        last_words[change.consumer_id] = change.is_active
    active = next(iter(client.connection.opened.consumers.values())).subscription.type.active
    assert last_words == {n: n == active.consumer_id for n in range(400)}
