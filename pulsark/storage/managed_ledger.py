"""A topic partition: a list of ledgers with one writer, read as one sequence of entries.

Appends of one turn of the loop go out as one run. When an append fails, every later one fails
with it, in order; the ledger is recovered to its true end and a new one opened for what comes
then. Entries whose failure was reported may turn out to be stored: they are part of the topic,
and ``entries_recovered`` tells of them.

Who owns the topic is decided by compare-and-set of its record, and by the fences of recovery.
An owner that loses either stops for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, TypeVar

from pulsark.errors import (
    BadVersionError,
    ClientError,
    LedgerFencedError,
    MetadataError,
    PulsarkError,
    ServerError,
    StorageError,
    StorageFullError,
)
from pulsark.metadata.store import MAX_VALUE_BYTES, MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.compacted_ledger import CompactedLedger, CompactedLedgerWriter
from pulsark.storage.compacted_to import CompactedTo
from pulsark.storage.held_ledgers import HeldLedgers
from pulsark.storage.ledger import LedgerManager, LedgerWriter
from pulsark.storage.ledger_appends import AppendQueue
from pulsark.storage.ledger_deletion import delete_ledgers, delete_managed_ledger
from pulsark.storage.ledger_folding import Folding
from pulsark.storage.ledger_list import LedgerInfo
from pulsark.storage.ledger_record import (
    ManagedLedgerRecord,
    TopicState,
    claim_or_create,
    read_ledgers,
    read_record,
    read_runs,
)
from pulsark.storage.ledger_runs import FoldedLedgers
from pulsark.storage.ledger_view import LedgerView
from pulsark.storage.managed_ledger_config import ManagedLedgerConfig, ManagedLedgerListener
from pulsark.storage.position import Position
from pulsark.storage.reservation import Reservation

__all__ = [
    "LedgerInfo",
    "LedgerView",
    "ManagedLedger",
    "ManagedLedgerConfig",
    "ManagedLedgerListener",
    "ManagedLedgerRecord",
    "delete_managed_ledger",
    "read_ledgers",
    "read_record",
]

T = TypeVar("T")

log = logging.getLogger(__name__)

Attached = Callable[[str, Collection[int]], Awaitable[Collection[int]]]
"""Of reserved ledgers of the topic with this id, those that its table has."""

LEDGERS_A_TRIM = 1000
"""So many ledgers go at a time."""

REMOVING_MAX = 10_000
"""So many ledgers may wait for bookies to be told; until then nothing more is trimmed."""

ROLL_OVER_RETRY_SECONDS = 10.0
"""After a new ledger could not be made, the full one is used for so long."""

RETRY_SECONDS = 1.0
"""After a failed attempt to store, appends fail at once for so long."""


class ManagedLedger(LedgerView):
    """See ``open``. Everything runs on the event loop; only ``append`` must be quick."""

    def __init__(
        self,
        path: str,
        record: ManagedLedgerRecord,
        folded: FoldedLedgers,
        version: int,
        manager: LedgerManager,
        metadata: MetadataStore,
        config: ManagedLedgerConfig,
        runtime: Runtime,
        listener: ManagedLedgerListener,
    ) -> None:
        super().__init__(record.ledger_list(folded), manager)
        self.path = path
        self.topic_id = record.topic_id
        self._record = record
        self._folded = folded
        self._version = version
        self.record_bytes = 0
        """Size of the record when it was saved last."""
        self._sure = True
        """The stored record is ``_record``, as far as this owner knows. Only then may something be
        deleted because it is not needed: a write of unknown outcome may have come to need it."""
        self._metadata = metadata
        self._config = config
        self._clock = runtime.clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        self._appends = AppendQueue(listener)
        self._scheduled = False
        self._writer: LedgerWriter | None = None
        self._newest: LedgerWriter | None = None
        """The writer or the last one: it knows the bytes of its ledger until the record does."""
        self._created = 0.0
        """When the writer's ledger was made, by the monotonic clock."""
        self._times = 1
        """So many times as large as configured ledgers are: there are very many."""
        self._held = False
        """Appends wait although there is a writer: it is being closed."""
        self._open_entries = 0
        """Confirmed entries of the ledger that the record shows as open, if there is one."""
        self._loaded = False
        # Changes of the writer and the record happen one after the other.
        self._changing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._refusal: PulsarkError | None = None
        self._storage_error: StorageError | MetadataError | None = None
        self._retry_at = 0.0
        self._roll_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._held_ledgers = HeldLedgers(runtime.clock)
        self._folding = Folding(self)
        self._unfinished: set[int] = set()
        """Of the ledgers to be removed, those that are being written."""
        self._show_record()
        if record.state is TopicState.TERMINATED:
            self._refusal = _terminated(path)

    @classmethod
    async def open(
        cls,
        path: str,
        manager: LedgerManager,
        metadata: MetadataStore,
        config: ManagedLedgerConfig,
        runtime: Runtime,
        listener: ManagedLedgerListener,
        *,
        properties: Mapping[str, str] | None = None,
        attached: Attached | None = None,
    ) -> ManagedLedger:
        """Open or create the managed ledger whose record is at ``path``, as its owner.

        Recovers what the owner before left open, and so stops it. The next ledger is opened by
        the first append. ``properties`` are those of a new one. ``attached`` tells which of the
        ledgers exist that the owner before had reserved. Raises ``StorageError`` or
        ``MetadataError`` if the end of the topic cannot be known now.
        """
        while True:
            record, version = await claim_or_create(path, metadata, runtime, properties)
            if record.state is TopicState.DELETING:
                await delete_managed_ledger(path, manager, metadata)
                continue
            folded = await read_runs(record, metadata)
            if folded is None:
                await read_ledgers(path, metadata)  # raises, unless somebody else changed it
                continue
            opened = cls(
                path, record, folded, version, manager, metadata, config, runtime, listener
            )
            try:
                await opened._close_unclosed()
                await opened._decide_pending(attached)
            except LedgerFencedError:
                continue  # somebody else opened it meanwhile: the record is theirs to read first
            opened._loaded = True
            opened._go_on()
            return opened

    async def _decide_pending(self, attached: Attached | None) -> None:
        pending = [info.ledger_id for info in self._record.pending]
        if not pending:
            return
        if attached is None:
            raise StorageError(f"{self.path} waits for its table, and there are no tables")
        existing = await attached(self.topic_id, pending)
        await self._save(self._record.decided(existing), open_entries=0)

    def set_quorums(self, ensemble: int, write: int, ack: int) -> None:
        """How the ledgers are stored that are created from now on."""
        self._config = replace(
            self._config, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        )

    # Appending.

    def append(self, entry: bytes, context: object) -> None:
        """Store an entry; the listener hears what became of it, with ``context``. In order."""
        appends = self._appends
        appends.entries.append(entry)
        appends.contexts.append(context)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Send what was appended; it need not wait for more of this turn of the loop."""
        self._scheduled = False
        if not self._appends.entries:
            return
        writer = self._writer
        if writer is None or self._held:
            self._flush_without_writer()
            return
        try:
            self._appends.send(writer)
        except StorageError as e:
            # Only if the ledger was recovered or deleted past this owner.
            self.ledger_failed(writer.ledger_id, e)
            return
        if self._task is None and self._is_full(writer):
            self._start(self._roll_over)

    def _flush_without_writer(self) -> None:
        if self._refusal is not None:
            self._appends.fail(self._refusal)
        elif self._task is not None or self._changing.locked():
            return  # what goes on there ends with a flush
        elif self._storage_error is not None and self._clock.monotonic() < self._retry_at:
            self._appends.fail(self._storage_error)
        else:
            self._start(self._reopen)

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """The writer's report."""
        self._open_entries = last_confirmed + 1
        self._ledgers.grow(last_confirmed + 1)
        self.last_confirmed = Position(ledger_id, last_confirmed)
        self._storage_error = None
        self._appends.confirm(ledger_id, last_confirmed)

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """The writer's report: fail what waits, and find the ledger's true end."""
        writer = self._writer
        if writer is None or writer.ledger_id != ledger_id:
            return
        self._writer = None
        if isinstance(error, LedgerFencedError):
            self._stop(error)
            return
        log.warning("%s: ledger %d failed: %s", self.path, ledger_id, error)
        if isinstance(error, StorageFullError) or writer.last_confirmed < 0:
            # A new ledger would most likely fail the same way.
            self._note_failure(error)
        self._appends.fail(error)
        if self._task is None:
            self._start(self._reopen)

    def _stop(self, error: PulsarkError) -> None:
        """Refuse everything from now on."""
        self._refusal = error
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._appends.fail(error)

    # Ledgers come and go.

    def _start(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = self._loop.create_task(self._run(step))

    async def _run(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._changing:
            try:
                if self._refusal is None:
                    await step()
            except LedgerFencedError as e:
                self._stop(e)
            except (StorageError, MetadataError) as e:
                log.warning("%s: %s", self.path, e)
                self._note_failure(e)
                if self._writer is None:
                    self._appends.fail(e)
            except Exception as e:
                self._stop(StorageError(f"{self.path} stopped: {e!r}"))
                raise
            self._task = None
            self._go_on()

    def _go_on(self) -> None:
        """After a change: send what waited meanwhile, and try again later what failed."""
        self._held = False
        if self._appends.entries and not self._scheduled:
            self._scheduled = True
            self._call_soon(self.flush)
        if self._refusal is not None:
            return
        if self._unclosed() and self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry)
        waiting = self._appends.entries and self._writer is None
        if self._loaded and self._task is None and not waiting and self._folding.is_due:
            self._start(self._folding.run)
        if self._record.removing and self._sweeper is None:
            self._sweeper = self._loop.create_task(self._sweep_aside())

    def _retry(self) -> None:
        self._timer = None
        if self._refusal is None and self._unclosed() and self._task is None:
            self._start(self._reopen)

    def _note_failure(self, error: StorageError | MetadataError) -> None:
        self._storage_error = error
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS

    def _unclosed(self) -> list[int]:
        """Ledgers that are open in the record, but no longer written."""
        writer = self._writer
        return [
            info.ledger_id
            for info in self._record.ledgers
            if info.open and (writer is None or writer.ledger_id != info.ledger_id)
        ]

    async def _reopen(self) -> None:
        """Close what failed; open the next ledger if somebody waits for it."""
        await self._close_unclosed()
        failing = self._storage_error is not None and self._clock.monotonic() < self._retry_at
        if failing and self._storage_error is not None:
            self._appends.fail(self._storage_error)
        elif self._appends.entries and self._writer is None:
            await self._adopt(await self._create(), self._record)

    async def _close_unclosed(self) -> None:
        record, recovered = self._record, []
        for ledger_id in self._unclosed():
            metadata = await self._manager.recover(ledger_id)
            record = record.with_closed(metadata, self._clock.now_ms())
            recovered.append(metadata)
        if not recovered:
            return
        known = self._open_entries
        await self._save(record, open_entries=0)
        last = recovered[-1]
        count = last.last_entry_id + 1 - known
        if count < 0:
            log.error("%s: %d confirmed entries were lost: %s", self.path, -count, last)
        if self._loaded:
            self._listener.entries_recovered(last.ledger_id, known, max(count, 0))

    async def _create(self) -> LedgerWriter:
        return await self._manager.create(self._config.ledger_config(self.path), self)

    async def _adopt(self, writer: LedgerWriter, record: ManagedLedgerRecord) -> None:
        """Make a new ledger part of the topic, then use it."""
        now = self._clock.now_ms()
        info = LedgerInfo(writer.ledger_id, 0, 0, now, open=True)
        try:
            await self._save(record.with_ledger(info), open_entries=0)
        except LedgerFencedError:
            await delete_ledgers([writer.ledger_id], self._manager)
            raise
        # After another error the record may list the ledger: it stays, perhaps for nobody.
        self._writer = self._newest = writer
        self._created = self._clock.monotonic()
        if len(record.ledgers) > 0:
            self._listener.ledger_closed()

    def _is_full(self, writer: LedgerWriter) -> bool:
        now = self._clock.monotonic()
        age_ms = int((now - self._created) * 1000)
        return (
            self._config.is_full(writer.last_pushed + 1, writer.length, age_ms, self._times)
            and now >= self._roll_at
        )

    async def _roll_over(self) -> None:
        """Close the full ledger and go on in a new one.

        The new one gets no entry before all of the old one are confirmed: were the old one
        to fail, later entries would exist and earlier ones not.
        """
        old = self._writer
        if old is None or not self._is_full(old):
            return
        try:
            new = await self._create()
        except (StorageError, MetadataError) as e:
            log.warning("%s: no new ledger yet: %s", self.path, e)
            self._roll_at = self._clock.monotonic() + ROLL_OVER_RETRY_SECONDS
            return
        try:
            # It may have failed meanwhile; then there is no writer, and recovery comes first.
            record = await self._close_writer() if self._writer is old else None
        except (StorageError, MetadataError) as e:
            if isinstance(e, LedgerFencedError):
                await delete_ledgers([new.ledger_id], self._manager)
                raise
            record = None
        if record is None:
            await delete_ledgers([new.ledger_id], self._manager)
            await self._reopen()
        else:
            await self._adopt(new, record)

    async def _close_writer(self) -> ManagedLedgerRecord:
        """Close the writer's ledger at its end; returns the record that says so, not yet saved."""
        writer = self._writer
        if writer is None:
            return self._record
        self._held = True
        try:
            metadata = await writer.close()
        finally:
            if self._writer is writer:
                self._writer = None
        return self._record.with_closed(metadata, self._clock.now_ms())

    async def _finish(self) -> None:
        """Confirm everything that was appended, and leave no ledger open."""
        if self._writer is None and (self._appends.entries or self._unclosed()):
            await self._reopen()
        self.flush()
        record = await self._close_writer()
        if record is not self._record:
            await self._save(record)
        await self._close_unclosed()

    async def _save(
        self,
        record: ManagedLedgerRecord,
        open_entries: int | None = None,
        folded: FoldedLedgers | None = None,
    ) -> None:
        """Make a record true. ``open_entries``: of the ledger that is open from now on;
        ``folded``: the ledgers of its runs, if they change.

        ``LedgerFencedError``: it certainly is not. After any other error it may be, and until the
        next one is saved nothing is deleted.
        """
        self._sure = False
        value = record.encode()
        self._watch_size(len(value))
        try:
            self._version = await self._metadata.put(self.path, value, self._version)
        except BadVersionError as e:
            error = LedgerFencedError(f"{self.path} has another owner")
            self._stop(error)
            raise error from e
        self._sure = True
        self._record = record
        if folded is not None:
            self._folded = folded
        if open_entries is not None:
            self._open_entries = open_entries
        self._show_record()

    def _watch_size(self, size: int) -> None:
        """The record may grow to ``MAX_VALUE_BYTES``; that it does is said in time."""
        before, self.record_bytes = self.record_bytes, size
        if size > MAX_VALUE_BYTES // 2 >= before:
            log.error(
                "%s: its record has %d bytes of at most %d: %d ledgers, %d to be removed, "
                "%d properties",
                self.path,
                size,
                MAX_VALUE_BYTES,
                len(self._record.ledgers),
                len(self._record.removing),
                len(self._record.properties),
            )

    def _show_record(self) -> None:
        self._ledgers = self._record.ledger_list(self._folded)
        if self._record.ledgers and self._record.ledgers[-1].open:
            self._ledgers.grow(self._open_entries)
        self.last_confirmed = self._ledgers.last()
        self._times = self._config.times(len(self._ledgers))

    # What an owner may order.

    async def _order(
        self, step: Callable[[], Coroutine[Any, Any, T]], *, terminated: bool = False
    ) -> T:
        """Change the writer or the record; raises if nothing may change any more.

        With ``terminated`` it may also of a topic to which nothing is appended any more.

        Goes to its end even if the caller is cancelled: a record that changed unnoticed would
        look as if another owner had done it.
        """

        async def run() -> T:
            async with self._changing:
                if self._refusal is not None and not (terminated and self._ended):
                    raise self._refusal
                try:
                    return await step()
                finally:
                    if not self._loop.is_closed():
                        self._go_on()

        order = self._loop.create_task(run())
        order.add_done_callback(_heard)
        return await asyncio.shield(order)

    @asynccontextmanager
    async def reservation(self) -> AsyncIterator[Reservation]:
        """Reserve ledgers at the end; see there. Nothing else changes as long as it lasts."""
        async with self._changing:
            if self._refusal is not None:
                raise self._refusal
            try:
                yield Reservation(self)
            finally:
                if not self._loop.is_closed():
                    self._go_on()

    async def roll_over_if_due(self) -> None:
        """Close the ledger if it is full, without waiting for an append; the next opens one."""
        await self._order(self._close_if_full)

    async def close_ledger(self) -> None:
        """Close the open ledger although it is not full; the next append opens one."""
        await self._order(self._close_if_used)

    async def _close_if_used(self) -> None:
        if self._writer is not None and self._writer.last_pushed >= 0:
            await self._save(await self._close_writer())
            self._listener.ledger_closed()

    async def _close_if_full(self) -> None:
        writer = self._writer
        if writer is not None and writer.last_pushed >= 0 and self._is_full(writer):
            await self._save(await self._close_writer())
            self._listener.ledger_closed()

    async def trim(self, before: Position) -> None:
        """Remove the closed ledgers that end before a position; they are gone when it returns.

        A bookie that cannot be told now is told later.
        """
        more = True
        while more:
            more = await self._order(lambda: self._trim(before), terminated=True)
            await self._sweep()
            more = more and len(self._record.removing) < REMOVING_MAX

    async def _trim(self, before: Position) -> bool:
        """One step; whether there is more to be removed."""
        most = min(REMOVING_MAX - len(self._record.removing), LEDGERS_A_TRIM)
        going = takewhile(lambda i: not i.open and _end(i) < before, self._ledgers.infos())
        victims = list(islice(going, max(most, 0)))
        more = next(going, None) is not None
        if victims:
            runs = len(self._record.folded)
            record = self._record.with_trimmed(victims)
            await self._save(record, folded=self._folded.behind(record.trimmed.ledger_id))
            if len(record.folded) < runs:
                await self._folding.sweep()
        return more

    @property
    def unsettled_from(self) -> int:
        """The first ledger that may have something that is not in the table, or that some bookie
        still has to be told of. Before it are only old ones."""
        unsettled = [line.first_id for line in self._record.folded if not line.settled]
        return unsettled[0] if unsettled else self._folded.last_id + 1

    @property
    def has_table(self) -> bool:
        """Whether its entries can live in a table."""
        return self._manager.has_tables

    async def sealed_through(self, ledger_id: int) -> int:
        """The last entry of one of its ledgers that lives in the topic's table, -1 without one."""
        return await self._manager.sealed_through(ledger_id)

    @asynccontextmanager
    async def write_compacted(self) -> AsyncIterator[CompactedLedgerWriter]:
        """A ledger for the topic's compacted form. It goes, unless ``set_compacted`` names it.

        The record has it as one to be removed before anything is in it. So whatever happens to
        the writer, to ``set_compacted`` or to its answer, the record alone says what it is.
        """
        (ledger_id,) = await self._manager.new_ids(1)
        self._unfinished.add(ledger_id)
        try:
            writer = await self._order(lambda: self._begin_compacted(ledger_id))
            try:
                yield writer
            finally:
                writer.abandon()
        finally:
            # Refused, it is swept by whoever has the topic next.
            with suppress(PulsarkError):
                await self._order(lambda: self._end_compacted(ledger_id), terminated=True)

    async def _begin_compacted(self, ledger_id: int) -> CompactedLedgerWriter:
        await self._save(self._record.with_removing({ledger_id}))
        config = self._config.ledger_config(self.path)
        return await CompactedLedgerWriter.open(self._manager, config, ledger_id)

    async def _end_compacted(self, ledger_id: int) -> None:
        """Behind ``set_compacted``, if that was called. What is to be removed is swept now."""
        self._unfinished.discard(ledger_id)

    async def set_compacted(self, compacted: CompactedTo, *, at_once: bool = False) -> None:
        """From now on this is the topic's compacted form, durably; the one before is removed.

        Its ledger comes from ``write_compacted``. ``at_once``: the one before goes even if it is
        held, and so do earlier ones.
        """
        await self._order(lambda: self._set_compacted(compacted, at_once))

    async def _set_compacted(self, compacted: CompactedTo, at_once: bool) -> None:
        await self._save(self._record.with_compacted(compacted))
        if at_once:
            self._held_ledgers.drop_all()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties, durably."""
        await self._order(lambda: self._save(replace(self._record, properties=dict(properties))))

    async def set_topic_epoch(self, epoch: int) -> None:
        """A producer has the topic for itself: keep its epoch, durably."""
        await self._order(lambda: self._save(replace(self._record, topic_epoch=epoch)))

    async def terminate(self) -> Position:
        """End the topic, durably: returns the last entry there will ever be."""
        if not self.is_terminated:
            await self._order(self._terminate)
        return self.last_confirmed

    async def _terminate(self) -> None:
        await self._finish()
        await self._save(replace(self._record, state=TopicState.TERMINATED))
        self._stop(_terminated(self.path))

    async def close(self) -> None:
        """Confirm what was appended, close the ledger and stop; later appends fail.

        Does not raise if storage fails: the listener hears of every append, and the next open
        recovers the ledger.
        """
        await asyncio.shield(self._loop.create_task(self._close()))

    async def _close(self) -> None:
        async with self._changing:
            if self._refusal is None:
                try:
                    await self._finish()
                except (StorageError, MetadataError) as e:
                    log.warning("%s: not closed, to be recovered: %s", self.path, e)
                    self._appends.fail(e)
            if not self.is_fenced:
                self._stop(StorageError(f"{self.path} is closed"))
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])

    async def begin_deletion(self) -> None:
        """From now on the topic exists for nobody, durably; ``delete`` is to follow."""
        await asyncio.shield(self._loop.create_task(self._begin_deletion()))

    async def _begin_deletion(self) -> None:
        async with self._changing:
            if self.is_fenced and self._refusal is not None:
                raise self._refusal
            try:
                await self._save(replace(self._record, state=TopicState.DELETING))
            finally:
                if not self.is_fenced:
                    self._stop(StorageError(f"{self.path} is deleted"))

    async def delete(self) -> None:
        """Delete everything. From the first step on, the topic exists for nobody."""
        await asyncio.shield(self._loop.create_task(self._delete()))

    async def _delete(self) -> None:
        async with self._changing:
            if self.is_fenced and self._refusal is not None:
                raise self._refusal
            self._stop(StorageError(f"{self.path} is deleted"))
            await delete_managed_ledger(
                self.path, self._manager, self._metadata, topic_id=self.topic_id
            )

    async def _sweep_aside(self) -> None:
        try:
            await self._sweep()
        except PulsarkError as e:
            log.warning("%s: leftovers stay for now: %s", self.path, e)
        finally:
            self._sweeper = None

    async def _sweep(self) -> None:
        """Remove the ledgers that are no longer part of the topic."""
        if not self._sure and self._record.removing:
            await self._order(self._claim, terminated=True)
        removing = [
            i
            for i in self._record.removing
            if i not in self._held_ledgers and i not in self._unfinished
        ]
        gone = await delete_ledgers(removing, self._manager)
        if gone and (self._refusal is None or self._ended):
            await self._order(lambda: self._forget_removed(gone), terminated=True)

    async def _claim(self) -> None:
        """Be the one whose record it is."""
        if not self._sure:
            await self._save(self._record)

    async def _forget_removed(self, gone: set[int]) -> None:
        rest = tuple(i for i in self._record.removing if i not in gone)
        await self._save(replace(self._record, removing=rest))

    # What it is.

    @property
    def open_bytes(self) -> int:
        """Confirmed bytes of the ledger that the record shows as open."""
        newest, ledgers = self._newest, self._record.ledgers
        if newest is None or not ledgers or not ledgers[-1].open:
            return 0
        return newest.length if ledgers[-1].ledger_id == newest.ledger_id else 0

    @property
    def compacted_to(self) -> CompactedTo | None:
        """Where the topic's compacted form is, and how far it goes."""
        return self._record.compacted

    def open_compacted(self) -> CompactedLedger | None:
        """The topic's compacted form."""
        found = self._record.compacted
        return None if found is None else CompactedLedger(self._manager, found.ledger_id)

    def hold_compacted(self, ledger_id: int) -> CompactedLedger | None:
        """A compacted form, the present one or one that is held; it is held from now on.

        ``None`` if it is there no more.
        """
        now = self._record.compacted
        if ledger_id not in self._held_ledgers and (now is None or now.ledger_id != ledger_id):
            return None
        self._held_ledgers.hold(ledger_id)
        return CompactedLedger(self._manager, ledger_id)

    @property
    def properties(self) -> Mapping[str, str]:
        """What the topic was given; see ``set_properties``."""
        return self._record.properties

    @property
    def topic_epoch(self) -> int | None:
        """See ``set_topic_epoch``; ``None`` if nobody ever had the topic for itself."""
        return self._record.topic_epoch

    @property
    def trimmed(self) -> Position:
        """The last entry that was trimmed; (-1, -1) if none ever was."""
        return self._record.trimmed

    @property
    def created_ms(self) -> int:
        """When the topic was created."""
        return self._record.created_ms

    @property
    def is_terminated(self) -> bool:
        """Whether nothing will ever be appended again."""
        return self._record.state is TopicState.TERMINATED

    @property
    def _ended(self) -> bool:
        """Whether the only reason to refuse appends is that the topic is terminated."""
        refusal = self._refusal
        return isinstance(refusal, ClientError) and refusal.code is ServerError.TopicTerminatedError

    @property
    def is_settled(self) -> bool:
        """Whether it is known which entries exist of all whose appends were reported as failed."""
        return not self._unclosed()

    @property
    def is_fenced(self) -> bool:
        """Whether another owner took over; this object is of no more use then."""
        return isinstance(self._refusal, LedgerFencedError)

    def full_error(self) -> StorageError | MetadataError | None:
        """The error with which appends fail at present without being tried, if they do."""
        failing = self._clock.monotonic() < self._retry_at
        return self._storage_error if failing else None


def _heard(order: asyncio.Task[Any]) -> None:
    """Of a caller that was cancelled nobody hears how it ended."""
    if not order.cancelled():
        order.exception()


def _end(info: LedgerInfo) -> Position:
    return Position(info.ledger_id, info.entries - 1)


def _terminated(path: str) -> ClientError:
    return ClientError(ServerError.TopicTerminatedError, f"{path} is terminated")
