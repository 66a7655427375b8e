"""Signs of life: what they show of the session, and of ZooKeeper's data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from pulsark.metadata.session import SIGNS_A_DEADLINE, Session
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
