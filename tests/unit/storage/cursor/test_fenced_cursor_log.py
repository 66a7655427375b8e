"""A cursor ledger that others fence: the bundle's owner goes on in another, a former one stops."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import LedgerFencedError
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import ABSENT
from pulsark.storage.cursor.log_writer import CursorLogConfig
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.cursors import Owner, TopicLedgers
from tests.support.ledgers import simulate, turns
from tests.support.memory_bookie import MemoryBookie

P = Position
TOPIC = TopicLedgers((10, 50))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_a_cursor_ledger_that_others_close(lost: bool, idle: bool) -> None:
    """``lost``: the bundle has another owner. ``idle``: nothing waits when it is fenced."""

    async def main(sim: Simulation) -> None:
        tree, bookies, runtime = MemoryTree(), [MemoryBookie()], sim.runtime(SimDisk())
        guard = tree.put("/guard", b"", ABSENT, None)
        store = GuardedMetadataStore(
            MemoryMetadataStore(tree), Check("/guard", guard), lambda: None
        )
        owner = Owner(tree, bookies, runtime, CursorLogConfig(), store)
        log = await owner.open()
        cursor = await log.create("t", "s", EARLIEST, {}, TOPIC)
        cursor.ack([(P(10, 0), None, None)])
        await log.sync()
        if lost:
            tree.put("/guard", b"another", guard, None)
        if not idle:
            bookies[0].held = True
            cursor.ack([(P(10, 1), None, None)])
            await turns()
        others = LedgerManager(MemoryMetadataStore(tree), {"b1": bookies[0]}, runtime)
        ledgers = [int(name) for name in tree.children("/ledgers")]
        closing = asyncio.create_task(others.recover(ledgers[-1]))
        await turns()
        bookies[0].held = False
        bookies[0].release_held()
        await closing
        if lost:
            cursor.ack([(P(10, 2), None, None)])
            await asyncio.sleep(30)
            assert isinstance(log.failed, LedgerFencedError)
            return
        cursor.ack([(P(10, 2), None, None)])
        await log.sync()
        assert log.failed is None
        again = await Owner(tree, bookies, runtime, CursorLogConfig()).open()
        [found] = (await again.cursors("t", TOPIC)).values()
        acked = [n for n in range(4) if found.state.is_acked(P(10, n))]
        assert acked == ([0, 2] if idle else [0, 1, 2])

    simulate(main)
