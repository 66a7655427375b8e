"""A process dies before every disk step and metadata write while buckets of delayed messages come
and go. What the next one finds listed can be read in full, has all that was answered for, and no
ledger is left behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.delayed.delayed_buckets import DelayedBuckets
from pulsark.storage.delayed.delayed_pages import KEY, info_of, pages_of
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager
from tests.sim.crashes import recover_each
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.metadata import SteppingStore
from tests.sim.simulation import Simulation

SEED = int(os.environ.get("SEED", "1"))
SETTINGS = JournalSettings(
    journal_max_size=20_000, checkpoint_bytes=8000, compact_bytes=600, compact_below=0.4
)
PATH = "/delayed-buckets/public/default/persistent/t"


@dataclass
class Promises:
    """Buckets by id, as far as the run has come."""

    begun: list[list[bytes]] = field(default_factory=list)
    """The pages of each bucket whose writing has begun."""
    written: dict[int, list[bytes]] = field(default_factory=dict)
    """Those that are promised to be there, unless they are in ``removing``."""
    removing: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def copy(self) -> Promises:
        return Promises(list(self.begun), dict(self.written), set(self.removing), set(self.removed))


def some_pages(rng: random.Random) -> list[bytes]:
    places = rng.sample(range(1000), rng.randint(1, 30))
    keys = [KEY.pack(rng.randrange(10**6), place // 100, place % 100) for place in places]
    return pages_of(sorted(keys), 7)


def buckets_of(metadata: MemoryMetadataStore, bookie: EmbeddedBookie, runtime: Runtime) -> Any:
    manager = LedgerManager(metadata, {"b": bookie}, runtime)
    config = LedgerConfig(1, 1, 1)
    return DelayedBuckets(PATH, "t", manager, metadata, lambda owner: config)


class Script:
    """Buckets are written, removed and looked up, some of it at the same time."""

    def __init__(self, buckets: DelayedBuckets, promises: Promises, rng: random.Random) -> None:
        self.buckets = buckets
        self.promises = promises
        self.rng = rng

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            steps = [self.write] * 2 + [self.remove]
            await asyncio.gather(*(self.rng.choice(steps)() for _ in range(self.rng.randint(1, 3))))

    async def write(self) -> None:
        pages = some_pages(self.rng)
        self.promises.begun.append(pages)
        bucket_id = await self.buckets.write(pages)
        self.promises.written[bucket_id] = pages

    async def remove(self) -> None:
        left = sorted(self.promises.written.keys() - self.promises.removing)
        gone = self.rng.sample(left, min(len(left), 2))
        self.promises.removing.update(gone)
        await self.buckets.remove(gone)
        self.promises.removed.update(gone)


async def check(buckets: DelayedBuckets, metadata: MemoryMetadataStore, promises: Promises) -> None:
    before = await buckets._list()
    loaded = {found.bucket_id: found.header for found in await buckets.load()}
    assert set(loaded) == set(before.buckets if before else ()), "a listed bucket is broken"
    assert promises.written.keys() - promises.removing <= loaded.keys(), "one is lost"
    assert not promises.removed & loaded.keys(), "one is back"
    for bucket_id, header in loaded.items():
        pages = [
            await buckets.read(bucket_id, index, info) for index, info in enumerate(header.pages)
        ]
        assert pages in promises.begun
        assert pages == promises.written.get(bucket_id, pages)
        assert header.pages == tuple(map(info_of, pages))
        assert len(header.positions) == sum(info.keys for info in header.pages)
    after = await buckets._list()
    assert after is None or not after.to_delete, "what is out of use was deleted"
    ledgers = {int(name) for name in await metadata.children("/ledgers") if name.isdigit()}
    unlisted = ledgers - loaded.keys()
    assert len(unlisted) <= 1, "one may have been created and not noted yet"


@dataclass(frozen=True)
class Moment:
    """What a crash would leave, and what had been answered by then."""

    step: str
    survival: Survival
    disk: SimDisk
    tree: MemoryTree
    promises: Promises


Main = Callable[[], Coroutine[Any, Any, None]]


def moments(seed: int, rounds: int) -> list[Moment]:
    disk, tree = SimDisk(), MemoryTree()
    promises, rng = Promises(), random.Random(seed)
    found: list[Moment] = []

    def keep(step: str, survivals: tuple[Survival, ...]) -> None:
        now = promises.copy()
        for survival in survivals:
            found.append(Moment(step, survival, disk.survivor(survival, rng), tree.copy(), now))

    disk.before_step = lambda: keep(f"disk step {disk.steps + 1}", SURVIVALS)
    with Simulation(seed) as sim:
        runtime = sim.runtime(disk)

        async def main() -> None:
            bookie = await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", SETTINGS, runtime)
            metadata = SteppingStore(tree, lambda step: keep(step, ("random",)))
            buckets = buckets_of(metadata, bookie, runtime)
            await Script(buckets, promises, random.Random(seed)).run(rounds)
            await bookie.close()

        sim.run(main())
    return found


def recovered(seed: int, moment: Moment) -> None:
    """Look, go on working, look again."""
    promises = moment.promises.copy()
    with Simulation(seed) as sim:
        runtime = sim.runtime(moment.disk)

        async def main() -> None:
            bookie = await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", SETTINGS, runtime)
            metadata = MemoryMetadataStore(moment.tree)
            await check(buckets_of(metadata, bookie, runtime), metadata, promises)
            buckets = buckets_of(metadata, bookie, runtime)
            await Script(buckets, promises, random.Random(seed + 1)).run(3)
            await check(buckets_of(metadata, bookie, runtime), metadata, promises)
            await bookie.close()

        sim.run(main())


def explore(seed: int, every: int = 1) -> int:
    return recover_each(
        seed, moments(seed, rounds=8), lambda _, moment: recovered(seed, moment), every
    )


@pytest.mark.feature("F57", "F72")
def test_a_crash_before_any_step_loses_no_bucket_and_leaves_none() -> None:
    assert explore(SEED) > 200


@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 5))
def test_other_runs(seed: int) -> None:
    explore(seed, every=11)


def list_it_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    change = DelayedBuckets._change

    async def listed_at_once(self: DelayedBuckets, **changes: Any) -> None:
        if "doom" in changes and len(changes["doom"]) == 1:
            changes = {"add": changes["doom"]}
        await change(self, **changes)

    patch.setattr(DelayedBuckets, "_change", listed_at_once)


def forget_to_list_it(patch: pytest.MonkeyPatch) -> None:
    change = DelayedBuckets._change

    async def never_listed(self: DelayedBuckets, **changes: Any) -> None:
        if "doom" not in changes:
            await change(self, **changes)

    patch.setattr(DelayedBuckets, "_change", never_listed)


@pytest.mark.parametrize("plant", [list_it_before_it_is_written, forget_to_list_it])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        explore(SEED)
