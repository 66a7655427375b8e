"""Producers: what is checked when they come, and of each message they send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from pulsark.dispatch.producer.producer_names import ProducerNames
from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import send_frame
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.wire_frames import entry_of, publish, send_command

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
WAIT = pb.ProducerAccessMode.WaitForExclusive
FENCING = pb.ProducerAccessMode.ExclusiveWithFencing


def names(broker: BrokerInMemory) -> list[str]:
    topic = broker.broker.topics.get_loaded(NAME)
    assert topic is not None
    return sorted(topic.producers)


# -- names ---------------------------------------------------------------------------------------


@scenario()
async def test_generated_names_are_never_used_twice(broker) -> None:
    client = Client(broker)
    found = [await client.open_producer(TOPIC, "", number) for number in range(3)]
    # As in the next process of the same cluster.
    broker.broker.producer_names = ProducerNames("standalone", broker.metadata)
    found += [await client.open_producer(TOPIC, "", number) for number in range(3, 6)]
    assert len({answer.producer_name for answer in found}) == 6
    assert {name.rsplit("-", 2)[0] for name in names(broker)} == {"standalone"}


@scenario()
async def test_a_client_that_comes_back_keeps_its_generated_name(broker) -> None:
    client = Client(broker)
    given = await client.open_producer(TOPIC, "")
    await broker.broker.topics.unload(NAME)
    await client.take(Command.CLOSE_PRODUCER)
    again = await client.open_producer(
        TOPIC, given.producer_name, epoch=1, user_provided_producer_name=False
    )
    assert again.producer_name == given.producer_name


@scenario()
async def test_the_next_epoch_of_a_producer_takes_its_place(broker) -> None:
    """Without being asked whether it is alive: it is the same client."""
    client = Client(broker)
    await client.open_producer(TOPIC, "p", epoch=0)
    client.mute = True
    client.connection.opened.producers.clear()  # the connection forgot it before the topic did
    assert (await client.open_producer(TOPIC, "p", epoch=1)).producer_ready
    assert await client.publish(0) >= (0, 0)
    assert names(broker) == ["p"]


# -- limits --------------------------------------------------------------------------------------


@scenario(maxProducersPerTopic=2)
async def test_a_topic_has_no_more_producers_than_it_may(broker) -> None:
    await Client(broker).open_producer(TOPIC, "first")
    clients = [Client(broker) for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(client.producer_command(TOPIC, str(number)))
    kinds = (Command.PRODUCER_SUCCESS, Command.ERROR)
    answers = [await client.take(*kinds) for client in clients]
    codes = [a.error.error for a in answers if a.type == Command.ERROR]
    assert codes == [ServerError.ProducerBusy] * 2
    assert len(names(broker)) == 2
    # One that waits is none yet, and one that takes the topic replaces the others.
    waiting, taking = Client(broker), Client(broker)
    told = await waiting.open_producer(TOPIC, "w", producer_access_mode=WAIT)
    assert not told.producer_ready
    assert (await taking.open_producer(TOPIC, "t", producer_access_mode=FENCING)).producer_ready
    assert names(broker) == ["t"]


# -- initial subscription ------------------------------------------------------------------------


@scenario()
async def test_an_initial_subscription_gets_the_first_message(broker) -> None:
    client = Client(broker)
    await client.open_producer(TOPIC, "p", initial_subscription_name="s")
    first = await client.publish(0)
    await broker.broker.topics.unload(NAME)
    assert await client.subscribe(TOPIC, initialPosition=pb.CommandSubscribe.Latest) == 0
    assert await client.received(1) == [first]


@scenario(allowAutoSubscriptionCreation=False)
async def test_an_initial_subscription_may_not_be_allowed(broker) -> None:
    client = Client(broker)
    answer = await client.open_producer(TOPIC, "p", initial_subscription_name="s")
    assert answer == ServerError.NotAllowedError
    assert (await client.open_producer(TOPIC, "p")).producer_ready


# -- encryption ----------------------------------------------------------------------------------


@scenario(encryptionRequireOnProducer=True)
async def test_where_encryption_is_required_a_producer_says_that_it_encrypts(broker) -> None:
    client = Client(broker)
    assert await client.open_producer(TOPIC, "p") == ServerError.MetadataError
    assert (await client.open_producer(TOPIC, "p", encrypted=True)).producer_ready


@pytest.mark.command("SEND_ERROR")
@scenario()
async def test_a_producer_that_encrypts_sends_nothing_else(broker) -> None:
    client = Client(broker)
    await client.open_producer(TOPIC, "p", encrypted=True)
    client.send_bytes(publish(1, 0, b"plain"))
    refused = (await client.take(Command.SEND_ERROR)).send_error
    assert (refused.sequence_id, refused.error) == (0, ServerError.MetadataError)
    keys = [pb.EncryptionKeys(key="k", value=b"wrapped")]
    client.send_bytes(publish(1, 1, b"secret", encryption_keys=keys))
    receipt = (await client.take(Command.SEND_RECEIPT)).send_receipt
    assert (receipt.sequence_id, receipt.message_id.entryId) == (1, 0)


ENCRYPTED = {"encryption_required": True}


@pytest.mark.parametrize("topic", [TOPIC, f"non-{TOPIC}"])
def test_where_encryption_becomes_required_producers_that_do_not_encrypt_leave(topic: str) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        await client.open_producer(topic, "plain", 1)
        await client.open_producer(topic, "secret", 2, encrypted=True)
        policies = broker.broker.policy_updates
        await broker.broker.resources.namespaces.update(
            "public/default", lambda old: replace(old, policies=ENCRYPTED)
        )
        await policies.refresh_namespace("public/default")
        assert (await client.take(Command.CLOSE_PRODUCER)).close_producer.producer_id == 1
        assert not client.has(Command.CLOSE_PRODUCER)
        assert list(broker.broker.topics.get(TopicName.parse(topic)).producers) == ["secret"]
        assert await client.open_producer(topic, "plain", 1) == ServerError.MetadataError

    run()


@scenario()
async def test_where_encryption_becomes_required_only_encrypting_producers_wait(broker) -> None:
    first, plain, secret = Client(broker), Client(broker), Client(broker)
    await first.open_producer(TOPIC, "first", encrypted=True)
    wait = {"producer_access_mode": WAIT}
    assert not (await plain.open_producer(TOPIC, "plain", **wait)).producer_ready
    assert not (await secret.open_producer(TOPIC, "secret", encrypted=True, **wait)).producer_ready
    topic = broker.broker.topics.get_loaded(NAME)
    topic.set_policies(replace(topic.policies, encryption_required=True))
    assert (await plain.take(Command.ERROR)).error.error == ServerError.MetadataError
    assert plain.connection.opened.waiting_producers == {}
    first.hang_up()
    assert (await secret.take(Command.PRODUCER_SUCCESS)).producer_success.producer_ready


@scenario()
async def test_encryption_that_becomes_required_while_a_producer_comes_counts(broker) -> None:
    client, other = Client(broker), Client(broker)
    await other.open_producer(TOPIC, "p")
    topic = broker.broker.topics.get_loaded(NAME)
    other.mute = True  # whether it is alive is asked now, and takes a while to find out
    client.send(client.producer_command(TOPIC, "p"))
    await asyncio.sleep(0.1)
    topic.set_policies(replace(topic.policies, encryption_required=True))
    assert (await client.take(Command.ERROR, seconds=10)).error.error == ServerError.MetadataError
    assert names(broker) == []


# -- size ----------------------------------------------------------------------------------------


@scenario()
async def test_a_message_above_the_size_of_its_topic_is_refused_alone(broker) -> None:
    client = Client(broker)
    await client.open_producer(TOPIC, "p")
    await client.publish(0)
    records = broker.broker.resources.topic_policies
    await records.update(NAME, lambda _: {"max_message_size": 1000})
    await broker.broker.policy_updates.refresh_topic(NAME)
    client.send_bytes(publish(1, 1, b"x" * 1000))
    refused = (await client.take(Command.SEND_ERROR)).send_error
    assert (refused.sequence_id, refused.error) == (1, ServerError.NotAllowedError)
    command = send_command(1, 2)
    command.send.is_chunk = True
    client.send_bytes(send_frame(command, entry_of(b"x" * 1000, 2, producer_name="p")))
    assert (await client.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 2
    assert (await client.publish(3))[1] == 2
    await records.update(NAME, lambda _: {})
    await broker.broker.policy_updates.refresh_topic(NAME)
    client.send_bytes(publish(1, 4, b"x" * 1000))
    assert (await client.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 4


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("txn", [(0, 0), (1, 7)])
def test_a_message_in_a_transaction_is_refused_alone(txn: tuple[int, int]) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        await client.open_producer(TOPIC, "p")
        command = send_command(1, 5)
        command.send.txnid_most_bits, command.send.txnid_least_bits = txn
        client.send_bytes(send_frame(command, entry_of(b"x", 5)))
        refused = (await client.take(Command.SEND_ERROR)).send_error
        assert (refused.sequence_id, refused.error) == (5, ServerError.NotAllowedError)
        await client.publish(6)
        assert broker.broker.topics.get_loaded(NAME).entries_in == 1

    run()


@pytest.mark.command("ACK", "ACK_RESPONSE")
@pytest.mark.parametrize("cumulative", [False, True])
def test_an_acknowledgement_in_a_transaction_is_refused(cumulative: bool) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        (position,) = await client.produce(TOPIC, 1)
        assert await client.subscribe(TOPIC) == 0
        await client.received(1)
        command = client.ack_command(position, cumulative=cumulative)
        command.ack.txnid_most_bits = command.ack.txnid_least_bits = 0
        client.send(command)
        answer = (await client.take(Command.ACK_RESPONSE)).ackResponse
        assert answer.request_id == command.ack.request_id
        assert answer.error == ServerError.NotAllowedError
        assert answer.message
        command.ack.ClearField("request_id")
        client.send(command)
        await asyncio.sleep(0.1)
        assert not client.has(Command.ACK_RESPONSE)
        assert broker.broker.topics.get_loaded(NAME).subscriptions["s"].backlog == 1

    run()


@pytest.mark.parametrize("kind", ["non-partitioned", "partitioned"])
@pytest.mark.parametrize("create", [True, False])
def test_the_topic_of_the_coordinators_has_no_partitions(kind: str, create: bool) -> None:
    """From their number clients learn whether transactions are enabled."""

    @scenario(allowAutoTopicCreationType=kind)
    async def run(broker) -> None:
        client = Client(broker)
        command = Command(type=Command.PARTITIONED_METADATA)
        request = command.partitionMetadata
        request.topic = "persistent://pulsar/system/transaction_coordinator_assign"
        request.request_id, request.metadata_auto_creation_enabled = 1, create
        client.send(command)
        answer = (
            await client.take(Command.PARTITIONED_METADATA_RESPONSE)
        ).partitionMetadataResponse
        assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
        assert answer.partitions == 0

    run()


# -- what is stored ------------------------------------------------------------------------------


@scenario()
async def test_a_message_above_the_limit_ends_the_connection_and_no_other(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.open_producer(TOPIC, "p")
    await other.open_producer(TOPIC, "q")
    limit = broker.broker.settings.maxMessageSize
    client.send_bytes(publish(1, 0, bytes(limit)))
    await client.take(Command.SEND_RECEIPT)
    client.send_bytes(publish(1, 1, bytes(limit + 20 * 1024)))
    await asyncio.sleep(0.01)
    assert client.transport.closed
    ids = [await other.publish(number) for number in range(2)]
    assert all(before < after for before, after in pairwise(ids))


# -- limits ---------------------------------------------------------------------------------------


@scenario(maxSameAddressProducersPerTopic=2)
async def test_so_many_producers_of_a_topic_come_from_one_address(broker) -> None:
    client, other = Client(broker), Client(broker)
    other.connection.client.host = "10.0.0.2"
    for number in range(2):
        assert not isinstance(await client.open_producer(TOPIC, f"p{number}", number), int)
    assert await client.open_producer(TOPIC, "p2", 2) == ServerError.ProducerBusy
    assert not isinstance(await other.open_producer(TOPIC, "q", 0), int)
    assert not isinstance(await client.open_producer(f"{TOPIC}2", "p2", 2), int)
    await client.close("producer", 0)
    assert not isinstance(await client.open_producer(TOPIC, "p3", 3), int)
