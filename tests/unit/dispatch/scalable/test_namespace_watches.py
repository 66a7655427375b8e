"""Clients of Pulsar 5 that follow the topics of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pulsark.dispatch.scalable.limits import NAMESPACE_WATCHES_PER_CONNECTION_MAX
from pulsark.dispatch.topics import topic_lists
from pulsark.errors import MetadataError, ServerError
from pulsark.limits import TOPIC_FEED_LINGER_SECONDS, TOPIC_PROPERTIES_MAX
from pulsark.metadata import resources
from pulsark.metadata.paths import managed_ledger_path
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.hashes import topics_hash
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.unit.dispatch.topics.test_topic_lists import watch as pattern_watch

PREFIX = "persistent://public/default/"
UPDATE = Command.WATCH_SCALABLE_TOPICS_UPDATE


def watch_command(
    watch_id: int = 5,
    namespace: str = "public/default",
    filters: Mapping[str, str] | list[tuple[str, str]] = (),
    known: str | None = None,
) -> pb.BaseCommand:
    command = Command(type=Command.WATCH_SCALABLE_TOPICS)
    request = command.watchScalableTopics
    request.watch_id, request.namespace = watch_id, namespace
    for key, value in dict(filters).items() if isinstance(filters, Mapping) else filters:
        request.property_filters.add(key=key, value=value)
    if known is not None:
        request.current_hash = known
    return command


def close_command(watch_id: int) -> pb.BaseCommand:
    command = Command(type=Command.WATCH_SCALABLE_TOPICS_CLOSE)
    command.watchScalableTopicsClose.watch_id = watch_id
    return command


async def update(client: Client, seconds: float = 1.0) -> pb.CommandWatchScalableTopicsUpdate:
    return (await client.take(UPDATE, seconds=seconds)).watchScalableTopicsUpdate


async def snapshot(client: Client, *args: Any, **fields: Any) -> list[str]:
    client.send(watch_command(*args, **fields))
    found = await update(client)
    assert found.WhichOneof("event") == "snapshot", found
    return short(found.snapshot.topics)


async def diff(client: Client, seconds: float = 1.0) -> tuple[list[str], list[str]]:
    found = await update(client, seconds)
    assert found.WhichOneof("event") == "diff", found
    return short(found.diff.added), short(found.diff.removed)


def short(topics: Any) -> list[str]:
    return [topic.removeprefix(PREFIX) for topic in topics]


async def create(broker: BrokerInMemory, *names: str, **properties: str) -> None:
    for name in names:
        await broker.broker.creation.create_topic(TopicName.parse(PREFIX + name), properties)


async def create_partitioned(
    broker: BrokerInMemory, name: str, partitions: int, **properties: str
) -> TopicName:
    topic = TopicName.parse(PREFIX + name)
    await broker.broker.creation.create_partitioned_topic(topic, partitions, properties)
    return topic


async def delete(broker: BrokerInMemory, name: str) -> None:
    await broker.broker.deletion.delete_topic(TopicName.parse(PREFIX + name))


@pytest.mark.command("WATCH_SCALABLE_TOPICS", "WATCH_SCALABLE_TOPICS_UPDATE")
@scenario()
async def test_topics_are_listed_whole_and_then_what_comes_and_goes(broker, monkeypatch) -> None:
    own = frozenset({f"{PREFIX}own", f"{PREFIX}own2"})
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", own)
    client = Client(broker)
    await create(broker, "b", "own")
    p = await create_partitioned(broker, "p", 3)
    assert await snapshot(client) == ["b", "p"]
    await create(broker, "a")
    assert await diff(client) == (["a"], [])
    await broker.broker.creation.add_partitions(p, 5)
    await create(broker, "own2", "c")
    assert await diff(client) == (["c"], [])
    await delete(broker, "a")
    assert await diff(client) == ([], ["a"])
    await broker.broker.deletion.delete_partitioned_topic(p)
    assert await diff(client) == ([], ["p"])
    assert not client.has(UPDATE)


@scenario()
async def test_a_namespace_without_topics_has_a_snapshot_too(broker) -> None:
    client = Client(broker)
    assert await snapshot(client) == []
    await create(broker, "a")
    assert await diff(client) == (["a"], [])


@scenario()
async def test_a_client_that_knows_all_is_told_of_changes_only(broker) -> None:
    client = Client(broker)
    await create(broker, "a")
    await create_partitioned(broker, "p", 2)
    known = topics_hash([f"{PREFIX}a", f"{PREFIX}p"])
    assert await snapshot(client, known="00") == ["a", "p"]
    client.send(watch_command(6, known=known))
    await asyncio.sleep(0.1)
    assert not client.has(UPDATE)
    await create(broker, "b")
    assert {(await update(client)).watch_id for _ in range(2)} == {5, 6}


@scenario()
async def test_properties_decide_whichever_kind_of_topic_has_them(broker) -> None:
    client = Client(broker)
    await create(broker, "a", kind="x", more="1")
    await create(broker, "b", kind="y")
    await create(broker, "c")
    p = await create_partitioned(broker, "p", 2, kind="x")
    assert await snapshot(client, filters={"kind": "x"}) == ["a", "p"]
    assert await snapshot(client, 6, filters={"kind": "x", "more": "1"}) == ["a"]
    assert await snapshot(client, 7, filters=[("kind", "x"), ("kind", "y")]) == []
    client.send(close_command(6), close_command(7))
    await broker.broker.resources.partitioned_topics.change_properties(p, lambda _: {"kind": "z"})
    assert await diff(client) == ([], ["p"])
    topic = await broker.broker.topics.load(TopicName.parse(f"{PREFIX}c"))
    await topic.ledger.change_properties(lambda _: {"kind": "x"})
    assert await diff(client) == (["c"], [])
    await create(broker, "d")
    await delete(broker, "a")
    assert await diff(client) == ([], ["a"])


@scenario()
async def test_a_partition_without_its_topic_is_none_of_them(broker) -> None:
    client = Client(broker)
    await create(broker, "a", "-partition-0")
    first = TopicName.parse(f"{PREFIX}a")
    record = await broker.metadata.get(managed_ledger_path(first))
    name = TopicName.parse(f"{PREFIX}s-partition-0")
    await broker.metadata.put(managed_ledger_path(name), record.value)
    assert await snapshot(client) == ["-partition-0", "a"]
    name = TopicName.parse(f"{PREFIX}z-partition-0")
    await broker.metadata.put(managed_ledger_path(name), record.value)
    await create(broker, "b")
    assert await diff(client) == (["b"], [])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"namespace": "public/none"}, ServerError.TopicNotFound),
        ({"namespace": "public"}, ServerError.InvalidTopicName),
        ({"namespace": ""}, ServerError.InvalidTopicName),
        ({"namespace": "../.."}, ServerError.InvalidTopicName),
        (
            {"filters": {str(k): "" for k in range(TOPIC_PROPERTIES_MAX + 1)}},
            ServerError.NotAllowedError,
        ),
        ({"filters": {"key": "v" * 10_000}}, ServerError.NotAllowedError),
    ],
)
def test_what_cannot_be_watched_is_refused(fields: dict[str, Any], code: int) -> None:
    @scenario()
    async def refused(broker) -> None:
        client = Client(broker)
        client.send(watch_command(**fields))
        found = await update(client)
        assert (found.watch_id, found.error) == (5, code)
        assert found.message
        assert found.WhichOneof("event") is None
        scalable = client.connection.opened.scalable
        assert scalable is None or len(scalable.watches) == 0
        assert await snapshot(client) == []

    refused()


@scenario(scalableTopicsEnabled=False)
async def test_it_can_be_switched_off(broker) -> None:
    client = Client(broker)
    client.send(watch_command())
    assert (await update(client)).error == ServerError.NotAllowedError


@pytest.mark.command("WATCH_SCALABLE_TOPICS_CLOSE")
@scenario()
async def test_nothing_is_followed_once_the_last_watch_is_closed(broker) -> None:
    one, two = Client(broker), Client(broker)
    assert await snapshot(one) == await snapshot(two) == []
    assert await snapshot(one, 6) == []
    one.send(close_command(5), close_command(99), close_command(6))
    one.send(watch_command(7), close_command(7))  # given up before it is open
    await create(broker, "a")
    assert await diff(two) == (["a"], [])
    assert not one.has(UPDATE)
    two.hang_up()
    await asyncio.sleep(TOPIC_FEED_LINGER_SECONDS + 0.01)
    assert not broker.broker.topic_feeds._feeds


@scenario()
async def test_the_same_watch_again_replaces_the_first(broker) -> None:
    client = Client(broker)
    await broker.broker.resources.namespaces.create("public/other")
    assert await snapshot(client) == []
    client.send(watch_command(namespace="public/other"), watch_command(namespace="public/default"))
    assert (await update(client)).HasField("snapshot")
    await create(broker, "a")
    assert await diff(client) == (["a"], [])
    assert not client.has(UPDATE)


@scenario()
async def test_a_connection_has_so_many(broker) -> None:
    client = Client(broker)
    most = NAMESPACE_WATCHES_PER_CONNECTION_MAX
    client.send(*(watch_command(k) for k in range(most + 1)))
    found = [await update(client) for _ in range(most + 1)]
    assert [u.watch_id for u in found if u.error] == [most]
    assert await snapshot(client, 3) == []
    client.send(close_command(7))
    assert await snapshot(client, most) == []


@scenario()
async def test_who_reads_slowly_is_told_little(broker) -> None:
    client = Client(broker)
    await create(broker, "a")
    assert await snapshot(client) == ["a"]
    client.transport.reads = False
    # So much waits that nothing more is told: a layout of very many segments.
    await create_partitioned(broker, "p", 4_999)
    for session_id in range(5):
        command = Command(type=Command.SCALABLE_TOPIC_LOOKUP)
        command.scalableTopicLookup.session_id = session_id
        command.scalableTopicLookup.topic = f"{PREFIX}p"
        client.send(command)
    await asyncio.sleep(5)
    unread = client.transport.unread
    for number in range(50):
        await create(broker, f"t-{number}")
    await delete(broker, "t-7")
    await delete(broker, "a")
    await asyncio.sleep(5)
    assert client.transport.unread < unread + 100  # but for pings
    client.transport.read_all()
    told: list[tuple[list[str], list[str]]] = []
    while not told or "t-49" not in told[-1][0]:
        told.append(await diff(client))
    assert len(told) <= 2
    assert sorted(t for added, _ in told for t in added) == sorted(
        ["p", *(f"t-{number}" for number in range(50) if number != 7)]
    )
    assert told[-1][1] == ["a"]


# -- very many topics ------------------------------------------------------------------------------


async def create_many(broker: BrokerInMemory, count: int) -> list[str]:
    """Topics that have a record and nothing else."""
    await create(broker, "first")
    record = await broker.metadata.get(managed_ledger_path(TopicName.parse(f"{PREFIX}first")))
    names = [f"many-{number:06d}" for number in range(count)]
    for name in names:
        path = managed_ledger_path(TopicName.parse(PREFIX + name))
        await broker.metadata.put(path, record.value)
    return ["first", *names]


def test_a_long_list_is_told_in_frames_that_a_client_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    @scenario(maxMessageSize=5_000)
    async def run(broker: BrokerInMemory) -> None:
        monkeypatch.setattr(topic_lists, "TOPIC_NAMES_PER_TURN", 50)
        names = await create_many(broker, 600)
        client = Client(broker)
        told = await snapshot(client)
        frames = 1
        while len(told) < len(names):
            added, removed = await diff(client)
            assert removed == []
            told += added
            frames += 1
        assert told == names
        assert 2 <= frames <= 4  # 45 bytes a name, 15 kB a frame

    run()


@scenario()
async def test_topics_that_cannot_be_read_are_told_later_and_once(broker) -> None:
    client, other = Client(broker), Client(broker)
    await create(broker, "a", kind="x")
    assert await snapshot(client, filters={"kind": "x"}) == ["a"]
    assert await snapshot(other) == ["a"]
    get, failed = broker.metadata.get, []

    async def failing(path: str) -> Any:
        if path.endswith("/b") and len(failed) < 3:
            failed.append(path)
            raise MetadataError("no")
        return await get(path)

    await create(broker, "b", kind="x")
    broker.metadata.get = failing
    await create(broker, "c", kind="x")
    topic = await broker.broker.topics.load(TopicName.parse(f"{PREFIX}b"))
    await topic.ledger.change_properties(lambda _: {"kind": "x", "more": "1"})
    for each in (client, other):
        told: list[str] = []
        while len(told) < 2:
            added, removed = await diff(each, seconds=10)
            assert removed == []
            told += added
        assert sorted(told) == ["b", "c"]
        await asyncio.sleep(5)
        assert not each.has(UPDATE)


@scenario()
async def test_changes_are_told_while_another_client_waits_for_properties(broker) -> None:
    client, slow, later = Client(broker), Client(broker), Client(broker)
    await create(broker, "a", "b", "c", kind="x")
    assert await snapshot(client) == ["a", "b", "c"]
    get, waits = broker.metadata.get, asyncio.Event()

    async def waiting(path: str) -> Any:
        if path == managed_ledger_path(TopicName.parse(f"{PREFIX}b")):
            await waits.wait()
        return await get(path)

    broker.metadata.get = waiting
    slow.send(watch_command(filters={"kind": "x"}))
    await asyncio.sleep(0.1)
    await create(broker, "d", kind="x")
    assert await diff(client) == (["d"], [])
    await delete(broker, "a")
    assert await diff(client) == ([], ["a"])
    later.send(watch_command(filters={"kind": "x"}))
    await asyncio.sleep(0.1)
    assert not slow.has(UPDATE)
    waits.set()
    for each in (slow, later):
        assert short((await update(each)).snapshot.topics) == ["b", "c", "d"]


@scenario()
async def test_clients_with_patterns_do_not_wait_for_those_with_properties(broker) -> None:
    """Nor does one with properties wait for all that another one asks for."""
    await create(broker, "a", "b", kind="x")
    pattern, slow, other = Client(broker), Client(broker), Client(broker)
    await pattern_watch(pattern, "public/default/a.*")
    store = broker.metadata
    get, gates = store.get, [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    async def waiting(path: str) -> Any:
        if path == managed_ledger_path(TopicName.parse(f"{PREFIX}b")):
            begun.append(len(begun))
            await gates[begun[-1]].wait()
        return await get(path)

    store.get = waiting
    for number in range(10):
        slow.send(watch_command(number, filters={"kind": f"y{number}"}))
    await asyncio.sleep(0.1)
    await pattern_watch(pattern, "public/default/a.*", watcher_id=2)
    found = await pattern_watch(pattern, "public/default/b.*", watcher_id=3)
    assert short(found.topic) == ["b"]
    other.send(watch_command(filters={"kind": "x"}))
    await asyncio.sleep(0.1)
    gates[0].set()
    gates[1].set()
    assert short((await update(other)).snapshot.topics) == ["a", "b"]
    assert len(begun) == 3
    slow.send(*(close_command(number) for number in range(10)))
    gates[2].set()
    await asyncio.sleep(0.1)
    assert len(begun) == 3
