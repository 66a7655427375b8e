"""Several brokers under faults: each bundle has one owner, and what was confirmed stays.

``SEEDS=1000 make sim`` runs longer, ``SEED=17 make sim`` only that seed.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from pulsark.errors import PulsarkError
from tests.sim.brokers import Brokers
from tests.sim.simulation import Simulation

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "24"))
GROUPS = 6
STEPS = 40
TOPICS = 5


@pytest.mark.feature("F61", "F83")
@pytest.mark.parametrize("group", range(min(GROUPS, SEEDS)))
def test_random_lives_of_brokers(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS):
        with Simulation(seed) as sim:
            sim.run(live(Brokers(sim, seed, number=2 + seed % 2, topics=TOPICS), seed))


async def live(brokers: Brokers, seed: int) -> None:
    await brokers.start()
    brokers.set_faulty(seed % 4 > 0)
    watching = asyncio.create_task(watch_owners(brokers))
    works = []
    for _ in range(STEPS):
        works.append(asyncio.create_task(step(brokers)))
        await asyncio.sleep(brokers.rng.choice((0.0, 0.001, 0.01, 0.3, 3.0)))
        if watching.done():
            break
    for work in works:
        with suppress(PulsarkError):
            await work
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await brokers.check()


async def watch_owners(brokers: Brokers) -> None:
    while True:
        brokers.check_owners()
        await asyncio.sleep(0.01)


async def step(brokers: Brokers) -> None:
    """Something that happens, beside what is under way."""
    rng = brokers.rng
    place = rng.randrange(len(brokers.nodes))
    name = rng.choice(brokers.topics)
    node = brokers.nodes[place]
    happens = rng.random()
    if happens < 0.45:
        name = rng.choice((name, name, name, brokers.brief))
        await brokers.publish(place, name, blindly=happens < 0.12)
    elif happens < 0.6:
        await brokers.acknowledge(place, name)
    elif happens < 0.67:
        await brokers.split(place, name, keep=happens < 0.64)
    elif happens < 0.77:
        bundle = await node.broker.ownership.bundle_named(name)
        to = rng.choice(("", *(other for other in node.broker.registry.live)))
        await node.broker.bundle_release.release(bundle, to)
    elif happens < 0.81:
        await node.broker.topics.unload(name)
    elif happens < 0.84:
        await brokers.delete(place)
    elif happens < 0.86:
        await brokers.change(place)
    elif happens < 0.92:
        store = brokers.store(place)
        store.cut_off()
        await asyncio.sleep(rng.choice((0.5, 5, 8, 11, 20)))
        store.come_back()
    elif happens < 0.94:
        brokers.step_clock(place)
    else:
        await brokers.restart(place, killed=rng.random() < 0.7)
