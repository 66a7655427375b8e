"""How far topics are sealed, while they are unloaded and others look at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.tables.apart_sealing import ApartSealing
from pulsark.dispatch.tables.progress import SealingProgress
from pulsark.dispatch.tables.rounds import SealingRounds, TableFailures
from pulsark.dispatch.tables.sealing_due import TIDY_SECONDS
from pulsark.dispatch.tables.table_waits import CrowdedTables, Leases, TidyQueue
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import StorageError
from pulsark.storage.table.process.apart import ApartTopics
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.tables import entry
from tests.support.ticking_clock import TickingClock

if TYPE_CHECKING:
    from pulsark.dispatch.tables.rounds import DoWith
    from pulsark.storage.table.files.record import SealedLedger
    from pulsark.storage.table.tables import Tables

NAME = TopicName.parse("persistent://public/default/t")


class Meanwhile:
    """Tables, where something happens before each answer."""

    def __init__(self, tables: Tables, happens: Callable[[], None]) -> None:
        self._tables = tables
        self._happens = happens

    async def sealed(self, name: TopicName, ledger_id: int) -> SealedLedger | None:
        found = await self._tables.sealed(name, ledger_id)
        self._happens()
        return found


async def with_entries(broker: BrokerInMemory) -> Topic:
    topic = await broker.broker.topics.load(NAME, create=True)
    data = entry(0)
    topic.ledger.append(data, stored_entry(EARLIEST, data))
    await asyncio.sleep(0.01)  # of virtual time
    return topic


def progress_of(broker: BrokerInMemory, happens: Callable[[], None]) -> Any:
    progress = broker.broker.sealing._progress
    progress._tables = Meanwhile(broker.broker.sealing.tables, happens)  # type: ignore[assignment]
    return progress


@scenario(sealEnabled=False)
async def test_a_topic_may_be_forgotten_while_it_is_looked_up(broker: BrokerInMemory) -> None:
    topic = await with_entries(broker)
    progress = progress_of(broker, lambda: progress.keep_only([]))
    await progress.look_up(topic)
    await progress.attached(topic, [topic.ledger.ledgers()[0].ledger_id], since=None)
    progress.keep_only([])
    assert progress.due(topic, 0.0, everything=True) == []
    assert progress.waits_since(topic) is None


@scenario(sealEnabled=False)
async def test_a_topic_that_is_being_looked_up_is_not_yet_known(broker: BrokerInMemory) -> None:
    """Whoever took it for known would seal again what is in the table already."""
    topic = await with_entries(broker)
    seen: list[bool] = []
    progress = progress_of(broker, lambda: seen.append(topic in progress))
    await progress.look_up(topic)
    assert seen == [False]
    assert topic in progress
    assert progress.due(topic, 0.0, everything=True)


@scenario(sealEnabled=False)
async def test_what_a_job_attached_first_is_not_all_that_is_known(broker: BrokerInMemory) -> None:
    topic = await with_entries(broker)
    await topic.ledger.close_ledger()
    await with_entries(broker)
    progress = progress_of(broker, lambda: None)
    first, second = topic.ledger.ledgers()
    await progress.attached(topic, [first.ledger_id], since=None)
    assert progress._of[topic].through.keys() == {first.ledger_id, second.ledger_id}


def rounds_of(clock: TickingClock, queue: TidyQueue, loaded: Any, tidy: DoWith) -> SealingRounds:
    """Rounds in which nothing is due to be sealed."""

    async def seal(base: TopicName, topics: list[Topic]) -> None:
        raise AssertionError("nothing is due")

    nothing: Any = None
    progress = SealingProgress(nothing, nothing, nothing, queue)
    progress._of = dict.fromkeys(loaded, nothing)
    topics: Any = SimpleNamespace(loaded=lambda: loaded)
    return SealingRounds(
        nothing, clock, topics, progress, Leases(clock), CrowdedTables(clock, queue), queue,
        TableFailures(), lambda: True, seal, tidy,
        ApartSealing(ApartTopics(clock, nothing), TableFailures()), lambda base: False,
    )  # fmt: skip


def test_a_table_that_could_not_be_tidied_has_its_turn_again() -> None:
    """Its store was away, and nobody writes to its topic any more, who would have it tidied."""
    attempts: list[float] = []
    clock = TickingClock(1.0)

    async def tidy(base: TopicName, topics: list[Topic]) -> None:
        attempts.append(clock.spent)
        if len(attempts) < 3:
            raise StorageError("the store is away")

    queue = TidyQueue(clock)
    rounds = rounds_of(clock, queue, [], tidy)
    queue.soon(NAME)
    for _ in range(10):
        asyncio.run(rounds.run())
        clock.spent += TIDY_SECONDS / 2
    assert len(attempts) == 3
    assert attempts[1] - attempts[0] >= TIDY_SECONDS


def test_of_many_tables_that_are_tidied_at_once_all_topics_are_looked_at_once() -> None:
    count, looks = 2000, 0

    class Known:
        closed = False
        policies = SimpleNamespace(sealing=SimpleNamespace(enabled=False))

        def __init__(self, number: int) -> None:
            self._name = TopicName.parse(f"persistent://public/default/t{number}")

        @property
        def name(self) -> TopicName:
            nonlocal looks
            looks += 1
            return self._name

    loaded: Any = [Known(number) for number in range(count)]
    names = [topic.name for topic in loaded]
    tidied: list[tuple[TopicName, list[Topic]]] = []

    async def tidy(base: TopicName, topics: list[Topic]) -> None:
        tidied.append((base, topics))

    clock = TickingClock(0.001)
    queue = TidyQueue(clock)
    rounds = rounds_of(clock, queue, loaded, tidy)
    for name in names:
        queue.soon(name)
    loaded[7].closed = True
    queue.soon(TopicName.parse("persistent://public/default/unloaded"))
    looks = 0
    asyncio.run(rounds.run())
    assert len(tidied) == count + 1
    assert [base for base, topics in tidied if not topics] == [names[7], tidied[-1][0]]
    assert looks <= 3 * count


@pytest.mark.parametrize(("trimmed", "is_tidied"), [(EARLIEST, False), (Position(3, 49), True)])
def test_rows_of_a_topic_that_was_truncated_before_a_restart_leave_its_table(
    trimmed: Position, is_tidied: bool
) -> None:
    clock = TickingClock(1.0)
    queue = TidyQueue(clock)
    nothing: Any = None
    progress = SealingProgress(nothing, nothing, nothing, queue)

    class Truncated:
        name = NAME
        ledger = SimpleNamespace(
            record=SimpleNamespace(trimmed=trimmed), unsettled_from=0, each_ledger=lambda first: []
        )

    topic: Any = Truncated()
    asyncio.run(progress.look_up(topic))
    queue.hurry()
    assert (NAME in queue._at) == is_tidied


@pytest.mark.parametrize("what", ["look", "load"])
def test_rows_of_a_truncated_topic_leave_its_table_within_seconds(what: str) -> None:
    clock = TickingClock(0.001)
    queue = TidyQueue(clock)
    tidied: list[float] = []

    class Truncated:
        name, closed = NAME, False
        policies = SimpleNamespace(sealing=SimpleNamespace(enabled=True))
        ledger = SimpleNamespace(
            record=SimpleNamespace(trimmed=EARLIEST), unsettled_from=0, entries=0,
            last_confirmed=EARLIEST, each_ledger=lambda first: [], ledger=lambda number: None,
            ledgers=lambda first: [],
        )  # fmt: skip

    async def tidy(base: TopicName, topics: list[Topic]) -> None:
        tidied.append(clock.spent)

    topic: Any = Truncated()
    rounds = rounds_of(clock, queue, [topic], tidy)
    rounds._progress._of.clear()
    if what == "look":  # it is trimmed while it is loaded
        asyncio.run(rounds._progress.look_up(topic))
        asyncio.run(rounds.run())
    topic.ledger.record = SimpleNamespace(trimmed=Position(3, 49))
    for _ in range(5):
        asyncio.run(rounds.run())
        clock.spent += 2
    assert len(tidied) == 1
    assert tidied[0] < 10


def test_tables_that_are_to_be_tidied_wait_for_a_round_that_has_time() -> None:
    clock = TickingClock(1.0)
    queue = TidyQueue(clock)
    tidied: list[TopicName] = []

    async def tidy(base: TopicName, topics: list[Topic]) -> None:
        tidied.append(base)

    rounds = rounds_of(clock, queue, [], tidy)
    names = [TopicName.parse(f"t{number}") for number in range(20)]
    for name in names:
        queue.soon(name)
    asyncio.run(rounds.run())
    assert 0 < len(tidied) < 20
    for _ in range(20):
        asyncio.run(rounds.run())
    assert tidied == names
