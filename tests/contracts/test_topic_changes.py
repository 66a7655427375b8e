"""What is done to a topic while something else is done to it, at each place where that waits.

The test stops an action before or after a call of the metadata store or of a bookie, starts another
action, and lets both go on. Afterwards, also after a restart, clients find one of the states that
the two actions lead to one after the other. An action that failed may have had its effect, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any, Final, cast

import pytest

from pulsark.dispatch.broker import Broker
from pulsark.errors import PulsarkError
from pulsark.wire import pulsar_pb2 as pb
from tests.sim.simulation import Simulation
from tests.support.broker_clients import (
    EARLIEST_ID,
    LATEST_ID,
    NAME,
    SHARED,
    TOPIC,
    BrokerInMemory,
    Client,
    Command,
)
from tests.support.gates import Gate, Gated, GatedBookie, outcomes, settle, with_change
from tests.support.wire_frames import publish

SECONDS_MAX: Final = 200.0
FIRST: Final = 5
EACH: Final = 9
"""All the first places are tried, then one of so many; with the next change another one."""
SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": 2,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "brokerDeleteInactiveTopicsEnabled": False,
    "sealEnabled": True,
    "keepAliveIntervalSeconds": 1_000_000,
}


@dataclass(frozen=True)
class State:
    """What clients find."""

    log: tuple[bytes, ...] = ()
    acked: frozenset[bytes] = frozenset()
    terminated: bool = False

    had_acked: frozenset[bytes] = frozenset()
    """What was acknowledged at any time."""

    def found_as(self, found: State, *, trims: bool) -> bool:
        """Return whether clients may find this state.

        A topic that ``trims`` may lack messages that were acknowledged.
        """
        gone = self.log[: len(self.log) - len(found.log)] if trims else ()
        return (
            found.log == self.log[len(gone) :]
            and found.acked == self.acked - set(gone)
            and self.had_acked.issuperset(gone)
        )


class Refused(Exception):
    """An action got an error."""


@dataclass
class Stage:
    """A topic of four messages, of which the first one is acknowledged."""

    broker: BrokerInMemory
    clients: list[Client] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    async def prepare(self) -> None:
        client = Client(self.broker)
        assert await client.subscribe(TOPIC, kind=SHARED) == 0
        await client.produce(TOPIC, 0)
        for number in range(4):
            client.send_bytes(publish(1, number, b"m%d" % number))
            found = (await client.take(Command.SEND_RECEIPT)).send_receipt.message_id
            self.places.append((found.ledgerId, found.entryId))
        await client.received(4)
        assert await client.ack(self.places[0]) == 0
        client.hang_up()
        await settle()

    def client(self) -> Client:
        """Open a connection. ``found`` closes it."""
        self.clients.append(Client(self.broker))
        return self.clients[-1]

    async def topic(self) -> Any:
        return await self.broker.broker.topics.load(NAME, create=True)

    async def consumer(self) -> Client:
        client = self.client()
        if await client.subscribe(TOPIC, kind=SHARED):
            raise Refused
        return client

    async def found(self) -> State:
        """What new clients find, once the topic lets them in."""
        for client in self.clients:
            client.hang_up()
        await asyncio.sleep(0.1)
        for _ in range(20):
            client = Client(self.broker)
            reader = {"durable": False, "kind": pb.CommandSubscribe.Exclusive}
            if not await client.subscribe(TOPIC, "reader", **reader):
                log = await self._payloads(client)
                unread = await self._payloads(await self.consumer())
                return State(log, frozenset(log) - set(unread))
            client.hang_up()
            await asyncio.sleep(1)
        raise AssertionError("the topic cannot be used any more")

    @staticmethod
    async def _payloads(client: Client) -> tuple[bytes, ...]:
        await asyncio.sleep(2)
        found = tuple(each.payload for each in await client.deliveries())
        client.hang_up()
        await asyncio.sleep(0.01)
        return found


@dataclass(frozen=True)
class Action:
    """What somebody does. ``who`` is 0 or 1: two of the same kind do not collide."""

    do: Callable[[Stage, int], Awaitable[object]]
    effect: Callable[[State, int], State | None]
    """The state afterwards; None, if it is refused then."""


async def publishes(stage: Stage, who: int) -> None:
    client = stage.client()
    opened = await client.open_producer(TOPIC, f"p{who}", seconds=8)
    if isinstance(opened, int):
        raise Refused
    client.send_bytes(publish(1, 0, b"new%d" % who))
    answer = await client.take(Command.SEND_RECEIPT, Command.SEND_ERROR, seconds=8)
    if answer.type == Command.SEND_ERROR:
        raise Refused


def published(state: State, who: int) -> State | None:
    return None if state.terminated else replace(state, log=(*state.log, b"new%d" % who))


async def acknowledges(stage: Stage, who: int) -> None:
    client = await stage.consumer()
    if await client.ack(stage.places[1 + who]):
        raise Refused


def acknowledged(state: State, who: int) -> State:
    return replace(state, acked=state.acked | {b"m%d" % (1 + who)} & set(state.log))


async def seeks(stage: Stage, target: tuple[int, int]) -> None:
    client = await stage.consumer()
    client.send(client.seek_command(target))
    if await client.outcome(seconds=8):
        raise Refused


async def deletes(stage: Stage, _: int) -> None:
    await stage.broker.broker.deletion.delete_topic(NAME, force=True)


async def unsubscribes(stage: Stage, _: int) -> None:
    client = await stage.consumer()
    command = Command(type=Command.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 77
    command.unsubscribe.force = True
    client.send(command)
    if await client.outcome(seconds=8):
        raise Refused


async def is_unloaded(stage: Stage, _: int) -> None:
    await stage.broker.broker.topics.unload(NAME)


async def is_compacted(stage: Stage, _: int) -> None:
    await (await stage.topic()).compactor.run()


async def is_sealed(stage: Stage, _: int) -> None:
    await stage.broker.broker.sealing.seal(NAME, [await stage.topic()], everything=True)


async def is_trimmed(stage: Stage, _: int) -> None:
    """The first ledger may go once its second message is acknowledged."""
    await acknowledges(stage, 0)
    await (await stage.topic()).retention.trim()


async def is_terminated(stage: Stage, _: int) -> None:
    await (await stage.topic()).termination.terminate()


def same(state: State, _: int) -> State:
    return state


ACTIONS: Final = {
    "publishing": Action(publishes, published),
    "acknowledging": Action(acknowledges, acknowledged),
    "a seek to the start": Action(
        lambda stage, _: seeks(stage, EARLIEST_ID),
        lambda state, _: replace(state, acked=frozenset()),
    ),
    "a seek to the end": Action(
        lambda stage, _: seeks(stage, LATEST_ID),
        lambda state, _: replace(state, acked=frozenset(state.log)),
    ),
    "deleting": Action(deletes, lambda _, __: State()),
    "unsubscribing": Action(
        unsubscribes,
        lambda state, _: replace(state, acked=frozenset(), had_acked=frozenset(state.log)),
    ),
    "unloading": Action(is_unloaded, same),
    "compacting": Action(is_compacted, same),
    "sealing": Action(is_sealed, same),
    "trimming": Action(is_trimmed, lambda state, _: acknowledged(state, 0)),
    "terminating": Action(is_terminated, lambda state, _: replace(state, terminated=True)),
}
BEGIN: Final = State((b"m0", b"m1", b"m2", b"m3"), frozenset({b"m0"}), had_acked=frozenset({b"m0"}))


def with_acked(action: Action, who: int, state: State) -> State | None:
    """Return the state after an action. It notes the messages that are acknowledged."""
    after = action.effect(state, who)
    return after and replace(after, had_acked=after.had_acked | after.acked)


async def attempt(action: Action, stage: Stage, who: int, failed: set[int]) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await action.do(stage, who)
    except (PulsarkError, Refused, TimeoutError, RuntimeError) as error:
        if isinstance(error, TimeoutError) and "no " not in str(error):
            raise AssertionError("it never came to its end") from error
        failed.add(who)


class GatedBroker(BrokerInMemory):
    """Its calls of the metadata store and of the bookie pass a gate."""

    def __init__(self, sim: Simulation, gate: Gate) -> None:
        self._gate = gate
        super().__init__(sim, **SETTINGS)

    def _new_broker(self) -> Broker:
        metadata, bookie = self.metadata, self.bookie
        self.metadata = cast("Any", Gated(metadata, self._gate))
        self.bookie = cast("Any", GatedBookie(bookie, self._gate))
        try:
            return super()._new_broker()
        finally:
            self.metadata, self.bookie = metadata, bookie


async def at(place: int, sim: Simulation, name: str, other: str) -> bool:
    """Stop an action at a place, and let another one come; whether there is such a place."""
    gate = Gate(place, armed=False)
    trims = place % 3 == 0 or "trimming" in (name, other)
    broker = GatedBroker(sim, gate)
    await broker.start()
    if trims:
        await broker.keep_nothing()
    stage = Stage(broker)
    await stage.prepare()
    gate.armed = True
    failed: set[int] = set()
    action, change = ACTIONS[name], ACTIONS[other]
    operation = attempt(action, stage, 0, failed)
    if not await with_change(gate, operation, lambda: attempt(change, stage, 1, failed)):
        await broker.broker.close()
        return False
    if place % 2:
        await broker.restart()
    found = await stage.found()
    both = [partial(with_acked, action, 0), partial(with_acked, change, 1)]
    states = list(outcomes(BEGIN, both, failed))
    assert any(state.found_as(found, trims=trims) for state in states), (
        f"{name} at place {place}, then {other}, of which {failed or 'none'} failed: {found}"
    )
    await broker.broker.close()
    return True


@pytest.mark.parametrize("name", ACTIONS)
def test_what_comes_meanwhile_comes_before_or_after(name: str) -> None:
    tried = 0
    for number, other in enumerate(ACTIONS):
        for place in chain(range(FIRST), count(FIRST + number % EACH, EACH)):
            with Simulation() as sim:
                if not sim.run(at(place, sim, name, other)):
                    break
            tried += 1
    assert tried >= len(ACTIONS)
