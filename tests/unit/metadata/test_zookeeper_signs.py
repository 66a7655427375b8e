"""Signs of life: what they show of the session, and of ZooKeeper's data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.metadata.session import SIGNS_A_DEADLINE, SURE_PART, Session
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.signs import Signs
from pulsark.runtime import Clock
from tests.sim.clock import SimClock
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper

SESSION_SECONDS = 30.0
EACH_SECONDS = SESSION_SECONDS / SIGNS_A_DEADLINE
ALIVE = "/alive"


class Client(MemoryZooKeeper):
    """One session."""

    session_id = 7
    is_connected = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.session = Session(clock, SESSION_SECONDS)

    def went_back(self) -> None:
        self.session.end()


def run(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        clock = SimClock(sim.loop)
        client = Client(clock)
        await client.make(ALIVE)
        signs = Signs(cast("ZooKeeperClient", client), clock, ALIVE)
        await signs.start()
        await asyncio.sleep(3.5 * EACH_SECONDS)
        assert client.session.is_sure
        await scenario(client)
        signs.stop()

    simulate(main)


class SlowClient(Client):
    """Answers take their time, on the way there and on the way back."""

    def __init__(self, clock: Clock, waits: list[tuple[float, float]]) -> None:
        super().__init__(clock)
        self._waits = waits
        self.clock = clock
        self.shown_alive_at = clock.monotonic()
        """When the last sign was sent that has its answer."""

    async def set(self, path: str, value: bytes) -> int:
        sent_at = self.clock.monotonic()
        there, back = self._waits.pop(0) if self._waits else (0.0, 0.0)
        await asyncio.sleep(there)
        version = await super().set(path, value)
        await asyncio.sleep(back)
        self.shown_alive_at = max(self.shown_alive_at, sent_at)
        return version


waits = st.floats(0, SESSION_SECONDS)


@given(st.lists(st.tuples(waits, waits), max_size=6))
def test_a_session_is_sure_from_the_moment_a_sign_was_sent(
    times: list[tuple[float, float]],
) -> None:
    async def main(sim: Simulation) -> None:
        clock = SimClock(sim.loop)
        client = SlowClient(clock, times)
        await client.make(ALIVE)
        signs = Signs(cast("ZooKeeperClient", client), clock, ALIVE)
        await signs.start()
        for _ in range(600):
            until = client.shown_alive_at + SURE_PART * SESSION_SECONDS
            assert client.session.sure_seconds <= max(until - clock.monotonic(), 0) + 1e-6
            await asyncio.sleep(SESSION_SECONDS / 40)
        assert client.session.is_sure  # all answers come again
        signs.stop()

    simulate(main)


@pytest.mark.parametrize("fate", [Fate.NEVER, Fate.UNHEARD])
def test_a_session_lives_on_when_a_sign_has_no_answer(fate: Fate) -> None:
    async def scenario(client: Client) -> None:
        client.fates.append(fate)
        await asyncio.sleep(10 * EACH_SECONDS)
        assert client.session.is_sure

    run(scenario)


@pytest.mark.parametrize("signs", [1, 3])
def test_data_that_lack_a_confirmed_sign_end_the_session(signs: int) -> None:
    """Others may have made so many transactions since that the server's last is the newest."""

    async def scenario(client: Client) -> None:
        before = dict(client.nodes)
        await asyncio.sleep(signs * EACH_SECONDS)
        client.nodes, client.zxid = before, client.zxid + 1000
        await asyncio.sleep(EACH_SECONDS)
        assert client.session.has_ended

    run(scenario)


def test_data_that_lack_the_node_of_signs_end_the_session() -> None:
    async def scenario(client: Client) -> None:
        await client.delete(f"{ALIVE}/{client.session_id:016x}")
        await asyncio.sleep(EACH_SECONDS)
        assert client.session.has_ended

    run(scenario)
