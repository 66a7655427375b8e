"""Key_Shared as clients ask for it: modes, ranges, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.dispatch.subscription import replay_queue
from pulsark.dispatch.subscription.hash_ring import HashRing
from pulsark.dispatch.subscription.key_shared import KeyShared
from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import Client, Command, scenario

TOPIC = "persistent://public/default/t"
KEY_SHARED = pb.CommandSubscribe.Key_Shared


def key_shared(client: Client, consumer_id: int = 1, *ranges: tuple[int, int], **meta: Any) -> None:
    """Ask to join; with ranges, as a sticky consumer."""
    command = client.subscribe_command(TOPIC, consumer_id=consumer_id, kind=KEY_SHARED)
    request = command.subscribe
    request.keySharedMeta.keySharedMode = pb.STICKY if ranges else pb.AUTO_SPLIT
    for start, end in ranges:
        request.keySharedMeta.hashRanges.add(start=start, end=end)
    for name, value in meta.items():
        setattr(request.keySharedMeta, name, value)
    client.send(command)


@pytest.mark.feature("F33")
@scenario()
async def test_the_policy_of_key_shared_changes_only_without_consumers(broker) -> None:
    client = Client(broker)
    key_shared(client)
    assert await client.outcome() == 0
    key_shared(client, 2, (0, 65535))
    assert await client.outcome() == ServerError.ConsumerBusy
    key_shared(client, 2, allowOutOfOrderDelivery=True)
    assert await client.outcome() == ServerError.ConsumerBusy
    client.send(client.close_command("consumer"))
    assert await client.outcome() == 0
    key_shared(client, 2, (0, 65535))
    assert await client.outcome() == 0


@scenario()
async def test_sticky_consumers_need_ranges_of_their_own(broker) -> None:
    client = Client(broker)
    key_shared(client, 1, (0, 9))
    assert await client.outcome() == 0
    for wrong in ((5, 20), (20, 10), (-1, 5), (10, 65536)):
        key_shared(client, 2, wrong)
        assert await client.outcome() == ServerError.ConsumerAssignError
    no_ranges = client.subscribe_command(TOPIC, consumer_id=2, kind=KEY_SHARED)
    no_ranges.subscribe.keySharedMeta.keySharedMode = pb.STICKY
    client.send(no_ranges)
    assert await client.outcome() == ServerError.ConsumerAssignError
    key_shared(client, 2, (10, 65535))
    assert await client.outcome() == 0


@scenario()
async def test_the_ranges_of_a_dead_client_are_free_for_its_return(broker) -> None:
    dead, client = Client(broker), Client(broker)
    for number, ranges in enumerate([(0, 9), (10, 19)]):
        key_shared(dead, number, ranges)
        assert await dead.outcome() == 0
    dead.mute = True
    key_shared(client, 1, (5, 15))
    assert await client.outcome(seconds=12) == 0
    assert not dead.connection.is_open


@scenario()
async def test_key_shared_messages_come_without_an_epoch_and_are_not_acknowledged_together(
    broker,
) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=KEY_SHARED, consumer_epoch=3) == 0
    assert not (await client.take(Command.MESSAGE)).message.HasField("consumer_epoch")
    client.send(client.ack_command(ids[1], cumulative=True))
    response = (await client.take(Command.ACK_RESPONSE)).ackResponse
    assert response.error == ServerError.NotAllowedError


@scenario()
async def test_what_a_leaver_had_reaches_those_who_join_however_many_turns_it_takes(
    broker, monkeypatch
) -> None:
    monkeypatch.setattr(replay_queue, "SLOTS_PLANNED_AT_ONCE_MAX", 2)
    publisher, holder, silent, crowd = (Client(broker) for _ in range(4))
    await publisher.produce(TOPIC, 0)
    sent = {await publisher.publish(i, partition_key=f"key{i % 30}") for i in range(60)}
    assert await holder.subscribe(TOPIC, kind=KEY_SHARED) == 0
    assert len(await holder.deliveries()) == len(sent)
    silent.send(silent.subscribe_command(TOPIC, kind=KEY_SHARED))
    assert await silent.outcome() == 0
    holder.hang_up()
    await asyncio.sleep(0.1)
    for number in range(1, 9):
        fields = {"consumer_id": number, "consumer_name": f"c{number}", "kind": KEY_SHARED}
        crowd.send(crowd.subscribe_command(TOPIC, **fields))
        assert await crowd.outcome() == 0
    for number in range(1, 9):
        crowd.flow(100, number)
    await asyncio.sleep(0.1)
    first = await crowd.deliveries()
    silent.flow(100)
    rest = await silent.deliveries()
    assert rest
    assert len(first) + len(rest) == len(sent)
    assert await crowd.deliveries() == []


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@scenario()
async def test_consumers_of_a_topic_that_goes_hand_nothing_to_each_other(
    broker, monkeypatch, domain: str
) -> None:
    """It would take half a second of the event loop for a thousand of them."""
    topic, handed = TOPIC.replace("persistent", domain), []
    client = Client(broker)
    for consumer_id in range(1, 6):
        assert await client.subscribe(topic, consumer_id=consumer_id, kind=KEY_SHARED) == 0
    publisher = Client(broker)
    sent = await publisher.produce(topic, 3)
    monkeypatch.setattr(HashRing, "remove", lambda _, consumer: handed.append(consumer))
    monkeypatch.setattr(KeyShared, "give_back", lambda _, position: handed.append(position))
    await broker.broker.topics.unload(TopicName.parse(topic))
    monkeypatch.undo()
    closed = [await client.take(Command.CLOSE_CONSUMER) for _ in range(5)]
    assert {each.close_consumer.consumer_id for each in closed} == {1, 2, 3, 4, 5}
    assert handed == []
    assert broker.broker.topics.get(TopicName.parse(topic)) is None
    later = Client(broker)
    assert await later.subscribe(topic, kind=KEY_SHARED) == 0
    if domain == "persistent":
        assert len(await later.deliveries()) == len(sent)
