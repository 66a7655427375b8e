"""REDELIVER_UNACKNOWLEDGED_MESSAGES and what else brings a message again, as clients see it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.broker_clients import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    SHARING,
    SINGLE_ACTIVE,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
    consuming,
    scenario,
)

Ids = list[tuple[int, int]]


async def counts(client: Client) -> list[tuple[int, int]]:
    """Entry id and redelivery count of what was delivered since the last call."""
    found = [delivery.message for delivery in await client.deliveries()]
    assert all(m.HasField("redelivery_count") == bool(m.redelivery_count) for m in found)
    return [(m.message_id.entryId, m.redelivery_count) for m in found]


def permits(client: Client) -> int:
    return client.connection.opened.consumers[1].permits


@pytest.mark.feature("F20", "F21")
@pytest.mark.command("REDELIVER_UNACKNOWLEDGED_MESSAGES")
@pytest.mark.parametrize("kind", SHARING)
@scenario()
async def test_sharing_consumers_count_what_they_ask_for_again(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 4, kind=kind)
    assert await counts(client) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    client.redeliver(ids[2], ids[0])
    assert await counts(client) == [(0, 1), (2, 1)]
    client.redeliver(ids[2], (ids[0][0] + 9, 2), (ids[0][0], 99))
    assert await counts(client) == [(2, 2)]
    assert await client.ack(ids[0]) == 0
    client.redeliver(ids[0], ids[1])  # what is acknowledged does not come again
    assert await counts(client) == [(1, 1)]
    client.redeliver()
    assert await counts(client) == [(1, 2), (2, 3), (3, 1)]
    # Nothing gives permits back: clients send a FLOW for what they dropped.
    assert permits(client) == 1000 - 4 - 2 - 1 - 1 - 3
    # Counts are in memory, and there is nobody to whom they would matter.
    await client.close()
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await counts(client) == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.feature("F20", "F31")
@pytest.mark.command("REDELIVER_UNACKNOWLEDGED_MESSAGES")
@pytest.mark.parametrize("kind", SINGLE_ACTIVE)
@scenario()
async def test_one_active_consumer_gets_all_again_and_nothing_is_counted(
    broker: BrokerInMemory, kind: int
) -> None:
    client, ids = await consuming(broker, 4, kind=kind)
    assert await client.ack(ids[1]) == 0
    await counts(client)
    for asked in ([], [ids[3]], [(9, 9)]):
        client.redeliver(*asked)
        assert await counts(client) == [(0, 0), (2, 0), (3, 0)]
    assert permits(client) == 1000 - 4 - 3 * 3
    await client.publish(4)
    assert await counts(client) == [(4, 0)]


@pytest.mark.feature("F32")
@pytest.mark.parametrize("how", ["close", "hang up"])
@pytest.mark.parametrize("kind", SHARING)
@scenario()
async def test_what_a_leaver_had_comes_to_the_others_uncounted(
    broker: BrokerInMemory, kind: int, how: str
) -> None:
    leaver, stayer = Client(broker), Client(broker)
    ids = await leaver.produce(TOPIC, 3)
    assert await leaver.subscribe(TOPIC, kind=kind) == 0
    await counts(leaver)
    leaver.redeliver(ids[1])
    assert await counts(leaver) == [(1, 1)]
    assert await stayer.subscribe(TOPIC, kind=kind) == 0
    assert await counts(stayer) == []
    if how == "close":
        await leaver.close()
    else:
        leaver.hang_up()
    assert await counts(stayer) == [(0, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize("kind", SHARING)
@scenario()
async def test_only_what_this_consumer_has_is_delivered_again(
    broker: BrokerInMemory, kind: int
) -> None:
    holder, other = Client(broker), Client(broker)
    ids = await holder.produce(TOPIC, 3)
    assert await holder.subscribe(TOPIC, kind=kind) == 0
    await counts(holder)
    assert await other.subscribe(TOPIC, kind=kind) == 0
    other.redeliver(*ids)
    other.redeliver()
    other.redeliver(*ids, consumer_id=7)
    assert await counts(holder) + await counts(other) == []
    assert holder.connection.opened.consumers[1].unacked == 3


@pytest.mark.feature("F32")
@scenario()
async def test_what_comes_again_comes_lowest_first_and_before_new_messages(broker) -> None:
    client = Client(broker)
    ids = await client.produce(TOPIC, 6)
    client.send(client.subscribe_command(TOPIC, kind=SHARED))
    assert await client.outcome() == 0
    client.flow(4)
    await counts(client)
    client.redeliver(ids[3])
    client.redeliver(ids[0], ids[2])
    client.flow(4)
    assert await counts(client) == [(0, 1), (2, 1), (3, 1), (4, 0)]


@pytest.mark.feature("F11", "F12", "F20")
@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_a_batch_comes_again_with_what_is_left_of_it(kind: int, switch: bool) -> None:
    @scenario(acknowledgmentAtBatchIndexLevelEnabled=switch)
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 0)
        place = await client.publish_batch(3)
        assert await client.subscribe(TOPIC, kind=kind) == 0
        await counts(client)
        assert await client.ack(place, ack_set=(0b101,)) == 0
        client.redeliver(place)
        (again,) = await client.deliveries()
        assert list(again.message.ack_set) == ([0b101] if switch else [])
        assert permits(client) == 1000 - 3 - (2 if switch else 3)

    run()


@pytest.mark.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", "MESSAGE")
@pytest.mark.parametrize("kind", SINGLE_ACTIVE)
@scenario()
async def test_epochs_only_rise(broker: BrokerInMemory, kind: int) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC, kind=kind, consumer_epoch=3) == 0
    found = []
    for asked in ({}, {"consumer_epoch": 5}, {"consumer_epoch": 4}, {}):
        client.redeliver(**asked)
    found = [d.message.consumer_epoch for d in await client.deliveries()]
    assert found == [3, 3, 5, 5, 5]


@scenario()
async def test_who_is_not_active_is_not_given_anything_again(broker) -> None:
    active, standby = Client(broker), Client(broker)
    await active.produce(TOPIC, 2)
    assert await active.subscribe(TOPIC, kind=FAILOVER, priority_level=0) == 0
    assert await standby.subscribe(TOPIC, kind=FAILOVER, priority_level=1) == 0
    assert await counts(active) == [(0, 0), (1, 0)]
    standby.redeliver(consumer_epoch=9)
    assert await counts(active) + await counts(standby) == []
    await active.close()
    found = [delivery.message for delivery in await standby.deliveries()]
    assert [m.message_id.entryId for m in found] == [0, 1]
    assert not any(m.HasField("redelivery_count") for m in found)


@pytest.mark.parametrize("kind", SHARING)
@scenario()
async def test_a_seek_begins_to_count_anew(broker: BrokerInMemory, kind: int) -> None:
    client, other = Client(broker), Client(broker)
    ids = await client.produce(TOPIC, 2)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await other.subscribe(TOPIC, kind=kind) == 0
    await asyncio.sleep(0.01)
    client.redeliver()
    other.redeliver()
    assert sorted(await counts(client) + await counts(other))[1:3] != []
    client.send(client.seek_command(ids[0]))
    assert await client.outcome() == 0
    await client.take(Command.CLOSE_CONSUMER)
    await counts(client)
    assert await client.subscribe(TOPIC, kind=kind) == 0
    assert await counts(client) == [(0, 0), (1, 0)]
