"""Torn tails are cut; damage is kept, reported, and never taken for absence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsark.errors import (
    ConfigError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from pulsark.storage.bookie.index_checkpoint import CHECKPOINT_NAME
from pulsark.storage.bookie.journal_format import GROUP_HEAD_SIZE, GROUP_MAGIC, SEGMENT_HEAD_SIZE
from pulsark.storage.bookie.journal_recovery import RecoveryReport
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.bookie.reached_note import NOTE_NAME
from tests.sim.bookies import (
    LEDGER_DIR,
    append,
    bookie_on,
    entries,
    open_bookie,
    segment_path,
)
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

FIRST = segment_path(1)
CHECKPOINT = f"{LEDGER_DIR}/{CHECKPOINT_NAME}"
NOTE = f"{LEDGER_DIR}/{NOTE_NAME}"
NO_CHECKPOINT = JournalSettings(checkpoint_bytes=1 << 30)
KEPT = replace(NO_CHECKPOINT, compact_bytes=0, compact_below=0.0)
"""Segments with entries stay where they are."""


@dataclass
class Written:
    """A journal of one segment and the place of each group in it."""

    content: bytes
    groups: list[int]
    files: dict[str, bytes]

    def disk(self, content: bytes) -> SimDisk:
        """The bookie's disk, the segment replaced."""
        disk = SimDisk()
        disk.make_dirs("/b/journal")
        disk.make_dirs("/b/ledgers")
        for path, data in self.files.items():
            disk.edit(path, content if path == FIRST else data)
        return disk

    def flipped(self, offset: int) -> bytes:
        content = bytearray(self.content)
        content[offset] ^= 1
        return bytes(content)


@pytest.fixture(scope="module")
def written() -> Written:
    """Entries 0..9 of ledger 1 in groups of two; a fence of ledger 2 before the last group.

    As a kill leaves it: nothing closed the end of the journal.
    """
    disk = SimDisk()
    files: dict[str, bytes] = {}

    async def main() -> None:
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            for first in (0, 2, 4, 6):
                await append(bookie, 1, first, entries(first, 2), lac=first - 1)
            await bookie.tail(2, fence=True)
            await append(bookie, 1, 8, entries(8, 2), lac=7)
            files.update({path: disk.content(path) for path in disk.files()})

    with Simulation() as sim:
        sim.run(main())
    content = files[FIRST]
    groups = [n for n in range(len(content)) if content.startswith(GROUP_MAGIC, n)]
    assert len(groups) == 7
    assert groups[0] == SEGMENT_HEAD_SIZE
    return Written(content, groups, files)


def report_of(disk: SimDisk, held: int) -> RecoveryReport:
    """Start, expect entries 0..held-1 and no others, write on, restart; the first report."""

    async def main() -> RecoveryReport:
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            report = bookie.recovery
            if held:
                found = await bookie.read(1, 0, 99, 1 << 20)
                assert found == list(enumerate(entries(0, held)))
            with pytest.raises(NoSuchEntryError if held else NoSuchLedgerError):
                await bookie.read(1, held, held, 1)
            await append(bookie, 1, held, entries(held, 1))
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            assert await bookie.read(1, 0, 99, 1 << 20) == list(enumerate(entries(0, held + 1)))
            assert not bookie.recovery.torn
        return report

    with Simulation() as sim:
        return sim.run(main())


def test_whole_journal_is_neither_torn_nor_damaged(written: Written) -> None:
    report = report_of(written.disk(written.content), held=10)
    assert (report.torn, report.damaged, report.corrupt_entries) == ([], [], 0)
    assert (report.segments, report.records) == (1, 7)
    assert str(report).startswith("1 segment, 7 records in ")


def test_cut_at_each_byte_of_the_last_group(written: Written) -> None:
    last = written.groups[-1]
    for end in range(last, len(written.content)):
        disk = written.disk(written.content[:end])
        report = report_of(disk, held=8)
        assert report.torn == ([(1, end - last)] if end > last else [])
        assert not report.damaged
        assert disk.size(FIRST) == last


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"junk ", GROUP_MAGIC])
@pytest.mark.parametrize("size", [1, 47, 48, 49, 5000])
def test_junk_behind_the_last_group_is_cut(written: Written, junk: bytes, size: int) -> None:
    tail = (junk * size)[:size]
    report = report_of(written.disk(written.content + tail), held=10)
    assert report.torn == [(1, size)]
    assert not report.damaged


def test_any_flipped_bit_in_the_last_group_is_a_torn_tail(written: Written) -> None:
    last = written.groups[-1]
    for offset in range(last, len(written.content)):
        report = report_of(written.disk(written.flipped(offset)), held=8)
        assert report.torn == [(1, len(written.content) - last)]


def test_last_group_replaced_by_zeros_is_a_torn_tail(written: Written) -> None:
    last = written.groups[-1]
    content = written.content[:last] + bytes(len(written.content) - last)
    assert report_of(written.disk(content), held=8).torn


def test_group_of_another_place_is_not_believed(written: Written) -> None:
    """A stale copy of an earlier group, as a misdirected write leaves it, is no group."""
    copy = written.content[written.groups[1] : written.groups[2]]
    report = report_of(written.disk(written.content + copy), held=10)
    assert report.torn == [(1, len(copy))]
    assert not report.damaged


def test_any_flipped_bit_before_the_last_group_is_damage(written: Written) -> None:
    """Nothing is cut, no later entry is lost, and what is lost is unknown, never absent."""
    ranges = list(zip(written.groups[1:-1], written.groups[2:], strict=True))
    for group, (start, end) in enumerate(ranges):
        for offset in range(start, end, 3):
            disk = written.disk(written.flipped(offset))
            with Simulation() as sim:
                sim.run(check_damage(sim, disk, group, head=offset < start + GROUP_HEAD_SIZE))
            assert disk.content(FIRST) == written.flipped(offset)


async def check_damage(sim: Simulation, disk: SimDisk, group: int, head: bool) -> None:
    """``group`` 0..3 holds entries 2*group and the next, 4 the fence of ledger 2."""
    async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
        report = bookie.recovery
        assert not report.torn
        assert len(report.damaged) + report.corrupt_entries == 1
        for entry_id in range(10):
            if entry_id // 2 == group:
                continue
            expected = [(entry_id, b"entry-%d" % entry_id)]
            assert await bookie.read(1, entry_id, entry_id, 1) == expected
        if group < 4:
            lost = 0
            for entry_id in (2 * group, 2 * group + 1):
                try:
                    await bookie.read(1, entry_id, entry_id, 1)
                except CorruptEntryError:
                    lost += 1
            assert lost == (1 if report.corrupt_entries else 2)
        if report.damaged:
            assert not head or report.damaged[0][1] >= SEGMENT_HEAD_SIZE
            with pytest.raises(CorruptEntryError):
                await bookie.read(1, 10, 10, 1)
            for ledger_id in (1, 2):
                with pytest.raises(LedgerFencedError):
                    await append(bookie, ledger_id, 10, [b"zombie"])
            await append(bookie, 1, 10, [b"repaired"], recovery=True)
            await append(bookie, 3, 0, [b"new ledger"])


def test_records_of_another_group_in_its_place_are_not_believed(written: Written) -> None:
    """A write that went astray: each record is whole, and the entries of this group are gone."""
    one, two, three = written.groups[1:4]
    body = written.content[one + GROUP_HEAD_SIZE : two]
    assert three - two == two - one
    content = written.content[: two + GROUP_HEAD_SIZE] + body + written.content[three:]
    with Simulation() as sim:
        sim.run(check_damage(sim, written.disk(content), 1, head=False))


def test_a_ledger_that_is_only_in_a_damaged_group_is_unknown_not_absent() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            await append(bookie, 5, 0, [b"lost"])
            await append(bookie, 5, 1, [b"lost"])
            await append(bookie, 4, 0, [b"only one"])
            await append(bookie, 6, 0, [b"there"])
            await bookie.delete(3)
        content = disk.content(segment_path(1))
        disk.flip(segment_path(1), content.rindex(GROUP_MAGIC, 0, content.index(b"only one")))
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            with pytest.raises(CorruptEntryError):
                await bookie.read(4, 0, 0, 1)
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(3, 0, 0, 1)
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(7, 0, 0, 1)

    with Simulation() as sim:
        sim.run(main())


def test_reads_stop_before_what_may_be_lost(written: Written) -> None:
    """A gap in an answer means "absent" to the reader, so there must be none over damage."""
    disk = written.disk(written.flipped(written.groups[2]))

    async def main() -> None:
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            assert [e for e, _ in await bookie.read(1, 0, 9, 1 << 20)] == [0, 1]
            with pytest.raises(CorruptEntryError):
                await bookie.read(1, 2, 9, 1 << 20)
            assert [e for e, _ in await bookie.read(1, 4, 9, 1 << 20)] == [4, 5, 6, 7, 8, 9]

    with Simulation() as sim:
        sim.run(main())


def test_bad_segment_head_is_damage_but_the_groups_are_read(written: Written) -> None:
    disk = written.disk(written.flipped(20))

    async def main() -> None:
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            assert bookie.recovery.damaged == [(1, 0, SEGMENT_HEAD_SIZE)]
            assert len(await bookie.read(1, 0, 99, 1 << 20)) == 10

    with Simulation() as sim:
        sim.run(main())


def test_damage_is_remembered_by_the_checkpoint(written: Written) -> None:
    disk = written.disk(written.flipped(written.groups[2]))
    checkpointing = JournalSettings(checkpoint_bytes=1)

    async def main() -> None:
        for life in range(3):
            async with bookie_on(sim, disk, checkpointing) as bookie:
                assert len(bookie.recovery.damaged) == 1
                assert bookie.recovery.checkpoint == ("used" if life else "no checkpoint")
                with pytest.raises(CorruptEntryError):
                    await bookie.read(1, 2, 2, 1)
                await append(bookie, 9, life, [b"more"], recovery=True)

    with Simulation() as sim:
        sim.run(main())


def test_bit_flipped_while_running_is_found_by_the_read(written: Written) -> None:
    for offset in range(written.groups[2], written.groups[3]):
        disk = written.disk(written.content)

        async def main(disk: SimDisk, offset: int) -> None:
            async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
                disk.flip(FIRST, offset)
                try:
                    found = await bookie.read(1, 0, 9, 1 << 20)
                except CorruptEntryError:
                    return
                assert found == list(enumerate(entries(0, len(found))))
                assert len(found) in (2, 3, 10)
                if len(found) < 10:
                    with pytest.raises(CorruptEntryError):
                        await bookie.read(1, len(found), 9, 1 << 20)

        with Simulation() as sim:
            sim.run(main(disk, offset))


async def two_lives(sim: Simulation, disk: SimDisk) -> None:
    for first in (0, 5):
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            await append(bookie, 1, first, entries(first, 5))
    async with bookie_on(sim, disk, NO_CHECKPOINT):
        pass


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "another's"])
def test_lost_segment_is_damage(how: str) -> None:
    disk = SimDisk()

    async def main() -> None:
        await two_lives(sim, disk)
        content = disk.content(segment_path(2))
        if how == "missing":
            disk.discard(segment_path(2))
        elif how == "another's":
            disk.edit(segment_path(2), disk.content(segment_path(1)))
        else:
            middle_of_the_last = content.index(b"entry-9") + 3
            disk.edit(segment_path(2), content[:middle_of_the_last] if how == "cut" else b"")
        found = []
        for _ in range(3):
            async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
                found.append((bookie.recovery.damaged, bookie.recovery.corrupt))
                assert [e for e, _ in await bookie.read(1, 0, 4, 1 << 20)] == [0, 1, 2, 3, 4]
                with pytest.raises(CorruptEntryError):
                    await bookie.read(1, 9, 9, 1)
            assert not bookie.recovery.torn
        assert found[0] == found[1] == found[2] != ([], [])

    with Simulation() as sim:
        sim.run(main())


def test_the_number_of_a_lost_last_segment_is_not_used_again() -> None:
    """What the note beside the journal names was there, so its entries stay unknown."""
    disk = SimDisk()

    async def main() -> None:
        for first in (0, 5):
            async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
                await append(bookie, 1, first, entries(first, 5))
        disk.discard(segment_path(2))
        for life in range(3):
            async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
                assert [segment for segment, *_ in bookie.recovery.damaged] == [2]
                with pytest.raises(CorruptEntryError):
                    await bookie.read(1, 5, 5, 1)
                await append(bookie, 9 + life, 0, entries(0, 1))
                for ledger_id in range(9, 10 + life):
                    assert await bookie.read(ledger_id, 0, 9, 99) == [(0, b"entry-0")]
            assert segment_path(2) not in disk.files()

    with Simulation() as sim:
        sim.run(main())


def test_an_old_note_says_nothing_of_a_segment_that_has_later_ones() -> None:
    """The system need not have written the newest note when the power fails."""
    disk, notes = SimDisk(), []

    async def main() -> None:
        for ledger_id in (1, 2, 3):
            async with bookie_on(sim, disk, KEPT) as bookie:
                await append(bookie, ledger_id, 0, entries(0, 5))
                notes.append(disk.content(NOTE))
        for going in (2, 4):  # the record of the first removal goes with the segment it is in
            async with bookie_on(sim, disk, KEPT) as bookie:
                await append(bookie, 4, 0, entries(0, 1))
                await bookie.delete(going)
                await asyncio.sleep(1)
                assert segment_path(going) not in disk.files()
        disk.edit(NOTE, notes[1])
        async with bookie_on(sim, disk, KEPT) as bookie:
            assert not bookie.recovery.damaged
            assert segment_path(1) in disk.files()
            assert await bookie.read(1, 0, 9, 1 << 20) == list(enumerate(entries(0, 5)))

    with Simulation() as sim:
        sim.run(main())


def test_tail_of_a_segment_with_a_successor_is_not_torn() -> None:
    """The next segment was begun after it: it was whole once, so it is not cut."""
    disk = SimDisk()

    async def main() -> None:
        await two_lives(sim, disk)
        size = disk.size(segment_path(1))
        disk.flip(segment_path(1), disk.content(segment_path(1)).index(b"entry-4"))
        async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
            assert (bookie.recovery.corrupt_entries, bookie.recovery.torn) == (1, [])
            assert [e for e, _ in await bookie.read(1, 0, 9, 1 << 20)] == [0, 1, 2, 3]
            with pytest.raises(CorruptEntryError):
                await bookie.read(1, 4, 9, 1 << 20)
        assert disk.size(segment_path(1)) == size

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize("how", ["stopped", "idle, then killed"])
def test_the_last_group_of_a_journal_at_rest_rots_and_is_not_taken_for_torn(how: str) -> None:
    disk = SimDisk()

    async def main() -> None:
        bookie = await open_bookie(sim, disk, NO_CHECKPOINT)
        await append(bookie, 1, 0, entries(0, 1))
        if how == "stopped":
            await bookie.close()
        else:
            await asyncio.sleep(1.1)
        steps = disk.steps
        await asyncio.sleep(10)
        assert disk.steps == steps, "once is enough"
        disk.flip(segment_path(1), disk.content(segment_path(1)).index(b"entry-0"))
        async with bookie_on(sim, disk.after_crash("all", sim.rng), NO_CHECKPOINT) as again:
            assert (again.recovery.corrupt_entries, again.recovery.torn) == (1, [])
            with pytest.raises(CorruptEntryError):
                await again.read(1, 0, 0, 1)

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.feature("F76")
def test_a_segment_that_was_just_begun_is_removed() -> None:
    disk = SimDisk()

    async def main() -> None:
        await two_lives(sim, disk)
        whole = disk.content(segment_path(3))
        for end in range(len(whole)):
            disk.edit(segment_path(3), whole[:end])
            async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
                assert [n for n, _ in bookie.recovery.torn] == [3]
                assert not bookie.recovery.damaged
                assert len(await bookie.read(1, 0, 9, 1 << 20)) == 10
            for path in disk.files():
                if path > segment_path(3) and path.endswith(".journal"):
                    disk.discard(path)

    with Simulation() as sim:
        sim.run(main())


def test_a_journal_of_a_later_version_is_refused(written: Written) -> None:
    head = bytearray(written.content[:SEGMENT_HEAD_SIZE])
    head[8] = 9
    head[-4:] = google_crc32c.value(bytes(head[:-4])).to_bytes(4, "little")
    disk = written.disk(bytes(head) + written.content[SEGMENT_HEAD_SIZE:])

    async def main() -> None:
        with pytest.raises(ConfigError, match="later version"):
            async with bookie_on(sim, disk):
                pass

    with Simulation() as sim:
        sim.run(main())


def test_a_lost_or_corrupt_checkpoint_only_costs_time() -> None:
    disk = SimDisk()
    settings = JournalSettings(checkpoint_bytes=100)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            for n in range(20):
                await append(bookie, 1, n, entries(n, 1))
            await bookie.tail(2, fence=True)
        async with bookie_on(sim, disk, settings) as bookie:
            assert bookie.recovery.checkpoint == "used"
            assert bookie.recovery.records < 5
        for spoil in (disk.discard, lambda path: disk.flip(path, 50)):
            spoil(CHECKPOINT)
            async with bookie_on(sim, disk, settings) as bookie:
                assert bookie.recovery.checkpoint != "used"
                assert len(await bookie.read(1, 0, 99, 1 << 20)) == 20
                with pytest.raises(LedgerFencedError):
                    await append(bookie, 2, 0, [b"x"])

    with Simulation() as sim:
        sim.run(main())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_overwritten_ranges_are_never_absence(written: Written, data: st.DataObject) -> None:
    """Whatever lies before the last group is overwritten with: right bytes or "unknown"."""
    content = bytearray(written.content)
    last = written.groups[-1]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, last - 1))
        size = data.draw(st.integers(1, last - start))
        pattern = data.draw(st.sampled_from([b"\0", b"\xff", GROUP_MAGIC, b"\xc1\xe7"]))
        content[start : start + size] = (pattern * size)[:size]
    with Simulation() as sim:
        sim.run(check_overwritten(sim, written.disk(bytes(content))))


async def check_overwritten(sim: Simulation, disk: SimDisk) -> None:
    async with bookie_on(sim, disk, NO_CHECKPOINT) as bookie:
        assert not bookie.recovery.torn
        for entry_id in range(10):
            try:
                found = await bookie.read(1, entry_id, entry_id, 1)
            except CorruptEntryError:
                assert entry_id < 8
            else:
                assert found == [(entry_id, b"entry-%d" % entry_id)]
        with pytest.raises(LedgerFencedError):
            await append(bookie, 2, 0, [b"zombie"])
