"""Writes to the metadata store that nobody answers: what was confirmed is there all the same.

So it is with the entries of a topic, and with the acknowledgements of a bundle's cursors.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.memory import MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
from tests.sim import test_cursor_crash as cursors
from tests.sim.bookies import open_bookie
from tests.sim.disk import SimDisk
from tests.sim.metadata import UnsureStore
from tests.sim.simulation import Simulation
from tests.sim.test_ledger_crash import CONFIG, PATH, World, check
from tests.support.cursors import BUNDLE, Owner
from tests.support.ledgers import Appends

T = TypeVar("T")

GROUPS = 4
SEEDS_OF_A_GROUP = 15
OWNERS_OF_A_GROUP = 10


async def life(
    world: World, bookies: dict[str, EmbeddedBookie], runtime: Runtime, rng: random.Random
) -> int:
    """An owner whose store is unsure appends, rolls over, gives up; the number of lost answers."""
    store = UnsureStore(world.tree, rng, rng.choice([0.05, 0.2, 0.5]))
    manager = LedgerManager(store, bookies, runtime)
    managed = None
    for _ in range(20):
        try:
            appends = Appends(confirmed=world.confirmed)
            managed = await ManagedLedger.open(PATH, manager, store, CONFIG, runtime, appends)
            break
        except (MetadataError, StorageError):
            await asyncio.sleep(0.01)
    for turn in range(30 if managed is not None else 0):
        assert managed is not None
        entry = b"%d/%d" % (rng.randint(0, 1 << 40), turn)
        world.appended.add(entry)
        managed.append(entry, None)
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02]))
    await asyncio.sleep(0.05)
    if managed is not None and rng.random() < 0.5:
        with contextlib.suppress(MetadataError, StorageError):
            await managed.close()
    store.expire()
    return store.unanswered


async def lives(world: World, sim: Simulation, rng: random.Random) -> int:
    runtime = sim.runtime(world.disk)
    bookies = await world.bookies(runtime)
    unanswered = 0
    for _ in range(rng.randint(1, 3)):
        unanswered += await life(world, bookies, runtime, rng)
    for bookie in bookies.values():
        await bookie.close()
    return unanswered


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_was_confirmed_is_there_whatever_was_not_answered(group: int) -> None:
    unanswered = 0
    for number in range(SEEDS_OF_A_GROUP):
        seed = group * SEEDS_OF_A_GROUP + number
        world, rng = World(), random.Random(seed)
        with Simulation(seed) as sim:
            unanswered += sim.run(lives(world, sim, rng))
            sim.run(check(world, sim.runtime(world.disk)))
    assert unanswered > SEEDS_OF_A_GROUP


class OftenAwayStore(UnsureStore):
    """Answers all writes, until one finds it away: then it answers none for some seconds."""

    def __init__(self, tree: MemoryTree, rng: random.Random, prefix: str) -> None:
        super().__init__(tree, rng, 0.0, prefix)
        self.away_until = 0.0
        self._was_away = asyncio.Event()

    async def _answered(self, path: str, write: Callable[[], Awaitable[T]]) -> T:
        now = asyncio.get_running_loop().time()
        if now >= self.away_until and self._rng.random() < 0.1:
            self.away_until = now + self._rng.uniform(0, 12)
            self._was_away.set()
        self.part = 1.0 if now < self.away_until else 0.0
        return await super()._answered(path, write)

    async def loses_session(self) -> None:
        """After it was away, or at any other time."""
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(0, 60))
            return
        await self._was_away.wait()
        await asyncio.sleep(self.away_until - asyncio.get_running_loop().time())
        await asyncio.sleep(self._rng.uniform(0, 1))


async def owners(sim: Simulation, disk: SimDisk, rng: random.Random) -> int:
    """Some that die, and one whose store answers; the number of lost answers."""
    runtime, tree, promises = sim.runtime(disk), MemoryTree(), cursors.Promises()
    unanswered = 0
    bookie = await open_bookie(sim, disk)
    for _ in range(rng.randint(1, 5)):
        store = OftenAwayStore(tree, rng, f"/cursors/{BUNDLE}")
        try:
            log = await Owner(tree, [bookie], runtime, cursors.CONFIG, store).open()
        except (MetadataError, StorageError):
            continue
        await cursors.check(log, promises)
        script = asyncio.ensure_future(cursors.Script(promises, rng).run(log, 1000))
        end = asyncio.ensure_future(store.loses_session())
        await asyncio.wait([script, end], return_when=asyncio.FIRST_COMPLETED)
        for task in (script, end):
            task.cancel()
        await asyncio.wait([script, end])
        if not script.cancelled():
            script.result()
        unanswered += store.unanswered
        store.expire()
    log = await Owner(tree, [bookie], runtime, cursors.CONFIG).open()
    await cursors.check(log, promises)
    await bookie.close()
    return unanswered


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_was_acknowledged_stays_so_whatever_was_not_answered(group: int) -> None:
    unanswered = 0
    for seed in range(group, GROUPS * OWNERS_OF_A_GROUP, GROUPS):
        print(f"SEED={seed}")
        with Simulation(seed) as sim:
            unanswered += sim.run(owners(sim, SimDisk(), random.Random(seed)))
    assert unanswered > OWNERS_OF_A_GROUP
