"""``BookKeeperBookie``: a bookie of Apache BookKeeper as ledgers see it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pulsark.errors import (
    BookieAwayError,
    CorruptEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.storage.bookie.bookie import LedgerTail, last_of
from pulsark.storage.bookkeeper.channel import refusal
from pulsark.storage.bookkeeper.limits import (
    GAP_ENTRIES_MAX,
    PENDING_BYTES_MAX,
    READ_BYTES_MAX,
    READS_MAX,
    ClientSettings,
)
from pulsark.storage.bookkeeper.link import Link
from pulsark.wire.bookkeeper.answers import Code
from pulsark.wire.bookkeeper.entries import StoredEntry, decode_entry
from pulsark.wire.bookkeeper.requests import (
    Flag,
    encode_batch_read,
    encode_fencing_read,
    encode_read,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from pulsark.runtime import Done
    from pulsark.storage.bookie.bookie import EntryRun
    from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
    from pulsark.storage.bookkeeper.channel import Channel
    from pulsark.storage.bookkeeper.encoder import LedgerKeys, RunEncoder
    from pulsark.storage.bookkeeper.link import Whereabouts
    from pulsark.wire.bookkeeper.answers import ReadAnswer

    T = TypeVar("T")

_LAST = -1
"""Instead of an entry: the last one that the bookie has."""
_BATCH_ENTRIES_MAX = 1 << 20


class BookKeeperBookie:
    """Implements ``bookie.Bookie`` over two connections, one for adds and fences, one for reads.

    Calls of *one ledger* complete in order. It stands for one instance of the bookie: one that was
    formatted anew and has the same name is another one, which knows of no fence.

    What bookies of BookKeeper do not have: ``release`` and ``delete`` do nothing, because space is
    freed some time after a ledger's metadata are deleted, and ``recycle`` can free nothing.
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        keys: LedgerKeys,
        encoder: RunEncoder,
        settings: ClientSettings | None = None,
    ) -> None:
        """Nothing is connected before ``open``. Bookies of a cluster share the encoder."""
        self._whereabouts = whereabouts
        self._bookie_id = whereabouts.bookie_id
        self._keys = keys
        self._encoder = encoder
        self._settings = settings or ClientSettings()
        self._adds = Link(whereabouts, self._settings)
        self._reads = Link(whereabouts, self._settings)
        self._asking = asyncio.Semaphore(READS_MAX)

    def open(self) -> None:
        """Start connecting."""
        self._adds.open()
        self._reads.open()

    async def close(self) -> None:
        """Disconnect."""
        await self._adds.close()
        await self._reads.close()

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    def is_of(self, whereabouts: Whereabouts) -> bool:
        """Whether it stands for this instance."""
        return self._whereabouts is whereabouts

    @property
    def pending_bytes(self) -> int:
        """Bytes of adds that are not durable yet."""
        channel = self._adds.channel
        return 0 if channel is None else channel.pending_bytes

    # The contract.

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        # A bookie that is read-only takes a recovery only with high priority.
        flags = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY if recovery else 0
        if reserve:
            flags |= Flag.HIGH_PRIORITY
        channel = self._adds.channel
        error: StorageError
        if channel is None:
            error = BookieAwayError(f"bookie {self._bookie_id} is away")
        elif channel.pending_bytes > PENDING_BYTES_MAX:
            error = StorageError(
                f"bookie {self._bookie_id} is too slow: {channel.pending_bytes} bytes wait for it"
            )
            # Earlier appends are under way, and must be answered before this one.
            channel.fail(error)
        else:
            parts = self._encoder.encode(run, flags)
            largest = max(part.frames.largest for part in parts)
            if largest <= self._settings.frame_bytes_max:
                if len(parts) > 1:
                    done = last_of(len(parts), done)
                for part in parts:
                    channel.add(run.ledger_id, part.first, part.entries, part.frames, done)
                return
            error = StorageError(
                f"an entry needs {largest} bytes; {self._settings.frame_bytes_max} are allowed by"
                f" bookie {self._bookie_id}"
            )
        asyncio.get_running_loop().call_soon(done, error)

    @property
    def is_away(self) -> bool:
        return self._adds.channel is None

    async def ready(self) -> None:
        await self._adds.ready(self._settings.away_seconds)

    def flush(self) -> None:
        if self._adds.channel is not None:
            self._adds.channel.flush()

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        if last_entry_id <= first_entry_id or max_bytes <= 1:
            entry = await self._entry(ledger_id, first_entry_id)
            return [(entry.entry_id, entry.payload)]
        try:
            return await self._batch(ledger_id, first_entry_id, last_entry_id, max_bytes)
        except NoSuchEntryError:
            found = []
            with suppress(StorageError):  # that of a later entry: the first one is absent
                found = await self._behind_gap(ledger_id, first_entry_id, last_entry_id)
            if not found:
                raise
            return found

    async def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        return None

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        key = self._keys.of(ledger_id)
        if fence:
            # By the other connection than plain reads of the same: answers do not tell them apart.
            request, link = encode_fencing_read(ledger_id, _LAST, key), self._adds
        else:
            request, link = encode_read(ledger_id, _LAST), self._reads
        if self._adds.channel is not None:
            # A bookie may answer before it has stored what it was sent before.
            await self._adds.channel.drained(ledger_id)
        answer = await self._ask(link, lambda c: c.read(ledger_id, _LAST, request))
        if answer.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return LedgerTail(-1, -1)
        last = self._decoded(answer)
        length = -1
        if 0 <= last.last_confirmed == last.entry_id - 1:
            length = last.length - len(last.payload)
        elif last.last_confirmed >= 0:
            try:
                length = (await self._entry(ledger_id, last.last_confirmed)).length
            except StorageError:
                length = -1  # it is not here, or not whole: the length is not known
        return LedgerTail(last.last_confirmed, last.entry_id, length, last.payload)

    async def length_through(self, ledger_id: int, entry_id: int) -> int:
        """Bytes of all entries up to this one."""
        return (await self._entry(ledger_id, entry_id)).length

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        """Nothing: a bookie keeps all of a ledger or nothing."""

    async def recycle(self) -> int:
        """Free nothing: what there is stays until the bookie's own compaction."""
        return 1

    async def delete(self, ledger_id: int) -> None:
        """Nothing: a bookie forgets a ledger whose metadata are gone."""

    # Reads.

    async def _entry(self, ledger_id: int, entry_id: int) -> StoredEntry:
        request = encode_read(ledger_id, entry_id)
        answer = await self._ask(self._reads, lambda c: c.read(ledger_id, entry_id, request))
        self._check(answer.code, ledger_id, entry_id)
        return self._decoded(answer)

    async def _batch(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        count = min(last - first + 1, _BATCH_ENTRIES_MAX)
        size = min(max_bytes, READ_BYTES_MAX)
        answer = await self._ask(
            self._reads,
            lambda c: c.read_batch(
                lambda number: encode_batch_read(ledger_id, first, number, count, size)
            ),
        )
        self._check(answer.code, ledger_id, first)
        if not answer.stored or (answer.ledger_id, answer.first) != (ledger_id, first):
            raise StorageError(f"bookie {self._bookie_id} gave no entries for {ledger_id}:{first}")
        return self._checked(ledger_id, first, answer.stored[:count])

    def _checked(
        self, ledger_id: int, first: int, stored: Sequence[bytes]
    ) -> list[tuple[int, bytes]]:
        """The entries up to the first that cannot be trusted; its error if it is the first."""
        key = self._keys.of(ledger_id)
        entries: list[tuple[int, bytes]] = []
        for entry_id, each in enumerate(stored, first):
            try:
                entries.append((entry_id, decode_entry(each, ledger_id, entry_id, key).payload))
            except CorruptEntryError as e:
                if not entries:
                    raise CorruptEntryError(f"bookie {self._bookie_id}: {e}") from None
                break
        return entries

    async def _behind_gap(self, ledger_id: int, first: int, last: int) -> list[tuple[int, bytes]]:
        """An entry after ``first``, which is absent: with striping a bookie lacks some of each."""
        last = min(last, (await self.tail(ledger_id, fence=False)).last_entry_id)
        for entry_id in range(first + 1, min(last, first + GAP_ENTRIES_MAX) + 1):
            try:
                entry = await self._entry(ledger_id, entry_id)
            except NoSuchEntryError:
                continue
            return [(entry_id, entry.payload)]
        return []

    def _decoded(self, answer: ReadAnswer) -> StoredEntry:
        self._check(answer.code, answer.ledger_id, answer.entry_id)
        key = self._keys.of(answer.ledger_id)
        try:
            return decode_entry(answer.stored, answer.ledger_id, answer.entry_id, key)
        except CorruptEntryError as e:
            raise CorruptEntryError(f"bookie {self._bookie_id}: {e}") from None

    def _check(self, code: int, ledger_id: int, entry_id: int) -> None:
        if code == Code.OK:
            return
        if code == Code.NO_LEDGER:
            raise NoSuchLedgerError(f"bookie {self._bookie_id} has no ledger {ledger_id}")
        if code == Code.NO_ENTRY:
            raise NoSuchEntryError(f"bookie {self._bookie_id} has no entry {ledger_id}:{entry_id}")
        raise refusal(self._bookie_id, f"to read {ledger_id}:{entry_id}", code)

    async def _ask(self, link: Link, call: Callable[[Channel], Awaitable[T]]) -> T:
        """Ask, and once more if the connection ends before the answer.

        Others have copies, so a bookie that is away is not waited for long.
        """
        for attempt in range(2):
            channel = await link.ready(self._settings.connect_seconds)
            async with self._asking:
                try:
                    return await call(channel)
                except BookieAwayError:
                    if attempt:
                        raise
        raise AssertionError("not reached")
