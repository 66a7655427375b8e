"""Entries are read where a journal has them, by somebody who has only the files."""

from __future__ import annotations

import asyncio
import json

import pytest

from pulsark.errors import UnreadableExcerptError
from pulsark.storage.bookie.bookie import Bookie
from pulsark.storage.bookie.journal_excerpt import EXCERPT_BYTES, JournalExcerpt
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import append, bookie_on, entries, segment_path
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

SETTINGS = JournalSettings(journal_max_size=8192, checkpoint_bytes=1 << 30, compact_bytes=100)


async def found(bookie: Bookie, ledger_id: int, first: int, last: int) -> JournalExcerpt:
    excerpt = await bookie.excerpt(ledger_id, first, last)
    assert excerpt is not None
    return JournalExcerpt.from_json(json.loads(json.dumps(excerpt.to_json())))


def test_an_excerpt_has_what_the_bookie_would_give() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            for n in range(0, 40, 4):
                await append(bookie, 7, n, entries(n, 4))
                await append(bookie, 8, n, [b"x" * 1500])
            for first, last in ((0, 39), (5, 5), (3, 22)):
                excerpt = await found(bookie, 7, first, last)
                assert excerpt.last == last
                assert list(excerpt.entries(disk)) == await bookie.read(7, first, last, 1 << 20)
            assert len((await found(bookie, 7, 0, 39)).epochs) > 1
            assert await bookie.excerpt(9, 0, 0) is None
            assert await bookie.excerpt(8, 1, 4) is None, "it begins with another entry"
            assert (await found(bookie, 8, 4, 20)).last == 4, "it has no gaps"
            await bookie.release(7, 3)
            assert await bookie.excerpt(7, 0, 9) is None
            assert next((await found(bookie, 7, 4, 9)).entries(disk)) == (4, b"entry-4")

    with Simulation() as sim:
        sim.run(main())


def test_an_excerpt_is_bounded() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk) as bookie:
            for n in range(12):
                await append(bookie, 7, n, [bytes(1 << 20)])
            excerpt = await found(bookie, 7, 0, 11)
            size = sum(len(entry) for _, entry in excerpt.entries(disk))
            assert EXCERPT_BYTES <= size <= EXCERPT_BYTES + (2 << 20)
            assert size <= excerpt.size < size + 1000

    with Simulation() as sim:
        sim.run(main())


def test_an_excerpt_that_is_no_longer_true_gives_nothing_wrong() -> None:
    disk = SimDisk()

    async def main() -> None:
        async with bookie_on(sim, disk, SETTINGS) as bookie:
            await append(bookie, 7, 0, entries(0, 3))
            for n in range(9):
                await append(bookie, 8, n, [b"x" * 1000])
            await append(bookie, 7, 3, entries(3, 3))
            before = await found(bookie, 7, 0, 5)
            await bookie.delete(8)
            await asyncio.sleep(1)
            with pytest.raises(UnreadableExcerptError, match="cannot be read"):
                list(before.entries(disk))
            after = await found(bookie, 7, 0, 5)
            assert list(after.entries(disk)) == list(enumerate(entries(0, 6)))
            segment_id = after.extents[0].segment_id
            extent = after.extents[0]
            elsewhere = JournalExcerpt(
                after.directory, 8, after.epochs, [extent._replace(offset=extent.offset + 1)]
            )
            with pytest.raises(UnreadableExcerptError, match="entry 8:0 is not where it was"):
                list(elsewhere.entries(disk))
            place = disk.content(segment_path(segment_id)).rindex(b"entry-1")
            disk.flip(segment_path(segment_id), place)
            reading = after.entries(disk)
            assert next(reading) == (0, b"entry-0")
            with pytest.raises(UnreadableExcerptError, match="entry 7:1 is not where it was"):
                next(reading)

    with Simulation() as sim:
        sim.run(main())
