"""Lookups of clients of Pulsar 5: what they are told of a topic, at first and later."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from pulsark.dispatch.scalable.limits import SCALABLE_SESSIONS_PER_CONNECTION_MAX
from pulsark.errors import ServerError
from pulsark.limits import TOPICS_PER_TURN_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

PREFIX = "persistent://public/default/"


def lookup_command(topic: str, session_id: int = 1, **fields: Any) -> pb.BaseCommand:
    command = Command(type=Command.SCALABLE_TOPIC_LOOKUP)
    request = command.scalableTopicLookup
    request.session_id, request.topic = session_id, topic
    for name, value in fields.items():
        setattr(request, name, value)
    return command


def close_command(session_id: int) -> pb.BaseCommand:
    command = Command(type=Command.SCALABLE_TOPIC_CLOSE)
    command.scalableTopicClose.session_id = session_id
    return command


async def update(client: Client) -> pb.CommandScalableTopicUpdate:
    return (await client.take(Command.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate


async def look_up(client: Client, topic: str, **fields: Any) -> pb.CommandScalableTopicUpdate:
    client.send(lookup_command(topic, **fields))
    return await update(client)


def segments(found: pb.CommandScalableTopicUpdate) -> list[str]:
    return [segment.legacy_topic_name.removeprefix(PREFIX) for segment in found.dag.segments]


async def create(broker: BrokerInMemory, name: str, partitions: int) -> TopicName:
    topic = TopicName.parse(PREFIX + name)
    if partitions:
        await broker.broker.creation.create_partitioned_topic(topic, partitions, {})
    else:
        await broker.broker.creation.create_topic(topic, {})
    return topic


@pytest.mark.command("SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_UPDATE")
@scenario()
async def test_a_partition_is_a_segment(broker) -> None:
    client = Client(broker)
    assert (await client.take(Command.CONNECTED)).connected.feature_flags.supports_scalable_topics
    await create(broker, "p", 2)
    found = await look_up(client, PREFIX + "p", session_id=2**64 - 1)
    assert found.session_id == 2**64 - 1
    assert found.resolved_topic_name == "topic://public/default/p"
    assert found.dag.epoch == 2
    assert segments(found) == ["p-partition-0", "p-partition-1"]
    assert [s.segment_id for s in found.dag.segments] == [0, 1]
    assert {s.created_at_ms for s in found.dag.segments} <= {broker.broker.clock.now_ms() - 1}


@scenario()
async def test_both_names_of_a_topic_mean_the_same(broker) -> None:
    client = Client(broker)
    await create(broker, "p", 2)
    found = [
        await look_up(client, f"{kind}://public/default/p") for kind in ("persistent", "topic")
    ]
    assert segments(found[0]) == segments(found[1]) == ["p-partition-0", "p-partition-1"]
    client.send(
        Command(
            type=Command.LOOKUP,
            lookupTopic=pb.CommandLookupTopic(topic="topic://public/default/new", request_id=1),
        )
    )
    answer = (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert answer.response == answer.Connect
    assert await broker.broker.catalog.list_topics("public/default") == [
        f"{PREFIX}p-partition-0", f"{PREFIX}p-partition-1",
    ]  # fmt: skip


@scenario()
async def test_a_topic_that_is_not_there_has_a_layout_and_is_not_made(broker) -> None:
    client = Client(broker)
    found = await look_up(client, PREFIX + "new")
    assert (segments(found), found.dag.epoch) == (["new"], 0)
    assert await broker.broker.catalog.list_topics("public/default") == []
    await client.produce(PREFIX + "new", 1)
    found = await look_up(client, PREFIX + "new", create_if_missing=False)
    assert segments(found) == ["new"]


@pytest.mark.parametrize(
    ("topic", "create_if_missing", "code"),
    [
        (PREFIX + "p-partition-1", True, ServerError.TopicNotFound),
        (PREFIX + "missing", False, ServerError.TopicNotFound),
        ("topic://public/nowhere/p", True, ServerError.TopicNotFound),
        ("non-persistent://public/default/p", True, ServerError.NotAllowedError),
        ("segment://public/default/p/0000-ffff-0", True, ServerError.InvalidTopicName),
        ("persistent://public/default", True, ServerError.InvalidTopicName),
        ("", True, ServerError.InvalidTopicName),
    ],
)
def test_what_has_no_layout_is_refused(topic: str, create_if_missing: bool, code: int) -> None:
    @scenario()
    async def refused(broker) -> None:
        await create(broker, "p", 2)
        client = Client(broker)
        found = await look_up(client, topic, create_if_missing=create_if_missing)
        assert (found.session_id, found.error) == (1, code)
        assert found.message
        assert not found.HasField("dag")
        assert not (broker.broker.scalable and len(broker.broker.scalable.followed))

    refused()


@scenario(allowAutoTopicCreation=False)
async def test_a_topic_that_may_not_be_made_is_not_found(broker) -> None:
    client, other = Client(broker), Client(broker)
    assert (await look_up(client, PREFIX + "t")).error == ServerError.TopicNotFound
    name = await create(broker, "t", 0)
    assert segments(await look_up(client, PREFIX + "t")) == ["t"]
    await broker.broker.deletion.delete_topic(name)
    assert (await look_up(other, PREFIX + "t")).error == ServerError.TopicNotFound


@scenario(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
async def test_a_topic_made_by_use_has_the_default_number_of_partitions(broker) -> None:
    found = await look_up(Client(broker), PREFIX + "new")
    assert segments(found) == [f"new-partition-{k}" for k in range(3)]


@scenario(scalableTopicsEnabled=False)
async def test_it_can_be_switched_off(broker) -> None:
    client = Client(broker)
    flags = (await client.take(Command.CONNECTED)).connected.feature_flags
    assert not flags.supports_scalable_topics
    assert (await look_up(client, PREFIX + "t")).error == ServerError.NotAllowedError


@pytest.mark.command("SCALABLE_TOPIC_CLOSE")
@scenario()
async def test_more_partitions_are_told_until_the_session_is_closed(broker) -> None:
    one, two = Client(broker), Client(broker)
    name = await create(broker, "p", 2)
    await look_up(one, PREFIX + "p", session_id=1)
    await look_up(one, "topic://public/default/p", session_id=2)
    await look_up(two, PREFIX + "p", session_id=1)
    one.send(close_command(2), close_command(99))
    await broker.broker.creation.add_partitions(name, 4)
    for client in (one, two):
        found = await update(client)
        assert (found.session_id, found.dag.epoch) == (1, 4)
        assert segments(found) == [f"p-partition-{k}" for k in range(4)]
    assert not one.has(Command.SCALABLE_TOPIC_UPDATE)
    two.hang_up()
    one.send(close_command(1))
    await asyncio.sleep(0.01)
    assert len(broker.broker.scalable.followed) == 0
    await broker.broker.creation.add_partitions(name, 5)
    await asyncio.sleep(1)
    assert not one.has(Command.SCALABLE_TOPIC_UPDATE)


@scenario()
async def test_a_new_partition_has_the_subscriptions_before_anybody_hears_of_it(broker) -> None:
    client = Client(broker)
    name = await create(broker, "p", 1)
    await client.subscribe(f"{name}-partition-0", "s")
    await look_up(client, str(name))
    broker.broker.topics.get(name.with_partition(0))
    await broker.broker.creation.add_partitions(name, 2)
    await update(client)
    topic = broker.broker.topics.get(name.with_partition(1))
    assert list(topic.subscriptions) == ["s"]


@scenario()
async def test_a_topic_made_anew_has_a_later_layout(broker) -> None:
    client = Client(broker)
    name = await create(broker, "p", 5)
    await look_up(client, str(name))
    await broker.broker.deletion.delete_partitioned_topic(name)
    await asyncio.sleep(2)
    assert not client.has(Command.SCALABLE_TOPIC_UPDATE)
    await create(broker, "p", 2)
    found = await update(client)
    assert (found.dag.epoch, len(found.dag.segments)) == (6, 2)


@scenario()
async def test_the_same_session_again_replaces_the_first(broker) -> None:
    client = Client(broker)
    await create(broker, "p", 1)
    await look_up(client, PREFIX + "p")
    assert segments(await look_up(client, PREFIX + "q")) == ["q"]
    assert len(broker.broker.scalable.followed) == 1
    client.send(lookup_command(PREFIX + "p"), close_command(1), lookup_command(PREFIX + "q", 2))
    assert (await update(client)).session_id == 2
    assert len(broker.broker.scalable.followed) == 1


@scenario()
async def test_a_connection_has_so_many_sessions_and_takes_them_along(broker) -> None:
    client, other = Client(broker), Client(broker)
    await create(broker, "p", 2)
    most = SCALABLE_SESSIONS_PER_CONNECTION_MAX
    client.send(*(lookup_command(PREFIX + "p", k) for k in range(most)))
    for _ in range(most):
        assert (
            await client.take(Command.SCALABLE_TOPIC_UPDATE, seconds=60)
        ).scalableTopicUpdate.dag
    assert (await look_up(client, PREFIX + "p", session_id=most)).error == (
        ServerError.TooManyRequests
    )
    assert (await look_up(client, PREFIX + "p", session_id=7)).HasField("dag")
    assert segments(await look_up(other, PREFIX + "p"))
    client.hang_up()
    await asyncio.sleep(1)
    (topic,) = broker.broker.scalable.followed._topics.values()
    assert len(topic.users) == 1


@scenario()
async def test_a_client_that_does_not_read_is_told_one_layout_at_a_time(broker) -> None:
    client = Client(broker)
    name = await create(broker, "p", 4_999)
    client.transport.reads = False
    client.send(*(lookup_command(PREFIX + "p", k) for k in range(20)))
    await asyncio.sleep(5)
    assert client.transport.unread < 4 << 20
    client.transport.read_all()
    for _ in range(20):
        client.transport.read_all()
        found = await update(client)
        assert len(found.dag.segments) == 4_999
    assert str(name)


@scenario(maxMessageSize=100_000)
async def test_a_layout_that_fits_no_frame_is_refused(broker) -> None:
    client = Client(broker)
    await create(broker, "p", 5_000)
    assert (await look_up(client, PREFIX + "p")).error == ServerError.NotAllowedError
    assert len(broker.broker.scalable.followed) == 0


@scenario()
async def test_a_session_takes_little_memory(broker) -> None:
    """Count all that the interpreter allocates for each session of a connection."""
    client = Client(broker)
    await create(broker, "p", 2)
    await look_up(client, PREFIX + "p", session_id=2**40)
    count = SCALABLE_SESSIONS_PER_CONNECTION_MAX // 8
    # Ids as clients have them: small numbers are there anyway.
    commands = [encode_command(lookup_command(PREFIX + "p", 2**40 + k)) for k in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        for command in commands:
            client.send_bytes(command)
            await client.take(Command.SCALABLE_TOPIC_UPDATE)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(client.connection.opened.scalable.sessions) == count
    assert size / count <= 300


def test_nothing_of_it_is_loaded_for_other_clients() -> None:
    @scenario()
    async def others(broker) -> None:
        client = Client(broker)
        await client.produce(PREFIX + "t", 1)
        assert broker.broker.scalable is None
        assert client.connection.opened.scalable is None

    others()


class Heard:
    """Somebody who uses a layout."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.topic: Any = None

    def layout_changed(self) -> None:
        self.epochs.append(self.topic.layout.epoch)


@scenario()
async def test_who_leaves_while_others_are_told_keeps_nothing_from_them(
    broker, monkeypatch
) -> None:
    """The request that notices a later layout may be broken off before all have heard of it."""
    name = await create(broker, "p", 2)
    followed = broker.broker.scalable_topics().followed
    users = [Heard() for _ in range(10 * TOPICS_PER_TURN_MAX)]
    for user in users:
        user.topic = await followed.follow(name, user, create=True)

    async def partitions(*_: Any, **__: Any) -> int:
        return 4

    monkeypatch.setattr(followed, "partitions", partitions)
    late = asyncio.create_task(followed.follow(name, Heard(), create=True))
    for _ in range(3):  # some have heard
        await asyncio.sleep(0)
    assert users[0].epochs
    assert not users[-1].epochs
    late.cancel()
    await asyncio.wait([late])
    await asyncio.sleep(1)
    assert [user.epochs for user in users] == [[4]] * len(users)


@pytest.mark.filterwarnings("error")
def test_a_request_that_ends_before_it_begins_leaves_no_trace() -> None:
    """What follows it in one piece is no command, and ends the connection."""

    @scenario()
    async def ended(broker) -> None:
        client = Client(broker)
        await client.take(Command.CONNECTED)
        client.send_bytes(encode_command(lookup_command(PREFIX + "p")) + b"\xff" * 100)
        await asyncio.sleep(0.1)
        assert client.transport.closed
        gc.collect()

    ended()
