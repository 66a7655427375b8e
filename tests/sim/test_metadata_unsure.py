"""Writes to the metadata store that nobody answers: what was confirmed is there all the same."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from pulsark.errors import MetadataError, StorageError
from pulsark.runtime import Runtime
from pulsark.storage.embedded_bookie import EmbeddedBookie
from pulsark.storage.ledger import LedgerManager
from pulsark.storage.managed_ledger import ManagedLedger
from tests.sim.metadata import UnsureStore
from tests.sim.simulation import Simulation
from tests.sim.test_ledger_crash import CONFIG, PATH, World, check
from tests.support.ledgers import Appends

GROUPS = 4
SEEDS_OF_A_GROUP = 15


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
