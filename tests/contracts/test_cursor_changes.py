"""What is done to the cursors of a bundle while something else is done to them.

The test stops an action before or after a call of the metadata store or of a bookie, starts another
action, and lets both go on. Afterwards the next owner of the bundle finds one of the states that
the two actions lead to one after the other. An action that failed may have had its effect, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, Final

import pytest

from pulsark.errors import PulsarkError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.history import HistoryLimits
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import Owner, TopicLedgers
from tests.support.gates import Gate, Gated, GatedBookie, outcomes, settle, with_change
from tests.support.memory_bookie import MemoryBookie

SECONDS_MAX: Final = 60.0
CONFIG: Final = CursorLogConfig(
    roll_bytes=120, roll_ratio=1.0, history=HistoryLimits(age_ms=3_600_000, size=3000)
)
"""A log that begins a new ledger every few records."""

Saved = tuple[frozenset[int], Mapping[str, str]]
"""A cursor: the entries of ledger 7 that it has acknowledged, and its properties."""
State = dict[str, Saved]
"""By subscription of topic t."""
LEDGERS: Final = TopicLedgers((7, 10))
AT_FIRST: Final[Saved] = (frozenset(), {})


def saved(cursor: Cursor) -> Saved:
    acked = (n for n in range(10) if cursor.state.is_acked(Position(7, n)))
    return frozenset(acked), cursor.properties


@dataclass
class Stage:
    """A log with a cursor that has acknowledged something, and one of another topic."""

    log: CursorLog
    cursors: dict[str, Cursor]

    async def durable(self, change: Callable[[Any], object]) -> None:
        """Make a change, and wait until it is durable."""
        future = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        change(done)
        await future


@dataclass(frozen=True)
class Action:
    do: Callable[[Stage], Awaitable[object]]
    effect: Callable[[State], State | None]


def changed(name: str, change: Callable[[Saved], Saved]) -> Callable[[State], State | None]:
    """Return an effect on one cursor. On a cursor that does not exist it has none."""
    return lambda state: {**state, name: change(state[name])} if name in state else state


async def creates(stage: Stage, name: str) -> None:
    stage.cursors[name] = await stage.log.create("t", name, EARLIEST, {}, LEDGERS)


async def deletes(stage: Stage, name: str) -> None:
    await stage.log.delete("t", name)


async def creates_anew(stage: Stage) -> None:
    await deletes(stage, "b")
    await creates(stage, "b")


async def acknowledges(stage: Stage) -> None:
    cursor = stage.cursors["a"]
    await stage.durable(lambda done: cursor.ack([(Position(7, 5), None, None)], done))


async def acknowledges_up_to(stage: Stage) -> None:
    cursor = stage.cursors["a"]
    await stage.durable(lambda done: cursor.ack_cumulative(Position(7, 2), None, done))


async def seeks(stage: Stage) -> None:
    cursor = stage.cursors["a"]
    await stage.durable(lambda done: cursor.reset(Position(7, 1), None, done))


async def sets_properties(stage: Stage) -> None:
    cursor = stage.cursors["a"]
    await stage.durable(lambda done: cursor.set_properties({"k": "v"}, done))


async def loads_again(stage: Stage) -> None:
    """Whatever is done with the former objects later reaches nobody."""
    await stage.log.unload("t")
    stage.cursors = await stage.log.cursors("t", LEDGERS)


async def deletes_the_topic(stage: Stage) -> None:
    await stage.log.delete_topic("t")


async def writes_all(stage: Stage) -> None:
    await stage.log.sync()


def without(state: State, *names: str) -> State:
    return {name: found for name, found in state.items() if name not in names}


ACTIONS: Final = {
    "creating b": Action(partial(creates, name="b"), lambda s: {"b": AT_FIRST, **s}),
    "creating a": Action(partial(creates, name="a"), lambda s: {"a": AT_FIRST, **s}),
    "creating b anew": Action(creates_anew, lambda s: {**s, "b": AT_FIRST}),
    "deleting a": Action(partial(deletes, name="a"), lambda s: without(s, "a")),
    "deleting b": Action(partial(deletes, name="b"), lambda s: without(s, "b")),
    "acknowledging": Action(acknowledges, changed("a", lambda c: (c[0] | {5}, c[1]))),
    "acknowledging up to one": Action(
        acknowledges_up_to, changed("a", lambda c: (c[0] | {0, 1, 2}, c[1]))
    ),
    "a seek": Action(seeks, changed("a", lambda c: (frozenset({0}), c[1]))),
    "setting properties": Action(sets_properties, changed("a", lambda c: (c[0], {"k": "v"}))),
    "loading again": Action(loads_again, lambda s: s),
    "deleting the topic": Action(deletes_the_topic, lambda _: {}),
    "writing all": Action(writes_all, lambda s: s),
}
BEGIN: Final[State] = {"a": (frozenset({0, 3, 7}), {})}
NEVER_WAIT: Final = ("creating a", "deleting b")
"""It is there already, or is not there."""


async def attempt(action: Action, stage: Stage, who: int, failed: set[int]) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await action.do(stage)
    except (PulsarkError, KeyError):  # KeyError: the cursor does not exist
        failed.add(who)


async def at(place: int, runtime: Runtime, name: str, other: str) -> bool:
    """Stop an action at a place, and let another one come; whether there is such a place."""
    gate, tree, bookie = Gate(place, armed=False), MemoryTree(), MemoryBookie()
    gated: Any = GatedBookie(bookie, gate), Gated(MemoryMetadataStore(tree), gate)
    owner = Owner(tree, [gated[0]], runtime, CONFIG, gated[1])
    log = await owner.open()
    stage = Stage(log, {})
    await creates(stage, "a")
    await log.create("u", "x", EARLIEST, {}, LEDGERS)
    cursor = stage.cursors["a"]
    await stage.durable(lambda done: cursor.ack([(Position(7, 0), None, None)], done))
    await stage.durable(lambda done: cursor.ack([(Position(7, 3), None, None)], done))
    await settle()
    cursor.ack([(Position(7, 7), None, None)])  # this is on its way, or waits for what is
    gate.armed = True
    failed: set[int] = set()
    operation = attempt(ACTIONS[name], stage, 0, failed)
    if not await with_change(gate, operation, lambda: attempt(ACTIONS[other], stage, 1, failed)):
        await log.close()
        return False
    effects = [ACTIONS[name].effect, ACTIONS[other].effect]
    states = list(outcomes(BEGIN, effects, failed))
    if place % 2:
        await log.sync()
    else:
        await log.close()
    again = await Owner(tree, [bookie], runtime, CONFIG).open()
    found = {each: saved(c) for each, c in (await again.cursors("t", LEDGERS)).items()}
    where = f"{name} at place {place}, then {other}, of which {failed or 'none'} failed"
    assert found in states, f"{where}: {found} is none of {states}"
    assert list(await again.cursors("u", LEDGERS)) == ["x"]
    await again.close()
    return True


@pytest.mark.parametrize("name", ACTIONS)
def test_what_comes_meanwhile_comes_before_or_after(name: str) -> None:
    tried = 0
    for number, other in enumerate(ACTIONS):
        for place in chain(range(8), count(8 + number % 4, 4)):
            with Simulation() as sim:
                if not sim.run(at(place, sim.runtime(SimDisk()), name, other)):
                    break
            tried += 1
    assert tried >= len(ACTIONS) or name in NEVER_WAIT
