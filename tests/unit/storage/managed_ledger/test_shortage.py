"""A topic leaves a ledger that has too few copies, when and as long as that helps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, simulate

THREE = ManagedLedgerConfig(3, 3, 2)


class World:
    """A topic to which something is appended each second."""

    def __init__(self, cluster: Cluster, managed: ManagedLedger, appends: Appends) -> None:
        self.cluster = cluster
        self.managed = managed
        self.appends = appends
        self.sent = 0

    async def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.managed.append(b"%d" % self.sent, self.sent)
            self.sent += 1
            await asyncio.sleep(1)
        assert not self.appends.failed
        assert len(self.appends.contexts) >= self.sent - 1

    @property
    def ledgers(self) -> int:
        return self.managed.ledger_count

    def bookies(self) -> list[str]:
        """Those of the last ledger."""
        newest = self.managed.newest_ledger()
        assert newest is not None
        return sorted(self.cluster.stored(newest.ledger_id).ensembles[-1].bookies)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim, 3), Appends()
        managed = await cluster.open(appends, THREE)
        world = World(cluster, managed, appends)
        await scenario(world)
        await managed.close()

    simulate(main)


def test_a_bookie_that_is_gone_is_left_before_auto_recovery_comes_and_taken_again_later() -> None:
    async def scenario(world: World) -> None:
        await world.go_on(60)
        assert world.ledgers == 1, "it has all copies"
        b3 = world.cluster.bookies.pop("b3")
        b3.down = True
        await world.go_on(5)
        assert world.ledgers == 1
        await world.go_on(20)
        assert world.bookies() == ["b1", "b2"]
        await world.go_on(600)
        assert world.ledgers == 2, "there is nothing better"
        b3.down = False
        world.cluster.bookies["b3"] = b3
        await world.go_on(15)
        assert world.bookies() == ["b1", "b2", "b3"]
        assert world.ledgers == 3

    run(scenario)


def test_a_bookie_that_failed_and_is_there_again_gets_copies_again() -> None:
    async def scenario(world: World) -> None:
        await world.go_on(1)
        world.cluster.bookies["b3"].down = True
        await world.go_on(1)
        world.cluster.bookies["b3"].down = False
        await world.go_on(45)
        assert world.ledgers == 2
        entries = world.cluster.bookies["b3"].entries(1)
        assert len(entries) > 10

    run(scenario)


def test_a_bookie_that_is_there_and_always_fails_causes_few_ledgers() -> None:
    async def scenario(world: World) -> None:
        await world.go_on(1)
        world.cluster.bookies["b3"].down = True
        await world.go_on(900)
        assert world.ledgers <= 7

    run(scenario)
