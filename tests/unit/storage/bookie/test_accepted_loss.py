"""What an operator gave up of a journal is absent, for good, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from pulsark.errors import ConfigError, CorruptEntryError, NoSuchEntryError
from pulsark.storage.bookie.accepted_loss import AcceptedLoss, accept_loss, lost_path
from pulsark.storage.bookie.journal_format import GROUP_MAGIC
from pulsark.storage.bookie.journal_recovery import RecoveredJournal, recover_journal
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import (
    JOURNAL_DIR,
    LEDGER_DIR,
    append,
    bookie_on,
    entries,
    segment_path,
)
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation

SETTINGS = JournalSettings(checkpoint_bytes=1)


def recovered(disk: SimDisk) -> RecoveredJournal:
    instance = bytes.fromhex(json.loads(disk.content(f"{LEDGER_DIR}/BOOKIE"))["instanceId"])
    return recover_journal(disk, JOURNAL_DIR, LEDGER_DIR, instance, all_of_it=True)


def give_up_everything(disk: SimDisk) -> None:
    report = recovered(disk).report
    for segment_id in {s for s, *_ in (*report.damaged, *report.corrupt)}:
        ranges = [(start, end) for s, start, end in report.damaged if s == segment_id]
        lost = [(ledger, entry) for s, ledger, entry in report.corrupt if s == segment_id]
        loss = AcceptedLoss(ranges, lost, 17)
        accept_loss(disk, JOURNAL_DIR, LEDGER_DIR, segment_id, loss)


def written() -> SimDisk:
    """Entries 0..5 of ledger 1, each in a group of its own, and one of ledger 2."""
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            for n in range(6):
                await append(bookie, 1, n, entries(n, 1), lac=n - 1)
            await append(bookie, 2, 0, entries(0, 1))

    with Simulation() as sim:
        sim.run(main())
    return disk


async def check(sim: Simulation, disk: SimDisk, lost: int | None) -> None:
    """All but one entry is there, which is absent, not unknown; life goes on."""
    async with bookie_on(sim, disk, SETTINGS) as bookie:
        assert not bookie.recovery.damaged
        assert not bookie.recovery.corrupt
        for n in range(6):
            if n == lost:
                with pytest.raises(NoSuchEntryError):
                    await bookie.read(1, n, n, 1)
            else:
                assert await bookie.read(1, n, n, 1) == [(n, b"entry-%d" % n)]
        await append(bookie, 1, 6, entries(6, 1))
        await append(bookie, 3, 0, entries(0, 1))
        assert (await bookie.tail(1, fence=False)).last_entry_id == 6
    async with bookie_on(sim, disk, SETTINGS) as bookie:
        assert await bookie.read(1, 6, 6, 1) == [(6, b"entry-6")]
        await bookie.delete(1)
        await bookie.delete(6)


@pytest.mark.parametrize("what", ["group head", "record", "payload"])
@pytest.mark.parametrize("lost", [0, 3, 5])
def test_a_damaged_entry_is_given_up(what: str, lost: int) -> None:
    disk = written()
    content = disk.content(segment_path(1))
    payload = content.index(b"entry-%d" % lost)
    group = content.rindex(GROUP_MAGIC, 0, payload)
    place = {"group head": group + 9, "record": payload - 20, "payload": payload}[what]
    disk.flip(segment_path(1), place)
    disk.discard(f"{LEDGER_DIR}/index.checkpoint")  # which would know the entry

    async def unknown() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            with pytest.raises(CorruptEntryError):
                await bookie.read(1, lost, lost, 1)

    with Simulation() as sim:
        sim.run(unknown())
    give_up_everything(disk)
    with Simulation() as sim:
        sim.run(check(sim, disk, lost))


def test_a_segment_that_is_missing_is_given_up_and_forgotten() -> None:
    disk = written()

    async def next_life() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await append(bookie, 4, 0, entries(0, 1))

    with Simulation() as sim:
        sim.run(next_life())
    disk.discard(segment_path(1))
    assert recovered(disk).report.damaged
    give_up_everything(disk)

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert not bookie.recovery.damaged
            assert bookie.recovery.lost == [1]
            assert await bookie.read(4, 0, 0, 1) == [(0, b"entry-0")]
            await append(bookie, 1, 0, entries(0, 1))
            await bookie.delete(2)
            await asyncio.sleep(1)
            assert lost_path(JOURNAL_DIR, 1) not in disk.files()
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert bookie.recovery.lost == []
            assert not bookie.recovery.damaged

    with Simulation() as sim:
        sim.run(main())


def test_damage_that_comes_later_is_not_covered() -> None:
    disk = written()
    content = disk.content(segment_path(1))
    disk.flip(segment_path(1), content.index(b"entry-2"))
    give_up_everything(disk)
    disk.flip(segment_path(1), content.index(b"entry-4"))
    assert recovered(disk).report.corrupt == [(1, 1, 4)]
    give_up_everything(disk)
    assert not recovered(disk).report.corrupt
    assert json.loads(disk.content(lost_path(JOURNAL_DIR, 1))) == {
        "version": 1,
        "ranges": [],
        "entries": [[1, 2], [1, 4]],
        "acceptedAt": 17,
    }


def test_a_range_that_is_damaged_later_is_not_covered() -> None:
    disk = written()
    places = [disk.content(segment_path(1)).index(b"entry-%d" % n) - 20 for n in (1, 3)]
    for place in places:
        disk.flip(segment_path(1), place)
        ((_, start, end),) = recovered(disk).report.damaged
        assert start <= place < end
        give_up_everything(disk)
        assert not recovered(disk).report.damaged


def test_a_crash_while_a_loss_is_accepted_leaves_it_unknown_or_given_up() -> None:
    def begun() -> SimDisk:
        disk = written()
        content = disk.content(segment_path(1))
        disk.flip(segment_path(1), content.rindex(GROUP_MAGIC, 0, content.index(b"entry-3")) + 9)
        return disk

    def accept(disk: SimDisk) -> None:
        accept_loss(disk, JOURNAL_DIR, LEDGER_DIR, 1, AcceptedLoss([(0, 1 << 20)], [], 17))

    async def main(disk: SimDisk) -> bool:
        is_given_up = not recovered(disk).report.damaged  # as the operator sees it
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            with pytest.raises(NoSuchEntryError if is_given_up else CorruptEntryError):
                await bookie.read(1, 3, 3, 1)
        return is_given_up

    whole = begun()
    before = whole.steps
    accept(whole)
    given_up = set()
    for step in range(before + 1, whole.steps + 2):
        for survival in SURVIVALS:
            disk = begun()
            disk.crash_at = step
            with contextlib.suppress(SimulatedCrash):
                accept(disk)
            with Simulation() as sim:
                given_up.add(sim.run(main(disk.after_crash(survival, sim.rng))))
    assert given_up == {False, True}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2}', b'{"version": 1, "ranges": 1}'])
def test_a_file_that_cannot_be_read_is_said_by_name(content: bytes) -> None:
    disk = written()
    disk.edit(lost_path(JOURNAL_DIR, 1), content)
    with pytest.raises(ConfigError, match=r"0000000000000001\.journal\.lost cannot be read"):
        recovered(disk)
