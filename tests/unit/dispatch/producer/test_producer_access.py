"""Producer access modes: who may publish beside whom, and who comes after whom."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.model.producer_access import (
    TOPIC_EPOCH_MAX,
    Access,
    AccessMode,
    access,
    next_epoch,
)
from pulsark.errors import ClientError, MetadataError, ServerError
from pulsark.limits import PRODUCER_NAME_CHARS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.broker_clients import held as held_back
from tests.support.wire_frames import publish

TOPIC = "persistent://public/default/t"
EXCLUSIVE = pb.ProducerAccessMode.Exclusive
WAIT = pb.ProducerAccessMode.WaitForExclusive
FENCING = pb.ProducerAccessMode.ExclusiveWithFencing
LONG_ENOUGH = 3.0


def loaded(broker: BrokerInMemory):
    topic = broker.broker.topics.get_loaded(TopicName.parse(TOPIC))
    assert topic is not None
    return topic


# -- the decision --------------------------------------------------------------------------------

ALONE = {"holder": None, "waiting": False, "connected": False}
BESIDE = ALONE | {"connected": True}
HELD = BESIDE | {"holder": "h"}
GRANTING = ALONE | {"holder": "h"}
BUSY, FENCED = ServerError.ProducerBusy, ServerError.ProducerFenced


@pytest.mark.parametrize(
    ("mode", "there", "expected"),
    [
        (AccessMode.Shared, ALONE, Access.SHARED),
        (AccessMode.Shared, BESIDE, Access.SHARED),
        (AccessMode.Shared, HELD, BUSY),
        (AccessMode.Shared, GRANTING, BUSY),
        (AccessMode.Shared, BESIDE | {"waiting": True}, BUSY),
        (AccessMode.Exclusive, ALONE, Access.ALONE),
        (AccessMode.Exclusive, BESIDE, FENCED),
        (AccessMode.Exclusive, HELD, FENCED),
        (AccessMode.Exclusive, GRANTING, FENCED),
        (AccessMode.WaitForExclusive, ALONE, Access.ALONE),
        (AccessMode.WaitForExclusive, BESIDE, Access.WAIT),
        (AccessMode.WaitForExclusive, GRANTING, Access.WAIT),
        (AccessMode.ExclusiveWithFencing, ALONE, Access.ALONE),
        (AccessMode.ExclusiveWithFencing, BESIDE, Access.ALONE),
        (AccessMode.ExclusiveWithFencing, HELD | {"waiting": True}, Access.ALONE),
    ],
)
def test_who_gets_what(mode, there, expected) -> None:
    if isinstance(expected, Access):
        assert access(mode, None, 7, **there) is expected
        return
    with pytest.raises(ClientError) as refused:
        access(mode, None, 7, **there)
    assert refused.value.code == expected


@pytest.mark.parametrize("there", [BESIDE, HELD, BESIDE | {"waiting": True}])
def test_a_former_holder_that_was_fenced_does_not_wait_for_its_turn(there) -> None:
    with pytest.raises(ClientError) as refused:
        access(AccessMode.WaitForExclusive, 6, 7, **there)
    assert refused.value.code == FENCED
    assert access(AccessMode.WaitForExclusive, 7, 7, **there) is Access.WAIT


@pytest.mark.parametrize("mode", list(AccessMode)[1:])
def test_a_former_holder_is_fenced_once_there_was_another(mode: AccessMode) -> None:
    assert access(mode, 7, 7, **ALONE) is Access.ALONE
    assert access(mode, 7, None, **ALONE) is Access.ALONE
    with pytest.raises(ClientError) as refused:
        access(mode, 6, 7, **ALONE)
    assert refused.value.code == FENCED


@pytest.mark.parametrize("mode", list(AccessMode)[1:])
def test_nobody_comes_back_with_an_epoch_that_leaves_none_for_others(mode: AccessMode) -> None:
    assert access(mode, TOPIC_EPOCH_MAX, 7, **ALONE) is Access.ALONE
    for epoch in (TOPIC_EPOCH_MAX + 1, 2**64 - 1):
        with pytest.raises(ClientError) as refused:
            access(mode, epoch, 7, **ALONE)
        assert refused.value.code == FENCED


def test_epochs_rise_unless_the_holder_comes_back() -> None:
    assert [next_epoch(None, None), next_epoch(None, 0), next_epoch(4, 4)] == [0, 1, 4]


# -- clients -------------------------------------------------------------------------------------


@pytest.mark.command("PRODUCER", "PRODUCER_SUCCESS")
@scenario()
async def test_an_exclusive_producer_is_the_only_one(broker) -> None:
    one, two = Client(broker), Client(broker)
    granted = await one.open_producer(TOPIC, "one", producer_access_mode=EXCLUSIVE)
    assert (granted.producer_ready, granted.topic_epoch) == (True, 0)
    assert await two.open_producer(TOPIC, "two") == BUSY
    assert await two.open_producer(TOPIC, "two", producer_access_mode=EXCLUSIVE) == FENCED
    one.hang_up()
    await asyncio.sleep(0.01)
    shared = await two.open_producer(TOPIC, "two")
    assert shared.topic_epoch == 0
    three = Client(broker)
    assert await three.open_producer(TOPIC, "three", producer_access_mode=EXCLUSIVE) == FENCED


@pytest.mark.command("PRODUCER", "PRODUCER_SUCCESS")
@scenario()
async def test_a_client_that_names_the_highest_epoch_keeps_nobody_else_out(broker) -> None:
    for epoch in (2**64 - 1, TOPIC_EPOCH_MAX + 1):
        hostile = Client(broker)
        refused = await hostile.open_producer(
            TOPIC, "hostile", producer_access_mode=EXCLUSIVE, topic_epoch=epoch
        )
        assert refused == FENCED
        hostile.hang_up()
    granted = await Client(broker).open_producer(TOPIC, "p", producer_access_mode=EXCLUSIVE)
    assert (granted.producer_ready, granted.topic_epoch) == (True, 0)


@scenario()
async def test_two_producers_that_ask_at_once_are_not_both_alone(broker) -> None:
    await Client(broker).produce(TOPIC, 0)  # loaded
    clients = [Client(broker) for _ in range(2)]
    loaded(broker).producers.clear()
    for index, client in enumerate(clients):
        client.send(client.producer_command(TOPIC, f"p{index}", producer_access_mode=EXCLUSIVE))
    answers = [await c.take(Command.PRODUCER_SUCCESS, Command.ERROR) for c in clients]
    assert sorted(a.type for a in answers) == [Command.ERROR, Command.PRODUCER_SUCCESS]


@scenario()
async def test_the_epoch_of_a_topic_outlives_its_unloading(broker) -> None:
    first = Client(broker)
    granted = await first.open_producer(TOPIC, "p", producer_access_mode=EXCLUSIVE)
    await broker.broker.topics.unload(TopicName.parse(TOPIC))
    await first.take(Command.CLOSE_PRODUCER)
    back = await first.open_producer(
        TOPIC, "p", producer_access_mode=EXCLUSIVE, topic_epoch=granted.topic_epoch, epoch=1
    )
    assert back.topic_epoch == 0
    first.send(first.close_command("producer"))
    assert await first.outcome() == 0
    other = await Client(broker).open_producer(TOPIC, "q", producer_access_mode=EXCLUSIVE)
    assert other.topic_epoch == 1
    await broker.broker.topics.unload(TopicName.parse(TOPIC))
    stale = {"producer_access_mode": EXCLUSIVE, "topic_epoch": granted.topic_epoch, "epoch": 2}
    assert await Client(broker).open_producer(TOPIC, "p", **stale) == FENCED


@scenario()
async def test_waiting_producers_come_one_after_the_other(broker) -> None:
    holder, *others = clients = [Client(broker) for _ in range(4)]
    assert (await holder.open_producer(TOPIC, "0")).producer_ready
    for index, client in enumerate(others, 1):
        told = await client.open_producer(TOPIC, str(index), producer_access_mode=WAIT)
        assert not told.producer_ready
    assert loaded(broker).waiting_producers == 3
    others[1].hang_up()
    for index in (1, 3):
        holder.hang_up()
        holder = clients[index]
        told = (await holder.take(Command.PRODUCER_SUCCESS)).producer_success
        assert (told.producer_ready, told.producer_name) == (True, str(index))
        assert told.topic_epoch == (0 if index == 1 else 1)
        assert told.request_id == 1
        assert (await holder.publish(0))[1] >= 0
    assert not loaded(broker).waiting_producers


@scenario()
async def test_one_that_waits_is_asked_for_again_closed_and_asked_for_anew(broker) -> None:
    holder, client = Client(broker), Client(broker)
    await holder.open_producer(TOPIC, "h", producer_access_mode=EXCLUSIVE)
    waiting = {"producer_access_mode": WAIT}
    assert not (await client.open_producer(TOPIC, "w", **waiting)).producer_ready
    assert await client.open_producer(TOPIC, "w", **waiting) == ServerError.ServiceNotReady
    client.send(client.close_command("producer"))
    assert await client.outcome() == 0
    assert not loaded(broker).waiting_producers
    assert not (await client.open_producer(TOPIC, "w", **waiting)).producer_ready
    holder.send(holder.close_command("producer"))
    assert (await client.take(Command.PRODUCER_SUCCESS)).producer_success.producer_ready


@scenario()
async def test_waiting_producers_look_an_unloaded_topic_up_again(broker) -> None:
    holder, client = Client(broker), Client(broker)
    await holder.open_producer(TOPIC, "h", producer_access_mode=EXCLUSIVE)
    await client.open_producer(TOPIC, "w", producer_access_mode=WAIT)
    await broker.broker.topics.unload(TopicName.parse(TOPIC))
    assert await client.outcome() == ServerError.ServiceNotReady
    assert not client.connection.opened.waiting_producers
    await holder.take(Command.CLOSE_PRODUCER)


@scenario()
async def test_waiting_producers_of_a_terminated_topic_are_told(broker) -> None:
    holder, client = Client(broker), Client(broker)
    await holder.open_producer(TOPIC, "h", producer_access_mode=EXCLUSIVE)
    await client.open_producer(TOPIC, "w", producer_access_mode=WAIT)
    await loaded(broker).termination.terminate()
    assert await client.outcome() == ServerError.TopicTerminatedError


@scenario()
async def test_a_fencing_producer_takes_the_topic(broker) -> None:
    holder, waiting, taker = clients = [Client(broker) for _ in range(3)]
    held = await holder.open_producer(TOPIC, "h", producer_access_mode=EXCLUSIVE)
    await waiting.open_producer(TOPIC, "w", producer_access_mode=WAIT)
    taken = await taker.open_producer(TOPIC, "t", producer_access_mode=FENCING)
    assert (held.topic_epoch, taken.topic_epoch) == (0, 1)
    assert await waiting.outcome() == FENCED
    assert (await holder.take(Command.CLOSE_PRODUCER)).close_producer.producer_id == 1
    holder.send_bytes(publish(1, 0, b"late"))  # under way when it was closed: dropped
    await taker.publish(0)
    assert loaded(broker).entries_in == 1
    back = {"producer_access_mode": EXCLUSIVE, "topic_epoch": 0, "epoch": 1}
    assert await holder.open_producer(TOPIC, "h", **back) == FENCED
    # A former holder cannot fence those after it, and leaves them alone.
    back["producer_access_mode"] = FENCING
    assert await holder.open_producer(TOPIC, "h", **back) == FENCED
    assert (await taker.publish(1))[1] == 1
    assert all(client.connection.is_open for client in clients)


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
@pytest.mark.parametrize("durable", [False, True])
def test_a_fenced_holder_is_told_at_once_whatever_it_asks_for(mode: int, durable: bool) -> None:
    """Also while the epoch of its successor is not durable yet. What it sent stays unanswered."""

    @scenario()
    async def run(broker) -> None:
        holder, taker = Client(broker), Client(broker)
        held = await holder.open_producer(TOPIC, "h", producer_access_mode=mode)
        assert (held.producer_ready, held.topic_epoch) == (True, 0)
        gate = asyncio.Event()
        ledger = loaded(broker).ledger
        keep = ledger.set_topic_epoch

        async def slow(epoch: int) -> None:
            await gate.wait()
            await keep(epoch)

        ledger.set_topic_epoch = slow
        with held_back(broker):
            holder.send_bytes(publish(1, 0, b"in flight"))
            await asyncio.sleep(0.01)
            taker.send(taker.producer_command(TOPIC, "t", producer_access_mode=FENCING))
            if durable:
                gate.set()
            await holder.take(Command.CLOSE_PRODUCER)
        back = {"producer_access_mode": mode, "topic_epoch": 0, "epoch": 1}
        assert await holder.open_producer(TOPIC, "h", **back) == FENCED
        gate.set()
        taken = (await taker.take(Command.PRODUCER_SUCCESS)).producer_success
        assert (taken.producer_ready, taken.topic_epoch) == (True, 1)
        assert await holder.open_producer(TOPIC, "h", **back) == FENCED
        assert (await taker.publish(0))[1] >= 0
        assert not holder.has(Command.SEND_RECEIPT)
        assert not loaded(broker).waiting_producers

    run()


@scenario()
async def test_a_former_holder_that_waits_is_told_when_another_producer_was_one(broker) -> None:
    former, beside, other = (Client(broker) for _ in range(3))
    assert (await former.open_producer(TOPIC, "f", producer_access_mode=WAIT)).topic_epoch == 0
    former.send(former.close_command("producer"))
    assert await former.outcome() == 0
    assert (await beside.open_producer(TOPIC, "b")).topic_epoch == 0
    waiting = {"producer_access_mode": WAIT}
    assert not (await other.open_producer(TOPIC, "o", **waiting)).producer_ready
    again = await former.open_producer(TOPIC, "f", topic_epoch=0, epoch=1, **waiting)
    assert not again.producer_ready
    beside.hang_up()
    assert (await other.take(Command.PRODUCER_SUCCESS)).producer_success.topic_epoch == 1
    assert await former.outcome() == FENCED
    assert not former.connection.opened.waiting_producers


@scenario()
async def test_when_two_producers_take_a_topic_at_once_the_later_one_has_it(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    one, two = Client(broker), Client(broker)
    for index, client in enumerate((one, two)):
        client.send(client.producer_command(TOPIC, f"p{index}", producer_access_mode=FENCING))
    assert await one.outcome() == FENCED
    taken = (await two.take(Command.PRODUCER_SUCCESS)).producer_success
    assert list(loaded(broker).producers) == ["p1"]
    assert taken.topic_epoch == loaded(broker).topic_epoch


@scenario()
async def test_a_holder_whose_epoch_cannot_be_kept_is_none(broker) -> None:
    await Client(broker).produce(TOPIC, 1)
    client = Client(broker)
    ledger = loaded(broker).ledger
    kept = ledger.set_topic_epoch

    async def fails(epoch: int) -> None:
        raise MetadataError("down")

    ledger.set_topic_epoch = fails
    fencing = {"producer_access_mode": FENCING}
    assert await client.open_producer(TOPIC, "p", **fencing) == ServerError.MetadataError
    ledger.set_topic_epoch = kept
    assert (await client.open_producer(TOPIC, "p", **fencing)).topic_epoch == 0


@pytest.mark.parametrize("error", [OSError("a bug"), MetadataError("down")])
@pytest.mark.parametrize("step", ["set_topic_epoch", "producer_joined"])
@scenario()
async def test_whatever_fails_when_its_turn_comes_a_waiting_producer_is_told_and_the_next_comes(
    broker: BrokerInMemory, step: str, error: Exception
) -> None:
    holder, first, second = (Client(broker) for _ in range(3))
    await holder.open_producer(TOPIC, "h", producer_access_mode=EXCLUSIVE)
    for client, name in ((first, "1"), (second, "2")):
        await client.open_producer(TOPIC, name, producer_access_mode=WAIT)
    works = getattr(loaded(broker), step)

    async def fails(_: object) -> None:
        setattr(loaded(broker), step, works)
        raise error

    setattr(loaded(broker), step, fails)
    holder.hang_up()
    expected = {OSError: ServerError.UnknownError, MetadataError: ServerError.MetadataError}
    assert await first.outcome() == expected[type(error)]
    assert not first.connection.opened.waiting_producers
    assert not len(first.connection.client.holdings)
    assert (await second.take(Command.PRODUCER_SUCCESS)).producer_success.producer_ready
    assert list(loaded(broker).producers) == ["2"]


@pytest.mark.parametrize("how", ["close", "hang up"])
def test_a_holder_that_gives_up_in_creation_leaves_the_topic_free(how: str) -> None:
    @scenario()
    async def run(broker) -> None:
        await Client(broker).produce(TOPIC, 1)
        one, two = Client(broker), Client(broker)
        gate = asyncio.Event()
        ledger = loaded(broker).ledger
        keep = ledger.set_topic_epoch

        async def slow(epoch: int) -> None:
            await gate.wait()
            await keep(epoch)

        ledger.set_topic_epoch = slow
        one.send(one.producer_command(TOPIC, "one", producer_access_mode=FENCING))
        await asyncio.sleep(0.01)
        assert not (await two.open_producer(TOPIC, "two", producer_access_mode=WAIT)).producer_ready
        if how == "close":
            one.send(one.close_command("producer"))
        else:
            one.hang_up()
        gate.set()
        told = (await two.take(Command.PRODUCER_SUCCESS)).producer_success
        assert told.producer_ready
        assert list(loaded(broker).producers) == ["two"]
        assert not one.has(Command.PRODUCER_SUCCESS)

    run()


@scenario()
async def test_a_dead_holder_with_the_same_name_makes_room(broker) -> None:
    dead, alive = Client(broker), Client(broker)
    held = await dead.open_producer(TOPIC, "p", producer_access_mode=EXCLUSIVE)
    dead.mute = True
    fields = {"producer_access_mode": EXCLUSIVE, "topic_epoch": held.topic_epoch, "epoch": 1}
    back = await alive.open_producer(TOPIC, "p", seconds=10, **fields)
    assert back.producer_ready
    assert dead.transport.closed


@scenario()
async def test_a_producer_name_has_its_bound(broker) -> None:
    client = Client(broker)
    longest = "n" * PRODUCER_NAME_CHARS_MAX
    assert await client.open_producer(TOPIC, longest + "n") == ServerError.NotAllowedError
    assert (await client.open_producer(TOPIC, longest)).producer_name == longest
