"""One command each: what the broker answers, and with which fields."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.connection.handshake import PROTOCOL_VERSION
from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import Client, Command, scenario

TOPIC = "persistent://public/default/t"
TRANSACTIONS = (
    "TC_CLIENT_CONNECT_REQUEST",
    "NEW_TXN",
    "ADD_PARTITION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN",
    "END_TXN",
    "END_TXN_ON_PARTITION",
    "END_TXN_ON_SUBSCRIPTION",
)


def request(kind: str, **fields: object) -> pb.BaseCommand:
    """A command of the type with its fields, filled in where the schema wants them."""
    command = Command(type=Command.Type.Value(kind))
    field = Command.DESCRIPTOR.fields_by_number[command.type]
    message = getattr(command, field.name)
    message.SetInParent()
    for needed in message.DESCRIPTOR.fields:
        if needed.is_required and needed.message_type is None:
            setattr(message, needed.name, needed.default_value)
    for name, value in fields.items():
        setattr(message, name, value)
    return command


@pytest.mark.command("CONNECT", "CONNECTED")
@pytest.mark.parametrize("asked", [19, PROTOCOL_VERSION, 99])
def test_the_handshake(asked: int) -> None:
    @scenario(maxMessageSize=1 << 20)
    async def handshake(broker) -> None:
        client = Client(broker, handshake=False)
        client.send(request("CONNECT", client_version="test", protocol_version=asked))
        answer = (await client.take(Command.CONNECTED)).connected
        assert answer.protocol_version == min(asked, PROTOCOL_VERSION)
        assert answer.max_message_size == 1 << 20
        assert answer.server_version

    handshake()


@pytest.mark.command("PING", "PONG")
@scenario(keepAliveIntervalSeconds=30)
async def test_a_silent_client_is_pinged_and_stays_if_it_answers(broker) -> None:
    client, mute = Client(broker), Client(broker)
    mute.mute = True
    for _ in range(9):
        await asyncio.sleep(10)
        client.has(Command.PING)
    assert client.connection.is_open
    assert mute.transport.closed
    client.send(request("PING"))
    await client.take(Command.PONG)


@pytest.mark.command("LOOKUP", "LOOKUP_RESPONSE")
@pytest.mark.command("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE")
@scenario()
async def test_a_lookup_creates_nothing(broker) -> None:
    client = Client(broker)
    client.send(
        request("LOOKUP", topic=TOPIC, request_id=1),
        request("PARTITIONED_METADATA", topic=TOPIC, request_id=2),
    )
    found = (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert (found.request_id, found.response, found.authoritative) == (1, found.Connect, True)
    assert found.brokerServiceUrl == "pulsar://b:6650"
    counted = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
    assert counted.partitionMetadataResponse.partitions == 0
    assert broker.broker.topics.get_loaded(TopicName.parse(TOPIC)) is None


@pytest.mark.feature("F83", "F89")
@pytest.mark.command("LOOKUP", "LOOKUP_RESPONSE")
@scenario()
async def test_a_lookup_leads_to_the_broker_that_is_chosen_or_has_the_topic(broker) -> None:
    two = await broker.another()
    await broker.broker.registry.report(LoadReport(bundles=5))
    await asyncio.sleep(0.01)
    client, other = Client(broker), Client(two)
    client.send(request("LOOKUP", topic=TOPIC, request_id=1))
    found = (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert (found.response, found.authoritative) == (found.Redirect, True)
    assert found.brokerServiceUrl == "pulsar://b2:6650"
    assert not found.proxy_through_service_url
    for each, authoritative in ((other, True), (client, False), (client, True)):
        each.send(request("LOOKUP", topic=TOPIC, request_id=2, authoritative=authoritative))
        found = (await each.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
        assert found.response == found.Connect
        assert found.brokerServiceUrl == "pulsar://b2:6650"
    assert await client.subscribe(TOPIC) == int(ServerError.ServiceNotReady)
    assert await other.subscribe(TOPIC) == 0


@pytest.mark.command("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE")
@scenario()
async def test_statistics_of_a_consumer(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 3)
    assert await client.subscribe(TOPIC, consumer_name="me") == 0
    first, *_ = await client.received(3)
    client.send(client.ack_command(first))
    await client.take(Command.ACK_RESPONSE)
    client.send(request("CONSUMER_STATS", consumer_id=1, request_id=7))
    answer = (await client.take(Command.CONSUMER_STATS_RESPONSE)).consumerStatsResponse
    assert (answer.request_id, answer.consumerName, answer.type) == (7, "me", "Exclusive")
    assert (answer.availablePermits, answer.msgBacklog) == (997, 2)
    assert (answer.msgRateOut, answer.messageAckRate, answer.msgRateRedeliver) == (3, 1, 0)
    assert answer.msgThroughputOut > 3
    assert answer.HasField("msgRateExpired")
    assert (answer.address, answer.unackedMessages) == ("/10.0.0.1:1234", 0)
    assert answer.connectedSince.endswith("Z")
    consumer = client.connection.opened.consumers[1]
    assert consumer.connected_since_ms <= consumer.last_consumed_ms <= consumer.last_acked_ms
    assert consumer.subscription.members.sent().last_ms == consumer.last_consumed_ms > 0
    client.send(request("CONSUMER_STATS", consumer_id=2, request_id=8))
    answer = (await client.take(Command.CONSUMER_STATS_RESPONSE)).consumerStatsResponse
    assert answer.error_code == ServerError.ConsumerNotFound
    assert answer.error_message


@pytest.mark.command("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE")
@scenario()
async def test_the_last_message_of_a_topic_and_of_an_empty_one(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC) == 0
    ask = request("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=5)
    client.send(ask)
    found = (await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)).getLastMessageIdResponse
    assert found.last_message_id.entryId == 2**64 - 1
    *_, last = await client.produce(TOPIC, 2)
    client.send(ask)
    found = (await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)).getLastMessageIdResponse
    assert (found.last_message_id.ledgerId, found.last_message_id.entryId) == last


@pytest.mark.command("REACHED_END_OF_TOPIC")
@scenario()
async def test_the_end_of_a_terminated_topic_is_told_when_all_is_acknowledged(broker) -> None:
    client = Client(broker)
    (position,) = await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC) == 0
    await client.received(1)
    await broker.broker.topics.get_loaded(TopicName.parse(TOPIC)).termination.terminate()
    assert not client.has(Command.REACHED_END_OF_TOPIC)
    client.send(client.ack_command(position))
    told = await client.take(Command.REACHED_END_OF_TOPIC)
    assert told.reachedEndOfTopic.consumer_id == 1


@pytest.mark.command("GET_SCHEMA", "GET_SCHEMA_RESPONSE")
@pytest.mark.command("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE")
@scenario()
async def test_a_schema_is_given_back_by_its_version(broker) -> None:
    client = Client(broker)
    client.send(request("GET_SCHEMA", topic=TOPIC, request_id=1))
    answer = (await client.take(Command.GET_SCHEMA_RESPONSE)).getSchemaResponse
    assert answer.error_code == ServerError.TopicNotFound
    client.send(client.producer_command(TOPIC, "p"))
    await client.take(Command.PRODUCER_SUCCESS)
    create = request("GET_OR_CREATE_SCHEMA", topic=TOPIC, request_id=2)
    schema = create.getOrCreateSchema.schema
    schema.name, schema.schema_data, schema.type = "s", b"", pb.Schema.String
    client.send(create)
    created = await client.take(Command.GET_OR_CREATE_SCHEMA_RESPONSE)
    version = created.getOrCreateSchemaResponse.schema_version
    assert version == bytes(8)
    client.send(request("GET_SCHEMA", topic=TOPIC, request_id=3, schema_version=version))
    answer = (await client.take(Command.GET_SCHEMA_RESPONSE)).getSchemaResponse
    assert (answer.request_id, answer.schema_version) == (3, version)
    assert answer.schema.type == pb.Schema.String


@pytest.mark.command("UNSUBSCRIBE")
@scenario()
async def test_who_may_unsubscribe(broker) -> None:
    client = Client(broker)
    for number in (1, 2):
        shared = pb.CommandSubscribe.Shared
        assert await client.subscribe(TOPIC, consumer_id=number, kind=shared) == 0
    client.send(request("UNSUBSCRIBE", consumer_id=1, request_id=50))
    assert await client.outcome() == ServerError.MetadataError
    client.send(client.close_command("consumer", 2))
    assert await client.outcome() == 0
    client.send(request("UNSUBSCRIBE", consumer_id=1, request_id=51))
    assert await client.outcome() == 0
    client.send(request("UNSUBSCRIBE", consumer_id=1, request_id=52))
    assert await client.outcome() == ServerError.MetadataError


@pytest.mark.command("TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "END_TXN")
@pytest.mark.command("ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN")
@pytest.mark.command("END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION")
@pytest.mark.parametrize("kind", TRANSACTIONS)
def test_transactions_are_not_enabled(kind: str) -> None:
    @scenario()
    async def refused(broker) -> None:
        client = Client(broker)
        client.send(request(kind, request_id=9))
        answer = (await client.take(Command.ERROR)).error
        assert (answer.request_id, answer.error) == (9, ServerError.NotAllowedError)
        assert client.connection.is_open

    refused()


@pytest.mark.parametrize("kind", ["CONNECT", "CONNECTED", "SEND_RECEIPT", "AUTH_CHALLENGE"])
def test_what_is_not_for_the_broker_ends_the_connection(kind: str) -> None:
    @scenario()
    async def closed(broker) -> None:
        client = Client(broker)
        client.send(request(kind))
        await asyncio.sleep(0.1)
        assert client.transport.closed

    closed()


@scenario(maxConcurrentLookupRequest=2)
async def test_so_many_lookups_are_answered_at_the_same_time(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.take(Command.CONNECTED)
    kinds = ["LOOKUP", "PARTITIONED_METADATA", "LOOKUP", "PARTITIONED_METADATA"]
    client.send(*(request(kind, topic=TOPIC, request_id=n) for n, kind in enumerate(kinds)))
    lookup = [Command.LOOKUP_RESPONSE, Command.PARTITIONED_METADATA_RESPONSE]
    answers = [await client.take(*lookup) for _ in kinds]
    refused = {}
    for answer in answers:
        found = answer.lookupTopicResponse
        if answer.type != Command.LOOKUP_RESPONSE:
            found = answer.partitionMetadataResponse
        refused[found.request_id] = found.error if found.HasField("error") else None
    assert refused == {
        0: None,
        1: None,
        2: ServerError.TooManyRequests,
        3: ServerError.TooManyRequests,
    }
    # A client that leaves while it waits does not keep its places.
    client.send(*(request("LOOKUP", topic=TOPIC, request_id=n) for n in range(2)))
    client.hang_up()
    await asyncio.sleep(0.01)
    assert broker.broker.lookups.pending == 0
    other.send(request("LOOKUP", topic=TOPIC, request_id=9))
    assert not (await other.take(lookup[0])).lookupTopicResponse.HasField("error")
