"""What clients see of a broker when requests overlap, connections end, and input is hostile."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from pulsark.errors import ClientError, MetadataError, ServerError, StorageError
from pulsark.limits import PROBE_TIMEOUT_SECONDS, READER_GRACE_SECONDS
from pulsark.metadata.resources import Tenant
from pulsark.storage.managed_ledger.record import TopicState, decode_record
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, held, replicate, scenario
from tests.support.wire_frames import publish

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
EARLIEST_ID = (2**64 - 1, 2**64 - 1)


# -- creation and closing overlap ------------------------------------------------------------


@pytest.mark.command("CLOSE_CONSUMER")
@scenario()
async def test_a_consumer_closed_during_its_creation_is_never_there(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    with held(broker):
        client.send(client.subscribe_command(TOPIC))
        await asyncio.sleep(0.01)
        client.send(client.close_command("consumer"))
        assert await client.outcome() == 0
    await asyncio.sleep(0.01)
    assert not client.connection.opened.consumers
    assert await Client(broker).subscribe(TOPIC) == 0


@scenario()
async def test_a_client_may_subscribe_again_right_after_it_gave_up(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    with held(broker):
        client.send(client.subscribe_command(TOPIC))
        await asyncio.sleep(0.01)
        again = client.subscribe_command(TOPIC)
        client.send(client.close_command("consumer"), again)
        assert await client.outcome() == 0
    assert (await client.take(Command.SUCCESS)).success.request_id == again.subscribe.request_id
    client.flow(10)
    await client.received(1)


@pytest.mark.command("CLOSE_PRODUCER")
@scenario()
async def test_a_producer_closed_during_its_creation_is_never_there(broker) -> None:
    first, second = Client(broker), Client(broker)
    first.send(first.producer_command(TOPIC, "p"))
    await first.take(Command.PRODUCER_SUCCESS)
    first.mute = True
    second.send(second.producer_command(TOPIC, "p"))
    await asyncio.sleep(0.01)
    second.send(second.close_command("producer"))
    assert await second.outcome() == 0
    await asyncio.sleep(PROBE_TIMEOUT_SECONDS + 1)
    assert not second.has(Command.PRODUCER_SUCCESS)
    assert not second.connection.opened.producers


@scenario()
async def test_a_tenant_that_comes_is_not_taken_for_a_namespace(broker) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    await broker.broker.resources.tenants.create("acme", Tenant((), ("standalone",)))
    await broker.broker.resources.namespaces.create("acme/orders")
    await asyncio.sleep(0.1)
    gc.collect()
    assert failures == []


@pytest.mark.feature("F27")
@scenario()
async def test_a_loaded_topic_follows_its_namespaces_policies(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    await broker.broker.resources.namespaces.update(
        NAME.namespace_name,
        lambda old: replace(old, policies={"subscription_types_enabled": ["Exclusive"]}),
    )
    await asyncio.sleep(0.01)
    assert await client.subscribe(TOPIC, kind=SHARED) == ServerError.NotAllowedError
    assert await Client(broker).subscribe(TOPIC) == 0


@pytest.mark.command("PRODUCER", "PRODUCER_SUCCESS")
@scenario()
async def test_of_two_who_want_a_dead_producers_name_one_gets_it(broker) -> None:
    dead, one, two = Client(broker), Client(broker), Client(broker)
    dead.send(dead.producer_command(TOPIC, "p"))
    await dead.take(Command.PRODUCER_SUCCESS)
    for client in (one, two):
        client.send(client.producer_command(TOPIC, "p"))
    outcomes: dict[Client, int] = {}
    while len(outcomes) < 2:
        for client in (one, two):  # both go on answering pings
            if client.has(Command.PRODUCER_SUCCESS) or client.has(Command.ERROR):
                answer = await client.take(Command.PRODUCER_SUCCESS, Command.ERROR)
                outcomes[client] = answer.error.error if answer.type == Command.ERROR else 0
        await asyncio.sleep(0.001)
    assert sorted(outcomes.values()) == [0, ServerError.ProducerBusy]
    (winner,) = (client for client, code in outcomes.items() if code == 0)
    assert await winner.publish() >= (0, 0)


@scenario()
async def test_a_lost_connection_leaves_no_consumer_that_was_being_rolled_back(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 3)
    assert await client.subscribe(TOPIC, kind=FAILOVER) == 0
    client.send(client.close_command("consumer"))
    await client.outcome()
    other = Client(broker)
    with held(broker):
        other.send(
            other.subscribe_command(TOPIC, kind=FAILOVER, start_message_rollback_duration_sec=9)
        )
        await asyncio.sleep(0.01)
        other.hang_up()
        await asyncio.sleep(0.01)
    assert not broker.broker.topics.get_loaded(NAME).subscriptions["s"].type.consumers


@scenario()
async def test_of_a_subscriber_and_an_unsubscribe_the_first_one_wins(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC) == 0
    await client.received(2)
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    async with subscription.members.changing:
        other.send(other.subscribe_command(TOPIC))
        await asyncio.sleep(0.01)
        leave = Command(type=Command.UNSUBSCRIBE)
        leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 77
        client.send(leave)
    # The deletion waits for its turn as well, and finds somebody there.
    assert await other.outcome() == 0
    assert await client.outcome() == ServerError.ConsumerBusy
    other.flow(10)
    await other.received(2)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def is_served_or_told(broker: BrokerInMemory, client: Client, topic: str) -> None:
    """A subscriber gets messages, or hears that it has to come again."""
    if await client.outcome(seconds=8) or client.has(Command.CLOSE_CONSUMER):
        assert await client.subscribe(topic, kind=SHARED) == 0
    client.flow(1000)
    await Client(broker).produce(topic, 1)
    await client.received(1)


@pytest.mark.parametrize(
    ("joining", "way"),
    [
        ("replicated", "delete"),
        ("replicated", "unsubscribe"),
        ("back in time", "delete"),
        ("back in time", "unsubscribe"),
        ("in place of the dead", "delete"),
    ],
)
@scenario()
async def test_nobody_is_admitted_to_a_subscription_that_is_deleted_meanwhile(
    broker: BrokerInMemory, joining: str, way: str
) -> None:
    for number in range(40):  # the deletion comes at each step of the admission
        topic = f"{TOPIC}-{number}"
        first, other = Client(broker), Client(broker)
        kind = pb.CommandSubscribe.Exclusive if joining == "in place of the dead" else SHARED
        assert await first.subscribe(topic, kind=kind) == 0
        fields: dict[str, Any] = {"kind": kind}
        if joining == "replicated":
            fields["replicate_subscription_state"] = True
        elif joining == "back in time":
            fields["start_message_rollback_duration_sec"] = 9
        elif joining == "in place of the dead":
            first.mute = True
        other.send(other.subscribe_command(topic, **fields))
        await turns(number)
        subscription = broker.broker.topics.get_loaded(TopicName.parse(topic)).subscriptions["s"]
        if way == "delete":
            await subscription.delete(force=True)
        else:
            leave = Command(type=Command.UNSUBSCRIBE)
            leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 77
            leave.unsubscribe.force = True
            first.send(leave)
            assert await first.outcome() == 0
        await is_served_or_told(broker, other, topic)
        assert not subscription.type.consumers
        first.hang_up()
        other.hang_up()


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario()
async def test_who_comes_while_a_subscription_is_deleted_gets_a_new_one(
    broker: BrokerInMemory, domain: str
) -> None:
    for number in range(20):
        topic = f"{domain}://public/default/t-{number}"
        first, other = Client(broker), Client(broker)
        assert await first.subscribe(topic, kind=SHARED) == 0
        found = await broker.broker.creation.topic_for_clients(TopicName.parse(topic))
        subscription = found.subscriptions["s"]
        task = asyncio.create_task(subscription.delete(force=True))
        await turns(number)
        other.send(other.subscribe_command(topic, kind=SHARED))
        assert await other.outcome() == 0
        await task
        assert not subscription.type.consumers
        assert other.connection.opened.consumers[1] in found.subscriptions["s"].type.consumers
        assert found.subscriptions["s"] is not subscription


@scenario()
async def test_a_subscription_that_somebody_joins_is_not_deleted_as_unused(broker) -> None:
    client, other = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC) == 0
    await client.close()
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    await subscription.members.changing.acquire()
    other.send(other.subscribe_command(TOPIC))
    await asyncio.sleep(0.01)
    deletion = asyncio.create_task(subscription.delete())
    await asyncio.sleep(0)
    subscription.members.changing.release()
    assert await other.outcome() == 0
    with pytest.raises(ClientError, match="has active connected consumers"):
        await deletion
    assert subscription.type.consumers


@scenario()
async def test_nobody_joins_a_topic_that_is_unloaded_meanwhile(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    async with subscription.members.changing:
        other.send(other.subscribe_command(TOPIC, kind=SHARED))
        await asyncio.sleep(0.01)
        await broker.broker.topics.unload(NAME)
    assert await other.outcome() == ServerError.ServiceNotReady
    assert await other.subscribe(TOPIC, kind=SHARED) == 0
    await other.received(2)


@scenario()
async def test_unsubscribe_and_close_in_one_piece(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC) == 0
    leave = Command(type=Command.UNSUBSCRIBE)
    leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 77
    client.send(leave, client.close_command("consumer"))
    assert [await client.outcome(), await client.outcome()] == [0, 0]
    assert "s" not in broker.broker.topics.get_loaded(NAME).subscriptions


# -- seek and readers --------------------------------------------------------------------------


@scenario()
async def test_a_seek_whose_client_leaves_still_delivers_from_there(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 3)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    await client.received(3)
    for place in ids:
        client.send(client.ack_command(place))
        await client.take(Command.ACK_RESPONSE)
    with held(broker):
        client.send(client.seek_command(ids[1]))
        await asyncio.sleep(0.01)
        client.hang_up()
        await asyncio.sleep(0.01)
    other = Client(broker)
    assert await other.subscribe(TOPIC, kind=SHARED) == 0
    assert await other.received(2) == ids[1:]


@scenario()
async def test_an_old_readers_clean_up_leaves_its_successor_alone(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC, "r", durable=False) == 0
    client.send(client.seek_command(EARLIEST_ID))
    assert await client.outcome() == 0
    assert await client.subscribe(TOPIC, "r", durable=False) == 0
    client.send(client.close_command("consumer"))
    assert await client.outcome() == 0
    assert await client.subscribe(TOPIC, "r", durable=False) == 0
    for _ in range(int(READER_GRACE_SECONDS) + 1):
        await asyncio.sleep(1)
        client.has(Command.MESSAGE)  # answers pings
    client.answers.clear()
    await client.publish(1)
    await client.received(1)


@pytest.mark.parametrize("initial", ["Earliest", "Latest"])
def test_a_reader_that_starts_after_the_last_message_gets_the_next_one(initial) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        ledger_id, entry_id = (await client.produce(TOPIC, 3))[-1]
        start = (ledger_id, entry_id + 1)
        position = pb.CommandSubscribe.InitialPosition.Value(initial)
        assert not await client.subscribe(
            TOPIC, "r", durable=False, start=start, initialPosition=position
        )
        with pytest.raises(TimeoutError):
            await client.received(1)
        await client.publish(3)
        assert await client.received(1) == [start]

    run()


@scenario()
async def test_a_reader_that_starts_beyond_the_end_obeys_its_initial_position(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 2)
    assert not await client.subscribe(TOPIC, "r", durable=False, start=(10**6, 0))
    assert await client.received(2) == ids
    latest = {"start": (2**63 - 1, 2**63 - 1), "initialPosition": pb.CommandSubscribe.Latest}
    assert not await client.subscribe(TOPIC, "r2", consumer_id=2, durable=False, **latest)
    with pytest.raises(TimeoutError):
        await client.received(1)


async def two_ledgers(broker: BrokerInMemory, client: Client) -> list[tuple[int, int]]:
    """A topic with two messages in each of two ledgers."""
    ids = await client.produce(TOPIC, 2)
    await broker.broker.topics.unload(NAME)
    await client.take(Command.CLOSE_PRODUCER)
    ids += await client.produce(TOPIC, 2)
    assert ids[0][0] < ids[2][0]
    return ids


@scenario()
async def test_a_reader_may_start_before_a_ledgers_first_entry(broker) -> None:
    client = Client(broker)
    ids = await two_ledgers(broker, client)
    start = (ids[2][0], 2**64 - 1)
    assert not await client.subscribe(TOPIC, "r", durable=False, start=start)
    assert await client.received(2) == ids[2:]
    for place in reversed(ids[2:]):
        client.send(client.ack_command(place))
        await client.take(Command.ACK_RESPONSE)
    assert broker.broker.topics.get_loaded(NAME).subscriptions["r"].cursor.backlog() == 0


@pytest.mark.command("SEEK", "CLOSE_CONSUMER")
@scenario()
async def test_seek_and_close_from_the_other_side_leave_one_consumer(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 3)
    assert await client.subscribe(TOPIC) == 0
    await client.received(3)
    client.send(client.seek_command(ids[2]), client.subscribe_command(TOPIC))
    await client.take(Command.CLOSE_CONSUMER)
    assert [await client.outcome(), await client.outcome()] == [0, 0]
    again = await client.subscribe(TOPIC)
    assert again == 0
    assert await client.received(1) == ids[2:]
    assert len(broker.broker.topics.get_loaded(NAME).subscriptions["s"].type.consumers) == 1


# -- acknowledgements --------------------------------------------------------------------------


@scenario()
async def test_a_cumulative_ack_beyond_the_end_acknowledges_nothing(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC) == 0
    for ledger_id in (2**63 - 1, 10**6):
        client.send(client.ack_command((ledger_id, 5), cumulative=True))
        response = (await client.take(Command.ACK_RESPONSE)).ackResponse
        assert not response.HasField("message")
    assert broker.broker.topics.get_loaded(NAME).subscriptions["s"].cursor.backlog() == 2


@pytest.mark.parametrize("entry_id", [0, 2**64 - 1, 2**40, 2**62])
@pytest.mark.parametrize("ack_set", [(), (5,)])
def test_strange_cumulative_acks_do_not_harm_later_ones(entry_id, ack_set) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        ids = await two_ledgers(broker, client)
        assert await client.subscribe(TOPIC) == 0
        ledger_id = ids[0][0] if entry_id in (2**40, 2**62) else ids[2][0]
        client.send(client.ack_command(ids[1]))
        await client.take(Command.ACK_RESPONSE)
        client.send(client.ack_command((ledger_id, entry_id), cumulative=True, ack_set=ack_set))
        await client.take(Command.ACK_RESPONSE)
        for place in (ids[3], ids[0], ids[2]):
            client.send(client.ack_command(place))
            await client.take(Command.ACK_RESPONSE)
        assert broker.broker.topics.get_loaded(NAME).subscriptions["s"].cursor.backlog() == 0

    run()


@scenario()
async def test_an_ack_of_what_never_was_while_others_wait_for_redelivery(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=SHARED) == 0
    await client.received(2)
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    with subscription.dispatcher.hold():
        subscription.redeliver(client.connection.opened.consumers[1], None, None)
        for entry_id in (2**40, 2**63 - 1, 2**64 - 1):
            client.send(client.ack_command((ids[0][0], entry_id)))
            await client.take(Command.ACK_RESPONSE)
    assert await client.received(2) == ids


# -- what a client is told --------------------------------------------------------------------


@pytest.mark.command("ACTIVE_CONSUMER_CHANGE")
@scenario()
async def test_a_failover_consumer_hears_of_its_part_with_its_first_flow_and_once(broker) -> None:
    client = Client(broker)
    client.send(client.subscribe_command(TOPIC, kind=FAILOVER))
    await client.take(Command.SUCCESS)
    await asyncio.sleep(0.1)
    assert not client.has(Command.ACTIVE_CONSUMER_CHANGE)
    client.flow(1)
    change = await client.take(Command.ACTIVE_CONSUMER_CHANGE)
    assert change.active_consumer_change.is_active
    assert not client.has(Command.ACTIVE_CONSUMER_CHANGE)


@scenario()
async def test_the_epoch_is_stamped_on_exclusive_messages_only(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC, "e", consumer_epoch=0) == 0
    assert (await client.take(Command.MESSAGE)).message.HasField("consumer_epoch")
    assert await client.subscribe(TOPIC, "s", consumer_id=2, kind=SHARED, consumer_epoch=0) == 0
    assert not (await client.take(Command.MESSAGE)).message.HasField("consumer_epoch")


@scenario()
async def test_the_last_message_is_no_marker(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 2)
    replicate(client)
    client.send_bytes(publish(1, 2, b"", marker_type=21))
    await client.take(Command.SEND_RECEIPT)
    assert await client.subscribe(TOPIC) == 0
    ask = Command(type=Command.GET_LAST_MESSAGE_ID)
    ask.getLastMessageId.consumer_id, ask.getLastMessageId.request_id = 1, 5
    client.send(ask)
    answer = (await client.take(Command.GET_LAST_MESSAGE_ID_RESPONSE)).getLastMessageIdResponse
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == ids[-1]


@pytest.mark.feature("F35")
@scenario(subscriptionKeySharedEnable=False)
async def test_a_type_that_is_not_offered_creates_no_subscription(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    code = await client.subscribe(TOPIC, kind=pb.CommandSubscribe.Key_Shared)
    assert code == ServerError.NotAllowedError
    assert not broker.broker.topics.get_loaded(NAME).subscriptions


@scenario()
async def test_a_schema_needs_its_topic(broker) -> None:
    client = Client(broker)
    ask = Command(type=Command.GET_OR_CREATE_SCHEMA)
    request = ask.getOrCreateSchema
    request.request_id, request.topic = 1, "persistent://nobody/none/t"
    request.schema.name, request.schema.schema_data, request.schema.type = "s", b"{}", 4
    client.send(ask)
    answer = await client.take(Command.GET_OR_CREATE_SCHEMA_RESPONSE)
    assert answer.getOrCreateSchemaResponse.error_code == ServerError.TopicNotFound
    assert await broker.metadata.get("/schemas/nobody/none/t") is None


@pytest.mark.command("GET_TOPICS_OF_NAMESPACE")
@scenario()
async def test_topics_of_what_is_no_namespace(broker) -> None:
    client = Client(broker)
    for namespace in ("public", "", "a/b/c/d", "public/../x"):
        ask = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
        ask.getTopicsOfNamespace.request_id = 1
        ask.getTopicsOfNamespace.namespace = namespace
        client.send(ask)
        assert await client.outcome() == ServerError.InvalidTopicName


@scenario(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
async def test_clients_that_create_a_partitioned_topic_at_once_all_get_it(broker) -> None:
    clients = [Client(broker) for _ in range(3)]
    for client in clients:
        ask = Command(type=Command.PARTITIONED_METADATA)
        ask.partitionMetadata.topic, ask.partitionMetadata.request_id = TOPIC, 1
        client.send(ask)
    for client in clients:
        answer = await client.take(Command.PARTITIONED_METADATA_RESPONSE)
        assert answer.partitionMetadataResponse.partitions == 3


@scenario()
async def test_a_publish_on_a_terminated_topic_says_so(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    ending = asyncio.ensure_future(topic.ledger.terminate())
    await asyncio.sleep(0.001)
    assert topic.ledger.is_terminated
    client.send_bytes(publish(1, 1, b"late"))
    error = (await client.take(Command.SEND_ERROR)).send_error
    assert error.error == ServerError.TopicTerminatedError
    await ending


# -- topics come and go ------------------------------------------------------------------------


@scenario()
async def test_a_topic_that_is_being_deleted_does_not_exist(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    await broker.broker.topics.unload(NAME)
    path = "/managed-ledgers/public/default/persistent/t"
    found = await broker.metadata.get(path)
    record = found.value.replace(b'"OPEN"', b'"DELETING"')
    assert decode_record(path, record).state is TopicState.DELETING
    await broker.metadata.put(path, record, found.version)
    assert not await broker.broker.catalog.exists(NAME)
    assert await broker.broker.catalog.list_topics("public/default") == []
    code = await client.subscribe(TOPIC, force_topic_creation=False)
    assert code == ServerError.TopicNotFound
    await broker.broker.creation.create_topic(NAME, {})
    assert await broker.broker.catalog.exists(NAME)


@scenario()
async def test_a_topic_whose_deletion_failed_can_be_used_or_deleted_again(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    await client.subscribe(TOPIC)
    broker.bookie.down = True
    with pytest.raises((StorageError, MetadataError)):
        await broker.broker.deletion.delete_topic(NAME, force=True)
    broker.bookie.down = False
    assert broker.broker.topics.get_loaded(NAME) is None
    try:
        await broker.broker.deletion.delete_topic(NAME)
    finally:
        assert not await broker.broker.catalog.exists(NAME)


@scenario()
async def test_two_unloads_at_once_forget_the_topic_once(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    first = asyncio.ensure_future(broker.broker.topics.unload(NAME))
    second = asyncio.ensure_future(broker.broker.topics.unload(NAME))
    await first
    loaded = await broker.broker.topics.load(NAME)
    await second
    assert broker.broker.topics.get_loaded(NAME) is loaded


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("error", [MetadataError("not now"), OSError("not now"), ValueError()])
@scenario()
async def test_a_read_that_fails_is_tried_again_and_said_once(
    broker: BrokerInMemory, error: Exception, again: bool
) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    if again:  # what waits to be delivered again is read by itself
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        await client.received(1)
    topic.entries.cache.clear()
    read, failures = topic.ledger.read, [error] * 3
    said: list[str] = []
    dispatch_log = logging.getLogger("pulsark.dispatch.subscription.storage_read")
    dispatch_log.addFilter(told := lambda record: said.append(record.getMessage()))

    async def sometimes(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read(*args)

    topic.ledger.read = sometimes
    if again:
        client.redeliver()
    else:
        assert await client.subscribe(TOPIC) == 0
    message = await client.take(Command.MESSAGE, seconds=4)
    dispatch_log.removeFilter(told)
    assert (message.message.message_id.ledgerId, message.message.message_id.entryId) == ids[0]
    assert len(said) == 1
    assert said[0].startswith(f"{TOPIC}: subscription s cannot read")


@scenario()
async def test_idle_ledgers_are_still_rolled_over_beside_a_terminated_topic(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    await broker.broker.topics.get_loaded(NAME).termination.terminate()
    await asyncio.sleep(130)
    assert broker.broker.chores.running


# -- hostile clients ---------------------------------------------------------------------------


@scenario()
async def test_a_bug_in_one_command_ends_that_connection_only(broker) -> None:
    client, other = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC) == 0
    subscription = broker.broker.topics.get_loaded(NAME).subscriptions["s"]
    flow, subscription.flow = subscription.flow, None
    client.flow(1)
    subscription.flow = flow
    assert client.transport.closed
    assert not subscription.type.consumers
    assert await other.subscribe(TOPIC) == 0


@scenario(maxMessageSize=65536)
async def test_a_client_that_never_reads_its_answers_is_not_read_either(broker) -> None:
    client = Client(broker)
    client.transport.reads = False
    ping = Command(type=Command.PING)
    ping.ping.SetInParent()
    client.connection.output.write(bytes(2 << 20))
    pings = encode_command(ping) * 5000
    for _ in range(50):
        if client.transport.paused:
            break
        client.send_bytes(pings)
        await asyncio.sleep(0)
    assert client.transport.paused
    assert client.transport.unread < 3 << 20
    client.transport.read_all()
    assert not client.transport.paused
    client.transport.reads = False
    client.transport.unread = 1 << 30
    client.connection.pause_writing()
    client.connection.intake.hold_back()
    await asyncio.sleep(70)
    assert client.transport.closed


@scenario(maxUnreadOutputBufferSizeInMB=1)
async def test_what_many_clients_do_not_read_is_bounded_for_all_of_them(broker) -> None:
    slow, reads, producer = [Client(broker) for _ in range(20)], Client(broker), Client(broker)
    for number, client in enumerate([*slow, reads]):
        await client.subscribe(TOPIC, f"s{number}")
    for client in slow:
        client.transport.reads = False
    producer.send(producer.producer_command(TOPIC, "p"))
    await producer.take(Command.PRODUCER_SUCCESS)
    for number in range(40):
        producer.send_bytes(publish(1, number, bytes(50_000)))
        await asyncio.sleep(0.01)
    waits = sum(client.transport.unread for client in slow)
    assert 1 << 20 < waits < (1 << 20) + 20 * 150_000, "and not 40 MB"
    assert broker.broker.output_buffer.bytes <= waits
    assert len(await reads.deliveries()) == 40
    for client in slow:
        client.transport.read_all()
    await asyncio.sleep(1)
    assert broker.broker.output_buffer.bytes == 0
    for client in slow:
        assert len(await client.deliveries()) == 40


@scenario()
async def test_large_answers_wait_until_the_one_before_was_read(broker) -> None:
    name = "t" * 200
    for i in range(50):
        await broker.broker.creation.create_topic(TopicName.parse(f"{name}-{i}"), {})
    client = Client(broker)
    client.transport.reads = False
    ask = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    ask.getTopicsOfNamespace.namespace = "public/default"
    ask.getTopicsOfNamespace.request_id = 1
    client.send(*[ask] * 150)
    await asyncio.sleep(1)
    assert client.transport.unread < 1.1 * (1 << 20)
    client.transport.read_all()
    await asyncio.sleep(1)
    client._read()
    assert len(client.answers) == 151


@scenario()
async def test_requests_under_way_are_bounded(broker) -> None:
    client = Client(broker)
    ask = Command(type=Command.LOOKUP)
    ask.lookupTopic.topic, ask.lookupTopic.request_id = TOPIC, 1
    client.send(*[ask] * 2000)
    assert client.transport.paused
    await asyncio.sleep(0.1)
    assert not client.transport.paused
    client._read()
    assert sum(c.type == Command.LOOKUP_RESPONSE for c in client.answers) == 2000


@pytest.mark.command("LOOKUP", "LOOKUP_RESPONSE")
@scenario()
async def test_a_listener_that_the_broker_does_not_have(broker) -> None:
    client = Client(broker)
    ask = Command(type=Command.LOOKUP)
    ask.lookupTopic.topic, ask.lookupTopic.request_id = TOPIC, 1
    client.send(ask)
    answer = (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert answer.response == answer.Connect
    ask.lookupTopic.advertised_listener_name = "outside"
    client.send(ask)
    answer = (await client.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert (answer.response, answer.error) == (answer.Failed, ServerError.ServiceNotReady)
    assert "'outside'" in answer.message


@scenario()
async def test_a_connection_lost_before_its_requests_began(broker) -> None:
    client = Client(broker)
    client.send(client.subscribe_command(TOPIC), client.producer_command(TOPIC, "p"))
    client.connection.connection_lost(None)
    await asyncio.sleep(0.1)
    topic = broker.broker.topics.get_loaded(NAME)
    assert topic is None or not topic.is_used


@scenario()
async def test_without_a_handshake_a_connection_lasts_ten_seconds(broker) -> None:
    client = Client(broker, handshake=False)
    await asyncio.sleep(9)
    assert not client.transport.closed
    await asyncio.sleep(2)
    assert client.transport.closed


@scenario()
async def test_a_probed_client_whose_socket_is_not_read_counts_as_alive(broker) -> None:
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 0)
    assert await client.subscribe(TOPIC) == 0
    client.mute = True
    with held(broker):
        for i in range(1001):
            client.send_bytes(publish(1, i, b"x"))
        assert client.transport.paused
        other.send(other.subscribe_command(TOPIC))
        answer = await other.take(Command.SUCCESS, Command.ERROR, seconds=8)
    assert answer.error.error == ServerError.ConsumerBusy
    assert client.connection.is_open


@scenario()
async def test_long_and_unprintable_names_are_refused(broker) -> None:
    client = Client(broker)
    assert await client.subscribe(TOPIC, "n" * 10_000) == ServerError.NotAllowedError
    code = await client.subscribe(TOPIC, consumer_name="n" * 10_000, kind=FAILOVER)
    assert code == ServerError.NotAllowedError
    for name in ("ü/\0", "a\nb", "\x1b[2J", "a\u202eb", "\u200b"):
        assert await client.subscribe(TOPIC, name) == ServerError.NotAllowedError
    for name in ("", " "):
        assert await client.subscribe(TOPIC, name) == ServerError.ProducerBusy
    for name in ("../x", "a b", "ü/ñ", "%2e%2e", "-", "n" * 1000):
        assert await client.subscribe(TOPIC, name) == 0
        client.send(client.close_command("consumer"))
        assert await client.outcome() == 0


@scenario()
async def test_a_closed_consumer_is_dropped_at_once_although_output_waits(broker) -> None:
    client, other = Client(broker), Client(broker)
    assert await client.subscribe(TOPIC) == 0
    client.send_bytes(publish(99, 0, b"x"))
    assert client.transport.closed
    assert not broker.broker.topics.get_loaded(NAME).subscriptions["s"].type.consumers
    assert await other.subscribe(TOPIC) == 0


@scenario()
async def test_a_client_that_closes_a_producer_is_not_told_to_open_it_again(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    with held(broker):
        client.send_bytes(publish(1, 0, b"x"))
        await asyncio.sleep(0.01)
        client.send(client.close_command("producer"))
        await asyncio.sleep(0.01)
        unloading = asyncio.ensure_future(broker.broker.topics.unload(NAME))
        await asyncio.sleep(0.01)
    await unloading
    assert await client.outcome() == 0
    assert not client.has(Command.CLOSE_PRODUCER)


@scenario()
async def test_a_defect_at_the_end_of_a_turn_costs_one_client_its_connection(broker) -> None:
    """Or else what is left of its commands would wait for ever."""
    client, other = Client(broker), Client(broker)
    await client.produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    flush, topic.flush = topic.flush, Mock(side_effect=RuntimeError("a defect"))
    client.send_bytes(publish(1, 1, b"x"))
    topic.flush = flush
    assert client.transport.closed
    assert await other.subscribe(TOPIC) == 0
