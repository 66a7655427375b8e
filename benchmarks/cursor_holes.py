"""A cursor with millions of holes, stored for real: ``python -m benchmarks.cursor_holes``.

    python -m benchmarks.cursor_holes [--holes MILLIONS] [--only PATTERN] [--dir DIR] [--check]

Entries of a topic are acknowledged one by one, so that the acknowledged ones and those that are
not alternate, until there are so many holes. Then acknowledgements go on among them, a quarter
of them of single messages in batches; then the process "restarts": the log is read, the cursor
loaded, and a succession writes it whole into a new ledger. All through the cursor, its log, ledgers
and an embedded bookie that syncs. A heartbeat on the event loop notes the longest pause.

``--check`` exits 1 if the stored cursor is not below 8 MiB or fewer than 20,000 acks are done a
second, with five million holes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import numpy as np
import uvloop

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Runtime, collect_rarely, hand_over_promptly
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.cursor.bundle_record import BundleState
from pulsark.storage.cursor.cursor import Ack, Cursor
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.wire.position import EARLIEST, Position

MIB = 1 << 20
MAX_DURABLE_BYTES = 8 * MIB
MIN_ACKS_PER_SECOND = 20_000

BUNDLE = "public/default/0x00000000_0xffffffff"
LEDGER_ENTRIES = 50_000
BATCH_MESSAGES = 100
ACKS_A_TURN = 200
"""As many ACK commands as one read of a socket brings."""
TURNS_UNANSWERED = 8
MORE_ACKS = 400_000
EVERY_BATCH_INDEX = 4


@dataclass(frozen=True)
class Pattern:
    """``places`` are the numbers of the entries to acknowledge, in this order."""

    name: str
    entries_a_hole: int
    places: Callable[[int, np.random.Generator], np.ndarray]


def _random_places(holes: int, entries_a_hole: int, rng: np.random.Generator) -> np.ndarray:
    """So many different ones, in random order; never the first."""
    places = 1 + np.arange(holes) * entries_a_hole
    places += rng.integers(0, entries_a_hole - 1, holes, endpoint=True)
    rng.shuffle(places)
    return places


PATTERNS = (
    Pattern("every second entry, in order", 2, lambda n, rng: 1 + 2 * np.arange(n)),
    Pattern("half of the entries, at random", 2, lambda n, rng: 1 + rng.permutation(2 * n - 1)[:n]),
    Pattern("one entry of 16, at random", 16, lambda n, rng: _random_places(n, 16, rng)),
    Pattern("one entry of 100, at random", 100, lambda n, rng: _random_places(n, 100, rng)),
)


class Topic:
    """The ledgers of a topic that has only their sizes."""

    def __init__(self, entries: int) -> None:
        count = -(-entries // LEDGER_ENTRIES) + 1
        self._list = LedgerList(LedgerInfo(i, LEDGER_ENTRIES, 0, 0) for i in range(count))

    @property
    def last_confirmed(self) -> Position:
        return self._list.last()

    def next_position(self, position: Position) -> Position:
        return self._list.after(position)

    def entries_between(self, after: Position, last: Position) -> int:
        return self._list.between(after, last)


class Heartbeat:
    """Knows the longest time in which the event loop did not come round."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._beat()

    def _beat(self) -> None:
        now = time.perf_counter()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._timer = self._loop.call_later(0.001, self._beat)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Print how long something took, and the longest pause within it."""
        self.longest, self._last = 0.0, time.perf_counter()
        start, cpu = self._last, time.process_time()
        yield
        now = time.perf_counter()
        self.longest = max(self.longest, now - self._last)
        seconds = now - start
        cpu = time.process_time() - cpu
        pause = 1000 * self.longest
        print(f"  {what:34s} {seconds:7.2f} s, {cpu:6.2f} s CPU, longest pause {pause:6.1f} ms")

    def stop(self) -> None:
        self._timer.cancel()


async def acknowledge(cursor: Cursor, acks: Sequence[Ack]) -> None:
    """One call an ack, ``ACKS_A_TURN`` of them a turn, the last of which asks for a receipt."""
    slots = asyncio.Semaphore(TURNS_UNANSWERED)

    def done(error: BaseException | None) -> None:
        if error is not None:
            raise error
        slots.release()

    for start in range(0, len(acks), ACKS_A_TURN):
        await slots.acquire()
        turn = acks[start : start + ACKS_A_TURN]
        for ack in turn[:-1]:
            cursor.ack((ack,))
        cursor.ack(turn[-1:], done)
        await asyncio.sleep(0)
    for _ in range(TURNS_UNANSWERED):
        await slots.acquire()


async def acknowledge_unanswered(cursor: Cursor, acks: Sequence[Ack]) -> None:
    """The same without receipts."""
    for start in range(0, len(acks), ACKS_A_TURN):
        for ack in acks[start : start + ACKS_A_TURN]:
            cursor.ack((ack,))
        await asyncio.sleep(0)


def position_of(place: int) -> Position:
    return Position(place // LEDGER_ENTRIES, place % LEDGER_ENTRIES)


def more_acks(entries: int, rng: random.Random) -> list[Ack]:
    """Acknowledgements anywhere, every fourth of one message in a batch."""
    acks: list[Ack] = []
    for number in range(MORE_ACKS):
        position = position_of(rng.randrange(1, entries))
        if number % EVERY_BATCH_INDEX:
            acks.append((position, None, BATCH_MESSAGES))
        else:
            left = ((1 << BATCH_MESSAGES) - 1) ^ (1 << rng.randrange(BATCH_MESSAGES))
            words = [left & (2**64 - 1), left >> 64]
            acks.append((position, [w - 2**64 if w >> 63 else w for w in words], BATCH_MESSAGES))
    return acks


class Storage:
    """One process: a bookie in a directory, and the metadata beside it."""

    def __init__(self, bookie: EmbeddedBookie, tree: MemoryTree, runtime: Runtime) -> None:
        self._metadata = MemoryMetadataStore(tree)
        self._runtime = runtime
        self._manager = LedgerManager(self._metadata, {"b1": bookie}, runtime)

    async def open(self) -> CursorLog:
        return await CursorLog.open(
            BUNDLE, self._manager, self._metadata, CursorLogConfig(), self._runtime
        )

    async def durable_bytes(self) -> int:
        """Bytes of all entries of the ledger that holds the cursors."""
        record = await self._metadata.get(f"/cursors/{BUNDLE}")
        assert record is not None
        ledger_id = BundleState.from_json(record.value).ledger_id
        assert ledger_id is not None
        total = position = 0
        last = (await self._manager.recover(ledger_id)).last_entry_id
        while position <= last:
            entries = await self._manager.read(ledger_id, position, last, 4 * MIB)
            total += sum(len(entry) for _, entry in entries)
            position = entries[-1][0] + 1
        return total


@asynccontextmanager
async def opened(directory: str, tree: MemoryTree, runtime: Runtime) -> AsyncIterator[Storage]:
    bookie = await EmbeddedBookie.open(
        "b1", f"{directory}/journal", f"{directory}/ledger", JournalSettings(), runtime
    )
    try:
        yield Storage(bookie, tree, runtime)
    finally:
        await bookie.close()


async def timed(work: Awaitable[None]) -> float:
    """Seconds that it took."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(pattern: Pattern, holes: int, directory: str) -> tuple[int, float]:
    """Bytes of the stored cursor, and acks a second among its holes."""
    runtime, tree = Runtime(), MemoryTree()
    entries = holes * pattern.entries_a_hole
    topic = Topic(entries)
    places = pattern.places(holes, np.random.default_rng(1))
    heart = Heartbeat()
    print(f"{pattern.name}: {holes:,} holes, {entries:,} entries")
    async with opened(directory, tree, runtime) as storage:
        log = await storage.open()
        cursor = await log.create("t", "s", EARLIEST, {}, topic)
        acks = more_acks(entries, random.Random(1))
        collect_rarely()
        with heart.during(f"{holes:,} acks to get there"):
            for part in np.array_split(places, max(1, holes // 5_000)):
                where = [position_of(place) for place in part.tolist()]
                await acknowledge_unanswered(cursor, [(position, None, None) for position in where])
        half = len(acks) // 2
        with heart.during(f"{half:,} acks more"):
            acks_per_second = half / await timed(acknowledge(cursor, acks[:half]))
        with heart.during(f"{half:,} acks without receipts"):
            unanswered_per_second = half / await timed(acknowledge_unanswered(cursor, acks[half:]))
        known = (cursor.mark_delete, cursor.state.count, len(cursor.state.masks))
        with heart.during("close"):
            await log.close()
        print(f"  the log at its end {await storage.durable_bytes() / MIB:.2f} MiB")
    del cursor, log
    async with opened(directory, tree, runtime) as storage:
        with heart.during("restart: the log is read"):
            log = await storage.open()
        with heart.during("restart: the cursor is loaded"):
            cursor = log.cursors("t", topic)["s"]
        assert known == (cursor.mark_delete, cursor.state.count, len(cursor.state.masks))
        with heart.during("restart: succession and first ack"):
            await acknowledge(cursor, [(position_of(2), None, None)])
        await log.close()
        durable = await storage.durable_bytes()
    heart.stop()
    print(f"  stored {durable / MIB:.2f} MiB, {8 * durable / holes:.2f} bits a hole")
    print(f"  {acks_per_second:,.0f} acks a second, without receipts {unanswered_per_second:,.0f}")
    print(f"  peak memory of all so far {peak_mib():,.0f} MiB")
    return durable, min(acks_per_second, unanswered_per_second)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holes", type=float, default=5, help="millions of them (default: 5)")
    parser.add_argument("--only", default="", help="patterns with this in their name")
    parser.add_argument("--dir", help="where to write (default: a temporary directory)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is missed")
    options = parser.parse_args()
    hand_over_promptly()
    missed = False
    for pattern in PATTERNS:
        if options.only in pattern.name:
            with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
                holes = int(options.holes * 1e6)
                durable, rate = uvloop.run(measure(pattern, holes, scratch))
            missed |= durable >= MAX_DURABLE_BYTES or rate < MIN_ACKS_PER_SECOND
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
