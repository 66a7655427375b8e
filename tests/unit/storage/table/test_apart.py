"""Topics that make trouble when they are sealed delay others once, and wait longer each time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsark.errors import (
    ProcessEndedError,
    SealedApartError,
    SlowSealError,
    UnsealableError,
)
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.process import apart
from pulsark.storage.table.process.apart import (
    APART_SECONDS,
    EXCESS_FORGOTTEN_SECONDS,
    EXCESS_TOPIC_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    ApartTopics,
)
from pulsark.storage.table.process.fair_lock import FairLock
from pulsark.storage.table.process.process import TableProcess
from pulsark.storage.table.process.table_processes import (
    SHARED_CPU_RATE,
    SHARED_CPU_SECONDS,
    RefusedPayloads,
)
from pulsark.wire.topic_name import TopicName
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation
from tests.unit.storage.table.test_seal_attempts import NAME, WHOLE, Sealed, pieces
from tests.unit.storage.table.test_table_process import LOADED, Machine, Worker, sealed


def topic(name: str) -> TopicName:
    return TopicName.parse(f"persistent://{name}")


Scenario = Callable[[ApartTopics, MemoryMetadataStore], Awaitable[None]]


def run(scenario: Scenario) -> None:
    with Simulation() as sim:
        store = MemoryMetadataStore(MemoryTree())
        sim.run(scenario(ApartTopics(SimClock(sim.loop), store), store))


async def trouble(topics: ApartTopics, base: TopicName, deaths: int = 1) -> None:
    before = topics.deaths(base)
    for _ in range(deaths):
        topics.ended_process(base, "it died")
    await topics.sealed(base, before)


def test_each_seal_that_ends_a_process_doubles_the_pause() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        pauses = []
        for _ in range(12):
            await trouble(topics, NAME, deaths=7)
            pauses.append(topics.seconds_to_wait(NAME))
            await asyncio.sleep(pauses[-1])
            assert topics.seconds_to_wait(NAME) == 0
        assert pauses[:3] == [PAUSE_SECONDS, 2 * PAUSE_SECONDS, 4 * PAUSE_SECONDS]
        assert pauses[-1] == PAUSE_SECONDS_MAX
        await topics.sealed(NAME, topics.deaths(NAME))
        await trouble(topics, NAME)
        assert topics.seconds_to_wait(NAME) == PAUSE_SECONDS, "it went well in between"
        found = topics.get(NAME)
        assert found is not None
        assert (found.deaths, found.reason) == (85, "it died")

    run(scenario)


def test_it_is_remembered_over_restarts_of_the_broker() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        await trouble(topics, NAME)
        await trouble(topics, NAME)
        topics.made_trouble(topic("a/b/slow"), "it took long")
        await topics.store(topic("a/b/slow"))
        again = ApartTopics(topics._clock, store)
        await again.load()
        assert dict(again.all()) == dict(topics.all())
        assert NAME in again
        assert again.seconds_to_wait(NAME) == 2 * PAUSE_SECONDS

    run(scenario)


def test_after_a_day_without_trouble_it_is_over() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        await trouble(topics, NAME)
        await asyncio.sleep(APART_SECONDS - 1)
        assert NAME in topics
        await asyncio.sleep(2)
        assert NAME not in topics
        assert topics.seconds_to_wait(NAME) == 0
        again = ApartTopics(topics._clock, store)
        await again.load()
        assert NAME not in again
        assert await store.children("/sealed-apart") == []

    run(scenario)


def test_what_cannot_be_read_is_no_reason_not_to_start() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        await trouble(topics, NAME)
        for child in await store.children("/sealed-apart"):
            await store.put(f"/sealed-apart/{child}", b'{"version":1}')
        again = ApartTopics(topics._clock, store)
        await again.load()
        assert NAME not in again

    run(scenario)


def test_many_such_topics_set_their_namespace_and_tenant_apart() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        for n in range(2):
            topics.made_trouble(topic(f"a/b/t{n}"), "slow")
        assert topic("a/b/other") not in topics
        topics.made_trouble(topic("a/b/t2"), "slow")
        assert topic("a/b/other") in topics
        assert topics.seconds_to_wait(topic("a/b/other")) == 0
        assert topic("a/c/other") not in topics
        for n in range(7):
            topics.made_trouble(topic(f"a/n{n}/t"), "slow")
        assert topic("a/c/other") in topics
        assert topic("b/b/other") not in topics
        await asyncio.sleep(APART_SECONDS + 1)
        for n in range(3):
            assert topic(f"a/b/t{n}") not in topics
        assert topic("a/b/other") not in topics

    run(scenario)


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "TOPICS_MAX", 3)

    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        for n in range(5):
            topics.made_trouble(topic(f"a/n{n}/t"), "slow")
            await asyncio.sleep(1)
        assert [str(name) for name, _ in topics.all()] == [
            f"persistent://a/n{n}/t" for n in (2, 3, 4)
        ]

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [ProcessEndedError("it died"), SlowSealError("too slow"), UnsealableError("no memory")],
)
def test_trouble_among_others_is_not_tried_again_among_them(error: Any) -> None:
    async def main() -> None:
        table = Sealed(sim)
        processes: Any = table.tables.processes
        processes.normal.failure = error
        with pytest.raises(SealedApartError):
            await (await table.tables.open(NAME, table.directory[-32:])).seal(
                [WHOLE], pieces, 1 << 20
            )
        assert len(processes.normal.requests) == 1
        assert NAME in processes.apart
        await table.seal(WHOLE)
        assert len(processes.normal.requests) == 1
        assert len(processes.alone.requests) == 1
        assert processes.alone.requests[0]["cpuSecondsMax"] is None
        await table.check(5, 39)

    with Simulation() as sim:
        sim.run(main())


def test_a_process_that_takes_too_much_of_a_processor_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", machine.start)

    async def seal(process: TableProcess, most: float) -> None:
        await process.seal(entries(), 0, 5, ["/r"], "n", 1, 1, table="t", cpu_seconds_max=most)

    async def entries() -> Any:
        yield []

    async def takes_all(_: Worker) -> None:
        """It takes what it is sent, and answers nothing more."""

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        process = TableProcess()
        machine.most, machine.stopped = LOADED, True
        monkeypatch.setattr(Worker, "drain", takes_all)
        process.cpu_seconds = lambda _: None
        with pytest.raises(SlowSealError):
            await seal(process, 1.0)
        assert asyncio.get_running_loop().time() - began < 2
        process.cpu_seconds = lambda _: 5.0  # it waits, for a disk
        with pytest.raises(ProcessEndedError) as raised:
            await seal(process, 1.0)
        assert not isinstance(raised.value, SlowSealError)
        machine.most, machine.stopped = math.inf, False
        await sealed(process)

    with Simulation() as sim:
        sim.run(main())


def test_what_one_broker_learns_others_know() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        other = ApartTopics(topics._clock, store)
        await other.load()
        await trouble(topics, NAME)
        await asyncio.sleep(0.01)
        assert NAME in other
        assert other.seconds_to_wait(NAME) == topics.seconds_to_wait(NAME) > 0
        other._missed()
        topics.made_trouble(topic("a/b/slow"), "slow")
        await topics.store(topic("a/b/slow"))
        await asyncio.sleep(0.01)
        assert dict(other.all()) == dict(topics.all())
        await other.close()
        topics.made_trouble(topic("a/b/later"), "slow")
        await topics.store(topic("a/b/later"))
        await asyncio.sleep(0.01)
        assert topic("a/b/later") not in other

    run(scenario)


def test_what_is_below_the_limit_of_a_seal_adds_up() -> None:
    async def scenario(topics: ApartTopics, store: MemoryMetadataStore) -> None:
        excess = topics.excess
        assert excess.left(NAME) == EXCESS_TOPIC_SECONDS
        excess.add(NAME, EXCESS_TOPIC_SECONDS - 0.1)
        assert excess.left(NAME) == pytest.approx(0.1)
        excess.add(NAME, 5.0)
        assert excess.left(NAME) == 0
        assert excess.left(topic("other/ns/t")) == EXCESS_TOPIC_SECONDS
        await asyncio.sleep(EXCESS_FORGOTTEN_SECONDS)
        assert excess.left(NAME) == EXCESS_TOPIC_SECONDS
        for n in range(10):
            excess.add(topic(f"a/b/t{n}"), EXCESS_TOPIC_SECONDS)
        assert excess.left(topic("a/b/new")) == 0
        assert excess.left(topic("a/c/new")) == EXCESS_TOPIC_SECONDS
        excess.add(topic("a/c/quick"), -1.0)
        assert excess.left(topic("a/c/quick")) == EXCESS_TOPIC_SECONDS

    run(scenario)


def test_a_topic_that_stays_below_the_limit_again_and_again_is_sealed_apart() -> None:
    async def main() -> None:
        table = Sealed(sim)
        processes: Any = table.tables.processes
        seal = processes.normal.seal

        async def slow(*given: Any, **named: Any) -> Any:
            found = await seal(*given, **named)
            named["on_used"](SHARED_CPU_SECONDS + 10 / SHARED_CPU_RATE + 0.3)
            return found

        processes.normal.seal = slow
        limits = []
        for _ in range(3):
            await processes.seal(
                WHOLE, [table.directory], 1, 1 << 20, ValueSchemas(), pieces, base=NAME
            )
            limits.append(processes.normal.requests[-1]["cpuSecondsMax"])
        assert limits[0] - limits[1] == pytest.approx(0.3, abs=0.01)
        assert limits[2] == pytest.approx(SHARED_CPU_SECONDS, abs=0.01)

    with Simulation() as sim:
        sim.run(main())


def test_groups_get_a_lock_in_turn() -> None:
    got: list[str] = []

    async def caller(lock: FairLock, group: str, name: str) -> None:
        async with lock.held(group):
            got.append(name)
            await asyncio.sleep(1)

    async def main() -> None:
        lock = FairLock()
        calls = [caller(lock, "a", f"a{n}") for n in range(4)]
        calls += [caller(lock, "b", "b0"), caller(lock, "c", "c0"), caller(lock, "b", "b1")]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.5)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert got == ["a0", "a1", "b0", "c0", "a3", "b1"]
        await caller(lock, "a", "again")

    with Simulation() as sim:
        sim.run(main())


def test_a_caller_cancelled_at_its_turn_passes_the_lock_on() -> None:
    async def main() -> None:
        lock = FairLock()

        async def second() -> None:
            async with lock.held():
                raise AssertionError("it was cancelled")

        async with lock.held():
            task = asyncio.create_task(second())
            await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with asyncio.timeout(1), lock.held():
            pass

    with Simulation() as sim:
        sim.run(main())


def test_refused_payloads_are_counted_and_the_log_tells_of_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = RefusedPayloads()
    for _ in range(3):
        refused.add("a", 2)
    refused.add("b", 1)
    assert (refused.of("a"), refused.of("b"), refused.of("c"), refused.total) == (6, 1, 0, 7)
    assert [record.args[0] for record in caplog.records if record.args] == ["a", "b"]
