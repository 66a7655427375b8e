"""Erased messages reach nobody; all others reach everybody, under the ids they had."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow.parquet as pq
import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import StorageError
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.client_view import client_view
from tests.support.tables import entry

NAME = TopicName.parse("persistent://public/default/t")
SHARED = pb.CommandSubscribe.Shared
SEALED = {
    "managedLedgerMaxEntriesPerLedger": 5,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "sealEnabled": True,
    "sealFreshnessSeconds": 0,
    "keepAliveIntervalSeconds": 1_000_000,
    "acknowledgmentAtBatchIndexLevelEnabled": True,
}


async def topic_with(broker: BrokerInMemory, *sizes: int) -> tuple[Topic, list[Position]]:
    """A topic whose entry i is a batch of ``sizes[i]`` messages, or with 0 a single one."""
    topic = await broker.broker.topics.load(NAME, create=True)
    positions = []
    for i, size in enumerate(sizes):
        data = entry(i, size)
        topic.ledger.append(data, stored_entry(EARLIEST, data))
        await asyncio.sleep(0.01)
        positions.append(topic.ledger.last_confirmed)
    return topic, positions


def ids(*wanted: tuple[Position, int]) -> Any:
    return erased_ids((position.ledger_id, position.entry_id, i) for position, i in wanted)


async def stored(topic: Topic) -> list[bytes]:
    found: list[bytes] = []
    position = EARLIEST
    while read := await topic.ledger.read(position, 1000, 1 << 20):
        found += [data for _, data in read]
        position = topic.ledger.next_position(read[-1][0])
    return found


async def deliveries(client: Client) -> list[tuple[tuple[int, int], list[int]]]:
    """The ids and ack sets of all messages that come."""
    found = []
    while True:
        try:
            message = (await client.take(Command.MESSAGE, seconds=2)).message
        except (AssertionError, TimeoutError):
            return found
        id_ = message.message_id
        found.append(((id_.ledgerId, id_.entryId), list(message.ack_set)))


def parquet_keys(broker: BrokerInMemory) -> list[str]:
    """The keys in all data files on the disk, part of the table or not."""
    disk: Any = broker.broker.runtime.disk
    found: list[str] = []
    for path in disk.files():
        if path.endswith(".parquet"):
            import pyarrow as pa

            rows = pq.read_table(pa.BufferReader(disk.content(path)))
            found += [key for key in rows.column("key").to_pylist() if key is not None]
    return found


@scenario(**SEALED)
async def test_an_erasure_that_was_decided_and_not_done_is_done_after_a_restart(
    broker: BrokerInMemory,
) -> None:
    def fails(*_: object) -> None:
        raise OSError("not now")

    topic, at = await topic_with(broker, 0, 3, 0)
    wanted = ids((at[0], -1), (at[1], 1))
    await broker.broker.sealing.seal(NAME, [topic], everything=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "write", fails)
        with pytest.raises(StorageError, match="has reached 0 roots"):
            await broker.broker.erasure.erase(NAME, wanted)
    await broker.restart()
    topic = await broker.broker.topics.load(NAME, create=False)
    await broker.broker.erasure.erase(NAME, wanted)
    fresh = Client(broker)
    await fresh.subscribe(str(NAME), "new", kind=SHARED)
    assert await deliveries(fresh) == [(tuple(at[1]), [0b101]), (tuple(at[2]), [])]


@pytest.mark.feature("F53")
@scenario(**SEALED)
async def test_messages_alone_and_in_batches(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, 0, 3, 0, 2, 0, 0, 3)
    before = await stored(topic)
    client = Client(broker)
    await client.subscribe(str(NAME), "old", kind=SHARED)
    assert len(await deliveries(client)) == 7
    wanted = ids((at[0], -1), (at[1], 1), (at[3], 0), (at[3], 1), (at[6], 2))
    done = await broker.broker.erasure.erase(NAME, wanted)
    assert (done.ids, done.entries, done.missing) == (5, 4, 0)
    after = await stored(topic)
    assert len(after) == 7
    for i in (2, 4, 5):
        assert client_view(after[i]) == client_view(before[i])
    old = topic.subscriptions["old"]
    assert old.backlog == 5, "two entries are gone as a whole"
    assert old.cursor.state.ack_set_of(at[1]) == [0b101]
    fresh = Client(broker)
    await fresh.subscribe(str(NAME), "new", kind=SHARED)
    assert await deliveries(fresh) == [
        (tuple(at[1]), [0b101]),
        (tuple(at[2]), []),
        (tuple(at[4]), []),
        (tuple(at[5]), []),
        (tuple(at[6]), [0b011]),
    ]
    assert topic.subscriptions["new"].backlog == 5
    last = await topic.last_message()
    assert (last.position, last.batch_index) == (at[6], 1)
    fresh.send(fresh.ack_command(tuple(at[1]), ack_set=(0b100,)))
    fresh.send(fresh.ack_command(tuple(at[1]), ack_set=(0b001,)))
    await asyncio.sleep(1)
    assert topic.subscriptions["new"].backlog == 4, "its two messages are acknowledged"


@scenario(**SEALED)
async def test_what_was_delivered_and_comes_again_comes_without_them(
    broker: BrokerInMemory,
) -> None:
    topic, at = await topic_with(broker, 0, 2, 0)
    client = Client(broker)
    await client.subscribe(str(NAME), "s", kind=SHARED)
    assert len(await deliveries(client)) == 3
    await broker.broker.erasure.erase(NAME, ids((at[0], -1), (at[1], 0)))
    subscription = topic.subscriptions["s"]
    (consumer,) = subscription.type.consumers
    assert consumer.unacked == 2
    again = Client(broker)
    await again.subscribe(str(NAME), "s", kind=SHARED)
    client.transport.close()
    assert await deliveries(again) == [(tuple(at[1]), [0b10]), (tuple(at[2]), [])]


@scenario(**SEALED)
async def test_nothing_of_them_is_left(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, *[0] * 12)
    topic.compactor.start()
    await asyncio.sleep(1)
    assert topic.compactor.status == "SUCCESS"
    await broker.broker.erasure.erase(NAME, ids((at[3], -1), (at[11], -1)))
    assert sorted(parquet_keys(broker)).count("k3") == 1, "an older version has it"
    left = await broker.broker.erasure.finish(NAME, None)
    assert (left.old_files, left.deleted_files) == (2, 0)
    assert left.until_ms > broker.broker.clock.now_ms()
    left = await broker.broker.erasure.finish(NAME, 0)
    assert (left.old_files, left.deleted_files, left.until_ms) == (0, 2, 0)
    assert left.roots_away == left.bookies_away == ()
    assert broker.bookie.recycled == 2
    assert sorted(set(parquet_keys(broker))) == sorted(
        f"k{i}" for i in range(12) if i not in (3, 11)
    )
    in_bookie = b"".join(
        data for ledger_id in broker.bookie.ledger_ids()
        for data in broker.bookie.entries(ledger_id).values()
    )  # fmt: skip
    assert b"value 4" in in_bookie, "the compacted topic"
    assert b"value 3" not in in_bookie
    assert b"value 11" not in in_bookie


@pytest.mark.feature("F91")
@scenario(**SEALED)
async def test_the_compacted_topic_loses_them_too(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, 0, 3, 0)
    topic.compactor.start()
    await asyncio.sleep(1)
    await broker.broker.erasure.erase(NAME, ids((at[0], -1), (at[1], 2)))
    view = topic.entries.compacted
    assert view is not None
    left = await view.stored(Position(-1, 0), 100, 1 << 20)
    assert [position for position, _ in left] == [at[1], at[2]]
    await broker.broker.topics.unload(NAME)
    topic = await broker.broker.topics.load(NAME)
    client = Client(broker)
    await client.subscribe(str(NAME), "c", read_compacted=True)
    assert [place for place, _ in await deliveries(client)] == [tuple(at[1]), tuple(at[2])]


@pytest.mark.feature("F91")
@scenario(**SEALED)
async def test_messages_that_only_the_compacted_topic_has(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, *[0] * 7)
    topic.compactor.start()
    await asyncio.sleep(1)
    await topic.ledger.trim(at[5])
    assert topic.ledger.first_position() == at[5]
    done = await broker.broker.erasure.erase(NAME, ids((at[1], -1), (at[3], -1), (at[6], -1)))
    assert (done.ids, done.missing) == (3, 0)
    view = topic.entries.compacted
    assert view is not None
    left = await view.stored(Position(-1, 0), 100, 1 << 20)
    assert [position for position, _ in left] == [at[0], at[2], at[4], at[5]]
    assert (await broker.broker.erasure.erase(NAME, ids((at[3], -1)))).missing == 1


@scenario(**SEALED)
async def test_again_and_again(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, 3, 0)
    for _ in range(2):
        await broker.broker.erasure.erase(NAME, ids((at[0], 1)))
        found = await stored(topic)
    await broker.broker.erasure.erase(NAME, ids((at[0], 0), (at[0], 2)))
    assert len(await stored(topic)) == len(found) == 2
    client = Client(broker)
    await client.subscribe(str(NAME), "s")
    assert [place for place, _ in await deliveries(client)] == [tuple(at[1])]
    await asyncio.sleep(1)
    assert topic.subscriptions["s"].backlog == 1
    missing = erased_ids([(99, 0, -1)])
    assert (await broker.broker.erasure.erase(NAME, missing)).missing == 1


@scenario(**SEALED)
async def test_an_erasure_that_fails_changes_nothing(broker: BrokerInMemory) -> None:
    topic, at = await topic_with(broker, 0, 0)
    await broker.broker.erasure.erase(NAME, {})
    process: Any = broker.broker.tables.processes.normal
    process.failure = StorageError("the process died")
    before = await stored(topic)
    with pytest.raises(StorageError, match="died"):
        await broker.broker.erasure.erase(NAME, ids((at[0], -1)))
    assert await stored(topic) == before
    await broker.broker.erasure.erase(NAME, ids((at[0], -1)))
    assert (await stored(topic))[0] != before[0]
