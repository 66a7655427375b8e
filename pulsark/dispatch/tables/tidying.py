"""Tidying a table: files are merged, removed and deleted, so that it stays small for years.

- The files of a ledger are merged (``storage/table/merging``), also while it is open.
- Rows of a ledger that was trimmed leave the table.
- Files that left the table longer ago than its retention are deleted, and so are files that were
  staged long ago and never attached.
- Statistics that the log lacks of files are put into it.
- A long log gets a checkpoint, and its old commits are folded into one.

What fails of one ledger keeps no other one from its turn.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.tables.listed_ledgers import ListedLedgers
from pulsark.dispatch.tables.tidy_tables import TidyTable, TidyTables
from pulsark.errors import (
    ChangedTableError,
    MetadataError,
    OlderMetadataError,
    PulsarkError,
    StorageError,
)
from pulsark.metadata.paths import table_path
from pulsark.storage.table.files.merging import due_merge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.listed_ledgers import ById
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock, SureClock
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.storage.table.files.record import SealedLedger
    from pulsark.storage.table.process.table_processes import EntriesOf
    from pulsark.storage.table.table import Table
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

STAGED_MS = 24 * 3_600_000
"""Age at which staged files are deleted that no attach names."""

KEPT_ON_FULL_DISKS_MS = 10_000
"""Age at which files that left a table are deleted while a disk is full: publishing goes before
queries that began to read them."""

MERGES_MAX = 64
"""Merges in one table before other tables are looked at."""

STATED_MAX = 16
"""Commits with statistics in one table before other tables are looked at."""

FAILURES_MAX = 10
"""Ledgers that may fail until the reason cannot be in the ledgers."""


@dataclass(slots=True)
class Tidied:
    """What is left to be done."""

    more: bool = False
    """At once, when others had their turn."""
    later: bool = False
    """Something will be due by itself."""
    error: PulsarkError | None = None
    """The first one."""


@dataclass(frozen=True, slots=True)
class Tidying:
    """Does it for the tables of a broker, each of which its caller has to itself meanwhile."""

    settings: Settings
    clock: Clock
    sure_clock: SureClock
    metadata: MetadataStore
    topics: Topics
    tables: Tables
    entries_of: EntriesOf
    shares: Callable[[], bool] = lambda: False
    """Whether other brokers may have loaded partitions of the tables of this one."""
    is_short: Callable[[], bool] = lambda: False
    """Whether a disk is full: then old files are kept for seconds."""
    known: TidyTables = field(default_factory=TidyTables)

    async def tidy(self, base: TopicName, table_id: str, policies: TopicPolicies) -> Tidied:
        """Go through the ledgers of a table: all, or those of which something may be due.

        ``OlderMetadataError``, ``ChangedTableError``: it may not be touched.
        """
        target, touched = policies.sealing.target_file_bytes, self.tables.touched
        known, now = self.known.pop(base), self.clock.monotonic()
        changed = touched.watch(table_path(base))
        try:
            if known is not None and changed is not None and known.is_current(now, target):
                run = _Run(self, base, table_id, target, known)
                await run.some(changed)
            else:
                run = _Run(self, base, table_id, target, TidyTable(now, target))
                await run.all()
            if run.is_known:
                self.known.put(base, run.table)
        finally:
            if base not in self.known:
                touched.forget(table_path(base))
        return run.tidied


class _Run:
    """One time through a table."""

    def __init__(
        self, tidying: Tidying, base: TopicName, table_id: str, target: int, table: TidyTable
    ) -> None:
        self._settings = tidying.settings
        self._sure_clock = tidying.sure_clock
        self._topics = tidying.topics
        self._tables = tidying.tables
        self._entries_of = tidying.entries_of
        self._base = base
        self._table_id = table_id
        self._target = target
        self._shares = tidying.shares
        self._is_short = tidying.is_short
        self._listed = ListedLedgers(
            tidying.metadata, tidying.topics, base, shared=tidying.shares()
        )
        self._merges = self._failures = 0
        self.table = table
        """What is known of it by now."""
        self.is_known = True
        """Whether that is about all of it."""
        self.tidied = Tidied()

    async def all(self) -> None:
        """Look at the whole table."""
        found = False
        async for sealed in self._tables.each_ledger(self._base, self._unreadable):
            if not found:
                found = True
                await self.attempt(self.looked())
            self.table.unsettled.add(sealed.ledger_id)
            await self.attempt(self.ledger(sealed))
        if found:
            await self.attempt(self.stated())
            await self.attempt(self.folded())
        await self.attempt(self.staged(whole=True))

    async def some(self, changed: Iterable[int]) -> None:
        """Look at what is not settled, or has changed since, or is gone from its topic."""
        unsettled = self.table.unsettled
        unsettled.update(changed)
        for partition in self.table.partitions():
            name = self._listed.name(partition)
            if self._shares() or self._topics.get_loaded(name) is not None:
                infos = await self._listed.of(partition)
                if infos is not None:
                    self.table.trim(partition, partial(_is_gone, infos))
        await self.attempt(self.looked())
        ids = sorted(unsettled)
        unreadable = self._failures
        there = set()
        async for sealed in self._tables.each_ledger(self._base, self.failed, ids):
            there.add(sealed.ledger_id)
            await self.attempt(self.ledger(sealed))
        if self._failures == unreadable:
            unsettled.intersection_update(there)  # nothing is left of the others
        await self.attempt(self.stated())
        await self.attempt(self.folded())
        await self.attempt(self.staged(whole=False))

    def _unreadable(self, error: PulsarkError) -> None:
        self.is_known = False
        self.failed(error)

    async def attempt(self, work: Awaitable[None]) -> None:
        """Do something; if it fails, the rest is done all the same."""
        try:
            await work
        except (OlderMetadataError, ChangedTableError):
            raise
        except (StorageError, MetadataError) as error:
            self.failed(error)
        except Exception:
            log.exception("%s: tidying the table failed", self._base)
            self._failures += 1

    def failed(self, error: PulsarkError) -> None:
        """Something was not done."""
        self._failures += 1
        self.tidied.error = self.tidied.error or error
        log.debug("%s: not all of its table is tidied: %s", self._base, error)

    async def staged(self, *, whole: bool) -> None:
        """Delete staged files that were not attached."""
        before_ms = self._sure_clock.now_ms() - STAGED_MS
        if await self._tables.remove_staged(self._base, before_ms, whole=whole):
            self.tidied.later = True

    async def looked(self) -> None:
        """Look whether another engine has written to the log."""
        await (await self._table()).look()

    async def _table(self) -> Table:
        return await self._tables.open(self._base, self._table_id)

    async def stated(self) -> None:
        """Put statistics that the log lacks into it."""
        for _ in range(STATED_MAX):
            if not await (await self._table()).state():
                # Otherwise other brokers do not understand it yet.
                self.tidied.later |= not (await self._table()).record.stated
                return
        self.tidied.more = True

    async def folded(self) -> None:
        """Give a long log a checkpoint, and delete what is old of it."""
        await (await self._table()).checkpoint()
        days = self._settings.tableLogRetentionDays
        before_ms = self._sure_clock.now_ms() - days * 86_400_000
        if await (await self._table()).fold_log(before_ms):
            self.tidied.later = True

    async def ledger(self, sealed: SealedLedger) -> None:
        """Merge, remove and delete files of one ledger."""
        if self._failures >= FAILURES_MAX:
            return
        infos = await self._listed.of(sealed.partition)
        if infos is None:
            return
        tables, info = self._tables, infos(sealed.ledger_id)
        if info is not None:
            sealed = await self._merged(sealed, info)
        elif sealed.files:
            await (await self._table()).remove(sealed)
            self.tidied.later = True
        kept_ms = self._settings.tableVacuumRetentionHours * 3_600_000
        if self._is_short():
            kept_ms = min(kept_ms, KEPT_ON_FULL_DISKS_MS)
        before_ms = self._sure_clock.now_ms() - kept_ms
        if any(file.time_ms < before_ms for file in sealed.left):
            await (await self._table()).vacuum(sealed.ledger_id, before_ms)
        self.tidied.later |= any(file.time_ms >= before_ms for file in sealed.left)
        known = len(sealed.files) + len(sealed.left)
        if info is not None and info.open and known > tables.limits.files_of_ledger:
            await self._close(sealed)
        if info is not None and self._is_settled(sealed, info):
            self.table.add(sealed.partition, sealed.ledger_id)

    async def _merged(self, sealed: SealedLedger, info: LedgerInfo) -> SealedLedger:
        """The ledger after its files were merged, as far as it is worth while."""
        while True:
            due = self._due(sealed, info)
            if due is None:
                return sealed
            if self._merges >= MERGES_MAX:
                self.tidied.more = True
                return sealed
            self._merges += 1
            files = sealed.files[due.start : due.stop]
            await (await self._table()).merge(files, self._entries_of, self._target)
            self.tidied.later = True
            sealed = await self._tables.sealed(self._base, sealed.ledger_id) or sealed

    def _due(self, sealed: SealedLedger, info: LedgerInfo) -> range | None:
        sizes = [file.size for file in sealed.files]
        complete = _is_complete(sealed, info)
        return due_merge(sizes, self._target, self._tables.limits, complete=complete)

    def _is_settled(self, sealed: SealedLedger, info: LedgerInfo) -> bool:
        complete = not sealed.left and _is_complete(sealed, info)
        return complete and self._due(sealed, info) is None

    async def _close(self, sealed: SealedLedger) -> None:
        """An open ledger has as many files as its document should list: the next one goes on."""
        topic = self._topics.get_loaded(self._listed.name(sealed.partition))
        if topic is not None and not topic.ledger.is_fenced:
            await topic.ledger.close_ledger()


def _is_gone(infos: ById, ledger_id: int) -> bool:
    return infos(ledger_id) is None


def _is_complete(sealed: SealedLedger, info: LedgerInfo) -> bool:
    return not info.open and sealed.through == info.entries - 1
