"""SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE and what is asked of a consumer: sentence by sentence."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pulsark.dispatch.policies.policies import NO_SUBSCRIBE_RATE, SubscribeRate
from pulsark.dispatch.subscription.seeking import Seeking
from pulsark.dispatch.topics.subscribe_rates import Subscriber, SubscribeRates
from pulsark.errors import ClientError, ServerError, StorageError
from pulsark.limits import CLIENT_METADATA_CHARS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.hashes import murmur3_32
from tests.support.admin_api import SteppedClock
from tests.support.broker_clients import (
    EARLIEST_ID,
    EXCLUSIVE,
    KEY_SHARED,
    NAME,
    SHARED,
    TOPIC,
    TYPES,
    BrokerInMemory,
    Client,
    Command,
    held,
    replicate,
    scenario,
)
from tests.support.wire_frames import publish

NO_REQUEST = 2**64 - 1
TRANSIENT = "non-persistent://public/default/t"


def topic(broker: BrokerInMemory):
    return broker.broker.topics.get_loaded(NAME)


async def entries(client: Client) -> list[int]:
    return [delivery.message.message_id.entryId for delivery in await client.deliveries()]


@asynccontextmanager
async def attentive(client: Client) -> AsyncIterator[None]:
    """While it is open the client answers pings: it is alive for whoever asks."""

    async def attend() -> None:
        while True:
            client.has(Command.PING)
            await asyncio.sleep(0.01)

    task = asyncio.ensure_future(attend())
    yield
    task.cancel()


async def hello(broker: BrokerInMemory, version: int) -> Client:
    """A client of an older version of the protocol."""
    client = Client(broker, handshake=False)
    command = Command(type=Command.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "old", version
    client.send(command)
    await client.take(Command.CONNECTED)
    return client


# -- admission ----------------------------------------------------------------------------------


@pytest.mark.command("SUBSCRIBE", "SUCCESS")
@scenario()
async def test_the_same_consumer_again_is_a_success_and_while_it_comes_not_ready(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    with held(broker):
        client.send(client.subscribe_command(TOPIC))
        await asyncio.sleep(0.01)
        client.send(client.subscribe_command(TOPIC))
        assert await client.outcome() == ServerError.ServiceNotReady
    assert await client.outcome() == 0
    assert await client.subscribe(TOPIC) == 0
    assert len(topic(broker).subscriptions["s"].type.consumers) == 1
    assert await entries(client) == [0]
    # After a failure the number is free.
    other = Client(broker)
    async with attentive(client):
        assert await other.subscribe(TOPIC) == ServerError.ConsumerBusy
    assert await other.subscribe(TOPIC, "other") == 0


@pytest.mark.feature("F29")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_the_type_is_that_of_the_connected_consumers(
    broker: BrokerInMemory, kind: int
) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await entries(client) == [0, 1]
    for another in TYPES:
        async with attentive(client):
            code = await other.subscribe(TOPIC, kind=another) if another != kind else None
        assert code in (None, ServerError.ConsumerBusy)
    await client.close()
    for another in TYPES:
        assert await other.subscribe(TOPIC, kind=another) == 0
        assert await entries(other) == [0, 1]
        await other.close()


@scenario()
async def test_consumers_without_a_name_are_given_one(broker) -> None:
    client = Client(broker)
    for number in range(5):
        assert await client.subscribe(TOPIC, consumer_id=number, kind=SHARED) == 0
    names = {consumer.name for consumer in client.connection.opened.consumers.values()}
    assert len(names) == 5
    assert all(names)


@scenario()
async def test_durable_and_other_consumers_do_not_mix(broker) -> None:
    client, reader = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    code = await reader.subscribe(TOPIC, kind=SHARED, durable=False)
    assert code == ServerError.NotAllowedError
    assert await reader.subscribe(TOPIC, "r", kind=SHARED, durable=False) == 0
    assert (
        await client.subscribe(TOPIC, "r", consumer_id=2, kind=SHARED)
        == ServerError.NotAllowedError
    )


@pytest.mark.parametrize("initial", ["Earliest", "Latest"])
@scenario()
async def test_the_initial_position_is_for_new_subscriptions_and_a_start_for_readers(
    broker: BrokerInMemory, initial: str
) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 3)
    position = pb.CommandSubscribe.InitialPosition.Value(initial)
    fields = {"initialPosition": position, "start": ids[1]}
    wanted = [0, 1, 2] if initial == "Earliest" else []
    assert await client.subscribe(TOPIC, **fields) == 0
    assert await entries(client) == wanted
    await client.close()
    fields["initialPosition"] = 1 - position
    assert await client.subscribe(TOPIC, **fields) == 0
    assert await entries(client) == wanted
    for number, start, expected in [
        (2, ids[1], [1, 2]),
        (3, EARLIEST_ID, [0, 1, 2]),
        (4, (2**63 - 1, 2**63 - 1), wanted),
        (5, (ids[0][0] + 1, 0), wanted),
    ]:
        reader = {"durable": False, "start": start, "initialPosition": position}
        assert await client.subscribe(TOPIC, f"r{number}", consumer_id=number, **reader) == 0
        assert await entries(client) == expected, start
    nowhere = {"durable": False, "initialPosition": position}
    assert await client.subscribe(TOPIC, "r9", consumer_id=9, **nowhere) == 0
    assert await entries(client) == wanted


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@scenario()
async def test_a_rollback_goes_back_each_time(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    now = broker.broker.clock.now_ms()
    ids = [await client.publish(n, publish_time=now + n * 10_000) for n in range(4)]
    await asyncio.sleep(30)
    client.has(Command.PING)
    fields = {"kind": kind, "start_message_rollback_duration_sec": 15}
    for _ in range(2):
        assert await client.subscribe(TOPIC, **fields) == 0
        assert await entries(client) == [2, 3]
        assert await client.ack(*ids[2:]) == 0
        await client.close()


@pytest.mark.parametrize("durable", [True, False])
@scenario()
async def test_who_cannot_go_back_is_no_consumer_and_a_reader_leaves_nothing(
    broker: BrokerInMemory, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 2)
    fields = {"durable": durable, "start_message_rollback_duration_sec": 15}
    with monkeypatch.context() as patched:
        patched.setattr(Seeking, "rollback", AsyncMock(side_effect=StorageError("no disk")))
        assert await client.subscribe(TOPIC, **fields) != 0
    found = topic(broker).subscriptions
    assert list(found) == (["s"] if durable else [])
    assert not any(each.type.consumer_count for each in found.values())
    assert await Client(broker).subscribe(TOPIC, **fields) == 0


@pytest.mark.parametrize("end", ["unload", "delete"])
@scenario()
async def test_who_goes_back_while_the_topic_ends_is_told_to_come_again(
    broker: BrokerInMemory, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, go_on = Client(broker), asyncio.Event()
    await client.produce(TOPIC, 2)

    async def slow(*_: Any) -> None:
        await go_on.wait()

    monkeypatch.setattr(Seeking, "rollback", slow)
    client.send(client.subscribe_command(TOPIC, start_message_rollback_duration_sec=15))
    await asyncio.sleep(0.01)
    if end == "unload":
        ending = asyncio.create_task(broker.broker.topics.unload(NAME))
    else:
        ending = asyncio.create_task(broker.broker.deletion.delete_topic(NAME, force=True))
    await asyncio.sleep(0.01)
    go_on.set()
    assert await client.outcome() == ServerError.ServiceNotReady
    await ending
    assert not client.connection.opened.consumers


@scenario()
async def test_who_leaves_while_it_is_asked_whether_it_is_alive_makes_room(broker) -> None:
    client, other = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC) == 0
    other.send(other.subscribe_command(TOPIC))
    await asyncio.sleep(0.01)
    client.send(client.close_command("consumer"))
    client.has(Command.PING)  # and it answers
    assert await other.outcome() == 0


@scenario()
async def test_a_consumer_may_have_its_subscription_replicated_from_now_on(broker) -> None:
    client = Client(broker)
    for wanted in (False, True, False):
        assert await client.subscribe(TOPIC, replicate_subscription_state=wanted) == 0
        await client.close()
        replicated = topic(broker).subscriptions["s"].properties.replicated
        assert replicated == (wanted or replicated)
    assert replicated
    await broker.restart()
    assert await Client(broker).subscribe(TOPIC) == 0
    assert topic(broker).subscriptions["s"].properties.replicated


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@scenario()
async def test_a_compacted_topic_is_for_one_reader(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    code = await client.subscribe(TOPIC, kind=kind, read_compacted=True)
    assert code == ServerError.NotAllowedError
    assert not topic(broker).subscriptions


@scenario(allowAutoSubscriptionCreation=False)
async def test_subscriptions_that_are_not_created_by_consumers(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC) == ServerError.SubscriptionNotFound
    assert await client.subscribe(TOPIC, "r", durable=False) == 0
    refused = await client.open_producer(TOPIC, "p", 2, initial_subscription_name="s")
    assert refused == ServerError.NotAllowedError
    assert list(topic(broker).subscriptions) == ["r"]


def ranged(client: Client, name: str, *ranges: tuple[int, int], **fields) -> pb.BaseCommand:
    """A SUBSCRIBE that asks for ranges of hashes."""
    command = client.subscribe_command(TOPIC, name, **fields)
    command.subscribe.keySharedMeta.keySharedMode = pb.KeySharedMode.STICKY
    for start, end in ranges:
        command.subscribe.keySharedMeta.hashRanges.add(start=start, end=end)
    return command


IMPOSSIBLE_RANGES = ([(9, 3)], [(0, 70000)], [(0, 9), (9, 10)])


@pytest.mark.command("SUBSCRIBE")
@scenario()
async def test_readers_may_divide_the_keys_of_a_topic(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    ids = [await client.publish(n, partition_key=f"k{n}") for n in range(40)]
    parts = {2: [(0, 9999), (20000, 32767)], 3: [(10000, 19999)], 4: [(32768, 65535)]}
    for number, ranges in parts.items():
        reader = {"consumer_id": number, "durable": False, "start": EARLIEST_ID}
        client.send(ranged(client, f"r{number}", *ranges, **reader))
        assert await client.outcome() == 0
        client.flow(1000, number)
    for n in range(40, 60):
        ids.append(await client.publish(n, partition_key=f"k{n}"))
    got = {number: [] for number in parts}
    for delivery in await client.deliveries():
        slot = murmur3_32(delivery.metadata.partition_key.encode()) % 65536
        number = delivery.message.consumer_id
        assert any(start <= slot <= end for start, end in parts[number])
        got[number].append(delivery.message.message_id.entryId)
    assert all(found == sorted(found) and found for found in got.values())
    assert sorted(n for found in got.values() for n in found) == [number for _, number in ids]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    ("kind", "ranges"),
    [
        (KEY_SHARED, []),
        *((kind, ranges) for kind in (EXCLUSIVE, KEY_SHARED) for ranges in IMPOSSIBLE_RANGES),
    ],
)
@scenario()
async def test_who_names_ranges_that_cannot_be_leaves_no_subscription_behind(
    broker: BrokerInMemory, kind: int, ranges: list[tuple[int, int]], durable: bool
) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    client.send(ranged(client, "r", *ranges, kind=kind, durable=durable))
    assert await client.outcome() == ServerError.ConsumerAssignError
    assert not topic(broker).subscriptions
    assert await client.subscribe(TOPIC, "r", durable=durable) == 0


@scenario(maxConsumersPerTopic=1)
async def test_who_is_refused_leaves_no_subscription_behind(broker) -> None:
    client, other = Client(broker), Client(broker)
    schema = {"type": pb.Schema.String, "name": "s", "schema_data": b""}
    first = client.subscribe_command(TOPIC, "s1")
    first.subscribe.schema.CopyFrom(pb.Schema(**schema))
    client.send(first)
    assert await client.outcome() == 0
    assert await other.subscribe(TOPIC, "s2") == ServerError.ConsumerBusy
    assert await other.subscribe(TOPIC, "r", durable=False) == ServerError.ConsumerBusy
    assert set(topic(broker).subscriptions) == {"s1"}
    # That there is no room is said before anything about the schema.
    wrong = other.subscribe_command(TOPIC, "s2", consumer_id=2)
    wrong.subscribe.schema.CopyFrom(pb.Schema(**{**schema, "type": pb.Schema.Int32}))
    other.send(wrong)
    assert await other.outcome() == ServerError.ConsumerBusy
    await client.close()
    assert await other.subscribe(TOPIC, "s2") == 0


@scenario(maxConsumersPerTopic=2)
async def test_of_two_who_come_at_once_to_the_last_place_one_leaves_nothing_behind(broker) -> None:
    clients = [Client(broker) for _ in range(3)]
    await clients[0].produce(TOPIC, 1)
    assert await clients[0].subscribe(TOPIC, "s0") == 0
    with held(broker):  # their subscriptions take a while
        for client, name in zip(clients[1:], ["s1", "s2"], strict=True):
            client.send(client.subscribe_command(TOPIC, name))
        assert await clients[0].subscribe(TOPIC, "s0", consumer_id=2) != 0
        await asyncio.sleep(0.01)
    assert [await client.outcome() for client in clients[1:]] == [0, ServerError.ConsumerBusy]
    assert set(topic(broker).subscriptions) == {"s0", "s1"}
    await clients[1].close()
    assert await clients[2].subscribe(TOPIC, "s2") == 0


@scenario(maxConsumersPerTopic=1)
async def test_a_place_is_free_again_when_the_subscription_cannot_be_made(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 1)
    create = topic(broker).registry.create
    topic(broker).registry.create = AsyncMock(side_effect=StorageError("no disk"))
    assert await client.subscribe(TOPIC, "s1") != 0
    topic(broker).registry.create = create
    assert await other.subscribe(TOPIC, "s2") == 0


MOST, MOST_OF_HOST, MOST_OF_SUBSCRIPTION = 5, 3, 2


@pytest.mark.parametrize("seed", range(6))
@scenario(
    maxConsumersPerTopic=MOST,
    maxSameAddressConsumersPerTopic=MOST_OF_HOST,
    maxConsumersPerSubscription=MOST_OF_SUBSCRIPTION,
)
async def test_there_are_never_more_consumers_than_may_be(
    broker: BrokerInMemory, seed: int
) -> None:
    """Compare with a list of places. Who comes has one at once, while its subscription is made."""
    chance = random.Random(seed)
    await Client(broker).produce(TOPIC, 1)
    places: dict[Client, str] = {}
    making: dict[str, tuple[Client, asyncio.Future[None]]] = {}
    names: list[str] = []
    create, refused = topic(broker).registry.create, 0

    async def slow_create(name: str, *given: Any, **fields: Any):
        await making[name][1]
        return await create(name, *given, **fields)

    topic(broker).registry.create = slow_create
    for step in range(80):
        there = [client for client in places if client not in [each for each, _ in making.values()]]
        match chance.choice(["comes", "comes", "joins", "is made", "fails", "leaves"]):
            case "comes" | "joins" as how:
                name = chance.choice(names) if how == "joins" and names else f"s{step}"
                client = Client(broker)
                client.connection.client.host = host = chance.choice(["10.0.0.1", "10.0.0.2"])
                of_host = sum(each.connection.client.host == host for each in places)
                has_room = len(places) < MOST and of_host < MOST_OF_HOST
                joins = name in names
                members = Counter(places.values())[name]
                if has_room and not joins:
                    making[name] = client, asyncio.get_running_loop().create_future()
                client.send(client.subscribe_command(TOPIC, name, kind=SHARED))
                if has_room and (not joins or members < MOST_OF_SUBSCRIPTION):
                    places[client] = name
                    await (client.outcome() if joins else asyncio.sleep(0.01))
                else:
                    assert await client.outcome() == ServerError.ConsumerBusy
                    refused += 1
            case "is made" | "fails" as how if making:
                name = chance.choice(list(making))
                client, made = making[name]
                if how == "fails":
                    made.set_exception(StorageError("no disk"))
                    del places[client]
                else:
                    made.set_result(None)
                    names.append(name)
                assert (await client.outcome() != 0) == (how == "fails")
                del making[name]
            case "leaves" if there:
                client = chance.choice(there)
                await client.close()
                del places[client]
        everyone = Counter(places.values())
        found = topic(broker).subscriptions.items()
        counts = {name: subscription.type.consumer_count for name, subscription in found}
        assert counts == {name: everyone[name] for name in names}
    assert refused
    for _, made in making.values():
        made.cancel()


@scenario(maxConsumersPerConnection=2)
async def test_a_connection_with_too_many_consumers_leaves_no_subscription_behind(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC, "s0", consumer_id=0) == 0
    client.send(
        client.subscribe_command(TOPIC, "s1", 1), client.subscribe_command(TOPIC, "s2", 2)
    )  # in one piece: both are under way together
    answers = sorted([await client.outcome(), await client.outcome()])
    assert answers == [0, ServerError.NotAllowedError]
    assert len(topic(broker).subscriptions) == 2


@scenario(maxSubscriptionsPerTopic=1)
async def test_readers_count_among_the_subscriptions_of_a_topic(broker) -> None:
    client, reader = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC) == 0
    assert await reader.subscribe(TOPIC, "r", durable=False) == ServerError.NotAllowedError
    assert await client.subscribe(TOPIC, consumer_id=2, kind=EXCLUSIVE) != 0
    await client.close()
    await topic(broker).subscriptions["s"].delete()
    assert await reader.subscribe(TOPIC, "r", durable=False) == 0
    assert await client.subscribe(TOPIC) == ServerError.NotAllowedError


@scenario()
async def test_partitions_that_a_topic_does_not_have_are_not_found(broker) -> None:
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    client = Client(broker)
    missing = TOPIC + "-partition-2"
    assert await client.subscribe(missing) == ServerError.TopicNotFound
    assert await client.open_producer(missing, "p") == ServerError.TopicNotFound
    ask = Command(type=Command.PARTITIONED_METADATA)
    ask.partitionMetadata.topic, ask.partitionMetadata.request_id = missing, 1
    client.send(ask)
    answer = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
    assert answer.partitionMetadataResponse.error == ServerError.TopicNotFound
    assert await broker.broker.catalog.list_topics("public/default") == [
        f"{TOPIC}-partition-0",
        f"{TOPIC}-partition-1",
    ]


@pytest.mark.parametrize("name", ["", "pulsar.repl.west", "pulsar.dedup"])
@scenario()
async def test_names_that_nobody_may_use(broker: BrokerInMemory, name: str) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC, name) == ServerError.ProducerBusy


@scenario()
async def test_metadata_and_properties_of_a_subscriber(broker) -> None:
    client = Client(broker)

    def command(**fields: str) -> pb.BaseCommand:
        command = client.subscribe_command(TOPIC)
        for key, value in fields.items():
            command.subscribe.metadata.add(key=key, value=value)
        return command

    client.send(command(k="v" * CLIENT_METADATA_CHARS_MAX))
    assert await client.outcome() == ServerError.MetadataError
    wanted = command(k="v" * (CLIENT_METADATA_CHARS_MAX - 1))
    wanted.subscribe.subscription_properties.add(key="made", value="first")
    client.send(wanted)
    assert await client.outcome() == 0
    await client.close()
    late = command()
    late.subscribe.subscription_properties.add(key="made", value="later")
    client.send(late)
    assert await client.outcome() == 0
    assert topic(broker).subscriptions["s"].properties.given == {"made": "first"}
    await broker.restart()
    assert await Client(broker).subscribe(TOPIC) == 0
    assert topic(broker).subscriptions["s"].properties.given == {"made": "first"}


# -- messages -----------------------------------------------------------------------------------


@pytest.mark.feature("F13")
@pytest.mark.command("FLOW", "MESSAGE")
@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_permits_count_messages_and_a_batch_is_not_split(
    broker: BrokerInMemory, kind: int
) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    for number, size in enumerate([3, 4, 1, 2]):
        await client.publish_batch(size, number)
    replicate(client)
    client.send_bytes(publish(1, 9, b"marker", marker_type=10))
    await client.take(Command.SEND_RECEIPT)
    await client.publish(10)
    client.send(client.subscribe_command(TOPIC, kind=kind))
    assert await client.outcome() == 0
    consumer = client.connection.opened.consumers[1]
    assert await entries(client) == []  # nothing before the first FLOW
    found = []
    for permits in (0, 4, 2, 1, 1, 1, 2):
        client.flow(permits)
        found.append((await entries(client), consumer.permits))
    assert found == [
        ([], 0),
        ([0, 1], -3),
        ([], -1),
        ([], 0),
        ([2], 0),
        ([3], -1),
        ([5], 0),  # the marker costs nothing and goes to nobody
    ]


@pytest.mark.command("MESSAGE")
@scenario()
async def test_the_fields_of_a_message(broker) -> None:
    client = Client(broker)
    partition = TOPIC + "-partition-1"
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    for number, name in enumerate((TOPIC + "-plain", partition), 1):
        await client.produce(name, 0, number)
        await client.publish_batch(2, producer_id=number)
        assert await client.subscribe(name, consumer_id=number) == 0
    found = {d.message.consumer_id: d.message for d in await client.deliveries()}
    assert [found[n].message_id.partition for n in (1, 2)] == [-1, 1]
    for message in found.values():
        assert {field.name for field, _ in message.ListFields()} == {"consumer_id", "message_id"}
        assert not message.message_id.HasField("batch_index")
        assert not message.message_id.HasField("batch_size")


@pytest.mark.command("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE")
@scenario()
async def test_the_last_message_id_of_a_batch_and_of_a_partition(broker) -> None:
    client = Client(broker)
    partition = TOPIC + "-partition-1"
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    assert await client.subscribe(partition) == 0
    ask = Command(type=Command.GET_LAST_MESSAGE_ID)
    ask.getLastMessageId.consumer_id, ask.getLastMessageId.request_id = 1, 5

    async def last() -> tuple[int, int, int, int]:
        client.send(ask)
        answer = await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)
        i = answer.getLastMessageIdResponse.last_message_id
        return i.ledgerId, i.entryId, i.partition, i.batch_index

    assert await last() == (*EARLIEST_ID, 1, -1)
    await client.produce(partition, 0)
    assert await last() == (*EARLIEST_ID, 1, -1)
    assert await last() == (*EARLIEST_ID, 1, -1)
    place = await client.publish_batch(3)
    assert await last() == (*place, 1, 2)
    place = await client.publish_batch(1, 1)
    assert await last() == (*place, 1, 0)
    place = await client.publish(2)
    assert await last() == (*place, 1, -1)
    replicate(client)
    client.send_bytes(publish(1, 3, b"", marker_type=21))
    await client.take(Command.SEND_RECEIPT)
    assert await last() == (*place, 1, -1)


# -- the end of a consumer ----------------------------------------------------------------------


@pytest.mark.command("CLOSE_CONSUMER", "CLOSE_PRODUCER")
@scenario()
async def test_closing_what_is_not_there_is_a_success(broker) -> None:
    client = Client(broker)
    await client.close("consumer", 7)
    await client.close("producer", 7)
    assert await client.subscribe(TOPIC) == 0
    await client.close()
    await client.close()


@pytest.mark.command("CLOSE_PRODUCER")
@scenario()
async def test_a_producer_is_closed_when_its_publishes_are_answered(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    with held(broker):
        client.send_bytes(publish(1, 0, b"x"))
        client.send(client.close_command("producer"))
        await asyncio.sleep(0.1)
        assert not client.has(Command.SUCCESS)
    assert await client.outcome() == 0
    assert client.has(Command.SEND_RECEIPT)


@pytest.mark.command("UNSUBSCRIBE", "CLOSE_CONSUMER")
@pytest.mark.parametrize("kind", TYPES[1:])
@scenario()
async def test_an_unsubscribe_by_force_closes_the_others(broker: BrokerInMemory, kind: int) -> None:
    clients = [Client(broker) for _ in range(3)]
    await clients[0].produce(TOPIC, 1)
    for client in clients:
        assert await client.subscribe(TOPIC, kind=kind) == 0
    leave = Command(type=Command.UNSUBSCRIBE)
    leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 70
    clients[0].send(leave)
    assert await clients[0].outcome() == ServerError.MetadataError
    leave.unsubscribe.force = True
    clients[0].send(leave)
    assert await clients[0].outcome() == 0
    assert [client.has(Command.CLOSE_CONSUMER) for client in clients] == [False, True, True]
    close = (await clients[1].take(Command.CLOSE_CONSUMER)).close_consumer
    assert (close.consumer_id, close.request_id) == (1, NO_REQUEST)
    assert not topic(broker).subscriptions
    await broker.restart()
    assert not (await broker.broker.topics.load(NAME)).subscriptions


@pytest.mark.command("CLOSE_PRODUCER", "CLOSE_CONSUMER")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", ["consumer", "producer"])
@scenario()
async def test_clients_too_old_to_be_told_lose_their_connection(
    broker: BrokerInMemory, what: str, version: int
) -> None:
    client = await hello(broker, version)
    if what == "consumer":
        assert await client.subscribe(TOPIC) == 0
    else:
        await client.produce(TOPIC, 0)
    await broker.broker.topics.unload(NAME)
    await asyncio.sleep(0.01)
    assert client.transport.closed == (version < 5)
    told = Command.CLOSE_CONSUMER if what == "consumer" else Command.CLOSE_PRODUCER
    assert client.has(told) == (version >= 5)


@pytest.mark.parametrize("kind", TYPES)
@scenario()
async def test_with_its_connection_a_consumer_is_gone_at_once(
    broker: BrokerInMemory, kind: int
) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await entries(client) == [0, 1]
    client.hang_up()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await other.subscribe(TOPIC, kind=kind) == 0
    assert await entries(other) == [0, 1]


@scenario(maxSameAddressConsumersPerTopic=2)
async def test_so_many_consumers_of_a_topic_come_from_one_address(broker) -> None:
    client, other = Client(broker), Client(broker)
    other.connection.client.host = "10.0.0.2"
    assert await client.subscribe(TOPIC, "s", consumer_id=1) == 0
    # Two at once: the second one finds the place taken by one whose subscription is being made.
    client.send(client.subscribe_command(TOPIC, "u", 2), client.subscribe_command(TOPIC, "v", 3))
    assert {await client.outcome(), await client.outcome()} == {0, ServerError.ConsumerBusy}
    assert sorted(topic(broker).subscriptions) == ["s", "u"]
    assert await other.subscribe(TOPIC, "w", consumer_id=1) == 0
    assert await client.subscribe(f"{TOPIC}2", "s", consumer_id=4) == 0
    await client.close("consumer", 1)
    assert await client.subscribe(TOPIC, "s", consumer_id=5) == 0


@scenario(subscribeThrottlingRatePerConsumer=2, subscribeRatePeriodPerConsumerInSecond=10)
async def test_a_consumer_subscribes_so_often(broker) -> None:
    client, other = Client(broker), Client(broker)

    async def again(client: Client, **fields: Any) -> int:
        code = await client.subscribe(TOPIC, "s", kind=SHARED, **fields)
        if code == 0:
            await client.close("consumer", fields.get("consumer_id", 1))
        return code

    assert [await again(client) for _ in range(3)] == [0, 0, ServerError.NotAllowedError]
    client.send(client.subscribe_command(TOPIC))
    error = (await client.take(Command.ERROR)).error
    assert error.message == "Subscribe limited by subscribe rate limit per consumer."
    # Another one is counted by itself, by its id, its name, its address, its topic.
    other.connection.client.host = "10.0.0.2"
    assert await again(client, consumer_id=2) == 0
    assert await again(client, consumer_name="n") == 0
    assert await again(other) == 0
    assert await Client(broker).subscribe(f"{TOPIC}2", "s") == 0
    assert await Client(broker).subscribe(TRANSIENT, "s") == 0
    await asyncio.sleep(5.1)
    assert [await again(client) for _ in range(2)] == [0, ServerError.NotAllowedError]


def test_so_many_subscribe_rates_are_remembered() -> None:
    clock = SteppedClock()
    rates, rate = SubscribeRates(clock, most=3), SubscribeRate(1, 10)
    for number in [*range(100), 98]:
        with suppress(ClientError):
            rates.check(Subscriber("t", "h", "", number), rate)
        rates.check(Subscriber("t", "h", "unlimited", number), NO_SUBSCRIBE_RATE)
    assert len(rates) == 3
    for number in (97, 98, 99):
        with pytest.raises(ClientError):
            rates.check(Subscriber("t", "h", "", number), rate)
    rates.check(Subscriber("t", "h", "", 99), SubscribeRate(2, 10))  # another rate begins anew
    clock.ms += 10_000
    rates.check(Subscriber("t", "h", "", 98), rate)
