"""Ledgers that are put at the end of a managed ledger, beside appends that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.errors import LedgerFencedError, MetadataError, StorageError
from pulsark.metadata.paths import ledger_path
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.wire.position import Position
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, settle, simulate, turns


def test_the_end_of_a_ledger_that_failed_is_known_before_reserved_ones_follow_it() -> None:
    """Or else its entries came to be where a reader of the ledgers behind it already was."""

    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        managed.append(b"0", 0)
        await settle(managed)
        async with managed.reservation() as reservation:
            (reserved,) = await reservation.add([NewLedger(3, 30)])
            cluster.bookies["b1"].down = True
            managed.append(b"1", 1)
            await turns()
            cluster.bookies["b1"].down = False
            assert appends.failed_contexts == [1]
            await reservation.close_ledger()
            assert managed.is_settled
            assert appends.ends == [0]
            managed.append(b"2", 2)
            await reservation.decide(True)
        await settle(managed)
        assert appends.attached == [reserved]
        assert appends.contexts == [0, 2]
        assert managed.last_confirmed.ledger_id > reserved

    simulate(main)


@pytest.mark.parametrize("waits", [True, False])
def test_reserved_ledgers_follow_only_a_ledger_that_is_closed(waits: bool) -> None:
    """Whoever says that they exist before, or never says anything, leaves it to the next owner."""

    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        managed.append(b"0", 0)
        await settle(managed)
        async with managed.reservation() as reservation:
            await reservation.add([NewLedger(3, 30)])
            if waits:
                await reservation.close_ledger()
            else:
                await reservation.decide(True)
        assert managed.is_fenced
        managed.append(b"1", 1)
        await settle(managed)
        assert appends.attached == []
        assert appends.failed_contexts == [1]

    simulate(main)


def test_nothing_is_reserved_while_the_end_of_a_failed_ledger_is_unknown() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        managed.append(b"0", 0)
        await settle(managed)
        async with managed.reservation() as reservation:
            await reservation.add([NewLedger(3, 30)])
            cluster.bookies["b1"].down = True
            managed.append(b"1", 1)
            await turns()
            with pytest.raises(StorageError):
                await reservation.close_ledger()
            await reservation.decide(False)
        assert not managed.is_settled
        cluster.bookies["b1"].down = False
        await asyncio.sleep(5)
        assert managed.is_settled
        assert appends.attached == []

    simulate(main)


def test_a_partition_that_moves_while_ledgers_are_reserved_stops_no_other() -> None:
    """Its open ledger takes appends until then, and so it hears of the fence."""

    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        moved = await cluster.open()
        moved.append(b"0", 0)
        await settle(moved)
        other = await cluster.open(appends, path="/managed-ledgers/t/n/persistent/y")

        async def publish() -> None:
            async with other.reservation() as first, moved.reservation() as second:
                for reservation in (first, second):
                    await reservation.add([NewLedger(3, 30)])
                await cluster.manager().recover(0)
                moved.append(b"1", 1)
                await turns()
                assert moved.is_fenced
                try:
                    await asyncio.gather(first.close_ledger(), second.close_ledger())
                finally:
                    await asyncio.gather(first.decide(False), second.decide(False))

        with pytest.raises(LedgerFencedError):
            await publish()
        with pytest.raises(LedgerFencedError):
            await moved.delete()
        other.append(b"1", 1)
        await settle(other)
        assert appends.contexts == [1]

    simulate(main)


def test_of_ledgers_that_cannot_all_be_reserved_none_is_made_after_they_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_sealed, made = LedgerManager.add_sealed, list[int]()

    async def slow(self: LedgerManager, ledger_id: int, *given: Any) -> None:
        made.append(ledger_id)
        if len(made) == 1:
            raise MetadataError("not now")
        await asyncio.sleep(1)
        await add_sealed(self, ledger_id, *given)

    monkeypatch.setattr(LedgerManager, "add_sealed", slow)

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(Appends())
        async with managed.reservation() as reservation:
            with pytest.raises(MetadataError, match="not now"):
                await reservation.add([NewLedger(3, 30)] * 3)
            await reservation.decide(False)
        await managed.trim(Position(1 << 40, 0))  # which removes them, too
        await asyncio.sleep(5)
        assert len(made) == 3
        for ledger_id in made:
            assert cluster.tree.get(ledger_path(ledger_id)) is None
        assert not managed.is_fenced

    simulate(main)
