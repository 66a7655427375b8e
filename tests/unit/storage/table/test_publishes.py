"""Each bulk publish is made once, also after many others and a long time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.runtime import Runtime
from pulsark.schemas.column_types import BINARY
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, Published
from pulsark.storage.table.files.table_limits import TableLimits
from pulsark.storage.table.publishes import NAMED_MS, ONE_OFF_MS, remembered
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.metadata import HeldStore
from tests.sim.simulation import Simulation

NAME = TopicName.parse("persistent://public/default/t")
PATH = table_path(NAME)
TABLE_ID = "0" * 31 + "1"
ROOT = "/root/public/default/t"
LIMITS = TableLimits(published_in_record=4, published_least=3, published_most=20)


def one_off(i: int) -> str:
    return f"batch-{i:032x}"


@dataclass
class Topic:
    """A topic that is only published to."""

    runtime: Runtime
    tree: MemoryTree
    ledgers: int = 0
    owner: TableOwner = field(init=False)

    async def open(self, store: MemoryMetadataStore | None = None) -> None:
        store = store or MemoryMetadataStore(self.tree)
        worker = self.runtime.new_worker("table")
        self.owner = await TableOwner.open(
            PATH, TABLE_ID, [ROOT], store, self.runtime, worker, limits=LIMITS
        )

    async def publish(self, ident: str, number: int = 0) -> bool:
        async def reserve() -> list[DataFile]:
            assert isinstance(self.runtime.disk, SimDisk)
            self.ledgers += 1
            path = f"partition=-1/ledger_id={self.ledgers}/part-0-n-0.parquet"
            self.runtime.disk.edit(f"{ROOT}/{path}", b"rows")
            return [DataFile(path, -1, self.ledgers, 0, 0, 1, 4, 0, {})]

        async def decided(_: bool | None) -> None:
            return

        return await self.owner.publish(ident, number, reserve, decided, BINARY)


def topic(test: Callable[[Topic], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        with Simulation() as sim:

            async def main() -> None:
                topic = Topic(sim.runtime(SimDisk()), MemoryTree())
                await topic.open()
                await test(topic)

            sim.run(main())

    run.__name__ = test.__name__
    return run


@topic
async def test_the_last_batch_of_a_query_is_known_after_many_other_writes(topic: Topic) -> None:
    assert await topic.publish("query", 7)
    for i in range(50):
        assert await topic.publish(one_off(i))
        await asyncio.sleep(3 * 3600)
    await topic.open()
    for number in (6, 7):
        assert not await topic.publish("query", number)
    assert await topic.publish("query", 8)
    assert len(topic.owner.record.published) <= LIMITS.published_in_record
    assert not await topic.publish(one_off(49)), "it is a few hours old"
    assert await topic.publish(one_off(0)), "it was forgotten after a day"


@topic
async def test_what_must_not_be_forgotten_is_not_and_more_is_refused(topic: Topic) -> None:
    made, refused = 0, False
    while not refused:
        try:
            assert await topic.publish(f"query-{made}")
            made += 1
        except StorageError as error:
            refused = "must not be forgotten yet" in str(error)
    assert LIMITS.published_most <= made <= 2 * LIMITS.published_most
    for i in range(made):
        assert not await topic.publish(f"query-{i}")
    await asyncio.sleep(NAMED_MS / 1000 + 1)
    assert await topic.publish("another")


def test_of_two_owners_the_stale_one_overwrites_no_list_of_publishes() -> None:
    """One request of the first is on its way until the second has published more than once."""
    at, was_held = 0, True
    while was_held:
        at += 1
        with Simulation() as sim:
            stale = Topic(sim.runtime(SimDisk()), MemoryTree())
            was_held = sim.run(overtaken(stale, at))
    assert at > 12


async def overtaken(stale: Topic, at: int) -> bool:
    store = HeldStore(stale.tree)
    await stale.open(store)
    names = [f"query-{i}" for i in range(LIMITS.published_in_record)]
    for name in names:
        await stale.publish(name)
    store.hold_at = at
    work = asyncio.ensure_future(stale.publish("stale"))
    reached = asyncio.ensure_future(store.reached.wait())
    await asyncio.wait([work, reached], return_when=asyncio.FIRST_COMPLETED)
    newer = Topic(stale.runtime, stale.tree, ledgers=100)
    await newer.open()
    for i in range(LIMITS.published_in_record + 1):
        names.append(f"newer-{i}")
        assert await newer.publish(names[-1])
    store.let_go.set()
    reached.cancel()
    await asyncio.gather(work, return_exceptions=True)
    again = Topic(stale.runtime, stale.tree)
    await again.open()
    for name in names:
        assert await again.owner.has_published(name, 0)
    return store.reached.is_set()


def test_what_is_young_or_among_the_last_is_remembered() -> None:
    now = 10 * NAMED_MS
    old = Published("q0", 1, now - NAMED_MS)
    young = Published("q1", 1, now - NAMED_MS + 1)
    one = Published(one_off(1), 0, now - ONE_OFF_MS)
    later = Published(one_off(2), 0, now - ONE_OFF_MS + 1)
    assert remembered([one, later, old, young], now, 0) == [young, later]
    assert remembered([one, later, old, young], now, 2) == [young, one, later]
    assert remembered([one, later, old, young], 100 * now, 3) == [young, one, later]
    named_alike = Published("batch-of-the-day", 0, now - ONE_OFF_MS)
    assert remembered([named_alike], now, 0) == [named_alike]
