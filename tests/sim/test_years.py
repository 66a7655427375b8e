"""A topic that forgets nothing, over three years of compressed time: what grows, and what does not.

Ledgers come by bulk publishes, because that makes many with a few writes; what the record does with
them is the same.
"""

from __future__ import annotations

import time

from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import LEDGERS_PER_TURN_MAX
from pulsark.metadata.paths import LEDGER_RUNS, ledger_runs_path
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.wire.position import EARLIEST, Position
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, simulate, turns

A_DAY = 4_000
DAYS = 3 * 365
AT_ONCE = 500
HOUR_MS = 3_600_000


async def age(managed: ManagedLedger, config: ManagedLedgerConfig) -> int:
    """Three years of roll-overs; returns the largest record there was, in bytes."""
    ledger_id, now_ms, end_ms, largest = 0, 0, DAYS * 24 * HOUR_MS, 0
    while now_ms < end_ms:
        # As many as configured, or fewer and larger ones.
        step_ms = 24 * HOUR_MS // A_DAY * config.times(managed.ledger_count)
        infos = []
        for _ in range(AT_ONCE):
            now_ms += step_ms
            ledger_id += 3
            infos.append(LedgerInfo(ledger_id, 7, 700, now_ms))
        async with managed.reservation():
            record = managed.record.with_pending(infos)
            await managed._stored.save(record.decided({info.ledger_id for info in infos}))
        await turns(60)
        largest = max(largest, managed.record_bytes)
    return largest


def test_three_years_of_a_topic_that_forgets_nothing() -> None:
    async def main(sim: Simulation) -> None:
        cluster, config = Cluster(sim), ManagedLedgerConfig()
        managed = await cluster.open(config=config)
        largest = await age(managed, config)
        count = managed.ledger_count
        assert 200_000 < count < 400_000
        assert largest < 64 << 10
        assert managed.entries == 7 * count
        (parent,) = cluster.tree.children(LEDGER_RUNS)
        assert len(cluster.tree.children(ledger_runs_path(parent))) < 110
        await managed.close()

        started = time.process_time()
        managed = await cluster.open(config=config)
        assert time.process_time() - started < 2, "it is opened in a moment"
        assert (managed.ledger_count, managed.entries) == (count, 7 * count)
        for rank in (0, 7 * 100_000 + 3, 7 * count - 1):
            place = managed.position_at(rank)
            assert managed.entries_between(EARLIEST, place) == rank + 1
            assert managed.next_position(Position(place.ledger_id, place.entry_id - 1)) == place
        seen = 0
        async for info in in_turns(managed.each_ledger(), LEDGERS_PER_TURN_MAX):
            seen += info.entries
        assert seen == managed.entries

    simulate(main)
