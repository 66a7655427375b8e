"""How full disks are, and what the log says of it."""

from __future__ import annotations

import logging

import pytest

from pulsark.storage.bookie.disk_watch import DiskLevel, DiskWatch, level_of
from pulsark.storage.bookie.fleet import BookieHome
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

MIB = 1 << 20
OK, WARNING, CRITICAL, FULL = DiskLevel


@pytest.mark.parametrize(
    ("free", "before", "expected"),
    [
        (151, OK, OK),
        (150, OK, WARNING),
        (160, WARNING, WARNING),
        (171, WARNING, OK),
        (50, WARNING, CRITICAL),
        (60, CRITICAL, CRITICAL),
        (71, CRITICAL, WARNING),
        (49, OK, FULL),
        (60, FULL, FULL),
        (63, FULL, CRITICAL),
        (500, FULL, OK),
    ],
)
def test_a_level_falls_only_clearly_below_its_limit(
    free: int, before: DiskLevel, expected: DiskLevel
) -> None:
    assert level_of(free * MIB, 1000 * MIB, before, 0.85, 0.95) is expected


def test_a_large_disk_is_full_at_an_absolute_reserve() -> None:
    tib = 1 << 40
    assert level_of(65 * MIB, tib, OK, 0.85, 0.95) is CRITICAL
    assert level_of(63 * MIB, tib, OK, 0.85, 0.95) is FULL


def test_each_change_is_one_line_also_that_there_is_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    disk.capacity = 100 * MIB
    with Simulation() as sim:
        runtime = sim.runtime(disk)
        disk.make_dirs("/data")

        async def main() -> None:
            watch = DiskWatch(
                [BookieHome("/data", "/ledgers")],
                ["/data", "/other"],
                runtime,
                warn_share=0.85,
                critical_share=0.95,
            )
            file = disk.create("/data/f")
            for mib, level in ((80, OK), (90, WARNING), (91, WARNING), (96, FULL), (97, FULL)):
                file.writev([bytes(mib * MIB - disk.used())])
                await watch.look()
                assert watch.level is level
                assert watch.full_journals == (level is FULL)
                assert bool(watch.problems()) is (level is not OK)
            disk.remove("/data/f")
            await watch.look()
            assert watch.level is OK
            assert [use.path for use in watch.uses] == ["/data", "/ledgers", "/other"]
            watch.close()

        sim.run(main())
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in lines] == [logging.WARNING, logging.ERROR, logging.ERROR]
    assert "90% full, 10 of 100 MiB are free" in lines[0][1]
    assert "publishes are refused" in lines[1][1]
    assert "enough again" in lines[2][1]
