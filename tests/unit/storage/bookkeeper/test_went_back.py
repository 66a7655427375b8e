"""Bookies that have ledgers which ZooKeeper has still to give: it is older than they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.bookkeeper.went_back import LEDGERS, check_not_older
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_bookie import MemoryBookie
from tests.support.memory_zookeeper import MemoryZooKeeper


class World:
    """A cluster in which some ids were given."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.ids = LedgerIds(self.zookeeper, "/ledgers")
        cluster = BookKeeperCluster(self.zookeeper, "/ledgers", self.ids, LedgerKeys())
        self.ledgers = BookKeeperLedgerStore(cluster, MemoryMetadataStore(MemoryTree()))
        self.bookies = [MemoryBookie(f"b{n}") for n in range(3)]

    async def check(self) -> None:
        await check_not_older(self.ids, self.ledgers, self.bookies)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main(_: Simulation) -> None:
        world = World()
        await world.zookeeper.make("/ledgers")
        await scenario(world)

    simulate(main)


@pytest.mark.parametrize("given", [0, 1, 7])
@pytest.mark.parametrize("behind", [0, LEDGERS - 1])
def test_a_ledger_that_is_still_to_be_given_is_noticed(given: int, behind: int) -> None:
    async def scenario(world: World) -> None:
        for n in range(given):
            assert await world.ids.new() == n
            world.bookies[0].put(n, 0, b"known")
        await world.check()
        world.bookies[2].put(given + behind, 0, b"of a lost time")
        with pytest.raises(MetadataError, match=f"went back.*b2.*ledger {given + behind},"):
            await world.check()
        for _ in range(behind + 1):
            await world.ids.new()
        await world.check()

    run(scenario)


def test_ids_that_others_take_meanwhile_or_choose_are_no_sign() -> None:
    async def scenario(world: World) -> None:
        await world.ids.new()
        tail = world.bookies[1].tail

        async def quick(ledger_id: int, *, fence: bool) -> object:
            if ledger_id == 1:
                await world.ids.new()
                world.bookies[1].put(1, 0, b"new")
            return await tail(ledger_id, fence=fence)

        world.bookies[1].tail = quick  # type: ignore[method-assign, assignment]
        await world.check()
        chosen = LedgerMetadata(9, LedgerConfig(), LedgerState.OPEN, (Ensemble(0, 0, ("b0",)),), 17)
        await world.ledgers.create(chosen)
        world.bookies[0].put(9, 0, b"chosen")
        await world.check()

    run(scenario)


def test_bookies_that_do_not_answer_hold_nobody_up() -> None:
    async def scenario(world: World) -> None:
        world.bookies[0].leave()
        world.bookies[1].hang()
        world.bookies[2].down = True
        await world.check()
        world.bookies[2].down = False
        world.bookies[2].put(3, 0, b"of a lost time")
        with pytest.raises(MetadataError):
            await world.check()

    run(scenario)


def test_who_was_given_an_id_is_given_no_earlier_one() -> None:
    async def scenario(world: World) -> None:
        for n in range(5):
            assert await world.ids.new() == n
        world.zookeeper.counters["/ledgers/idgen/ID-"] = 3
        for _ in range(2):
            with pytest.raises(MetadataError, match="went back"):
                await world.ids.new()
        assert await world.ids.new() == 5

    run(scenario)


def test_ids_above_31_bits_are_known() -> None:
    async def scenario(world: World) -> None:
        world.zookeeper.counters["/ledgers/idgen/ID-"] = 2**31 - 1
        assert await world.ids.new() == 2**32
        assert await world.ids.upcoming() == 2**32 + 1
        world.bookies[0].put(2**32 + 1, 0, b"of a lost time")
        with pytest.raises(MetadataError):
            await world.check()

    run(scenario)
