"""Erasing messages of a topic: from its table, its compacted form, the journal and memory.

The one exception to "one payload for an id, for ever". Entries keep their ids; what is left of
them is decided in ``storage.managed_ledger.erasure``. Everything is sealed first, so that the
table has all there is; then the files with messages to be erased are written anew, and one attach
puts them in the place of the old ones. That is the moment of truth; a crash before it changes
nothing, and after it consumers find the holes by themselves. ``finish`` sees to what still has the
bytes.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.model.erased_entries import ack_of
from pulsark.errors import StorageError
from pulsark.runtime import run_in_worker
from pulsark.storage.managed_ledger.erasure import ErasedIds, Indexes, count, without
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.cursor import Ack
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.process.process import Entries

log = logging.getLogger(__name__)

FILES_A_TIME = 50
"""Files that one attach replaces."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What one call did. ``missing`` ids are of ledgers that the topic does not have (any more),
    nor had its compacted form them."""

    ids: int
    entries: int
    files: int
    missing: int


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Where bytes of erased messages may still be. The files of older versions of the table may
    be read until ``until_ms``, and are deleted when the table is tidied after it."""

    old_files: int
    until_ms: int
    deleted_files: int
    journal_segments: int
    consumers: int
    """Connected ones; what they have received is theirs."""
    roots_away: tuple[str, ...]
    """Storage roots that could not be reached: they keep their files until they are back."""
    bookies_away: tuple[str, ...]
    """Bookies that could not be told: their journals keep the bytes, which are not read any more,
    until they are back."""


class Erasure:
    """Erases messages of a broker's topics."""

    def __init__(
        self, settings: Settings, runtime: Runtime, ledgers: LedgerManager, sealing: Sealing
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._ledgers = ledgers
        self._sealing = sealing

    async def erase(self, topics: Sequence[Topic], ids: ErasedIds) -> Erased:
        """Erase messages of one topic; ``topics`` are all its partitions.

        Nothing has happened, or part of it, if this raises ``StorageError`` or ``MetadataError``;
        done again it does what is left.
        """
        base = topics[0].name.base
        await self._sealing.seal(base, list(topics), everything=True)
        worker = self._runtime.new_worker("erasure")
        try:
            async with AsyncExitStack() as stack:
                compacted: set[Position] = set()
                for topic in topics:
                    await stack.enter_async_context(topic.compactor.stopped())
                    # First, because what is found again after a crash is found in the table.
                    compacted |= await topic.compactor.erase(ids)
                await stack.enter_async_context(self._sealing.topic_tables.exclusively(base))
                rewriting = _Rewriting(
                    self._sealing, topics, compacted, partial(run_in_worker, worker)
                )
                for ledger_id in sorted(ids):
                    await rewriting.ledger(ledger_id, ids[ledger_id])
            return Erased(*count(ids), rewriting.files, rewriting.missing)
        finally:
            worker.close()

    async def finish(self, topics: Sequence[Topic], vacuum_hours: float | None) -> Leftovers:
        """Get rid of what is not part of the topic any more: caches, journal segments, old files.

        ``vacuum_hours`` is for how long readers of older versions are spared, by default as long as
        ``tableVacuumRetentionHours`` says.
        """
        base = topics[0].name.base
        for topic in topics:
            _forget_content(topic)
        await self._sealing.tables.forget_content()
        segments, bookies_away = await self._ledgers.recycle()
        hours = self._settings.tableVacuumRetentionHours if vacuum_hours is None else vacuum_hours
        retention_ms = int(hours * 3_600_000)
        table_id = await self._sealing.topic_tables.id_for(topics[0])
        deleted = 0
        async with self._sealing.topic_tables.exclusively(base):
            for sealed in await self._sealing.tables.ledgers(base):
                before_ms = self._runtime.sure_clock.now_ms() - retention_ms + 1
                if any(file.time_ms < before_ms for file in sealed.left):
                    table = await self._sealing.tables.open(base, table_id)
                    deleted += await table.vacuum(sealed.ledger_id, before_ms)
            left = [
                file for sealed in await self._sealing.tables.ledgers(base) for file in sealed.left
            ]
        until = max((file.time_ms for file in left), default=0)
        record = await self._sealing.tables.record(base)
        return Leftovers(
            len(left),
            until + self._settings.tableVacuumRetentionHours * 3_600_000 if left else 0,
            deleted,
            segments,
            sum(s.type.consumer_count for topic in topics for s in topic.subscriptions.values()),
            await self._sealing.tables.roots.away(record)
            if record is not None and record.attached
            else (),
            tuple(bookies_away),
        )


class _Rewriting:
    """Writes files anew without the messages that are to be erased."""

    def __init__(
        self,
        sealing: Sealing,
        topics: Sequence[Topic],
        compacted: set[Position],
        in_worker: partial[Any],
    ) -> None:
        self.files = 0
        self.missing = 0
        self._sealing = sealing
        self._topics = topics
        self._compacted = compacted
        """Entries that the compacted form had: it may have been the only place."""
        self._in_worker = in_worker

    async def ledger(self, ledger_id: int, wanted: Mapping[int, Indexes]) -> None:
        topic = self._topic_of(ledger_id)
        if topic is None:
            nowhere = {
                entry_id: indexes
                for entry_id, indexes in wanted.items()
                if Position(ledger_id, entry_id) not in self._compacted
            }
            self.missing += count({ledger_id: nowhere})[0]
            return
        tables, base = self._sealing.tables, topic.name.base
        table_id = await self._sealing.topic_tables.id_for(topic)
        # What an owner before decided is done first: it may have replaced the same files.
        await tables.open(base, table_id)
        sealed = await tables.sealed(base, ledger_id)
        if sealed is None or sealed.through < max(wanted):
            raise StorageError(
                f"entry {ledger_id}:{max(wanted)} is not in the table yet; try again"
            )
        files = [
            file
            for file in sealed.files
            if any(file.first_entry_id <= i <= file.last_entry_id for i in wanted)
        ]
        target = topic.policies.sealing.target_file_bytes
        for start in range(0, len(files), FILES_A_TIME):
            part = files[start : start + FILES_A_TIME]
            acks: list[Ack] = []
            table = await tables.open(base, table_id)
            await table.rewrite(sealed, part, partial(self._entries, wanted, acks), target)
            self.files += len(part)
            _forget_content(topic)
            for subscription in topic.subscriptions.values():
                subscription.acks.from_others(acks)

    def _topic_of(self, ledger_id: int) -> Topic | None:
        for topic in self._topics:
            if topic.ledger.ledger(ledger_id) is not None:
                return topic
        return None

    async def _entries(
        self, wanted: Mapping[int, Indexes], acks: list[Ack], part: SealRange
    ) -> AsyncIterator[Entries]:
        async for piece in self._sealing.source.entries(part):
            if any(entry_id in wanted for entry_id, _ in piece):
                yield await self._in_worker(partial(_erase, part.ledger_id, piece, wanted, acks))
            else:
                yield piece


def _erase(
    ledger_id: int, piece: Entries, wanted: Mapping[int, Indexes], acks: list[Ack]
) -> Entries:
    """The entries without what is to be erased; ``acks`` gets what that means for cursors."""
    left: Entries = []
    for entry_id, entry in piece:
        if entry_id in wanted:
            entry = without(entry, wanted[entry_id])
            acks.append(ack_of(stored_entry(Position(ledger_id, entry_id), entry)))
        left.append((entry_id, entry))
    return left


def _forget_content(topic: Topic) -> None:
    """Keep none of a topic's messages in memory."""
    topic.entries.forget()
    for subscription in topic.subscriptions.values():
        subscription.dispatcher.forget_content()
