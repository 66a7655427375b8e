"""What is done to a bundle while its owner changes, wherever a broker waits for the store.

The test stops an action of one broker before or after a call of the metadata store, starts another
action at either broker, and lets both go on. The topic never has two owners. In the end both
brokers name the same owner, and it has every confirmed message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from pulsark.errors import PulsarkError
from tests.sim.brokers import Brokers
from tests.sim.simulation import Simulation
from tests.support.gates import Gate, Gated, with_change

STOPPED_SECONDS: Final = (0.0, 0.5, 20.0, 70.0)
"""How long a call is stopped: also for longer than a session lives without a sign."""
EACH: Final = 5
"""Of so many places one is tried with a change; with the next change another one."""
CALLS: Final = ("get", "commit", "children")

Step = Callable[[Brokers, int], Awaitable[object]]


async def publishes(brokers: Brokers, place: int) -> None:
    await brokers.publish(place, brokers.topics[0])


async def publishes_blindly(brokers: Brokers, place: int) -> None:
    await brokers.publish(place, brokers.topics[0], blindly=True, often=3)


async def acknowledges(brokers: Brokers, place: int) -> None:
    await brokers.acknowledge(place, brokers.topics[0])


async def releases(brokers: Brokers, place: int) -> None:
    with suppress(PulsarkError):
        broker = brokers.nodes[place].broker
        bundle = await broker.ownership.bundle_named(brokers.topics[0])
        await broker.bundle_release.release(bundle)


async def gives_away(brokers: Brokers, place: int) -> None:
    with suppress(PulsarkError):
        broker = brokers.nodes[place].broker
        bundle = await broker.ownership.bundle_named(brokers.topics[0])
        await broker.bundle_release.release(bundle, brokers.nodes[1 - place].broker.registry.own_id)


async def splits(brokers: Brokers, place: int) -> None:
    await brokers.split(place, brokers.topics[0], keep=True)


async def unloads(brokers: Brokers, place: int) -> None:
    with suppress(PulsarkError):
        await brokers.nodes[place].broker.topics.unload(brokers.topics[0])


async def deletes(brokers: Brokers, place: int) -> None:
    await brokers.delete(place)


async def loses_its_session(brokers: Brokers, place: int) -> None:
    brokers.end_session(place)


async def is_cut_off(brokers: Brokers, place: int) -> None:
    await brokers.cut_off(place)


async def is_killed(brokers: Brokers, place: int) -> None:
    await brokers.restart(place, killed=True)


STEPS: Final[tuple[Step, ...]] = (
    publishes, publishes_blindly, acknowledges, releases, gives_away, splits, unloads, deletes,
)  # fmt: skip
CHANGES: Final[tuple[Step, ...]] = (*STEPS, loses_its_session, is_cut_off, is_killed)


def let_pass(store: Any, gate: Gate) -> None:
    """Let the calls of a store, which others have already, pass a gate."""
    gated = Gated(store, gate)
    for name, call in [(name, getattr(gated, name)) for name in CALLS]:
        setattr(store, name, call)


async def at(place: int, sim: Simulation, step: Step, change: Step, here: int) -> bool:
    """Stop a step of broker 0 at a place, and let a change come; whether there is such a place."""
    brokers = Brokers(sim, place, number=2, topics=1)
    brokers.faults = brokers.faults.over()
    await brokers.start()
    await brokers.publish(0, brokers.topics[0])
    await brokers.publish(0, brokers.brief)
    gate = Gate(place, armed=False)
    let_pass(brokers.store(0), gate)
    gate.armed = True
    stopped_s = brokers.rng.choice(STOPPED_SECONDS)
    there = partial(change, brokers, here)
    is_there = await with_change(gate, step(brokers, 0), there, partial(asyncio.sleep, stopped_s))
    if is_there:
        await brokers.check()
    for node in brokers.nodes:
        with suppress(PulsarkError):
            await node.broker.close()
    return is_there


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_bundle_has_one_owner_whatever_comes_meanwhile(step: Step) -> None:
    tried = 0
    for number, change in enumerate(CHANGES):
        for here in (0, 1):
            place = (2 * number + here) % EACH
            while True:
                with Simulation(place) as sim:
                    if not sim.run(at(place, sim, step, change, here)):
                        break
                tried += 1
                place += EACH
    assert tried or step is publishes_blindly  # whoever has the topic loaded asks nobody
