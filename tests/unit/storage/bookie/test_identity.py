"""A bookie starts only on its own two directories, both present."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pulsark.errors import ConfigError
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.identity import check_identity, load_identity
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import JOURNAL_DIR, LEDGER_DIR, append, bookie_on, entries, open_bookie
from tests.sim.disk import SimDisk, crash_points
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation


def used_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 1, 0, entries(0, 2))

    with Simulation(seed) as sim:
        sim.run(main())
    return disk


def refusal(disk: SimDisk, name: str = "b") -> str:
    with Simulation() as sim, pytest.raises(ConfigError) as caught:
        sim.run(open_bookie(sim, disk, name=name))
    return str(caught.value)


def test_both_directories_carry_the_same_identity() -> None:
    disk = used_disk()
    assert disk.content(f"{JOURNAL_DIR}/BOOKIE") == disk.content(f"{LEDGER_DIR}/BOOKIE")
    assert disk.content(f"{JOURNAL_DIR}/BOOKIE") != used_disk(9).content(f"{JOURNAL_DIR}/BOOKIE")


def test_empty_journal_beside_a_known_ledger_directory() -> None:
    disk = used_disk()
    for path in disk.files():
        if path.startswith(JOURNAL_DIR):
            disk.discard(path)
    assert "no journal" in refusal(disk)


def test_journal_without_segments() -> None:
    disk = used_disk()
    for path in disk.files():
        if path.endswith(".journal"):
            disk.discard(path)
    assert "no journal" in refusal(disk)


def test_journal_without_its_identity() -> None:
    disk = used_disk()
    disk.discard(f"{JOURNAL_DIR}/BOOKIE")
    assert "no BOOKIE file" in refusal(disk)
    disk.discard(f"{LEDGER_DIR}/BOOKIE")
    assert "no BOOKIE file" in refusal(disk)


def test_new_ledger_directory_beside_a_used_journal() -> None:
    disk = used_disk()
    for path in disk.files():
        if path.startswith(LEDGER_DIR):
            disk.discard(path)
    assert "mount the right ledger directory" in refusal(disk)


def test_directories_of_two_bookies() -> None:
    disk, other = used_disk(1), used_disk(2)
    disk.edit(f"{LEDGER_DIR}/BOOKIE", other.content(f"{LEDGER_DIR}/BOOKIE"))
    assert "two bookies" in refusal(disk)


def test_segments_of_another_bookie() -> None:
    disk, other = used_disk(1), used_disk(2)
    for path in disk.files():
        if path.endswith(".journal"):
            disk.edit(path, other.content(path))
    assert "another bookie" in refusal(disk)


def test_another_name() -> None:
    assert "belongs to bookie b, not to c" in refusal(used_disk(), name="c")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"version": 1, "bookieId": "b"}', b"\xff"]
)
def test_damaged_identity(content: bytes) -> None:
    disk = used_disk()
    disk.edit(f"{JOURNAL_DIR}/BOOKIE", content)
    assert "damaged" in refusal(disk)


def test_identity_of_a_later_version() -> None:
    disk = used_disk()
    disk.edit(f"{LEDGER_DIR}/BOOKIE", b'{"version": 3}')
    assert "version 3" in refusal(disk)


def test_a_file_of_version_1_has_no_store_and_gets_the_one_that_opens_it() -> None:
    disk = used_disk()
    of_version_1 = json.loads(disk.content(f"{JOURNAL_DIR}/BOOKIE"))
    del of_version_1["storeId"]
    for directory in (JOURNAL_DIR, LEDGER_DIR):
        disk.edit(f"{directory}/BOOKIE", json.dumps({**of_version_1, "version": 1}).encode())
    known = load_identity(disk, LEDGER_DIR)
    assert known is not None
    assert known.store_id == ""
    with Simulation() as sim:
        commissioned = check_identity(sim.runtime(disk), "b", JOURNAL_DIR, LEDGER_DIR, "5" * 32)
    assert commissioned.identity == replace(known, store_id="5" * 32)
    for directory in (JOURNAL_DIR, LEDGER_DIR):
        assert load_identity(disk, directory) == commissioned.identity


@pytest.mark.feature("F71")
def test_one_directory_for_both_is_refused() -> None:
    with Simulation() as sim:
        opening = EmbeddedBookie.open(
            "b", "/same", "/same", JournalSettings(), sim.runtime(SimDisk())
        )
        with pytest.raises(ConfigError, match="must differ"):
            sim.run(opening)


def test_a_crash_in_the_first_start_is_repaired_by_the_second() -> None:
    def first_start(disk: SimDisk) -> None:
        with Simulation(3) as sim:
            sim.run(open_bookie(sim, disk))

    for crash_at in range(1, crash_points(first_start) + 1):
        for survival in ("none", "all", "random"):
            disk = SimDisk()
            disk.crash_at = crash_at
            with pytest.raises(SimulatedCrash):
                first_start(disk)

            with Simulation(crash_at) as sim:
                disk = disk.after_crash(survival, sim.rng)

                async def main(sim: Simulation, disk: SimDisk) -> None:
                    bookie = await open_bookie(sim, disk)
                    await append(bookie, 1, 0, entries(0, 1))
                    disk = disk.after_crash("none", sim.rng)  # what the start believed is durable
                    async with bookie_on(sim, disk) as bookie:
                        assert len(await bookie.read(1, 0, 9, 100)) == 1

                sim.run(main(sim, disk))
