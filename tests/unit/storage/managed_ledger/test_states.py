"""The states of a managed ledger: what is known, what is refused, and that faults stay within."""

from __future__ import annotations

import asyncio
import logging
import random
from itertools import product

import pytest

from pulsark.errors import LedgerFencedError, PulsarkError, StorageError
from pulsark.storage.managed_ledger.config import ManagedLedgerConfig
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.storage.managed_ledger.states import (
    FINAL,
    TRANSITIONS,
    WRITTEN,
    Event,
    Life,
    State,
    UnknownEventError,
)
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, settle, simulate, turns

PAIRS = list(product(State, Event))

END_UNKNOWN = WRITTEN | {State.LOADING, State.FAILED, State.RECOVERING}
"""There may be entries in the last ledger that nobody knows of."""


def at(state: State) -> Life:
    life = Life("topic")
    life.state = state
    return life


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_is_known_or_raises_with_the_story(
    state: State, event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    life = at(state)
    after = TRANSITIONS[state].get(event)
    if after is not None:
        life.on(event)
        assert life.state is after
        assert life.story() == f"before that: {state} --{event}--> {after}"
        return
    with caplog.at_level(logging.ERROR), pytest.raises(UnknownEventError) as raised:
        life.on(event)
    assert life.state is state
    assert str(raised.value) == f"topic: {event} while {state}; before that: {state}"
    assert caplog.messages == [str(raised.value)]


def test_the_story_has_the_last_transitions() -> None:
    life = Life("topic")
    life.on(Event.LOADED)
    for _ in range(100):
        life.on(Event.OPEN)
        life.on(Event.NOT_OPENED)
    assert life.story().count("-->") == 20
    assert life.story().endswith("opening --not_opened--> no_ledger")


def test_every_state_can_be_reached_and_left_for_a_final_one() -> None:
    reached, front = {State.LOADING}, [State.LOADING]
    while front:
        for after in TRANSITIONS[front.pop()].values():
            if after not in reached:
                reached.add(after)
                front.append(after)
    assert reached == set(State)
    for state in State:
        assert TRANSITIONS[state][Event.FENCED] is State.FENCED
        assert TRANSITIONS[state][Event.BUG] in FINAL


@pytest.mark.parametrize("state", sorted(END_UNKNOWN))
def test_nothing_follows_a_ledger_whose_end_is_not_known(state: State) -> None:
    assert not {Event.OPEN, Event.OPENED, Event.RESERVED, Event.DECIDED} & set(TRANSITIONS[state])


def test_a_ledger_that_failed_goes_on_only_by_recovery() -> None:
    after = set(TRANSITIONS[State.FAILED].values())
    assert after - FINAL == {State.RECOVERING}


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_final_state_is_for_ever(state: State) -> None:
    assert set(TRANSITIONS[state].values()) <= FINAL


def test_after_an_event_that_should_not_be_nothing_is_stored() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        managed.append(b"0", 0)
        await settle(managed)
        managed._last.life.state = State.RECOVERING
        with pytest.raises(UnknownEventError, match="close while recovering"):
            await managed.close_ledger()
        managed.append(b"1", 1)
        await settle(managed)
        assert appends.contexts == [0]
        ((context, error),) = appends.failed
        assert context == 1
        assert isinstance(error, StorageError)
        assert "no_ledger --open--> opening" in str(error)
        await managed.close()
        again = await cluster.open()
        assert again.last_confirmed == (0, 0), "whoever opens it next finds the end"

    simulate(main)


SMALL = ManagedLedgerConfig(3, 3, 2, max_entries=3, min_age_ms=0)


async def actions(rng: random.Random, cluster: Cluster, managed: ManagedLedger) -> None:
    """Whatever an owner may do, with bookies that come and go, and callers that are cancelled."""
    for number in range(60):
        bookie = rng.choice(cluster.all)
        step = rng.randrange(10)
        if step < 4:
            managed.append(b"%d" % number, number)
        elif step == 4:
            bookie.down = not bookie.down
        elif step == 5:
            bookie.full = not bookie.full
        else:
            order = asyncio.ensure_future(an_order(rng, managed))
            if rng.random() < 0.3:
                await turns(rng.randrange(20))
                order.cancel()
            await asyncio.wait([order])
            if not order.cancelled() and (error := order.exception()) is not None:
                assert isinstance(error, PulsarkError), error
        await asyncio.sleep(rng.choice([0, 0, 0, 0.3, 3]))
        life = managed._last.life
        if life.state in (State.NO_LEDGER, State.OPEN, State.ROLLING):
            assert managed.is_settled
        if life.state in (State.FAILED, State.RECOVERING):
            assert not managed.is_settled
        assert (managed._last.refusal is not None) == life.is_final


async def an_order(rng: random.Random, managed: ManagedLedger) -> None:
    match rng.randrange(5):
        case 0:
            await managed.close_ledger()
        case 1:
            await managed.close_ledger(only_full=True)
        case 2:
            await managed.set_topic_epoch(1)
        case 3:
            await managed.trim(managed.position_leaving(rng.randrange(200)))
        case _:
            async with managed.reservation() as reservation:
                exist: bool | None = False
                try:
                    await reservation.add([NewLedger(2, 20)])
                    await reservation.close_ledger()
                    exist = rng.choice([True, True, False])
                finally:
                    await reservation.decide(exist)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_the_table_knows_it(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main(sim: Simulation) -> None:
        rng, cluster, appends = random.Random(seed), Cluster(sim, 3), Appends()
        managed = await cluster.open(appends, SMALL)
        await actions(rng, cluster, managed)
        for bookie in cluster.all:
            bookie.down = bookie.full = False
        await settle(managed)
        if not managed.is_fenced:
            end = rng.choice([managed.close, managed.terminate, managed.delete])
            await end()
        await managed.close()
        states = [*managed._last.life._story]
        assert State.STOPPED not in [state for state, _ in states], managed._last.life.story()
        told = [*appends.contexts, *appends.failed_contexts]
        assert len(told) == len(set(told)), "an append is told of once"

    simulate(main, seed)
    assert not [r for r in caplog.records if "while" in r.message and "before that" in r.message]


def test_a_bug_stops_only_the_managed_ledger_that_has_it() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        buggy = await cluster.open()
        other = await cluster.open(appends, path="/managed-ledgers/t/n/persistent/y")
        with pytest.raises(UnknownEventError):
            async with other.reservation(), buggy.reservation():
                buggy._last.life.on(Event.DECIDED)
        assert buggy._last.life.state is State.STOPPED
        other.append(b"0", 0)
        await settle(other)
        assert appends.contexts == [0]

    simulate(main)


def test_a_bug_after_the_end_changes_nothing_about_its_reason() -> None:
    async def main(sim: Simulation) -> None:
        managed = await Cluster(sim).open()
        managed._last.lost(LedgerFencedError("moved"))
        managed._last.stop(Event.BUG, StorageError("a bug"))
        assert managed.is_fenced
        with pytest.raises(LedgerFencedError, match="moved"):
            await managed.begin_deletion()

    simulate(main)
