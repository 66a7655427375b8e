"""A bundle leaves its broker, by intent or not, and its topics and clients go along."""

from __future__ import annotations

import asyncio
from copy import copy

import pytest

from pulsark.dispatch.connection import opened
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.policies.policies import TopicPolicies
from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.topics import bundle_release
from pulsark.dispatch.topics.bundles import Covered
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.namespaces import even_boundaries
from pulsark.metadata.paths import bundle_owner_path
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import NAME, TOPIC, BrokerInMemory, Client, Command, scenario
from tests.support.wire_frames import publish

NOT_READY = int(ServerError.ServiceNotReady)
ONLY_TWO = {
    "namespaces": ["public/.*"],
    "primary": ["b2.*"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "100"},
    },
}
"""An isolation policy."""


async def attached(broker: BrokerInMemory) -> Client:
    """A client that has published one entry, and subscribed."""
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC) == 0
    return client


@scenario()
async def test_clients_and_entries_are_the_next_owners(broker) -> None:
    client = await attached(broker)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    topic = broker.broker.topics.get_loaded(NAME)
    assert await broker.broker.bundle_release.release(bundle)
    await client.take(Command.CLOSE_PRODUCER)
    await client.take(Command.CLOSE_CONSUMER)
    assert topic.closed
    assert broker.broker.topics.served() == []
    assert broker.broker.ownership.owned() == []
    assert broker.metadata.tree.get(bundle_owner_path(bundle)) is None
    assert not await broker.broker.bundle_release.release(bundle)
    later = Client(two)
    await later.produce(TOPIC, 1)
    assert await later.subscribe(TOPIC) == 0
    assert len(await later.deliveries()) == 2
    assert two.broker.topics.get_loaded(NAME).ledger.entries == 2
    # Its ledgers were closed in order: there was nothing to be recovered.
    assert two.broker.topics.get_loaded(NAME).ledger.record.ledgers[0].entries == 1
    found = await broker.broker.lookup.find(NAME)
    assert found.urls.broker == "pulsar://b2:6650"
    assert await client.subscribe(TOPIC) == NOT_READY
    with pytest.raises(ClientError, match="owned by another broker"):
        await broker.broker.topics.load(NAME)


@scenario()
async def test_whoever_is_cancelled_releases_all_the_same(broker) -> None:
    await attached(broker)
    (bundle,) = broker.broker.ownership.owned()
    releasing = [
        asyncio.create_task(broker.broker.bundle_release.release(bundle)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    releasing[0].cancel()
    assert await asyncio.gather(*releasing[1:]) == [True, True]
    assert broker.broker.ownership.owned() == []


@scenario()
async def test_a_topic_that_is_being_loaded_does_not_stay_behind(broker) -> None:
    """At whatever step of its load the release begins."""
    await attached(broker)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    for steps in range(0, 60, 3):
        one, other = (broker, two) if broker.broker.ownership.owned() else (two, broker)
        await one.broker.topics.unload(NAME)
        loading = asyncio.create_task(one.broker.topics.load(NAME))
        for _ in range(steps):
            await asyncio.sleep(0)
        await one.broker.bundle_release.release(bundle)
        (found,) = await asyncio.gather(loading, return_exceptions=True)
        assert found.code == NOT_READY if isinstance(found, ClientError) else found.closed
        assert one.broker.topics.served() == []
        await other.broker.topics.load(NAME)
        assert other.broker.ownership.owned() == [bundle]


@scenario()
async def test_a_non_persistent_topic_that_is_being_made_does_not_stay_behind(broker) -> None:
    """At whatever step of the release the topic is ready."""
    await attached(broker)
    await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    names = [NAME.parse(f"non-persistent://public/default/n{number}") for number in range(100)]
    inside = [name for name in names if name in Covered(bundle)]
    found_policies = broker.broker.policy_source.current
    for steps, name in enumerate(inside[:20]):
        await broker.broker.topics.load(NAME)
        goes_on = asyncio.Event()

        async def slow(name: TopicName, goes_on: asyncio.Event = goes_on) -> TopicPolicies:
            await goes_on.wait()
            return await found_policies(name)

        broker.broker.policy_source.current = slow
        opening = asyncio.create_task(broker.broker.topics.open(name, create=True))
        await asyncio.sleep(0.01)
        releasing = asyncio.create_task(broker.broker.bundle_release.release(bundle))
        for _ in range(steps):
            await asyncio.sleep(0)
        goes_on.set()
        found, released = await asyncio.gather(opening, releasing, return_exceptions=True)
        broker.broker.policy_source.current = found_policies
        assert released is True
        assert found.code == NOT_READY if isinstance(found, ClientError) else found.closed
        assert broker.broker.topics.served() == []


@scenario()
async def test_a_topic_whose_bundle_is_lost_while_it_is_loaded_is_not_served(broker) -> None:
    """Its record is written by then, and nothing else that the guard could refuse follows."""
    one = broker.broker
    guard = await one.ownership.guard(NAME)
    current, reached, let_go = one.policy_source.current, asyncio.Event(), asyncio.Event()

    async def held(name: TopicName) -> TopicPolicies:
        reached.set()
        await let_go.wait()
        return await current(name)

    one.policy_source.current = held
    loading = asyncio.create_task(one.topics.load(NAME, create=True))
    await reached.wait()
    one.ownership.lost(guard)
    await one.bundle_release.settled()
    let_go.set()
    with pytest.raises(ClientError, match="has moved") as refused:
        await loading
    assert refused.value.code is ServerError.ServiceNotReady
    assert one.topics.served() == []


@scenario()
async def test_with_its_session_a_broker_lets_all_clients_go(broker) -> None:
    client = await attached(broker)
    await client.subscribe("non-persistent://public/default/n", consumer_id=2)
    two = await broker.another()
    topic = broker.broker.topics.get_loaded(NAME)
    broker.metadata.expire()
    closed = [await client.take(Command.CLOSE_CONSUMER) for _ in range(2)]
    assert sorted(command.close_consumer.consumer_id for command in closed) == [1, 2]
    await client.take(Command.CLOSE_PRODUCER)
    await broker.broker.bundle_release.settled()
    assert broker.broker.topics.served() == []
    assert topic.closed
    later = Client(two)
    await later.produce(TOPIC, 1)
    assert two.broker.topics.get_loaded(NAME).ledger.entries == 2
    with pytest.raises(PulsarkError):
        await broker.broker.topics.load(NAME)
    with pytest.raises(ClientError, match="was not heard of"):
        await broker.broker.lookup.find(NAME)


@scenario()
async def test_a_refused_write_lets_the_clients_of_the_whole_bundle_go(broker) -> None:
    client = await attached(broker)
    other = "persistent://public/default/t4"
    assert await broker.broker.ownership.bundle_of(NAME.parse(other)) == (
        await broker.broker.ownership.bundle_of(NAME)
    )
    await client.subscribe(other, consumer_id=2)
    broker._tree.end_session(broker.metadata)  # and it has not heard of that
    two = await broker.another()
    await Client(two).produce(TOPIC, 1)
    stale = broker.broker.topics.get_loaded(NAME)
    with pytest.raises(PulsarkError):
        await stale.ledger.change_properties(lambda _: {"by": "the stale one"})
    closed = [await client.take(Command.CLOSE_CONSUMER) for _ in range(2)]
    assert sorted(command.close_consumer.consumer_id for command in closed) == [1, 2]
    await broker.broker.bundle_release.settled()
    assert broker.broker.topics.served() == []
    assert two.broker.topics.get_loaded(NAME).ledger.entries == 2
    assert not two.broker.topics.get_loaded(NAME).ledger.is_fenced


@scenario()
async def test_a_topic_that_cannot_be_closed_holds_the_bundle_for_a_time_only(broker) -> None:
    await attached(broker)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    async with broker.broker.topics.ending(NAME):
        releasing = asyncio.create_task(broker.broker.bundle_release.release(bundle))
        await asyncio.sleep(bundle_release.CLOSING_SECONDS - 1)
        with pytest.raises(ClientError, match="being unloaded"):
            await two.broker.lookup.find(NAME)
        await asyncio.sleep(2)
        assert await releasing
    await Client(two).produce(TOPIC, 1)
    assert two.broker.topics.get_loaded(NAME).ledger.entries == 2


@scenario()
async def test_many_topics_that_cannot_be_closed_hold_the_bundle_no_longer(
    broker, monkeypatch
) -> None:
    client = await attached(broker)
    monkeypatch.setattr(bundle_release, "WAITED_FOR_AT_ONCE", 1)
    others = [NAME.parse(f"{TOPIC}-{number}") for number in range(200)]
    bundle = await broker.broker.ownership.bundle_named(NAME)
    other = next(name for name in others if name in Covered(bundle))
    await client.produce(str(other), 1, producer_id=2)
    two = await broker.another()
    ledgers = [broker.broker.topics.get_loaded(name).ledger for name in (NAME, other)]
    async with ledgers[0].reservation(), ledgers[1].reservation():  # bulk publishes take long
        releasing = asyncio.create_task(broker.broker.bundle_release.release(bundle))
        await asyncio.sleep(bundle_release.CLOSING_SECONDS + 1)
        assert releasing.done()
        for name in (NAME, other):
            await Client(two).produce(str(name), 1)
            assert two.broker.topics.get_loaded(name).ledger.entries == 2
    await broker.broker.bundle_release.settled()
    assert broker.broker.topics.served() == []


@scenario()
async def test_non_persistent_topics_go_along(broker) -> None:
    client = Client(broker)
    name = "non-persistent://public/default/n"
    await client.produce(name, 1)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    opening = asyncio.create_task(broker.broker.topics.open(NAME.parse(f"{name}2"), create=True))
    await broker.broker.bundle_release.release_namespace("public/default")
    await asyncio.gather(opening, return_exceptions=True)
    await client.take(Command.CLOSE_PRODUCER)
    held = broker.broker.ownership.owned()
    for topic in broker.broker.topics.served():
        assert await broker.broker.ownership.bundle_named(topic.name) in held
    assert bundle not in held
    await Client(two).produce(name, 1)


@scenario()
async def test_a_broker_that_stops_leaves_nothing_to_be_recovered(broker) -> None:
    await attached(broker)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    await broker.broker.close()
    assert broker.metadata.tree.get(bundle_owner_path(bundle)) is None
    await asyncio.sleep(0.01)
    assert (await two.broker.lookup.find(NAME)).is_here
    await Client(two).produce(TOPIC, 1)
    assert two.broker.topics.get_loaded(NAME).ledger.entries == 2


@scenario()
async def test_a_session_that_ends_behind_its_broker_concerns_nobody(broker, caplog) -> None:
    await attached(broker)
    await broker.broker.close()
    tasks = asyncio.all_tasks()
    broker.metadata.expire()
    assert asyncio.all_tasks() == tasks
    assert "another broker" not in caplog.text


@scenario()
async def test_a_move_tells_clients_where_to_go_once_they_can_go_there(broker) -> None:
    client = await attached(broker)
    await client.deliveries()
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    moving = asyncio.create_task(broker.broker.bundle_release.release(bundle, "b2:8080"))
    while broker.broker.ownership.owned():
        assert not client.has(Command.CLOSE_PRODUCER)
        await asyncio.sleep(0)
    assert await moving
    produced = (await client.take(Command.CLOSE_PRODUCER)).close_producer
    consumed = (await client.take(Command.CLOSE_CONSUMER)).close_consumer
    assert produced.assignedBrokerServiceUrl == "pulsar://b2:6650"
    assert consumed.assignedBrokerServiceUrl == "pulsar://b2:6650"
    assert two.broker.ownership.owned() == [bundle]
    later = Client(two)
    assert await later.subscribe(TOPIC) == 0
    assert len(await later.deliveries()) == 1


@scenario()
async def test_what_is_published_before_a_move_is_answered_and_what_comes_then_is_not(
    broker,
) -> None:
    client = await attached(broker)
    two = await broker.another()
    (bundle,) = broker.broker.ownership.owned()
    topic = broker.broker.topics.get_loaded(NAME)
    closing, disconnect = asyncio.Event(), topic.disconnect

    def disconnected() -> None:
        client.send_bytes(b"".join(publish(1, number, b"x") for number in range(1, 4)))
        disconnect()
        closing.set()

    topic.disconnect = disconnected
    moving = asyncio.create_task(broker.broker.bundle_release.release(bundle, "b2:8080"))
    await closing.wait()
    client.send_bytes(b"".join(publish(1, number, b"x") for number in range(4, 6)))
    await moving
    await client.take(Command.CLOSE_PRODUCER)
    receipts = [a for a in client.answers if a.type == Command.SEND_RECEIPT]
    loaded = await two.broker.topics.load(NAME)
    assert len(receipts) == loaded.ledger.entries - 1 == 3
    assert not client.has(Command.SEND_ERROR)


@scenario()
async def test_clients_go_their_own_way_if_the_next_owner_does_not_come(broker) -> None:
    client = await attached(broker)
    two = await broker.another()
    two.broker.assigned_bundles.close()
    (bundle,) = broker.broker.ownership.owned()
    moving = asyncio.create_task(broker.broker.bundle_release.release(bundle, "b2:8080"))
    await asyncio.sleep(bundle_release.TAKING_SECONDS / 2)
    assert not client.has(Command.CLOSE_PRODUCER)
    gone = Client(broker)
    gone.hang_up()
    await moving
    closed = await client.take(Command.CLOSE_PRODUCER)
    assert closed.close_producer.assignedBrokerServiceUrl == ""
    found = await broker.broker.lookup.find(NAME)
    assert found.is_redirect
    assert found.broker_id == "b2:8080"
    two.metadata.expire()
    await asyncio.sleep(0.01)
    await Client(broker).produce(TOPIC, 1)


@scenario()
async def test_a_client_that_leaves_during_a_move_is_told_nothing(broker) -> None:
    client = await attached(broker)
    two = await broker.another()
    two.broker.assigned_bundles.close()
    (bundle,) = broker.broker.ownership.owned()
    moving = asyncio.create_task(broker.broker.bundle_release.release(bundle, "b2:8080"))
    await asyncio.sleep(1)
    client.hang_up()
    await asyncio.sleep(1)
    await moving
    assert not client.has(Command.CLOSE_PRODUCER)


@scenario()
async def test_a_broker_that_stops_gives_some_bundles_up_at_a_time(broker) -> None:
    await broker.broker.resources.namespaces.create("public/many", boundaries=even_boundaries(64))
    client = Client(broker)
    for number in range(100):
        await client.subscribe(f"persistent://public/many/t{number}", consumer_id=number)
    await broker.another()
    one = broker.broker
    held = one.ownership.owned()
    assert len(held) > 40
    release, under_way, most = one.bundle_release.release, set(), 0

    async def counted(bundle: str) -> bool:
        nonlocal most
        under_way.add(bundle)
        most = max(most, len(under_way))
        try:
            if bundle == held[1]:
                raise PulsarkError("this one cannot be released")
            return await release(bundle)
        finally:
            under_way.discard(bundle)

    one.bundle_release.release = counted
    await one.bundle_release.release_all()
    assert one.ownership.owned() == [held[1]]
    assert most == bundle_release.BUNDLES_AT_ONCE


@scenario()
async def test_of_a_lost_bundle_some_topics_are_closed_at_a_time(broker, monkeypatch) -> None:
    client = Client(broker)
    names = [f"persistent://public/default/t{number}" for number in range(400)]
    bundle = await broker.broker.ownership.bundle_named(NAME)
    inside = [name for name in names if NAME.parse(name) in Covered(bundle)]
    for number, name in enumerate(inside):
        await client.subscribe(name, consumer_id=number)
    under_way = most = 0
    close = Topic.close

    async def counted(topic: Topic) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await close(topic)
        under_way -= 1

    monkeypatch.setattr(Topic, "close", counted)
    broker.broker.ownership.lost(await broker.broker.ownership.guard(NAME))
    await broker.broker.bundle_release.settled()
    assert broker.broker.topics.served() == []
    assert len(inside) > 2 * bundle_release.AT_ONCE
    assert 1 < most <= bundle_release.AT_ONCE


def told(client: Client) -> list[int]:
    """The producers of which the client was told since the last call that they are closed."""
    client.has(Command.PING)
    closed = [a for a in client.answers if a.type == Command.CLOSE_PRODUCER]
    client.answers.clear()
    return [command.close_producer.producer_id for command in closed]


def heard(client: Client) -> list[int]:
    """The kinds of what the client was told since the last call."""
    client.has(Command.PING)
    kinds = [command.type for command in client.answers]
    client.answers.clear()
    return kinds


async def many(
    broker: BrokerInMemory, namespace: str, count: int
) -> tuple[Client, BrokerInMemory, list[str]]:
    """A bundle with so many topics in memory, each with a producer that has published once."""
    await broker.broker.resources.namespaces.create(namespace, boundaries=even_boundaries(1))
    client = Client(broker)
    names = [f"persistent://{namespace}/t{number}" for number in range(count)]
    for number, name in enumerate(names):
        await client.produce(name, 1, producer_id=number)
    two = await broker.another()
    heard(client)
    return client, two, names


@scenario()
async def test_clients_that_wait_are_told_of_a_move_first_and_the_others_some_at_a_time(
    broker,
) -> None:
    count = 3 * bundle_release.TOLD_AT_ONCE
    client, *_ = await many(broker, "public/one", count)
    (bundle,) = broker.broker.ownership.owned()
    moving = asyncio.create_task(broker.broker.bundle_release.release(bundle, "b2:8080"))
    leave = broker.broker.ownership.leave

    async def slow(bundle: str, to: str) -> None:
        await leave(bundle, to)
        left.set()

    left = asyncio.Event()
    broker.broker.ownership.leave = slow
    await left.wait()
    busy = [count - 1, count - 2]
    for number in busy:
        client.send_bytes(publish(number, 1, b"x"))
    await moving
    await asyncio.sleep(0)
    first = told(client)
    assert first[:2] == busy
    assert len(first) == bundle_release.TOLD_AT_ONCE + 2
    late = min(set(range(count)) - set(first))
    client.send_bytes(publish(late, 1, b"x"))  # it was not told yet, and is at once
    closed = (await client.take(Command.CLOSE_PRODUCER)).close_producer
    assert closed.producer_id == late
    assert closed.assignedBrokerServiceUrl == "pulsar://b2:6650"
    await asyncio.sleep(0)
    assert not client.has(Command.CLOSE_PRODUCER)
    await asyncio.sleep(2 * bundle_release.TELLING_SECONDS)
    assert len(heard(client)) == count - bundle_release.TOLD_AT_ONCE - len(busy) - 1
    assert broker.broker.bundle_release._moves == {}


@scenario()
async def test_what_a_consumer_says_hurries_its_move(broker) -> None:
    count = 2 * bundle_release.TOLD_AT_ONCE
    client, _, names = await many(broker, "public/one", count)
    for number, name in enumerate(names):
        await client.subscribe(name, consumer_id=number)
    (bundle,) = broker.broker.ownership.owned()
    await broker.broker.bundle_release.release(bundle, "b2:8080")
    await asyncio.sleep(0)
    late = min(set(range(count)) - set(told(client)))
    flow = Command(type=Command.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = late, 1
    client.send(flow)
    assert (await client.take(Command.CLOSE_CONSUMER)).close_consumer.consumer_id == late
    assert (await client.take(Command.CLOSE_PRODUCER)).close_producer.producer_id == late
    await asyncio.sleep(0)
    assert heard(client) == []


@scenario()
async def test_however_many_producers_move_none_is_unknown(broker, monkeypatch) -> None:
    monkeypatch.setattr(opened, "RECENTLY_CLOSED_PRODUCERS_MAX", 1)
    count = 2 * bundle_release.TOLD_AT_ONCE
    client, *_ = await many(broker, "public/one", count)
    (bundle,) = broker.broker.ownership.owned()
    await broker.broker.bundle_release.release(bundle, "b2:8080")
    await asyncio.sleep(0)
    for number in set(range(count)) - set(told(client)):
        client.send_bytes(publish(number, 1, b"x"))
        await client.take(Command.CLOSE_PRODUCER)
    assert not client.transport.closed


@scenario()
async def test_before_a_large_bundle_leaves_what_nobody_needs_is_closed(broker) -> None:
    count = 2 * bundle_release.AT_ONCE
    client, two, names = await many(broker, "public/one", count)
    for number in range(bundle_release.AT_ONCE):
        close = Command(type=Command.CLOSE_PRODUCER)
        close.close_producer.producer_id = close.close_producer.request_id = number
        client.send(close)
        await client.take(Command.SUCCESS)
    one = broker.broker
    (bundle,) = one.ownership.owned()
    begin, closed = one.ownership.begin_leaving, []

    async def leaving(bundle: str) -> bool:
        used = names[bundle_release.AT_ONCE :]
        assert sorted(str(topic.name) for topic in one.topics.loaded()) == sorted(used)
        assert not any(topic.ledger._last.writer for topic in one.topics.loaded())
        client.send_bytes(publish(count - 2, 1, b"x"))
        await client.take(Command.SEND_RECEIPT)
        return await begin(bundle)

    unload = one.topics.unload

    async def noted(name: TopicName, moving: object = None) -> None:
        closed.append(str(name))
        await unload(name, moving)

    one.ownership.begin_leaving, one.topics.unload = leaving, noted
    await one.bundle_release.release(bundle, "b2:8080")
    assert set(closed[:-1]) == set(names) - {names[count - 2]}
    assert closed[-1] == names[count - 2]  # somebody publishes to it
    # The entry before was in a ledger that was closed beforehand, and that nobody needed.
    assert (await two.broker.topics.load(NAME.parse(closed[-1]))).ledger.entries == 1


@scenario()
async def test_who_stops_tells_the_rest_of_a_move_at_once(broker) -> None:
    count = 3 * bundle_release.TOLD_AT_ONCE
    client, *_ = await many(broker, "public/one", count)
    (bundle,) = broker.broker.ownership.owned()
    await broker.broker.bundle_release.release(bundle, "b2:8080")
    heard(client)
    await broker.broker.bundle_release.settled()
    await asyncio.sleep(0)
    assert heard(client) == [Command.CLOSE_PRODUCER] * (count - bundle_release.TOLD_AT_ONCE)


@scenario(keepAliveIntervalSeconds=1_000_000)
async def test_a_broker_that_stood_still_for_longer_than_its_session_gives_up_by_itself(
    broker,
) -> None:
    """A process that is stopped for 40 s, and continued. Another broker serves its topics."""
    still = copy(broker)
    still.metadata = MemoryMetadataStore(broker._tree, broker._runtime.clock, 30.0)
    still.broker = still._new_broker()
    await still.broker.start(ServiceUrls("pulsar://b2:6650", "http://b2:8080", "grpc://b2:8815"))
    await asyncio.sleep(0.01)
    taken, left = TOPIC, "persistent://public/default/t4"  # of one bundle
    client = Client(still)
    for number, name in enumerate((taken, left)):
        await client.produce(name, 1, producer_id=number)
    (bundle,) = still.broker.ownership.owned()
    still.metadata.is_silent = True
    broker._tree._heard.pop(still.metadata)  # it does not even hear of its end
    await asyncio.sleep(40)
    broker._tree.end_session(still.metadata)
    await asyncio.sleep(0.01)
    other = Client(broker)
    await other.produce(taken, 1)
    heard(client)
    # It goes on: what has piled up at its sockets comes first.
    for number in (0, 1):
        client.send_bytes(publish(number, 2, b"x"))
    assert not still.broker.ownership.has(bundle)
    load = still.broker.topics.load(NAME.parse(left + "5"), create=True)
    for asked in (still.broker.lookup.find(NAME), load):
        with pytest.raises(ClientError, match="was not heard of"):
            await asked
    await asyncio.sleep(0.01)
    client.has(Command.SEND_RECEIPT)
    confirmed = [a.send_receipt.producer_id for a in client.answers if a.HasField("send_receipt")]
    assert 0 not in confirmed
    still.metadata.session.end()
    await still.broker.bundle_release.settled()
    assert still.broker.topics.served() == []
    assert {0, 1} == set(told(client))
    assert broker.broker.topics.get_loaded(NAME).ledger.entries == 2
    found = await broker.broker.topics.load(NAME.parse(left))
    assert found.ledger.entries == 1 + confirmed.count(1)
    await broker.broker.topics.get_loaded(NAME).ledger.change_properties(
        lambda _: {"by": "the owner"}
    )


@scenario()
async def test_claims_and_how_bundles_leave_are_counted(broker) -> None:
    one, counts = broker.broker, broker.broker.ownership.counts
    two = await broker.another()
    for done in range(1, 3):
        bundle = await one.ownership.own(NAME)
        assert counts.claims == done
        await one.bundle_release.release(bundle, "b2:8080" if done == 2 else "")
    assert not await one.bundle_release.release(bundle)
    with pytest.raises(ClientError):
        await one.ownership.own(NAME)
    assert counts.refused_claims == 1
    assert counts.left == {"unload": 1, "move": 1}
    assert counts.moves.count == 1
    there = two.broker.ownership
    assert there.counts.claims == 1
    there.lost(await there.guard(NAME))
    assert there.counts.left == {"another broker": 1}
    others = NAME.parse("persistent://public/default/t1"), NAME.parse("persistent://public/n/t")
    await one.resources.namespaces.create("public/n")
    await one.ownership.own(others[0])
    await one.bundle_release.release_all()
    assert counts.left["stop"] == 1
    await two.broker.ownership.own(others[1])
    two.metadata.expire()
    assert there.counts.left["session"] == 1


@scenario()
async def test_what_an_isolation_policy_takes_away_goes_even_if_it_does_not_go_at_once(
    broker, monkeypatch
) -> None:
    for number in range(20):
        await broker.broker.topics.load(TopicName.parse(f"{TOPIC}{number}"), create=True)
    bundles = broker.broker.ownership.owned()
    assert len(bundles) > 1
    two = await broker.another()
    release, failures = broker.broker.bundle_release.release, [bundles[0]]

    async def release_or_fail(bundle: str, to: str = "") -> bool:
        if bundle in failures:
            failures.remove(bundle)
            raise PulsarkError("the store does not answer")
        return await release(bundle, to)

    monkeypatch.setattr(broker.broker.bundle_release, "release", release_or_fail)
    await broker.broker.resources.isolation.put("standalone", "p", ONLY_TWO)
    await asyncio.sleep(60)
    assert failures == []
    assert broker.broker.ownership.owned() == []
    assert two.broker.ownership.owned() == bundles


@scenario()
async def test_a_bundle_that_is_claimed_while_a_policy_takes_it_away_goes(
    broker, monkeypatch
) -> None:
    two = await broker.another()
    isolation = broker.broker.isolation
    allow = isolation.allow

    async def allowed_just_before(*asked: str) -> bool:
        allowed = await allow(*asked)
        await broker.broker.resources.isolation.put("standalone", "p", ONLY_TWO)
        await asyncio.sleep(0.5)
        assert isolation.policies
        return allowed

    monkeypatch.setattr(isolation, "allow", allowed_just_before)
    await broker.broker.ownership.own(NAME)
    await asyncio.sleep(1)
    assert broker.broker.ownership.owned() == []
    assert len(two.broker.ownership.owned()) == 1


@scenario()
async def test_a_bundle_that_is_split_while_a_policy_takes_it_away_goes(
    broker, monkeypatch
) -> None:
    await broker.broker.ownership.own(NAME)
    (bundle,) = broker.broker.ownership.owned()
    two = await broker.another()
    split = broker.broker.bundle_split
    commit = split._commit

    async def commit_late(*of_split):
        await broker.broker.resources.isolation.put("standalone", "p", ONLY_TWO)
        await asyncio.sleep(0.5)
        return await commit(*of_split)

    monkeypatch.setattr(split, "_commit", commit_late)
    parts = await split.split(bundle, await split.edges(bundle, "range_equally_divide"), keep=True)
    await asyncio.sleep(1)
    assert broker.broker.ownership.owned() == []
    assert two.broker.ownership.owned() == sorted(parts)


@scenario()
async def test_what_an_isolation_policy_takes_away_waits_for_who_may_have_it(broker) -> None:
    await attached(broker)
    bundles = broker.broker.ownership.owned()
    await broker.broker.resources.isolation.put("standalone", "p", ONLY_TWO)
    await asyncio.sleep(100)
    assert broker.broker.ownership.owned() == bundles
    two = await broker.another()
    await asyncio.sleep(40)
    assert broker.broker.ownership.owned() == []
    assert two.broker.ownership.owned() == bundles


@scenario()
async def test_a_new_isolation_policy_does_not_wait_for_who_the_one_before_was_about(
    broker,
) -> None:
    await attached(broker)
    two = await broker.another()
    nobody = {**ONLY_TWO, "primary": ["nobody"]}
    await broker.broker.resources.isolation.put("standalone", "p", nobody)
    await asyncio.sleep(100)
    await broker.broker.resources.isolation.put("standalone", "p", ONLY_TWO)
    await asyncio.sleep(0.5)
    assert broker.broker.ownership.owned() == []
    assert len(two.broker.ownership.owned()) == 1
