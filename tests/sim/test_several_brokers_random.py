"""Several brokers under faults: each bundle has one owner, and what was confirmed stays.

``make sim`` has 1,000 seeds of it, ``SEEDS=5000 make sim`` more, ``SEED=17 make sim`` that one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from pulsark.errors import PulsarkError
from pulsark.wire.topic_name import TopicName
from tests.sim.brokers import Brokers
from tests.sim.defects import no_defects
from tests.sim.simulation import Simulation

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "200"))
GROUPS = 20
STEPS = 40
TOPICS = 5


@pytest.mark.feature("F61", "F83")
@pytest.mark.parametrize("group", range(min(GROUPS, SEEDS)))
def test_random_lives_of_brokers(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS):
        run_seed(seed)


def run_seed(seed: int) -> None:
    with Simulation(seed) as sim, no_defects():
        sim.run(live(Brokers(sim, seed, number=2 + seed % 2, topics=TOPICS)))


async def live(brokers: Brokers) -> None:
    await brokers.start()
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
        await asyncio.sleep(0.1)


async def step(brokers: Brokers) -> None:
    """Something that happens, beside what is under way."""
    rng, weights = brokers.rng, brokers.faults.weights
    what = rng.choices(("publish", *weights), (1, *weights.values()))[0]
    place, name = rng.randrange(len(brokers.nodes)), rng.choice(brokers.topics)
    if what == "publish":
        name = rng.choice((name, name, name, brokers.brief))
        often = rng.choice((1, 1, 3, 8))
        await brokers.publish(place, name, blindly=rng.random() < 0.3, often=often)
    elif what == "acknowledge":
        await brokers.acknowledge(place, name)
    elif what == "delete":
        await brokers.delete(place)
    elif what == "change":
        await brokers.change(place)
    elif what == "clock":
        brokers.step_clock(place)
    elif rng.random() < 0.5:
        await change_owner(brokers, what, place, name)
    else:
        # Clients come at the moment at which the owner changes, to any broker.
        coming = [rush(brokers, other, name) for other in range(len(brokers.nodes))]
        await all_of(change_owner(brokers, what, place, name), *coming)


async def all_of(*works: Awaitable[None]) -> None:
    for found in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found


async def rush(brokers: Brokers, place: int, name: TopicName) -> None:
    await asyncio.sleep(brokers.rng.choice((0.0, 0.001, 0.01, 0.1, 1.0, 12.0)))
    await brokers.publish(place, name, blindly=brokers.rng.random() < 0.3)


async def change_owner(brokers: Brokers, what: str, place: int, name: TopicName) -> None:
    """What is at a broker leaves it, or is loaded anew."""
    rng, node = brokers.rng, brokers.nodes[place]
    await asyncio.sleep(rng.choice((0.0, 0.0, 0.02, 0.5)))
    if what == "split":
        await brokers.split(place, name, keep=rng.random() < 0.5)
    elif what == "release":
        bundle = await node.broker.ownership.bundle_named(name)
        to = rng.choice(("", *node.broker.registry.live))
        await node.broker.bundle_release.release(bundle, to)
    elif what == "unload":
        await node.broker.topics.unload(name)
    elif what == "cut off":
        await brokers.cut_off(place)
    elif what == "session":
        brokers.end_session(place)
    else:
        await brokers.restart(place, killed=rng.random() < 0.7)
