"""Non-persistent topics: who gets a message, what is dropped, and what clients are told."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import ServerError
from pulsark.limits import UNUSED_NON_PERSISTENT_TOPIC_SECONDS
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, replicate, scenario
from tests.support.wire_frames import publish

TOPIC = "non-persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
EXCLUSIVE = pb.CommandSubscribe.Exclusive
SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
KEY_SHARED = pb.CommandSubscribe.Key_Shared
DROPPED = (2**64 - 1, 2**64 - 1)


async def producer_of(client: Client, topic: str = TOPIC, producer_id: int = 1) -> None:
    client.send(client.producer_command(topic, f"p-{id(client)}-{producer_id}", producer_id))
    await client.take(Command.PRODUCER_SUCCESS)


async def payloads(client: Client) -> list[bytes]:
    return [delivery.payload for delivery in await client.deliveries()]


def send(client: Client, *bodies: bytes, **metadata: object) -> None:
    """Publish several messages in one piece."""
    client.send_bytes(b"".join(publish(1, i, body, **metadata) for i, body in enumerate(bodies)))


async def receipts(client: Client, number: int) -> list[tuple[int, int]]:
    found = [(await client.take(Command.SEND_RECEIPT)).send_receipt for _ in range(number)]
    assert [r.sequence_id for r in found] == list(range(number))
    return [(r.message_id.ledgerId, r.message_id.entryId) for r in found]


# -- who gets a message ---------------------------------------------------------------------


@pytest.mark.feature("F44", "F45", "F48")
@scenario()
async def test_every_subscription_gets_what_is_published_while_it_is_there(broker) -> None:
    producer, a, b, late = (Client(broker) for _ in range(4))
    await a.subscribe(TOPIC, "a")
    await b.subscribe(TOPIC, "b")
    await producer_of(producer)
    send(producer, b"0", b"1")
    assert await receipts(producer, 2) == [(0, 0)] * 2
    await late.subscribe(TOPIC, "late")
    send(producer, b"2")
    for client, wanted in ((a, [b"0", b"1", b"2"]), (b, [b"0", b"1", b"2"]), (late, [b"2"])):
        deliveries = await client.deliveries()
        assert [d.payload for d in deliveries] == wanted
        ids = [d.message.message_id for d in deliveries]
        assert {(i.ledgerId, i.entryId, i.HasField("batch_index")) for i in ids} == {(0, 0, False)}
    assert not broker.bookie.ledger_ids()


@pytest.mark.feature("F44", "F77")
@scenario()
async def test_what_nobody_was_there_for_is_gone(broker) -> None:
    producer, consumer = Client(broker), Client(broker)
    await producer_of(producer)
    send(producer, b"0")
    assert await receipts(producer, 1) == [(0, 0)]
    await consumer.subscribe(TOPIC)
    consumer.hang_up()
    await asyncio.sleep(0.01)
    send(producer, b"1")
    again = Client(broker)
    await again.subscribe(TOPIC)
    assert await payloads(again) == []
    send(producer, b"2")
    assert await payloads(again) == [b"2"]


@pytest.mark.feature("F49")
@scenario()
async def test_exclusive_has_one_consumer(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC, kind=EXCLUSIVE) == 0
    for kind in (EXCLUSIVE, SHARED):
        code = await client.subscribe(TOPIC, kind=kind, consumer_id=2)
        assert code == ServerError.ConsumerBusy
    client.send(client.close_command("consumer"))
    assert await client.outcome() == 0
    assert await client.subscribe(TOPIC, kind=SHARED, consumer_id=2) == 0


@pytest.mark.feature("F49")
@scenario()
async def test_shared_goes_round(broker) -> None:
    producer, *consumers = (Client(broker) for _ in range(4))
    for consumer in consumers:
        await consumer.subscribe(TOPIC, kind=SHARED)
    await producer_of(producer)
    send(producer, *(bytes([i]) for i in range(6)))
    found = [await payloads(consumer) for consumer in consumers]
    assert [len(one) for one in found] == [2, 2, 2]
    assert {body for one in found for body in one} == {bytes([i]) for i in range(6)}


@pytest.mark.feature("F49")
@scenario()
async def test_failover_has_one_active_consumer_and_another_takes_over(broker) -> None:
    producer, a, b = (Client(broker) for _ in range(3))
    topic = f"{TOPIC}-partition-0"
    await broker.broker.creation.create_partitioned_topic(NAME, 1, {})
    await b.subscribe(topic, kind=FAILOVER, consumer_name="b")
    assert (await b.take(Command.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    await a.subscribe(topic, kind=FAILOVER, consumer_name="a")
    assert (await a.take(Command.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    assert not (await b.take(Command.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    await producer_of(producer, topic)
    send(producer, b"0")
    a.hang_up()
    assert (await b.take(Command.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    send(producer, b"1")
    (delivery,) = await b.deliveries()
    assert (delivery.payload, delivery.message.message_id.partition) == (b"1", 0)


@pytest.mark.feature("F33", "F49")
@scenario()
async def test_key_shared_keeps_a_key_at_one_consumer(broker) -> None:
    producer, *consumers = (Client(broker) for _ in range(4))
    for number, consumer in enumerate(consumers):
        await consumer.subscribe(TOPIC, kind=KEY_SHARED, consumer_name=f"c{number}")
    await producer_of(producer)
    for round_ in range(3):
        for key in range(60):
            body = b"%d" % key
            producer.send_bytes(publish(1, round_ * 60 + key, body, partition_key=f"k{key}"))
    found = [await payloads(consumer) for consumer in consumers]
    assert sum(map(len, found)) == 180
    assert all(found)
    keys = [set(one) for one in found]
    assert sum(map(len, keys)) == 60
    # What a consumer that leaves has not acknowledged holds nobody up: it is not waited for.
    consumers[0].hang_up()
    await asyncio.sleep(0.01)
    producer.send_bytes(b"".join(publish(1, k, b"", partition_key=f"k{k}") for k in range(60)))
    assert sum([len(await payloads(consumer)) for consumer in consumers[1:]]) == 60


@pytest.mark.feature("F33", "F46")
@scenario()
async def test_key_shared_drops_what_the_keys_consumer_cannot_take(broker) -> None:
    producer, full, free = (Client(broker) for _ in range(3))
    for client, name in ((full, "full"), (free, "free")):
        client.send(client.subscribe_command(TOPIC, kind=KEY_SHARED, consumer_name=name))
        assert await client.outcome() == 0
    free.flow(1000)
    await producer_of(producer)
    for number in range(100):
        producer.send_bytes(publish(1, number, b"", partition_key=f"k{number}"))
    delivered = len(await payloads(free))
    subscription = broker.broker.non_persistent.get(NAME).subscriptions["s"]
    assert 0 < delivered < 100
    assert subscription.totals.messages_dropped == 100 - delivered


@scenario()
async def test_markers_are_not_delivered(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    await producer_of(client)
    replicate(client)
    send(client, b"marker", marker_type=10)
    send(client, b"message")
    assert await payloads(client) == [b"message"]


# -- drops ----------------------------------------------------------------------------------


@pytest.mark.feature("F46")
@scenario()
async def test_without_permits_messages_are_dropped_and_counted(broker) -> None:
    producer, full, free = (Client(broker) for _ in range(3))
    full.send(full.subscribe_command(TOPIC, "full"))
    assert await full.outcome() == 0
    await free.subscribe(TOPIC, "free")
    await producer_of(producer)
    send(producer, b"0", b"1", b"2")
    assert await receipts(producer, 3) == [(0, 0)] * 3
    full.flow(2)
    send(producer, b"3", b"4", b"5")
    assert await payloads(full) == [b"3", b"4"]
    assert len(await payloads(free)) == 6
    subscriptions = broker.broker.non_persistent.get(NAME).subscriptions
    assert subscriptions["full"].totals.messages_dropped == 4
    assert subscriptions["full"].type.consumers[0].messages_dropped == 4
    assert subscriptions["free"].totals.messages_dropped == 0


@pytest.mark.feature("F46")
@scenario()
async def test_a_consumer_that_does_not_read_gets_nothing_more(broker) -> None:
    producer, consumer = Client(broker), Client(broker)
    await consumer.subscribe(TOPIC)
    await producer_of(producer)
    consumer.transport.reads = False
    body = bytes(400_000)
    for _ in range(10):
        send(producer, body)
        await asyncio.sleep(0.001)
    assert consumer.transport.unread < 2_000_000
    consumer.transport.read_all()
    await asyncio.sleep(0.001)
    before = len(await consumer.deliveries())
    assert 0 < before < 6
    send(producer, b"now")
    assert await payloads(consumer) == [b"now"]


@pytest.mark.feature("F46")
@scenario()
async def test_a_consumer_that_reads_gets_many_large_messages_of_one_read(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    await producer_of(client)
    for _ in range(8):  # in one turn of the loop
        send(client, bytes(400_000))
    assert len(await client.deliveries()) == 8


@pytest.mark.feature("F47")
@scenario(maxConcurrentNonPersistentMessagePerConnection=3)
async def test_beyond_the_limit_of_a_connection_messages_are_dropped(broker) -> None:
    producer, other, consumer = (Client(broker) for _ in range(3))
    await consumer.subscribe(TOPIC)
    await producer_of(producer)
    await producer_of(other)
    send(producer, *(b"%d" % i for i in range(5)))
    assert await receipts(producer, 5) == [(0, 0)] * 3 + [DROPPED] * 2
    send(other, b"other")
    send(producer, b"again")
    assert await receipts(other, 1) == [(0, 0)]
    assert await receipts(producer, 1) == [(0, 0)]
    assert await payloads(consumer) == [b"0", b"1", b"2", b"other", b"again"]
    topic = broker.broker.non_persistent.get(NAME)
    dropping = topic.producers[f"p-{id(producer)}-1"]
    assert (dropping.messages_dropped, dropping.messages_in, topic.messages_in) == (2, 4, 5)


@pytest.mark.feature("F47")
@scenario(maxConcurrentNonPersistentMessagePerConnection=3)
async def test_the_limit_is_one_for_all_topics_of_a_connection(broker) -> None:
    client = Client(broker)
    await producer_of(client)
    await producer_of(client, TOPIC + "2", producer_id=2)
    client.send_bytes(b"".join(publish(i % 2 + 1, i, b"x") for i in range(6)))
    found = [(await client.take(Command.SEND_RECEIPT)).send_receipt for _ in range(6)]
    ids = {r.sequence_id: r.message_id.ledgerId for r in found}
    assert [ids[i] for i in range(6)] == [0, 0, 0, *[2**64 - 1] * 3]


@scenario()
async def test_a_connection_that_ends_in_the_middle_of_a_read_leaves_nothing_behind(
    broker,
) -> None:
    client, consumer = Client(broker), Client(broker)
    await consumer.subscribe(TOPIC)
    await producer_of(client)
    client.send_bytes(publish(1, 0, b"x") + b"\0\0\0\x08garbage!")
    assert await payloads(consumer) == [b"x"]
    topic = broker.broker.non_persistent.get(NAME)
    assert not topic.producers
    assert client.connection.client.non_persistent_in_flight == 0
    assert not topic._unanswered


# -- requests that have nothing to work on --------------------------------------------------


@pytest.mark.command("SEEK")
@scenario()
async def test_a_seek_changes_nothing_and_succeeds(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    await producer_of(client)
    client.send(client.seek_command((3, 4)))
    assert await client.outcome() == 0
    by_time = Command(type=Command.SEEK)
    by_time.seek.consumer_id, by_time.seek.request_id = 1, 900
    by_time.seek.message_publish_time = 1
    client.send(by_time)
    assert await client.outcome() == 0
    send(client, b"x")
    assert await payloads(client) == [b"x"]
    assert not client.has(Command.CLOSE_CONSUMER)


@pytest.mark.command("GET_LAST_MESSAGE_ID")
@scenario()
async def test_there_is_no_last_message(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    command = Command(type=Command.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = 1, 900
    client.send(command)
    answer = await client.take(Command.ERROR)
    assert (answer.error.request_id, answer.error.error) == (900, ServerError.UnknownError)


@scenario()
async def test_acknowledgements_and_redeliveries_change_nothing(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC, kind=SHARED)
    await producer_of(client)
    send(client, b"x")
    await client.deliveries()
    for ack in (client.ack_command((0, 0)), client.ack_command((0, 0), cumulative=True)):
        client.send(ack)
        answer = (await client.take(Command.ACK_RESPONSE)).ackResponse
        assert answer.request_id == ack.ack.request_id
        assert not answer.HasField("error")
    redeliver = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 1
    client.send(redeliver)
    assert await payloads(client) == []


@scenario()
async def test_no_message_has_an_epoch(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC, consumer_epoch=0)
    redeliver = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 1
    redeliver.redeliverUnacknowledgedMessages.consumer_epoch = 1
    client.send(redeliver)
    await producer_of(client)
    send(client, b"x")
    (delivery,) = await client.deliveries()
    assert not delivery.message.HasField("consumer_epoch")


@scenario()
async def test_a_reader_begins_with_the_next_message(broker) -> None:
    producer, reader = Client(broker), Client(broker)
    await producer_of(producer)
    send(producer, b"0")
    assert await reader.subscribe(TOPIC, "reader-1", durable=False, start=(0, 0)) == 0
    send(producer, b"1")
    assert await payloads(reader) == [b"1"]
    compacted = Client(broker)
    code = await compacted.subscribe(TOPIC, "reader-2", durable=False, read_compacted=True)
    assert code == ServerError.NotAllowedError


@pytest.mark.command("CONSUMER_STATS")
@scenario()
async def test_consumer_stats(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC, kind=SHARED)
    await producer_of(client)
    send(client, b"x")
    command = Command(type=Command.CONSUMER_STATS)
    command.consumerStats.consumer_id, command.consumerStats.request_id = 1, 900
    client.send(command)
    found = (await client.take(Command.CONSUMER_STATS_RESPONSE)).consumerStatsResponse
    assert (found.type, found.availablePermits, found.msgBacklog) == ("Shared", 999, 0)
    assert found.unackedMessages == 0


# -- coming and going -----------------------------------------------------------------------


@pytest.mark.command("UNSUBSCRIBE")
@scenario()
async def test_a_subscription_goes_with_its_last_consumer(broker) -> None:
    first, second = Client(broker), Client(broker)
    for client in (first, second):
        await client.subscribe(TOPIC, kind=SHARED)
    subscriptions = broker.broker.non_persistent.get(NAME).subscriptions
    unsubscribe = Command(type=Command.UNSUBSCRIBE)
    unsubscribe.unsubscribe.consumer_id, unsubscribe.unsubscribe.request_id = 1, 900
    first.send(unsubscribe)
    assert await first.outcome() == ServerError.MetadataError
    first.hang_up()
    await asyncio.sleep(0.01)
    assert list(subscriptions) == ["s"]
    second.send(unsubscribe)
    assert await second.outcome() == 0
    assert not subscriptions
    assert not second.has(Command.CLOSE_CONSUMER)


@scenario()
async def test_a_refused_consumer_leaves_no_subscription(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC, "pulsar.repl") == ServerError.ProducerBusy
    assert broker.broker.non_persistent.get(NAME) is None
    consumer = Client(broker)
    consumer.send(consumer.subscribe_command(TOPIC))
    consumer.hang_up()
    await asyncio.sleep(0.1)
    topic = broker.broker.non_persistent.get(NAME)
    assert topic is None or not topic.subscriptions


@scenario(keepAliveIntervalSeconds=1_000_000)
async def test_a_topic_that_nobody_uses_is_forgotten(broker) -> None:
    client = Client(broker)
    await producer_of(client)
    await asyncio.sleep(3 * UNUSED_NON_PERSISTENT_TOPIC_SECONDS)
    assert broker.broker.non_persistent.get(NAME) is not None
    client.hang_up()
    await asyncio.sleep(UNUSED_NON_PERSISTENT_TOPIC_SECONDS / 2)
    assert broker.broker.non_persistent.get(NAME) is not None
    await asyncio.sleep(2 * UNUSED_NON_PERSISTENT_TOPIC_SECONDS)
    assert broker.broker.non_persistent.get(NAME) is None


@scenario()
async def test_two_that_come_first_get_the_same_topic(broker) -> None:
    clients = [Client(broker), Client(broker)]
    for number, client in enumerate(clients):
        client.send(client.producer_command(TOPIC, f"p{number}"))
    for client in clients:
        await client.take(Command.PRODUCER_SUCCESS)
    assert sorted(broker.broker.non_persistent.get(NAME).producers) == ["p0", "p1"]


@scenario()
async def test_an_unloaded_topic_tells_its_clients(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    await producer_of(client)
    await broker.broker.topics.unload(NAME)
    await client.take(Command.CLOSE_PRODUCER)
    await client.take(Command.CLOSE_CONSUMER)
    assert broker.broker.non_persistent.get(NAME) is None
    assert not client.connection.opened.producers
    assert await client.subscribe(TOPIC) == 0


@scenario()
async def test_a_producers_name_is_taken_once(broker) -> None:
    client = Client(broker)
    for number in (1, 2):
        client.send(client.producer_command(TOPIC, "p", number))
        answer = await client.take(Command.PRODUCER_SUCCESS, Command.ERROR, seconds=8)
    assert answer.error.error == ServerError.ProducerBusy


@scenario()
async def test_a_producer_may_have_the_topic_for_itself(broker) -> None:
    client = Client(broker)
    epochs = []
    for number in (1, 2):
        command = client.producer_command(TOPIC, f"p{number}", number)
        command.producer.producer_access_mode = pb.ProducerAccessMode.ExclusiveWithFencing
        client.send(command)
        epochs.append((await client.take(Command.PRODUCER_SUCCESS)).producer_success.topic_epoch)
    assert epochs == [0, 1]
    assert (await client.take(Command.CLOSE_PRODUCER)).close_producer.producer_id == 1
    client.send(client.producer_command(TOPIC, "p3", 3))
    assert (await client.take(Command.ERROR)).error.error == ServerError.ProducerBusy


# -- partitions, lists, switches ------------------------------------------------------------


def partitions_command(topic: str, *, create: bool = True) -> pb.BaseCommand:
    command = Command(type=Command.PARTITIONED_METADATA)
    request = command.partitionMetadata
    request.topic, request.request_id = topic, 900
    request.metadata_auto_creation_enabled = create
    return command


def list_command(mode: int) -> pb.BaseCommand:
    command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace = 900, "public/default"
    request.mode = mode
    return command


async def lookup(client: Client, topic: str) -> pb.CommandLookupTopicResponse:
    command = Command(type=Command.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, 900
    client.send(command)
    return (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse


@pytest.mark.command("PARTITIONED_METADATA", "LOOKUP")
@scenario()
async def test_partitions(broker) -> None:
    client = Client(broker)
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    client.send(partitions_command(TOPIC))
    answer = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
    assert answer.partitionMetadataResponse.partitions == 2
    found = await lookup(client, f"{TOPIC}-partition-1")
    assert found.response == pb.CommandLookupTopicResponse.Connect
    assert await client.subscribe(f"{TOPIC}-partition-1") == 0
    assert (
        await client.subscribe(f"{TOPIC}-partition-2", "s2", consumer_id=2)
        == ServerError.TopicNotFound
    )
    assert await client.subscribe(TOPIC, "s3", consumer_id=3) == ServerError.NotAllowedError


@pytest.mark.command("GET_TOPICS_OF_NAMESPACE")
@scenario()
async def test_lists(broker) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    await client.subscribe("persistent://public/default/stored", consumer_id=2)
    parted = TopicName.parse("non-persistent://public/default/parted")
    await broker.broker.creation.create_partitioned_topic(parted, 2, {})
    memory = [f"{parted}-partition-0", f"{parted}-partition-1", TOPIC]
    stored = ["persistent://public/default/stored"]
    modes = pb.CommandGetTopicsOfNamespace
    for mode, wanted in (
        (modes.PERSISTENT, stored),
        (modes.NON_PERSISTENT, memory),
        (modes.ALL, memory + stored),
    ):
        client.send(list_command(mode))
        answer = await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert list(answer.getTopicsOfNamespaceResponse.topics) == wanted


@pytest.mark.feature("F44")
@scenario(allowAutoTopicCreation=False)
async def test_automatic_creation_switched_off(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC) == ServerError.TopicNotFound
    client.send(partitions_command(TOPIC))
    answer = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
    assert answer.partitionMetadataResponse.error == ServerError.TopicNotFound
    await broker.broker.creation.create_topic(NAME, {})
    assert await client.subscribe(TOPIC) == 0


@scenario(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
async def test_automatic_creation_with_partitions(broker) -> None:
    client = Client(broker)
    client.send(partitions_command(TOPIC))
    answer = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
    assert answer.partitionMetadataResponse.partitions == 3
    assert await client.subscribe(f"{TOPIC}-partition-2") == 0


@scenario(allowAutoSubscriptionCreation=False)
async def test_subscriptions_are_always_made(broker) -> None:
    assert await Client(broker).subscribe(TOPIC) == 0


@pytest.mark.feature("F50")
@pytest.mark.parametrize("off", ["enablePersistentTopics", "enableNonPersistentTopics"])
def test_a_kind_that_is_switched_off(off: str) -> None:
    topics = ["persistent://public/default/t", TOPIC]
    if off == "enableNonPersistentTopics":
        topics.reverse()
    refused, served = topics

    async def check(broker: BrokerInMemory) -> None:
        client = Client(broker)
        assert await client.subscribe(refused) == ServerError.NotAllowedError
        client.send(client.producer_command(refused, "p"))
        assert (await client.take(Command.ERROR)).error.error == ServerError.NotAllowedError
        client.send(partitions_command(refused))
        answer = (
            await client.take(Command.PARTITIONED_METADATA_RESPONSE)
        ).partitionMetadataResponse
        assert answer.error == ServerError.NotAllowedError
        found = await lookup(client, refused)
        assert found.error == ServerError.NotAllowedError
        assert await client.subscribe(served) == 0
        await producer_of(client, served)
        send(client, b"x")
        assert await payloads(client) == [b"x"]

    scenario(**{off: False})(check)()
