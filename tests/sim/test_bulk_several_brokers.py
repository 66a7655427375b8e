"""A bulk publish into partitions of several brokers is in all of them or in none, and once.

At each step of it something happens: an answer is lost, a partition or the table goes to another
broker, in order or not, or a broker is heard of no more. The client asks until it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.producer.deduplication import BULK_PREFIX
from pulsark.dispatch.tables.far_partitions import CALL_SECONDS
from pulsark.dispatch.tables.reserved_for_others import HELD_SECONDS, RESERVED_SECONDS
from pulsark.errors import ClientError, OutcomeUnknownError, PulsarkError
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, entry_metadata
from pulsark.wire.position import EARLIEST
from tests.support.staged import stage
from tests.support.table_brokers import (
    BASE,
    PARTITIONS,
    AnswerLost,
    TableBrokers,
    ThreeBrokers,
    two_brokers,
)
from tests.support.tables import entry

COUNT = 3
"""Messages of a publish in each partition."""

Found = dict[int, list[tuple[str, int]]]
"""By partition: producer and number of each message, in order."""


def message(publish: int, number: int) -> bytes:
    producer = f"{BULK_PREFIX}q.{publish}"
    head = pb.MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1)
    return build_entry(head, b"bulk %d" % number)


class Writing(ThreeBrokers):
    """A client that writes to the topic, and what is to be seen of it. ``a`` has the table and
    partitions 0 and 2, ``b`` partition 1, ``c`` partition 3."""

    def __init__(self, brokers: TableBrokers) -> None:
        super().__init__(brokers)
        self._works: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        await super().start()
        for number in range(PARTITIONS):
            await self.brokers.publish(await self.owner(self.brokers.name(number)), number, 2)
        topic = await self.brokers.b.topics.load(self.brokers.name(1))
        await topic.ledger.close_ledger()  # nothing of it is left that a next owner could fence

    async def stage(self, number: int) -> tuple[str, list[StagedLedger]]:
        table = await self.owner(BASE)
        staging = await table.bulk_publishing.staging(BASE)
        roots = [directory.removesuffix(f"/{STAGING}") for directory in staging.directories]
        disk = self.brokers.disk
        staged = [
            stage(disk, roots, n, [message(number, i) for i in range(COUNT)], f"q{number}p{n}")
            for n in range(PARTITIONS)
        ]
        return staging.topic_id, staged

    async def publish(self, number: int, what: tuple[str, list[StagedLedger]]) -> bool:
        """Once, at whoever has the table."""
        table = await self.owner(BASE)
        topic_id, staged = what
        return await table.bulk_publishing.publish(BASE, topic_id, PARTITIONS, "q", number, staged)

    async def until_answered(self, number: int, what: tuple[str, list[StagedLedger]]) -> bool:
        for _ in range(60):
            try:
                return await self.publish(number, what)
            except PulsarkError:
                await asyncio.sleep(1)
        raise AssertionError("never answered")

    def meanwhile(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that goes on beside a publish, and perhaps has to wait for it."""
        self._works.append(asyncio.create_task(work))

    async def read(self, number: int) -> list[tuple[str, int]]:
        """What a consumer of a partition gets, who tries for a while to reach its owner."""
        for attempt in reversed(range(60)):
            try:
                owner = await self.owner(self.brokers.name(number))
                read = await self.brokers.read(owner, number)
                break
            except PulsarkError:
                if not attempt:
                    raise
                await asyncio.sleep(1)
        assert [at for at, _ in read] == sorted({at for at, _ in read})
        heads = [entry_metadata(data) for _, data in read]
        return [(str(head.producer_name), head.sequence_id) for head in heads]

    async def found(self) -> Found:
        """The same of all partitions."""
        return {number: await self.read(number) for number in range(PARTITIONS)}

    def times(self, found: Found, number: int) -> int:
        """How often a publish is in the topic: as often in each partition, and in one piece."""
        producer, counts = f"{BULK_PREFIX}q.{number}", set()
        for messages in found.values():
            mine = [place for place, each in enumerate(messages) if each[0] == producer]
            assert [messages[place][1] for place in mine] in ([], list(range(COUNT))), messages
            assert mine == list(range(mine[0], mine[0] + COUNT)) if mine else True
            counts.add(len(mine) // COUNT)
        assert len(counts) == 1, f"publish {number} is in some partitions only: {found}"
        return counts.pop()

    async def check_settled(self, publishes: int) -> None:
        """All publishes are there, once, in the table too; nothing is reserved; appends go on."""
        await asyncio.gather(*self._works)
        await asyncio.sleep(RESERVED_SECONDS + 5)
        found = await self.found()
        assert [self.times(found, number) for number in range(publishes)] == [1] * publishes
        for number in range(PARTITIONS):
            owner = await self.owner(self.brokers.name(number))
            topic = await owner.topics.load(self.brokers.name(number))
            data = entry(100, 0)
            topic.ledger.append(data, stored_entry(EARLIEST, data))
            await asyncio.sleep(0.1)
            assert not topic.ledger.record.pending
        longer = await self.found()
        assert [len(longer[n]) - len(found[n]) for n in range(PARTITIONS)] == [1] * PARTITIONS
        rows = dict.fromkeys(range(PARTITIONS), 0)
        for file in self.brokers.files():
            rows[file.partition] += file.rows
        assert rows == dict.fromkeys(range(PARTITIONS), COUNT * publishes)
        assert not any(broker.bulk_publishing.for_others._held for broker in self.all)


Test = Callable[[Writing], Coroutine[Any, Any, None]]


def writing(test: Test) -> Callable[[], None]:
    @two_brokers()
    async def scenario(brokers: TableBrokers) -> None:
        client = Writing(brokers)
        await client.start()
        await test(client)

    scenario.__name__, scenario.__doc__ = test.__name__, test.__doc__
    return scenario


# -- what goes well --------------------------------------------------------------------------------


@writing
async def test_all_partitions_have_it_when_it_is_answered(client: Writing) -> None:
    staged = await client.stage(0)
    assert await client.publish(0, staged)
    found = await client.found()
    assert client.times(found, 0) == 1
    assert not await client.publish(0, staged)
    for number in range(PARTITIONS):
        owner = await client.owner(client.brokers.name(number))
        topic = await owner.topics.load(client.brokers.name(number))
        assert topic.messages_in == 2 + COUNT
    assert client.brokers.b.tables.get(BASE) is None  # others never owned the table
    await client.check_settled(1)


@writing
async def test_what_is_sent_meanwhile_stays_in_its_order(client: Writing) -> None:
    staged = await client.stage(0)
    steps: list[str] = []

    async def send(step: str) -> None:
        steps.append(step)
        for number in range(PARTITIONS):
            owner = await client.owner(client.brokers.name(number))
            topic = await owner.topics.load(client.brokers.name(number))
            data = entry(10 + len(steps), 0)
            topic.ledger.append(data, stored_entry(EARLIEST, data))
        await asyncio.sleep(0.05)

    client.brokers.calls.at_step = send
    assert await client.publish(0, staged)
    await asyncio.sleep(0.1)
    found = await client.found()
    assert client.times(found, 0) == 1
    for messages in found.values():
        sent = [number for producer, number in messages if not producer.startswith(BULK_PREFIX)]
        assert sent == sorted(sent)
        assert len(sent) == 2 + len(steps)
    asked = [step for step in steps if "intent" not in step]
    assert len(asked) == 2 * 2 * 4  # two other brokers; before and after four steps


@writing
async def test_a_partition_that_takes_nothing_is_named(client: Writing) -> None:
    staged = await client.stage(0)
    topic = await client.brokers.b.topics.load(client.brokers.name(1))
    await topic.termination.terminate()
    with pytest.raises(ClientError, match=r"t-partition-1.*terminated"):
        await client.publish(0, staged)
    with pytest.raises(ClientError, match=r"t-partition-1.*terminated"):
        await client.stage(1)
    assert client.times(await client.found(), 0) == 0


# -- what goes wrong -------------------------------------------------------------------------------


async def answer_is_lost(client: Writing) -> None:
    raise AnswerLost("no answer")


async def partition_is_taken(client: Writing) -> None:
    await client.move(client.brokers.name(1), client.all[2], in_order=False)
    client.meanwhile(client.read(1))
    await asyncio.sleep(0.5)  # by then its next owner has asked the table's broker


async def partition_is_taken_by_the_tables_broker(client: Writing) -> None:
    await client.move(client.brokers.name(1), client.all[0], in_order=False)
    client.meanwhile(client.read(1))
    await asyncio.sleep(0.5)  # by then its next owner has asked the table's broker


async def partition_moves(client: Writing) -> None:
    client.meanwhile(client.move(client.brokers.name(1), client.all[2], in_order=True))
    await asyncio.sleep(0.5)


async def partition_is_loaded_anew(client: Writing) -> None:
    client.meanwhile(client.brokers.b.topics.unload(client.brokers.name(1)))
    await asyncio.sleep(0.5)


async def table_is_taken(client: Writing) -> None:
    await client.move(BASE, client.all[2], in_order=False)


async def table_and_partitions_are_taken(client: Writing) -> None:
    """Their broker stands still, and goes on when another one has settled everything."""
    for name in (BASE, client.brokers.name(0), client.brokers.name(2)):
        await client.move(name, client.all[2], in_order=False)
    await client.found()


async def table_moves(client: Writing) -> None:
    await client.move(BASE, client.all[1], in_order=True)


async def nothing_is_heard(client: Writing) -> None:
    """For so long that each side does without the other; and all partitions are read then."""
    await asyncio.sleep(HELD_SECONDS + 5)
    client.meanwhile(client.found())
    await asyncio.sleep(RESERVED_SECONDS)


async def owner_is_dead(client: Writing) -> None:
    dead = client.brokers.b.registry.own_id

    async def silent(step: str) -> None:
        if step.endswith(dead):
            raise AnswerLost("it is dead")

    client.brokers.calls.at_step = silent
    await partition_is_taken(client)


async def tables_session_is_lost(client: Writing) -> None:
    client.lose("a")
    await asyncio.sleep(0.5)


async def owners_session_is_lost(client: Writing) -> None:
    client.lose("b")
    client.meanwhile(client.read(1))
    await asyncio.sleep(0.5)  # by then its next owner has asked the table's broker


async def store_is_away(client: Writing) -> None:
    """The table's broker cannot find out what became of its writes, and gives up."""
    client.brokers.stores["a"].back_at = asyncio.get_running_loop().time() + 15
    raise OutcomeUnknownError("the store does not answer")


EVENTS = (
    partition_is_taken,
    partition_is_taken_by_the_tables_broker,
    partition_moves,
    partition_is_loaded_anew,
    table_is_taken,
    table_and_partitions_are_taken,
    table_moves,
    nothing_is_heard,
    owner_is_dead,
    tables_session_is_lost,
    owners_session_is_lost,
)
STEPS = ("before reserve", "before hold", "before intent", "before decide", "after decide")
LOST = [
    (f"{when} {what}", answer_is_lost)
    for when in ("before", "after")
    for what in ("check", "reserve", "hold", "decide")
]
AWAY = [(f"{when} intent", store_is_away) for when in ("before", "after")]


@pytest.mark.parametrize(
    ("step", "event"),
    [*LOST, *AWAY, *((step, event) for step in STEPS for event in EVENTS)],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_whatever_happens_at_a_step_it_is_there_once(step: str, event: Test) -> None:
    @writing
    async def scenario(client: Writing) -> None:
        staged = await client.stage(0)
        at = step if step.endswith("intent") else f"{step} {client.brokers.b.registry.own_id}"
        happened = False

        async def happen(step: str) -> None:
            nonlocal happened
            if step == at and not happened:
                happened = True
                await event(client)

        client.brokers.calls.at_step = happen
        with suppress(PulsarkError):
            assert await client.publish(0, staged)
            assert client.times(await client.found(), 0) == 1, "it was answered"
        assert happened
        client.times(await client.found(), 0)
        await client.until_answered(0, staged)
        assert client.times(await client.found(), 0) == 1
        assert not await client.until_answered(0, staged)
        assert await client.until_answered(1, await client.stage(1))
        await client.check_settled(2)

    scenario()


@writing
async def test_what_was_left_reserved_does_not_hold_up_the_next_attempt(client: Writing) -> None:
    lost = client.brokers.b.registry.own_id
    staged = await client.stage(0)

    async def lose(step: str) -> None:
        if step in (f"after reserve {lost}", f"before decide {lost}"):
            raise AnswerLost("no answer")

    client.brokers.calls.at_step = lose
    with pytest.raises(AnswerLost):
        await client.publish(0, staged)
    client.brokers.calls.at_step = client.brokers.calls.no_step
    begun = asyncio.get_running_loop().time()
    assert await client.until_answered(0, staged)
    assert asyncio.get_running_loop().time() - begun < CALL_SECONDS
    await client.check_settled(1)


@writing
async def test_a_broker_that_ends_leaves_nothing_held(client: Writing) -> None:
    staged = await client.stage(0)
    b = client.brokers.b

    async def end(step: str) -> None:
        if step == f"before decide {b.registry.own_id}":
            client.all.remove(b)
            del client.brokers.brokers[b.registry.own_id]
            begun = asyncio.get_running_loop().time()
            await b.close()
            assert asyncio.get_running_loop().time() - begun < 5
            raise AnswerLost("it has ended")

    client.brokers.calls.at_step = end
    assert await client.publish(0, staged)
    client.brokers.calls.at_step = client.brokers.calls.no_step
    assert client.times(await client.found(), 0) == 1
    await client.check_settled(1)


@writing
async def test_appends_do_not_wait_for_a_table_whose_broker_has_died(client: Writing) -> None:
    staged = await client.stage(0)
    a, b, _ = client.all
    died = asyncio.Event()

    async def die(step: str) -> None:
        if step == f"after hold {b.registry.own_id}":
            died.set()
            await asyncio.Event().wait()

    client.brokers.calls.at_step = die
    publishing = asyncio.create_task(client.publish(0, staged))
    await died.wait()
    client.brokers.stores["a"].expire()  # its session ends, and it hears nothing any more
    client.brokers.calls.at_step = client.brokers.calls.no_step
    client.all.remove(a)
    del client.brokers.brokers[a.registry.own_id]
    begun = asyncio.get_running_loop().time()
    assert client.times(await client.found(), 0) == 0
    topic = await b.topics.load(client.brokers.name(1))
    data = entry(50, 0)
    topic.ledger.append(data, stored_entry(EARLIEST, data))
    while topic.ledger.entries < 3:
        await asyncio.sleep(0.1)
        if topic.closed:
            topic = await b.topics.load(client.brokers.name(1))
            topic.ledger.append(data, stored_entry(EARLIEST, data))
    assert asyncio.get_running_loop().time() - begun < 5
    assert await client.until_answered(0, staged)
    await client.check_settled(1)
    with pytest.raises(PulsarkError):
        await publishing
