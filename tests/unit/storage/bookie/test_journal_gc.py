"""Segments go when nothing needs them, and what they knew stays known."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from dataclasses import replace

import pytest

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchLedgerError,
    StorageFullError,
)
from pulsark.storage.bookie.bookie import LedgerTail
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_format import GROUP_MAGIC
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import (
    JOURNAL_DIR,
    LEDGER_DIR,
    append,
    append_later,
    bookie_on,
    entries,
    open_bookie,
    segment_path,
)
from tests.sim.disk import SURVIVALS, SimDisk
from tests.sim.simulation import Simulation

SETTINGS = JournalSettings(journal_max_size=8192, checkpoint_bytes=1 << 30, compact_bytes=100)


def segments(disk: SimDisk) -> list[int]:
    names = disk.list(JOURNAL_DIR)
    return [int(name.split(".")[0], 16) for name in names if name.endswith(".journal")]


def test_a_segment_goes_with_its_last_ledger_and_fences_stay() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await bookie.tail(50, fence=True)
            await append(bookie, 51, 0, entries(0, 2), lac=0)
            await bookie.release(51, 1)
            for n in range(20):
                await append(bookie, n % 2, n, [b"x" * 1000])
            await asyncio.sleep(1)
            before = segments(disk)
            assert len(before) > 2
            await bookie.delete(0)
            await asyncio.sleep(1)
            assert set(segments(disk)) >= set(before)
            await bookie.delete(1)
            await asyncio.sleep(1)
            assert min(segments(disk)) >= before[-1]
        for _ in range(2):
            async with bookie_on(sim, disk, SETTINGS) as bookie:
                assert not bookie.recovery.damaged
                with pytest.raises(LedgerFencedError):
                    await append(bookie, 50, 0, [b"zombie"])
                with pytest.raises(EntrySealedError):
                    await bookie.read(51, 1, 1, 1)
                assert await bookie.tail(51, fence=False) == (await bookie.tail(51, fence=True))
                assert (await bookie.tail(51, fence=False)).last_confirmed == 0
                with pytest.raises(NoSuchLedgerError):
                    await bookie.read(1, 0, 99, 1)

    with Simulation() as sim:
        sim.run(main())


def test_live_remains_are_copied_forward() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await append(bookie, 7, 0, entries(0, 3), lac=-1)
            for n in range(9):
                await append(bookie, 8, n, [b"x" * 1000])
            await append(bookie, 7, 3, entries(3, 3), lac=2)
            assert segments(disk) == [1, 2]
            await bookie.delete(8)
            reads = [asyncio.ensure_future(bookie.read(7, 0, 9, 1 << 20)) for _ in range(5)]
            await asyncio.sleep(1)
            assert segments(disk) == [2]
            for answer in await asyncio.gather(*reads):
                assert answer == list(enumerate(entries(0, 6)))
            assert await bookie.read(7, 0, 9, 1 << 20) == list(enumerate(entries(0, 6)))
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert await bookie.read(7, 0, 9, 1 << 20) == list(enumerate(entries(0, 6)))
            assert (await bookie.tail(7, fence=False)).last_confirmed == 2

    with Simulation() as sim:
        sim.run(main())


MOMENTS = 20
"""Turns of the loop in which a segment is surely emptied and removed."""


async def one_segment_to_empty(bookie: EmbeddedBookie) -> None:
    """Ledger 7 has an entry beside much that goes; the second segment has no room for it."""
    await append(bookie, 7, 0, [b"x" * 1200])
    for n in range(5):
        await append(bookie, 8, n, [b"x" * 1000])
    await append(bookie, 9, 0, [b"x" * 7000])
    await append(bookie, 9, 1, [b"x" * 300])


@pytest.mark.parametrize("turns", range(MOMENTS))
def test_a_deletion_that_finds_no_room_while_it_is_copied_loses_nothing(turns: int) -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await one_segment_to_empty(bookie)
            await bookie.delete(8)
            for _ in range(turns):
                await asyncio.sleep(0)
            disk.capacity = disk.used()
            deleted = False
            with contextlib.suppress(StorageFullError):
                await bookie.delete(7)
                deleted = True
            disk.capacity = None
            await asyncio.sleep(1)
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert not bookie.recovery.damaged
            if not deleted:
                assert await bookie.read(7, 0, 0, 1) == [(0, b"x" * 1200)]

    with Simulation(turns, prompt=1) as sim:
        sim.run(main())


@pytest.mark.parametrize("turns", range(MOMENTS))
def test_a_read_that_meets_the_removal_of_a_segment_finds_the_copy(turns: int) -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await one_segment_to_empty(bookie)
            await bookie.delete(8)
            for _ in range(turns):
                await asyncio.sleep(0)
            before = [asyncio.ensure_future(bookie.read(9, 0, 0, 1)) for _ in range(20)]
            await asyncio.sleep(0)
            assert await bookie.read(7, 0, 0, 1) == [(0, b"x" * 1200)]
            await asyncio.gather(*before)
            assert segments(disk)[0] == 2

    with Simulation(turns, prompt=1) as sim:
        sim.run(main())


def test_a_segment_that_cannot_be_unlinked_goes_with_the_next_start() -> None:
    disk = SimDisk()
    settings = replace(SETTINGS, checkpoint_bytes=1)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            await one_segment_to_empty(bookie)
            disk.name_errno, disk.faulty = errno.EIO, segment_path(1)
            await bookie.delete(7)
            await bookie.delete(8)
            await asyncio.sleep(1)
            await append(bookie, 9, 2, [b"x"])
            await asyncio.sleep(1)
            assert segments(disk) == [1, 2]
            disk.name_errno = 0
        async with bookie_on(sim, disk, settings) as bookie:
            assert bookie.recovery.checkpoint == "used"
            assert not bookie.recovery.unknown_files
            assert segments(disk)[0] == 2

    with Simulation() as sim:
        sim.run(main())


def test_small_segments_full_of_live_entries_are_not_copied_in_circles() -> None:
    disk = SimDisk()
    settings = JournalSettings(journal_max_size=8192, compact_bytes=1 << 20)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            for n in range(40):
                await append(bookie, 7, n, [b"x" * 1000])
            await append(bookie, 8, 0, [b"x" * 1000])
            before = segments(disk)
            await bookie.delete(8)
            await asyncio.sleep(10)
            assert segments(disk)[:-1] == before[:-1]

    with Simulation() as sim:
        sim.run(main())


def test_a_corrupt_segment_is_kept_by_the_collector() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await append(bookie, 7, 0, entries(0, 1))
            flipped = disk.size(segment_path(1)) - 1
            for n in range(9):
                await append(bookie, 8, n, [b"x" * 1000])
            disk.flip(segment_path(1), flipped)
            await bookie.delete(8)
            await asyncio.sleep(1)
            assert segments(disk) == [1, 2]
            with pytest.raises(CorruptEntryError):
                await bookie.read(7, 0, 0, 1)
            await bookie.delete(7)
            await asyncio.sleep(1)

    with Simulation() as sim:
        sim.run(main())


def test_a_damaged_segment_outlives_all_ledgers_of_its_time() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            for n in range(4):
                await append(bookie, 1, n, entries(n, 1))
            await bookie.tail(2, fence=True)
        content = disk.content(segment_path(1))
        disk.flip(segment_path(1), content.index(GROUP_MAGIC, content.index(GROUP_MAGIC) + 1))
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert bookie.recovery.damaged
            await bookie.delete(1)
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(1, 0, 0, 1)
            await append(bookie, 3, 0, entries(0, 1))
            await asyncio.sleep(1)
            assert segments(disk) == [1, 2]
            await bookie.delete(2)
            await asyncio.sleep(1)
            assert segments(disk) == [2]
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert not bookie.recovery.damaged

    with Simulation() as sim:
        sim.run(main())


def test_a_copied_segment_restored_by_hand_is_left_alone() -> None:
    disk = SimDisk()
    settings = JournalSettings(journal_max_size=8192, checkpoint_bytes=1, compact_bytes=100)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            await append(bookie, 1, 0, [b"x" * 5000])
            old = disk.content(segment_path(1))
            await append(bookie, 2, 0, [b"x" * 5000])
            await bookie.delete(1)
            await asyncio.sleep(1)
            assert segments(disk) == [2]
        disk.edit(segment_path(1), old)
        async with bookie_on(sim, disk, settings) as bookie:
            assert bookie.recovery.unknown_files == ["0000000000000001.journal"]
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(1, 0, 0, 1)
        assert segments(disk)[0] == 1

    with Simulation() as sim:
        sim.run(main())


def test_checkpoints_come_while_the_bookie_works() -> None:
    disk = SimDisk()
    settings = JournalSettings(checkpoint_bytes=3000)

    async def main() -> None:
        bookie = await open_bookie(sim, disk, settings)
        for n in range(40):
            await append(bookie, n % 7, n, [b"x" * 200])
        await asyncio.sleep(1)
        assert f"{LEDGER_DIR}/index.checkpoint" in disk.files()
        survivor = disk.after_crash("none", sim.rng)
        async with bookie_on(sim, survivor, settings) as again:
            assert again.recovery.checkpoint == "used"
            assert again.recovery.bytes_read <= 2 * 3000
            for ledger_id in range(7):
                held = [e for e, _ in await again.read(ledger_id, 0, 99, 1 << 20)]
                assert held == list(range(ledger_id, 40, 7))

    with Simulation() as sim:
        sim.run(main())


def test_checkpoints_also_come_by_number_of_records() -> None:
    disk = SimDisk()
    settings = JournalSettings(checkpoint_records=10)

    async def main() -> None:
        async with bookie_on(sim, disk, settings) as bookie:
            for n in range(12):
                await append(bookie, 1, n, [b""])
            await asyncio.sleep(1)
            assert f"{LEDGER_DIR}/index.checkpoint" in disk.files()

    with Simulation() as sim:
        sim.run(main())


SECRET = b"a secret that is to go"


async def with_secrets(bookie: EmbeddedBookie) -> None:
    """Entries that are needed, and between them such as were released or deleted."""
    await append(bookie, 7, 0, entries(0, 2), lac=-1)
    await append(bookie, 8, 0, [SECRET], lac=-1)
    await append(bookie, 9, 0, [SECRET, b"stays"], lac=0)
    await bookie.tail(50, fence=True)
    await append(bookie, 7, 2, entries(2, 2), lac=1)
    await bookie.release(9, 0)
    await bookie.delete(8)


async def check_needed(bookie: EmbeddedBookie) -> None:
    assert await bookie.read(7, 0, 9, 1 << 20) == list(enumerate(entries(0, 4)))
    assert await bookie.read(9, 1, 1, 99) == [(1, b"stays")]
    assert (await bookie.tail(7, fence=False)).last_confirmed == 1
    with pytest.raises(EntrySealedError):
        await bookie.read(9, 0, 0, 99)
    with pytest.raises(NoSuchLedgerError):
        await bookie.read(8, 0, 0, 99)
    with pytest.raises(LedgerFencedError):
        await append(bookie, 50, 0, [b"zombie"])


def on_disk(disk: SimDisk, words: bytes) -> bool:
    return any(words in disk.content(path) for path in disk.files())


def test_recycling_leaves_no_byte_of_what_was_released_or_deleted() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert await bookie.recycle() == 0, "nothing was ever written"
            await append(bookie, 1, 0, [SECRET])
            await bookie.delete(1)
            assert await bookie.recycle() == 0
            assert not on_disk(disk, SECRET)
            await with_secrets(bookie)
            assert on_disk(disk, SECRET)
            writing = asyncio.ensure_future(append(bookie, 10, 0, entries(0, 3), lac=-1))
            assert await bookie.recycle() == 0
            await writing
            assert not on_disk(disk, SECRET)
            await check_needed(bookie)
            assert await bookie.read(10, 0, 9, 1 << 20) == list(enumerate(entries(0, 3)))
            assert await bookie.recycle() == 0
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            assert not bookie.recovery.damaged
            await check_needed(bookie)

    with Simulation() as sim:
        sim.run(main())


def test_recycling_says_what_it_cannot_empty() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await with_secrets(bookie)
            path = segment_path(1)
            place = disk.content(path).index(entries(2, 1)[0])
            disk.edit(path, disk.content(path)[:place] + b"\0" + disk.content(path)[place + 1 :])
            assert await bookie.recycle() == 1
            assert on_disk(disk, SECRET)

    with Simulation() as sim:
        sim.run(main())


def recycling_until(at: int) -> tuple[SimDisk, bool]:
    """A disk on which recycling crashed before its step ``at``; whether it got that far."""
    disk = SimDisk()

    async def main() -> None:
        bookie = await open_bookie(sim, disk, SETTINGS)
        await with_secrets(bookie)
        disk.crash_at = disk.steps + at
        await bookie.recycle()

    with Simulation() as sim:
        return disk, sim.run_until_crash(main())


def test_a_crash_while_recycling_loses_nothing() -> None:
    at = 1
    while True:
        disk, crashed = recycling_until(at)
        if not crashed:
            break
        for survival in SURVIVALS:
            after = disk.after_crash(survival, random.Random(at))

            async def recovered(after: SimDisk = after) -> None:
                async with bookie_on(sim, after, SETTINGS) as bookie:
                    await check_needed(bookie)
                    assert await bookie.recycle() == 0
                    assert not on_disk(after, SECRET)
                    await check_needed(bookie)

            with Simulation() as sim:
                sim.run(recovered())
        at += 1
    assert at > 8


def test_a_fence_or_a_release_of_a_deleted_ledger_leaves_nothing() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 7, 0, entries(0, 2))
            deleted = asyncio.ensure_future(bookie.delete(7))
            await asyncio.sleep(0)
            await bookie.tail(7, fence=True)
            await deleted
            assert await bookie.tail(7, fence=True) == LedgerTail(-1, -1)
            await bookie.release(7, 1)
            assert 7 not in bookie._index.ledgers
        async with bookie_on(sim, disk) as bookie:
            assert 7 not in bookie._index.ledgers
            assert 7 in bookie._index.tombstones
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(7, 0, 1, 1)
            with pytest.raises(NoSuchLedgerError):
                await append(bookie, 7, 2, [b"zombie"])

    with Simulation() as sim:
        sim.run(main())


def test_recycling_begins_a_segment_although_a_group_is_on_its_way() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            await append(bookie, 7, 0, entries(0, 2))
            on_its_way = append_later(bookie, 7, 2, entries(2, 1))
            bookie.flush()
            assert await bookie.recycle() == 0
            assert await on_its_way is None
            assert segments(disk) == [2]
            assert [e for e, _ in await bookie.read(7, 0, 9, 1 << 20)] == [0, 1, 2]

    with Simulation() as sim:
        sim.run(main())
