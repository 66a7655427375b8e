"""Full disks, failing disks, and what still works then."""

from __future__ import annotations

import asyncio
import errno

import pytest

from pulsark.errors import (
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    StorageFullError,
)
from pulsark.limits import METADATA_MARK_SECONDS
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.bookie.journal import LAST_PART
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import (
    JOURNAL_DIR,
    append,
    append_later,
    bookie_on,
    entries,
    open_bookie,
    segment_path,
)
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

KIB = 1024
SMALL = JournalSettings(journal_max_size=64 * KIB, checkpoint_bytes=32 * KIB, compact_bytes=KIB)


def full_disk(size: int = 200 * KIB) -> SimDisk:
    disk = SimDisk()
    disk.capacity = size
    return disk


async def fill(bookie: object, ledger_id: int, payload: bytes = b"x" * KIB) -> int:
    """Append until the bookie is full; the number of entries it took."""
    for n in range(10_000):
        try:
            await append(bookie, ledger_id, n, [payload])  # type: ignore[arg-type]
        except StorageFullError:
            return n
    raise AssertionError("never full")


def test_appends_stop_at_the_reserve_and_the_rest_goes_on() -> None:
    disk = full_disk()

    async def main() -> None:
        async with bookie_on(sim, disk, SMALL) as bookie:
            held = await fill(bookie, 1)
            assert held > 100
            free, total = disk.space("/")
            assert free >= SMALL.reserve(total) - 2 * KIB
            assert len(await bookie.read(1, 0, 999, 1 << 20)) == held
            await append(bookie, 2, 0, [b"cursor"], reserve=True)
            assert (await bookie.tail(3, fence=True)).last_entry_id == -1
            with pytest.raises(LedgerFencedError):
                await append(bookie, 3, 0, [b"x"], reserve=True)
            with pytest.raises(StorageFullError):
                await append(bookie, 1, held, [b"x" * KIB])

    with Simulation() as sim:
        sim.run(main())


def test_a_full_disk_is_freed_by_deletes_and_takes_appends_again() -> None:
    disk = full_disk()

    async def main() -> None:
        async with bookie_on(sim, disk, SMALL) as bookie:
            for life in range(3):
                held = await fill(bookie, life)
                assert held > 100
                await bookie.delete(life)
                await asyncio.sleep(1)
                await append(bookie, 100 + life, 0, [b"there is room"])
        async with bookie_on(sim, disk, SMALL) as bookie:
            assert not bookie.recovery.torn
            assert await bookie.read(102, 0, 0, 1) == [(0, b"there is room")]

    with Simulation() as sim:
        sim.run(main())


def test_room_made_by_others_is_noticed() -> None:
    disk = full_disk()

    async def main() -> None:
        async with bookie_on(sim, disk, SMALL) as bookie:
            held = await fill(bookie, 1)
            disk.capacity = 400 * KIB
            for _ in range(3):
                await asyncio.sleep(0.2)
                error = await append_later(bookie, 1, held, [b"x"])
            assert error is None

    with Simulation() as sim:
        sim.run(main())


def test_a_group_cut_short_by_a_full_disk_leaves_no_trace() -> None:
    """The disk fills behind the bookie's back, in the middle of a group."""
    disk = full_disk(1000 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            await append(bookie, 1, 0, entries(0, 3))
            size = disk.size(segment_path(1))
            disk.capacity = disk.used() + 700
            big = append_later(bookie, 1, 3, [b"x" * 2000])
            cursor = append_later(bookie, 2, 0, [b"cursor"], reserve=True)
            fence = asyncio.ensure_future(bookie.tail(3, fence=True))
            assert isinstance(await big, StorageFullError)
            assert await cursor is None
            await fence
            assert disk.size(segment_path(1)) < size + 700
            disk.capacity = 1000 * KIB
            await asyncio.sleep(1)
            await append_later(bookie, 1, 3, entries(3, 1))
            await asyncio.sleep(1)
            await append(bookie, 1, 3, entries(3, 1))
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            assert not bookie.recovery.torn
            assert not bookie.recovery.damaged
            assert await bookie.read(1, 0, 9, 1 << 20) == list(enumerate(entries(0, 4)))
            assert await bookie.read(2, 0, 9, 1) == [(0, b"cursor")]

    with Simulation() as sim:
        sim.run(main())


def test_not_even_the_reserve_is_left() -> None:
    disk = full_disk(1000 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            await append(bookie, 1, 0, entries(0, 3))
            disk.capacity = disk.used() + 10
            with pytest.raises(StorageFullError):
                await append(bookie, 2, 0, [b"cursor"], reserve=True)
            with pytest.raises(StorageFullError):
                await bookie.tail(1, fence=True)
            assert bookie.failed is None
            disk.capacity = 1000 * KIB
            await bookie.tail(1, fence=True)

    with Simulation() as sim:
        sim.run(main())


def test_a_mark_that_found_no_room_goes_ahead_of_the_next_group() -> None:
    """Or entries of a later state of the metadata would be stored with an older mark."""
    disk = full_disk(1000 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            bookie.note_mark(5)
            await append(bookie, 1, 0, entries(0, 1))
            disk.capacity = disk.used() + 10
            bookie.note_mark(7)
            refused = append_later(bookie, 1, 1, entries(1, 1), reserve=True)
            assert isinstance(await refused, StorageFullError)
            assert bookie.mark == 5
            disk.capacity = 1000 * KIB
            await append(bookie, 1, 1, entries(1, 1), reserve=True)
            assert bookie.mark == 7

    with Simulation() as sim:
        sim.run(main())


def test_a_mark_that_found_no_room_is_noted_once_there_is_room() -> None:
    """Nobody writes anything else."""
    disk = full_disk(1000 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            await append(bookie, 1, 0, entries(0, 1))
            disk.capacity = disk.used() + 10
            bookie.note_mark(7)
            await asyncio.sleep(3 * METADATA_MARK_SECONDS)
            assert bookie.mark < 7
            disk.capacity = 1000 * KIB
            await asyncio.sleep(2 * METADATA_MARK_SECONDS)
            assert bookie.mark == 7
            disk.capacity = disk.used() + 10
            bookie.note_mark(8)
        assert bookie.mark == 7  # a full disk keeps no bookie from closing

    with Simulation() as sim:
        sim.run(main())


def test_a_mark_that_found_no_room_does_not_take_the_place_of_a_later_one() -> None:
    disk = full_disk(1000 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings()) as bookie:
            await append(bookie, 1, 0, entries(0, 1))
            disk.capacity = disk.used() + 10
            bookie.note_mark(7)
            refused = append_later(bookie, 1, 1, entries(1, 1), reserve=True)
            await asyncio.sleep(0)  # its group is on its way
            bookie.note_mark(8)
            assert isinstance(await refused, StorageFullError)
            disk.capacity = 1000 * KIB
            await append(bookie, 1, 1, entries(1, 1), reserve=True)
            assert bookie.mark == 8

    with Simulation() as sim:
        sim.run(main())


def test_a_mark_goes_ahead_of_all_groups_of_what_waits() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, JournalSettings(max_group_bytes=1000)) as bookie:
            on_its_way = append_later(bookie, 1, 0, entries(0, 1))
            bookie.flush()
            waiting = [append_later(bookie, 1, n, [b"x" * 900]) for n in (1, 2, 3)]
            bookie.note_mark(7)
            assert await on_its_way is None
            assert await waiting[0] is None
            assert not waiting[2].done()
            assert bookie.mark == 7

    with Simulation() as sim:
        sim.run(main())


def test_cursors_leave_the_last_part_of_the_reserve_to_what_frees_space() -> None:
    disk = full_disk()

    async def main() -> None:
        async with bookie_on(sim, disk, SMALL) as bookie:
            held = await fill(bookie, 1)
            taken = 0
            while await append_later(bookie, 2, taken, [b"x" * 100], reserve=True) is None:
                taken += 1
            free, total = disk.space("/")
            assert taken > 10
            assert free >= SMALL.reserve(total) // LAST_PART - KIB
            await bookie.tail(3, fence=True)
            await append(bookie, 1, held, [b"recovered"], recovery=True)
            await bookie.delete(1)
            await asyncio.sleep(1)
            await append(bookie, 4, 0, [b"there is room"])

    with Simulation() as sim:
        sim.run(main())


def test_no_room_for_a_new_segment() -> None:
    disk = full_disk(1000 * KIB)
    settings = JournalSettings(journal_max_size=8 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            await append(bookie, 1, 0, [b"x" * 7 * KIB])
            disk.capacity = disk.used() + 60
            assert isinstance(await append_later(bookie, 1, 1, [b"y" * KIB]), StorageFullError)
            assert disk.list(JOURNAL_DIR) == ["0000000000000001.journal", "BOOKIE"]
            disk.capacity = 1000 * KIB
            await asyncio.sleep(1)
            await append_later(bookie, 1, 1, [b"y" * KIB])
            await asyncio.sleep(1)
            await append(bookie, 1, 1, [b"y" * KIB])
            assert "0000000000000002.journal" in disk.list(JOURNAL_DIR)

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize("fault", ["sync_errno", "write_errno"])
def test_an_io_error_stops_the_bookie_for_good(fault: str) -> None:
    disk = SimDisk()

    async def main() -> None:
        bookie = await open_bookie(sim, disk)
        await append(bookie, 1, 0, entries(0, 2))
        setattr(disk, fault, errno.EIO)
        pending = [append_later(bookie, 1, 2 + n, entries(2 + n, 1)) for n in range(3)]
        await asyncio.sleep(0)
        pending += [append_later(bookie, 2, n, entries(n, 1)) for n in range(3)]
        for answer in await asyncio.gather(*pending):
            assert type(answer) is StorageError
        setattr(disk, fault, 0)
        syncs = len([line for line in disk.trace if " sync " in line])
        with pytest.raises(StorageError, match="stopped"):
            await append(bookie, 1, 5, entries(5, 1))
        with pytest.raises(StorageError, match="stopped"):
            await bookie.tail(1, fence=True)
        with pytest.raises(StorageError, match="stopped"):
            await bookie.delete(1)
        assert len([line for line in disk.trace if " sync " in line]) == syncs
        assert bookie.failed is not None
        assert await bookie.read(1, 0, 9, 1 << 20) == list(enumerate(entries(0, 2)))
        with pytest.raises(NoSuchEntryError):
            await bookie.read(1, 2, 2, 1)
        await bookie.close()
        async with bookie_on(sim, disk) as bookie:
            assert (await bookie.read(1, 0, 1, 1 << 20)) == list(enumerate(entries(0, 2)))
            await append(bookie, 1, 2, entries(2, 1))

    with Simulation() as sim:
        sim.run(main())


def test_a_failed_read_is_an_error_of_that_read_only() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 1, 0, entries(0, 2))
            disk.read_errno = errno.EIO
            with pytest.raises(StorageError, match="cannot be read"):
                await bookie.read(1, 0, 0, 1)
            disk.read_errno = 0
            assert len(await bookie.read(1, 0, 9, 1 << 20)) == 2
            await append(bookie, 1, 2, entries(2, 1))

    with Simulation() as sim:
        sim.run(main())


def test_a_failed_checkpoint_does_not_stop_the_bookie() -> None:
    disk = SimDisk()
    settings = JournalSettings(checkpoint_bytes=500)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            disk.write_errno, disk.faulty = errno.EIO, "checkpoint"
            for n in range(30):
                await append(bookie, 1, n, entries(n, 1))
            assert bookie.failed is None
        async with bookie_on(sim, disk, settings) as bookie:
            assert bookie.recovery.checkpoint == "no checkpoint"
            assert len(await bookie.read(1, 0, 99, 1 << 20)) == 30

    with Simulation() as sim:
        sim.run(main())


def test_close_lets_pending_appends_finish_and_refuses_later_ones() -> None:
    disk = SimDisk()

    async def main() -> None:
        bookie = await open_bookie(sim, disk)
        answers = [append_later(bookie, 1, n, entries(n, 1)) for n in range(5)]
        await bookie.close()
        assert await asyncio.gather(*answers) == [None] * 5
        with pytest.raises(StorageError):
            await append(bookie, 1, 5, entries(5, 1))

    with Simulation() as sim:
        sim.run(main())


def test_groups_are_bounded_and_grow_while_the_disk_is_busy() -> None:
    disk = SimDisk()
    settings = JournalSettings(max_group_bytes=10_000)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            before = len(disk.trace)
            first = append_later(bookie, 1, 0, [b"x"])
            await asyncio.sleep(0)
            later = [append_later(bookie, 1, n, [b"x" * 900]) for n in range(1, 41)]
            assert await first is None
            assert not any(f.done() for f in later)
            assert await asyncio.gather(*later) == [None] * 40
            writes = [line for line in disk.trace[before:] if " write " in line]
            assert len(writes) == 1 + 4
            assert bookie.pending_bytes == 0

    with Simulation() as sim:
        sim.run(main())


def test_deleted_ledger_takes_nothing_more() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 1, 0, entries(0, 1))
            deletion = asyncio.ensure_future(bookie.delete(1))
            await asyncio.sleep(0)
            late = append_later(bookie, 1, 1, entries(1, 1), recovery=True)
            await deletion
            assert isinstance(await late, NoSuchLedgerError)
            with pytest.raises(NoSuchLedgerError):
                await append(bookie, 1, 1, entries(1, 1))

    with Simulation() as sim:
        sim.run(main())


def test_run_of_many_entries_in_one_call() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            answer: asyncio.Future[BaseException | None] = (
                asyncio.get_running_loop().create_future()
            )
            bookie.append(EntryRun(1, 0, -1, [b"%d" % n for n in range(5000)]), answer.set_result)
            assert await answer is None
            for first in (0, 1, 2500, 4999):
                assert await bookie.read(1, first, first, 1) == [(first, b"%d" % first)]
            assert len(await bookie.read(1, 0, 4999, 1 << 30)) == 5000

    with Simulation() as sim:
        sim.run(main())


def test_a_caller_that_raises_does_not_keep_others_from_their_answers() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            bookie.append(EntryRun(1, 0, -1, [b"x"]), lambda _: 1 // 0)  # type: ignore[arg-type]
            await append(bookie, 2, 0, [b"y"])

    with Simulation() as sim, pytest.raises(ZeroDivisionError):
        sim.run(main())


def test_a_start_on_a_disk_without_room_says_so() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 1, 0, [b"x"])
        disk.capacity = disk.used()
        with pytest.raises(StorageError, match="cannot start"):
            await open_bookie(sim, disk)
        disk.capacity = None
        async with bookie_on(sim, disk) as bookie:
            assert await bookie.read(1, 0, 0, 1) == [(0, b"x")]
        with pytest.raises(StorageError, match="closed"):
            await bookie.read(1, 0, 0, 1)

    with Simulation() as sim:
        sim.run(main())


def test_a_segment_that_got_no_group_is_known_and_the_next_attempt_uses_it() -> None:
    disk = full_disk(1000 * KIB)
    settings = JournalSettings(journal_max_size=8 * KIB)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            await append(bookie, 1, 0, [b"x" * 6 * KIB])
            disk.capacity = disk.used() + KIB
            for _ in range(5):
                # There is room for a segment, and not for what should be in it.
                with pytest.raises(StorageFullError):
                    await append(bookie, 1, 1, [b"y" * 7 * KIB], reserve=True)
            assert disk.list(JOURNAL_DIR)[:-1] == [f"{n:016x}.journal" for n in (1, 2)]
            assert list(bookie._index.segments) == [1, 2]
            disk.capacity = 1000 * KIB
            await append(bookie, 1, 1, [b"y" * 7 * KIB], reserve=True)
            assert disk.list(JOURNAL_DIR)[:-1] == [f"{n:016x}.journal" for n in (1, 2)]
        async with bookie_on(sim, disk, settings) as bookie:
            assert not bookie.recovery.damaged
            assert len(await bookie.read(1, 0, 9, 1 << 20)) == 2

    with Simulation() as sim:
        sim.run(main())


def test_watchers_are_told_once_that_the_disk_has_failed() -> None:
    disk, heard = SimDisk(), []

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            bookie.when_failed(heard.append)
            disk.sync_errno_once = errno.EIO
            for n in range(2):
                with pytest.raises(StorageError, match="has stopped"):
                    await append(bookie, 1, n, [b"x"])
            assert heard == [bookie.failed]

    with Simulation() as sim:
        sim.run(main())
