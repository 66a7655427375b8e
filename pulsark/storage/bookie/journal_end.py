"""The end of a journal: the mark that goes with its next group, and the group that closes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.errors import StorageFullError
from pulsark.limits import JOURNAL_END_SECONDS, METADATA_MARK_SECONDS
from pulsark.storage.bookie.index import MARK_LEDGER
from pulsark.storage.bookie.journal import Journal, JournalRecord
from pulsark.storage.bookie.journal_format import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.bookie.index import BookieIndex


class JournalEnd:
    """The end of one bookie's journal."""

    def __init__(self, journal: Journal, index: BookieIndex) -> None:
        self._journal = journal
        self._index = index
        self._mark_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        """Whether the journal ends with a group that a reader could not miss if it rotted."""
        self._groups = 0
        """Groups written, to see whether there were more."""
        self.is_closing = False
        """Nothing begins any more."""

    def grew(self, group: Sequence[JournalRecord]) -> None:
        """A group is durable."""
        self._groups += 1
        self._is_open = any(record.ledger_id != MARK_LEDGER for record in group)
        if self._is_open and self._timer is None and not self.is_closing:
            self._watch()

    def stop(self) -> None:
        """Do nothing any more."""
        self.is_closing = True
        for timer in (self._mark_timer, self._timer):
            if timer is not None:
                timer.cancel()

    def note_mark(self, mark: int) -> None:
        """Keep a mark of the metadata store, ahead of everything that is asked for from now on.

        It goes with the next group of the journal, or alone if there is none for a while. So
        what the journal holds never comes from a later state of the metadata than its mark.
        """
        if self.is_closing:
            return
        record = JournalRecord(Kind.RELEASE, MARK_LEDGER, mark, -1, (), True, self._mark_answered)
        self._journal.ride(record)
        self._flush_mark_later()

    def _mark_answered(self, error: BaseException | None) -> None:
        """On a full disk it waits for the next group again, or for this time."""
        if isinstance(error, StorageFullError) and not self.is_closing:
            self._flush_mark_later()

    def _flush_mark_later(self) -> None:
        if self._mark_timer is None:
            loop = asyncio.get_running_loop()
            self._mark_timer = loop.call_later(METADATA_MARK_SECONDS, self.flush_mark)

    def flush_mark(self) -> None:
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        self._journal.flush_rider()

    def _look(self, groups: int) -> None:
        """Close the end if no group came since there were ``groups``."""
        self._timer = None
        if self._groups == groups:
            self.close()
        elif self._is_open and not self.is_closing:
            self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(JOURNAL_END_SECONDS, self._look, self._groups)

    def close(self) -> None:
        """Write a small group that says what is known, so that the last one has one behind it.

        If that rots, nothing is lost; and if the one before it rots, it is not a torn tail.
        """
        if self._is_open and self._journal.failed is None:
            mark = self._index.mark
            record = JournalRecord(
                Kind.RELEASE, MARK_LEDGER, mark, -1, (), True, lambda error: None
            )
            record.error = self._journal.refuses(record.size, True)
            self._journal.add(record)
