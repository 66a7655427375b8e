"""A compaction that ends in the middle: what was compacted is always there, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from pulsark.dispatch.topic.compacted_view import CompactedView
from pulsark.errors import LedgerFencedError, MetadataError
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.compacted_ledger import CompactedTo
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.storage.managed_ledger.managed_ledger import read_record
from pulsark.wire.position import Position
from tests.support.broker_clients import NAME, TOPIC, BrokerInMemory, Client, scenario
from tests.support.lost_answers import ForgetfulStore
from tests.unit.dispatch.topic.test_compactor import compact, producer, send

MOST_TURNS = 300


async def reopened(broker: BrokerInMemory, client: Client) -> None:
    """The topic is loaded anew, in a new ledger."""
    await broker.broker.topics.unload(NAME)
    await client.produce(TOPIC, 0)


async def trimmed(broker: BrokerInMemory, client: Client) -> None:
    """All ledgers go but the one that is open: the rest is in the compacted form alone."""
    await reopened(broker, client)
    topic = await broker.broker.topics.load(NAME)
    before = topic.ledger.compacted.to
    assert before is not None
    await topic.ledger.trim(Position(before.horizon.ledger_id + 1, 0))


async def there(broker: BrokerInMemory) -> list[tuple[int, int]]:
    """What a reader of the compacted topic gets."""
    topic = await broker.broker.topics.load(NAME)
    view, position = CompactedView(topic.entries), Position(-1, 0)
    found: list[tuple[int, int]] = []
    while position <= topic.ledger.last_confirmed:
        stored = await view.stored(position, 100, 1 << 20)
        found += [tuple(place) for place, _ in stored]
        position = Position(found[-1][0], found[-1][1] + 1)
    return found


async def check_ledgers(broker: BrokerInMemory) -> None:
    """There are no ledgers but those that the record lists."""
    await asyncio.sleep(0.1)
    record = await read_record(managed_ledger_path(NAME), broker.metadata)
    assert record is not None
    assert record.removing == ()
    listed = {info.ledger_id for info in record.ledgers}
    listed |= {record.compacted.ledger_id} if record.compacted else set()
    owners = {int(name) for name in await broker.metadata.children("/ledgers")}
    bundles = [await broker.metadata.get(f"/ledgers/{i}") for i in owners - listed]
    assert all(b"/cursors/" in found.value for found in bundles), "a ledger that nobody lists"


@pytest.mark.parametrize("offset", range(5))
@scenario()
async def test_an_unload_at_any_moment_of_a_compaction_loses_nothing(broker, offset: int) -> None:
    client = await producer(broker)
    kept = (await send(client, "a", "b"))[1]
    await compact(broker)
    for turns in range(offset, MOST_TURNS, 5):
        await trimmed(broker, client)
        last = (await send(client, "a"))[0]
        compactor = (await broker.broker.topics.load(NAME)).compactor
        assert compactor.start()
        for turn in range(turns):
            # Turns of the loop, between them time for whom they wait.
            await asyncio.sleep(0 if turn % 8 else 0.0001)
        ended = compactor.status == "SUCCESS"
        await reopened(broker, client)
        found = await there(broker)
        assert kept in found, turns
        assert found[-1] == last, turns
        await check_ledgers(broker)
        if ended:
            assert turns > 20, "the run was too short to be cut off"
            return
    pytest.fail("no run came to its end")


async def erase_first(broker: BrokerInMemory, first: tuple[int, int]) -> None:
    topic = await broker.broker.topics.load(NAME)
    await topic.compactor.erase(erased_ids([(*first, -1)]))


async def compact_again(broker: BrokerInMemory, _first: tuple[int, int]) -> None:
    await compact(broker)


@pytest.mark.parametrize("done", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("work", [compact_again, erase_first])
@scenario()
async def test_an_answer_that_is_lost_undoes_nothing(
    broker, work: Callable[[BrokerInMemory, tuple[int, int]], Awaitable[None]], done: bool
) -> None:
    broker.metadata = store = ForgetfulStore(broker._tree, "/managed-ledgers")
    broker.broker = broker._new_broker()
    await broker.start()
    store.done = done
    client = await producer(broker)
    first, kept = await send(client, "a", "b")
    await compact(broker)
    for number in range(1, 20):
        await trimmed(broker, client)
        last = (await send(client, "a"))[0]
        store.writes, store.loses = 0, number
        with suppress(MetadataError, LedgerFencedError):
            await work(broker, first)
        lost, store.loses = store.writes >= number, 0
        await reopened(broker, client)
        found = await there(broker)
        assert kept in found, number
        assert found[-1] == last, number
        await check_ledgers(broker)
        if not lost:
            assert number > 1
            return
    pytest.fail("there was no run whose answers all came")


@scenario(keepAliveIntervalSeconds=1_000_000)
async def test_nothing_is_trimmed_before_its_compacted_form_is_in_the_record(broker) -> None:
    client = await producer(broker)
    kept, last = await send(client, "a", "b")
    await reopened(broker, client)  # its ledger is closed: only the cursor holds it
    topic = await broker.broker.topics.load(NAME)
    topic.policies = replace(topic.policies, retention_minutes=0, retention_mb=0)
    set_compacted, reached, go_on = topic.ledger.compacted.set, asyncio.Event(), asyncio.Event()

    async def slow(compacted: CompactedTo) -> None:
        reached.set()
        await go_on.wait()
        await set_compacted(compacted)

    topic.ledger.compacted.set = slow
    assert topic.compactor.start()
    await reached.wait()
    await topic.cursors.sync()
    await topic.retention.trim()
    assert topic.ledger.ledger(kept[0]) is not None
    assert await there(broker) == [kept, last]
    go_on.set()
    await asyncio.sleep(0.1)
    assert topic.compactor.status == "SUCCESS"
    await topic.cursors.sync()
    await topic.retention.trim()
    assert topic.ledger.ledger(kept[0]) is None, "the compacted form has it"
    assert await there(broker) == [kept, last]
