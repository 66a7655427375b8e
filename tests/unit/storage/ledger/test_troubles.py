"""A failure of many topics is few lines of the log, and says of how many."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsark.storage.ledger.troubles import KINDS_MAX, SECONDS, Troubles
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, simulate

TOPICS = 50


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_topics_that_have_too_few_bookies_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = cluster.manager()
        topics: list[tuple[ManagedLedger, Appends]] = []
        for number in range(TOPICS):
            appends, path = Appends(), f"/managed-ledgers/t/n/persistent/x{number}"
            config = ManagedLedgerConfig(3, 3, 2)
            topics.append((await cluster.open(appends, config, path, manager), appends))
        for name in ("b2", "b3"):
            del cluster.bookies[name]
        for second in range(100):
            for managed, _ in topics:
                managed.append(b"entry", second)
            await asyncio.sleep(1)
        failed = sum(len(appends.failed) for _, appends in topics)
        assert failed > 50 * TOPICS
        for managed, _ in topics:
            await managed.close()

    simulate(main)
    first, *numbers = lines(caplog)
    assert first.startswith("/managed-ledgers/t/n/persistent/x")
    assert first.endswith(": 2 bookies are needed and 1 are there")
    assert len(numbers) == 3
    for line in numbers:
        assert f" more failures of that kind, of {TOPICS} topics, within 30 s; the last " in line
        assert line.endswith(first.partition(": ")[2])


def test_a_kind_that_is_over_is_forgotten_and_another_one_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: Simulation) -> None:
        troubles = Troubles()
        troubles.tell("t/a", "ledger 1 failed: gone")
        troubles.tell("t/b", "ledger 2 failed: gone")
        troubles.tell("t/b", "full")
        await asyncio.sleep(SECONDS + 1)
        assert len(lines(caplog)) == 3
        await asyncio.sleep(SECONDS + 1)
        troubles.tell("t/c", "ledger 3 failed: gone")

    simulate(main)
    assert lines(caplog) == [
        "t/a: ledger 1 failed: gone",
        "t/b: full",
        "1 more failures of that kind, of 1 topics, within 30 s; the last one: "
        "t/b: ledger 2 failed: gone",
        "t/c: ledger 3 failed: gone",
    ]


def test_there_are_not_as_many_lines_as_kinds(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: Simulation) -> None:
        troubles = Troubles()
        for number in range(1000):
            troubles.tell("t", f"reason {number}")
        await asyncio.sleep(SECONDS + 1)

    simulate(main)
    assert len(lines(caplog)) <= KINDS_MAX + 2
