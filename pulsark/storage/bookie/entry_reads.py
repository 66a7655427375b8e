"""Reads of a bookie: where entries are, and why they are not there.

What is in doubt is an error, never an absence: another bookie may have a copy.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.runtime import Runtime, run_in_worker
from pulsark.storage.bookie.journal_excerpt import EXCERPT_BYTES, JournalExcerpt
from pulsark.storage.bookie.segment_reader import EntryRead, read_entries
from pulsark.storage.bookie.segment_window import SegmentFiles

if TYPE_CHECKING:
    from pulsark.storage.bookie.index import BookieIndex, Extent


class EntryReads:
    """The reads of one bookie. ``worker`` is the thread that reads."""

    def __init__(
        self, bookie_id: str, journal_dir: str, index: BookieIndex, runtime: Runtime
    ) -> None:
        self._bookie_id = bookie_id
        self._journal_dir = journal_dir
        self._index = index
        self._files = SegmentFiles(runtime.disk, journal_dir)
        self.worker = runtime.new_worker("bookie-read")
        self.is_closed = False
        """Nothing is read any more."""

    async def forget(self, segment_id: int) -> None:
        """A segment's file is unlinked: no reader keeps it open."""
        await run_in_worker(self.worker, lambda: self._files.drop(segment_id))

    def close(self) -> None:
        """End the thread, and close files."""
        self.is_closed = True
        self.worker.close()
        self._files.close()

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        if self.is_closed:
            raise StorageError(f"bookie {self._bookie_id} is closed")
        for attempt in range(2):
            extents = self._look_up(ledger_id, first_entry_id, last_entry_id, max_bytes)
            epochs = self._index.epochs(extents)
            job = partial(read_entries, self._files, epochs, ledger_id, extents, max_bytes)
            try:
                result = await run_in_worker(self.worker, job)
            except FileNotFoundError:
                # The segment was collected since the look-up; its entries live elsewhere now.
                if attempt:
                    raise CorruptEntryError(
                        f"entry {ledger_id}:{first_entry_id} is in a segment that is missing"
                    ) from None
                continue
            except OSError as e:
                raise StorageError(f"ledger {ledger_id} cannot be read: {e}") from e
            return self._answer(ledger_id, first_entry_id, result)
        raise AssertionError("unreachable")

    def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        try:
            found = self._look_up(ledger_id, first, last, EXCERPT_BYTES)
        except StorageError:
            return None
        run: list[Extent] = []
        for extent in found:
            if extent.first != first:
                break
            run.append(extent)
            first = extent.last + 1
        if not run:
            return None
        directory = os.path.abspath(self._journal_dir)
        return JournalExcerpt(directory, ledger_id, self._index.epochs(run), run)

    def _look_up(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Extent]:
        """The extents to read, or the reason why there are none."""
        state = self._index.ledgers.get(ledger_id)
        if state is None:
            if ledger_id not in self._index.tombstones:
                self._check_doubt(ledger_id, first)
            raise NoSuchLedgerError(f"ledger {ledger_id} is not on bookie {self._bookie_id}")
        if first <= state.released:
            raise EntrySealedError(
                f"entry {ledger_id}:{first} was released; so were all to {state.released}"
            )
        extents: list[Extent] = []
        size, expected = 0, first
        in_doubt = self._index.in_doubt(ledger_id)
        for extent in self._index.locate(ledger_id, first, last):
            if in_doubt and extent.first != expected:
                break  # what is missing in between may have been lost
            extents.append(extent)
            expected = extent.last + 1
            size += extent.size
            if size >= max_bytes + extent.size:
                break
        if not extents:
            self._check_doubt(ledger_id, first)
            raise NoSuchEntryError(
                f"ledger {ledger_id} has no entries in [{first}, {last}] on {self._bookie_id}"
            )
        return extents

    def _check_doubt(self, ledger_id: int, entry_id: int) -> None:
        if self._index.in_doubt(ledger_id):
            raise CorruptEntryError(
                f"entry {ledger_id}:{entry_id} may have been in a damaged part of the journal; "
                "stop this process, and pulsark doctor --data-dir DIR says how to go on"
            )

    def _answer(self, ledger_id: int, first: int, result: EntryRead) -> list[tuple[int, bytes]]:
        if not result.entries:
            raise CorruptEntryError(
                f"entry {ledger_id}:{result.corrupt if result.corrupt is not None else first} "
                f"fails its checksum on {self._bookie_id}"
            )
        return result.entries
