"""``RemoteBookie``: a broker's view of a bookie in another process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import BookieAwayError, ProtocolError, StorageError
from pulsark.storage.bookie.bookie import last_of
from pulsark.storage.bookie.journal_format import TABLE_ENTRY, Kind, encode_record
from pulsark.storage.remote_bookie.limits import (
    BOOKIE_MEMORY_BYTES_MAX,
    BOOKIE_PENDING_BYTES_MAX,
    BOOKIE_RUN_BYTES_MAX,
)
from pulsark.storage.remote_bookie.link import Link
from pulsark.storage.remote_bookie.messages import (
    Hello,
    decode_entries,
    decode_excerpt,
    decode_ledger,
    decode_tail,
    encode_ledger,
    encode_range,
    encode_release,
)
from pulsark.storage.remote_bookie.protocol import Flag, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Done
    from pulsark.storage.bookie.bookie import EntryRun, LedgerTail
    from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
    from pulsark.storage.remote_bookie.channel import Channel
    from pulsark.storage.remote_bookie.link import Connect

    T = TypeVar("T")


class RemoteBookie:
    """Implements ``bookie.Bookie``. Create one with ``connect``.

    While the bookie is absent, an append fails at once: if it waited and a later one succeeded
    first, the ledger would have a hole. Other requests are idempotent and are retried for a while.
    """

    def __init__(self, hello: Hello, writes: Link, reads: Link, seconds: float) -> None:
        self._hello = hello
        self._writes = writes
        self._reads = reads
        self._seconds = seconds
        self._mark = -1
        self._store: MetadataStore | None = None
        writes.opened = self._tell_mark

    @classmethod
    async def connect(
        cls, connect: Connect, expected: Hello, *, seconds: float = 30.0
    ) -> RemoteBookie:
        """Connect, and accept only the instance found now; ``StorageError`` if there is none.

        ``seconds``: the longest time to wait for an answer.
        """
        first = Link(connect, expected, seconds)
        first.open()
        try:
            hello = (await first.ready(seconds)).greeted.result()
        finally:
            await first.close()
        exactly = replace(hello, bodyBytesMax=0)
        writes = Link(connect, exactly, seconds, BOOKIE_MEMORY_BYTES_MAX)
        reads = Link(connect, exactly, seconds)
        bookie = cls(hello, writes, reads, seconds)
        writes.open()
        reads.open()
        try:
            await writes.ready(seconds)
            await reads.ready(seconds)
        except BaseException:
            await bookie.close()
            raise
        return bookie

    async def close(self) -> None:
        """Disconnect; the bookie goes on."""
        await self._writes.close()
        await self._reads.close()

    @property
    def bookie_id(self) -> str:
        return self._hello.bookieId

    @property
    def instance_id(self) -> bytes:
        """The instance that ``connect`` found. Another one of its name is never written to."""
        return bytes.fromhex(self._hello.instanceId)

    @property
    def pending_bytes(self) -> int:
        """Bytes sent or queued that are not durable yet."""
        channel = self._writes.channel
        return 0 if channel is None else channel.pending_bytes

    def follow(self, store: MetadataStore) -> None:
        """Send the marks of a metadata store to the bookie.

        A mark is sent before any request made after this process knows of the change. If another
        process made the change, it is sent before any request that cannot be undone.
        """
        self._store = store
        store.on_commit(self.note_mark)
        self.note_mark(store.mark)

    def note_mark(self, mark: int) -> None:
        """As in ``EmbeddedBookie``: send a mark before any later request."""
        if mark <= self._mark:
            return
        self._mark = mark
        if self._writes.channel is not None:
            self._tell_mark(self._writes.channel)

    def _note_mark_of_store(self) -> None:
        if self._store is not None:
            self.note_mark(self._store.mark)

    def _tell_mark(self, channel: Channel) -> None:
        if self._mark >= 0:
            channel.tell(FrameType.MARK, encode_ledger(self._mark))

    # The contract.

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        parts = _parts(run, BOOKIE_RUN_BYTES_MAX)
        if len(parts) > 1:
            done = last_of(len(parts), done)
        flags = (Flag.RECOVERY if recovery else 0) | (Flag.RESERVE if reserve else 0)
        for part in parts:
            self._append(part, flags, done)

    def _append(self, run: EntryRun, flags: int, done: Done) -> None:
        meta, size = encode_record(
            Kind.ENTRIES,
            run.ledger_id,
            run.first_entry_id,
            run.last_confirmed,
            run.payloads,
            run.confirmed_bytes,
        )
        channel = self._writes.channel
        error: StorageError
        if channel is None:
            error = BookieAwayError(f"bookie {self.bookie_id} is away")
        elif size > self._hello.bodyBytesMax:
            error = StorageError(f"an entry of {size} bytes is too large for {self.bookie_id}")
        elif channel.pending_bytes > BOOKIE_PENDING_BYTES_MAX:
            error = StorageError(
                f"bookie {self.bookie_id} is too slow: {channel.pending_bytes} bytes wait for it"
            )
            # Earlier appends are under way, and must be answered before this one.
            channel.fail(error)
        else:
            channel.add(meta, run.payloads, size, flags, done)
            return
        asyncio.get_running_loop().call_soon(done, error)

    @property
    def is_away(self) -> bool:
        return self._writes.channel is None

    async def ready(self) -> None:
        await self._writes.ready(self._seconds)

    def flush(self) -> None:
        if self._writes.channel is not None:
            self._writes.channel.flush()

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        body = encode_range(ledger_id, first_entry_id, last_entry_id, max_bytes)
        return await self._ask(self._reads, FrameType.READ, body, decode_entries)

    async def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        body = encode_range(ledger_id, first, last)
        try:
            return await self._ask(self._reads, FrameType.EXCERPT, body, decode_excerpt)
        except StorageError:
            return None

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        # Over the connection of appends, so that it sees all earlier ones.
        flags = Flag.FENCE if fence else 0
        body = encode_ledger(ledger_id)
        return await self._ask(self._writes, FrameType.TAIL, body, decode_tail, flags)

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        self._note_mark_of_store()
        body = encode_release(ledger_id, through_entry_id)
        await self._ask(self._writes, FrameType.RELEASE, body, bytes)

    async def recycle(self) -> int:
        return await self._ask(self._writes, FrameType.RECYCLE, b"", decode_ledger)

    async def delete(self, ledger_id: int) -> None:
        self._note_mark_of_store()
        await self._ask(self._writes, FrameType.DELETE, encode_ledger(ledger_id), bytes)

    async def _ask(
        self, link: Link, kind: FrameType, body: bytes, decode: Callable[[bytes], T], flags: int = 0
    ) -> T:
        """Repeat a request until it is answered, over a new connection if one breaks."""
        until = asyncio.get_running_loop().time() + self._seconds
        try:
            while True:
                channel = link.channel
                if channel is None or channel.error is not None:
                    async with asyncio.timeout_at(until):
                        channel = await link.ready(self._seconds)
                try:
                    return decode(await channel.call(kind, body, flags, until))
                except ProtocolError as e:
                    channel.fail(StorageError(f"bookie {self.bookie_id}: {e}"))
                    raise StorageError(f"bookie {self.bookie_id}: {e}") from e
                except StorageError:
                    if channel.error is None or link.is_closed:
                        raise  # it is the answer
        except TimeoutError:
            raise StorageError(
                f"bookie {self.bookie_id} did not answer for {self._seconds:g} s"
            ) from None


def _parts(run: EntryRun, bytes_max: int) -> list[EntryRun]:
    """Cut a run into parts of at most about ``bytes_max``, each with at least one entry."""
    if sum(map(len, run.payloads)) + TABLE_ENTRY * len(run.payloads) <= bytes_max:
        return [run]
    parts: list[EntryRun] = []
    start = size = before = skipped = 0
    for i, payload in enumerate(run.payloads):
        more = len(payload) + TABLE_ENTRY
        if i > start and size + more > bytes_max:
            parts.append(run.part(start, i, skipped))
            start, size, skipped = i, 0, before
        size += more
        before += len(payload)
    parts.append(run.part(start, len(run.payloads), skipped))
    return parts
