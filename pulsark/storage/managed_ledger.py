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
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from pulsark.errors import (
    BadVersionError,
    ClientError,
    LedgerFencedError,
    MetadataError,
    NoSuchLedgerError,
    PulsarkError,
    ServerError,
    StorageError,
    StorageFullError,
)
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.ledger import LedgerConfig, LedgerManager, LedgerMetadata, LedgerWriter
from pulsark.storage.ledger_list import LedgerInfo
from pulsark.storage.ledger_record import (
    ManagedLedgerRecord,
    TopicState,
    decode_record,
    read_record,
)
from pulsark.storage.ledger_search import find_by_publish_time
from pulsark.storage.position import EARLIEST, Position

if TYPE_CHECKING:
    from pulsark.config import Settings

__all__ = [
    "LedgerInfo",
    "ManagedLedger",
    "ManagedLedgerConfig",
    "ManagedLedgerListener",
    "ManagedLedgerRecord",
    "delete_managed_ledger",
    "read_record",
]

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""After a failed attempt to store, appends fail at once for so long."""


class ManagedLedgerListener(Protocol):
    """Whom a managed ledger tells. Called on the event loop, never from inside ``append``."""

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        """Consecutive entries are durable, and exist from now on."""

    def append_failed(self, contexts: list[Any], error: Exception) -> None:
        """Appends that were not confirmed, in order. Unless ``error`` says more, they may exist.

        ``StorageFullError``, ``LedgerFencedError`` (the topic has another owner; this managed
        ledger is of no more use), other ``StorageError`` and ``MetadataError``;
        ``ClientError`` with ``TopicTerminatedError``.
        """

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        """Entries exist, after all, whose appends were reported as failed."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """How entries are stored, and when a ledger is closed for the next one.

    A ledger is full at ``max_entries``, ``max_bytes`` or ``max_age_ms``, but not before
    ``min_age_ms``.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    max_entries: int = 50_000
    max_bytes: int = 2048 << 20
    min_age_ms: int = 10 * 60_000
    max_age_ms: int = 240 * 60_000

    @classmethod
    def from_settings(cls, settings: Settings) -> ManagedLedgerConfig:
        """As the operator set it."""
        return cls(
            settings.managedLedgerDefaultEnsembleSize,
            settings.managedLedgerDefaultWriteQuorum,
            settings.managedLedgerDefaultAckQuorum,
            settings.managedLedgerMaxEntriesPerLedger,
            settings.managedLedgerMaxSizePerLedgerMbytes << 20,
            settings.managedLedgerMinLedgerRolloverTimeMinutes * 60_000,
            settings.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000,
        )


class ManagedLedger:
    """See ``open``. Everything runs on the event loop; only ``append`` must be quick."""

    def __init__(
        self,
        path: str,
        record: ManagedLedgerRecord,
        version: int,
        manager: LedgerManager,
        metadata: MetadataStore,
        config: ManagedLedgerConfig,
        runtime: Runtime,
        listener: ManagedLedgerListener,
    ) -> None:
        self.path = path
        self.topic_id = record.topic_id
        self._record = record
        self._version = version
        self._manager = manager
        self._metadata = metadata
        self._config = config
        self._clock = runtime.clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        # Appends that wait for the next flush, and runs that wait for their confirmation.
        self._queued: list[bytes] = []
        self._contexts: list[Any] = []
        self._scheduled = False
        self._pending: deque[tuple[int, list[bytes], list[Any]]] = deque()
        self._writer: LedgerWriter | None = None
        self._created_ms = 0
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
        self._roll_at_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
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
    ) -> ManagedLedger:
        """Open or create the managed ledger whose record is at ``path``, as its owner.

        Recovers what the owner before left open, and so stops it. The next ledger is opened by
        the first append. ``properties`` are those of a new one. Raises ``StorageError`` or
        ``MetadataError`` if the end of the topic cannot be known now.
        """
        while True:
            record, version = await _load_or_create(path, metadata, runtime, properties)
            if record.state is TopicState.DELETING:
                await delete_managed_ledger(path, manager, metadata)
                continue
            opened = cls(path, record, version, manager, metadata, config, runtime, listener)
            try:
                await opened._close_unclosed()
            except LedgerFencedError:
                continue  # somebody else opened it meanwhile: the record is theirs to read first
            opened._loaded = True
            opened._go_on()
            return opened

    # Appending.

    def append(self, entry: bytes, context: object) -> None:
        """Store an entry; the listener hears what became of it, with ``context``. In order."""
        self._queued.append(entry)
        self._contexts.append(context)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        entries = self._queued
        if not entries:
            return
        writer = self._writer
        if writer is None or self._held:
            self._flush_without_writer()
            return
        contexts = self._contexts
        self._queued, self._contexts = [], []
        try:
            first = writer.append(entries)
        except StorageError as e:
            # Only if the ledger was recovered or deleted past this owner.
            self._queued, self._contexts = entries, contexts
            self.ledger_failed(writer.ledger_id, e)
            return
        self._pending.append((first, entries, contexts))
        if self._task is None and self._is_full(writer):
            self._start(self._roll_over)

    def _flush_without_writer(self) -> None:
        if self._refusal is not None:
            self._fail_all(self._refusal)
        elif self._task is not None or self._changing.locked():
            return  # what goes on there ends with a flush
        elif self._storage_error is not None and self._clock.monotonic() < self._retry_at:
            self._fail_all(self._storage_error)
        else:
            self._start(self._reopen)

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """The writer's report: tell of every run that is complete, and of the part of one."""
        self._open_entries = last_confirmed + 1
        self._ledgers.grow(last_confirmed + 1)
        self.last_confirmed = Position(ledger_id, last_confirmed)
        self._storage_error = None
        pending, listener = self._pending, self._listener
        while pending:
            first, entries, contexts = pending[0]
            count = last_confirmed - first + 1
            if count <= 0:
                return
            if count < len(entries):
                pending[0] = (first + count, entries[count:], contexts[count:])
                listener.entries_confirmed(ledger_id, first, entries[:count], contexts[:count])
                return
            pending.popleft()
            listener.entries_confirmed(ledger_id, first, entries, contexts)

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
        self._fail_all(error)
        if self._task is None:
            self._start(self._reopen)

    def _fail_all(self, error: Exception) -> None:
        contexts = [context for run in self._pending for context in run[2]]
        contexts += self._contexts
        self._pending.clear()
        self._queued, self._contexts = [], []
        if contexts:
            self._listener.append_failed(contexts, error)

    def _stop(self, error: PulsarkError) -> None:
        """Refuse everything from now on."""
        self._refusal = error
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail_all(error)

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
                    self._fail_all(e)
            finally:
                self._task = None
                self._go_on()

    def _go_on(self) -> None:
        """After a change: send what waited meanwhile, and try again later what failed."""
        self._held = False
        if self._queued and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._flush)
        if self._refusal is not None:
            return
        if self._unclosed() and self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry)
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
            self._fail_all(self._storage_error)
        elif self._queued and self._writer is None:
            await self._adopt(await self._create(), self._record)

    async def _close_unclosed(self) -> None:
        record, recovered = self._record, []
        for ledger_id in self._unclosed():
            metadata = await self._manager.recover(ledger_id)
            record = _with_closed(record, metadata, self._clock.now_ms())
            recovered.append(metadata)
        if not recovered:
            return
        known = self._open_entries
        await self._save(record)
        self._open_entries = 0
        last = recovered[-1]
        if self._loaded and last.last_entry_id >= known:
            count = last.last_entry_id + 1 - known
            self._listener.entries_recovered(last.ledger_id, known, count)

    async def _create(self) -> LedgerWriter:
        config = self._config
        return await self._manager.create(
            LedgerConfig(
                config.ensemble_size, config.write_quorum, config.ack_quorum, owner=self.path
            ),
            self,
        )

    async def _adopt(self, writer: LedgerWriter, record: ManagedLedgerRecord) -> None:
        """Make a new ledger part of the topic, then use it."""
        now = self._clock.now_ms()
        info = LedgerInfo(writer.ledger_id, 0, 0, now, open=True)
        try:
            await self._save(record.with_ledger(info), open_entries=0)
        except (StorageError, MetadataError):
            await self._discard(writer)
            raise
        self._writer = writer
        self._created_ms = now

    async def _discard(self, writer: LedgerWriter) -> None:
        """Remove a new ledger that did not become part of the topic."""
        try:
            await self._manager.delete(writer.ledger_id)
        except (StorageError, MetadataError) as e:
            log.warning("%s: unused ledger %d stays: %s", self.path, writer.ledger_id, e)

    def _is_full(self, writer: LedgerWriter) -> bool:
        config, now = self._config, self._clock.now_ms()
        age = now - self._created_ms
        return (
            (
                writer.last_pushed + 1 >= config.max_entries
                or writer.length >= config.max_bytes
                or age >= config.max_age_ms
            )
            and age >= config.min_age_ms
            and now >= self._roll_at_ms
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
            self._roll_at_ms = self._clock.now_ms() + 10_000
            return
        try:
            record = await self._close_writer()
        except (StorageError, MetadataError) as e:
            await self._discard(new)
            if isinstance(e, LedgerFencedError):
                raise
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
        return _with_closed(self._record, metadata, self._clock.now_ms())

    async def _finish(self) -> None:
        """Confirm everything that was appended, and leave no ledger open."""
        if self._writer is None and (self._queued or self._unclosed()):
            await self._reopen()
        self._flush()
        record = await self._close_writer()
        if record is not self._record:
            await self._save(record)
        await self._close_unclosed()

    async def _save(self, record: ManagedLedgerRecord, open_entries: int | None = None) -> None:
        """Make a record true. ``open_entries``: of the ledger that is open from now on."""
        try:
            self._version = await self._metadata.put(self.path, record.encode(), self._version)
        except BadVersionError as e:
            error = LedgerFencedError(f"{self.path} has another owner")
            self._stop(error)
            raise error from e
        self._record = record
        if open_entries is not None:
            self._open_entries = open_entries
        self._show_record()

    def _show_record(self) -> None:
        self._ledgers = self._record.ledger_list()
        self._closed_bytes = sum(info.size for info in self._record.ledgers)
        if self._record.ledgers and self._record.ledgers[-1].open:
            self._ledgers.grow(self._open_entries)
        self.last_confirmed = self._ledgers.last()

    @asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """Change the writer and the record; raises if nothing may change any more."""
        async with self._changing:
            if self._refusal is not None:
                raise self._refusal
            try:
                yield
            finally:
                self._go_on()

    # What an owner may order.

    async def roll_over_if_due(self) -> None:
        """Close the ledger if it is full, without waiting for an append; the next opens one."""
        async with self._exclusively():
            writer = self._writer
            if writer is not None and writer.last_pushed >= 0 and self._is_full(writer):
                await self._save(await self._close_writer())

    async def trim(self, before: Position) -> None:
        """Remove the closed ledgers that end before a position; they are gone when it returns.

        A bookie that cannot be told now is told later.
        """
        async with self._exclusively():
            victims = list(
                takewhile(lambda i: not i.open and _end(i) < before, self._record.ledgers)
            )
            if not victims:
                return
            record = self._record.without_ledgers({info.ledger_id for info in victims})
            trimmed = max([record.trimmed, *(_end(i) for i in victims if i.entries)])
            await self._save(replace(record, trimmed=trimmed))
        await self._sweep()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties, durably."""
        async with self._exclusively():
            await self._save(replace(self._record, properties=dict(properties)))

    async def terminate(self) -> Position:
        """End the topic, durably: returns the last entry there will ever be."""
        if self.is_terminated:
            return self.last_confirmed
        async with self._exclusively():
            await self._finish()
            await self._save(replace(self._record, state=TopicState.TERMINATED))
            self._stop(_terminated(self.path))
        return self.last_confirmed

    async def close(self) -> None:
        """Confirm what was appended, close the ledger and stop; later appends fail.

        Does not raise if storage fails: the listener hears of every append, and the next open
        recovers the ledger.
        """
        async with self._changing:
            if self._refusal is None:
                try:
                    await self._finish()
                except (StorageError, MetadataError) as e:
                    log.warning("%s: not closed, to be recovered: %s", self.path, e)
                    self._fail_all(e)
            if not self.is_fenced:
                self._stop(StorageError(f"{self.path} is closed"))
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def delete(self) -> None:
        """Delete everything. From the first step on, the topic exists for nobody."""
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
        gone = set()
        for ledger_id in self._record.removing:
            try:
                await self._manager.delete(ledger_id)
            except (StorageError, MetadataError) as e:
                log.warning("%s: ledger %d is not removed yet: %s", self.path, ledger_id, e)
            else:
                gone.add(ledger_id)
        if not gone or self._refusal is not None:
            return
        async with self._exclusively():
            rest = tuple(i for i in self._record.removing if i not in gone)
            await self._save(replace(self._record, removing=rest))

    # Reading. A position need not exist: a read begins with the first entry at or after it.

    async def read(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Confirmed entries from ``position`` on, over the borders of ledgers.

        At least one if there is one, whatever ``max_bytes``. Raises ``StorageError`` if the
        first cannot be read now, ``EntrySealedError`` if it lives in the table.
        """
        result: list[tuple[Position, bytes]] = []
        size = 0
        while len(result) < max_entries and (size < max_bytes or not result):
            ledger_id, first = position = self._ledgers.at_or_after(position)
            if position > self.last_confirmed:
                break
            end = self._ledgers.count_of(ledger_id) - 1
            last = min(end, first + max_entries - len(result) - 1)
            try:
                found = await self._manager.read(
                    ledger_id, first, last, max_bytes - size, confirmed=end
                )
            except StorageError as e:
                if isinstance(e, NoSuchLedgerError) and self._ledgers.index_of(ledger_id) is None:
                    continue  # trimmed meanwhile
                if result:
                    break  # the next call meets the error as its first entry
                raise
            if not found:
                break
            result += [(Position(ledger_id, entry_id), entry) for entry_id, entry in found]
            size += sum([len(entry) for _, entry in found])
            position = Position(ledger_id, found[-1][0] + 1)
        return result

    async def find_by_publish_time(self, ms: int) -> Position:
        """The first entry published at ``ms`` (epoch) or later, or the place after the last."""
        return await find_by_publish_time(self._ledgers, self.read, ms)

    def first_position(self) -> Position:
        """The first entry; of an empty topic, the place where one can come."""
        return self._ledgers.at_or_after(EARLIEST)

    def next_position(self, position: Position) -> Position:
        """The first entry after ``position``; or else the place after the last entry."""
        last_ledger, last_entry = self.last_confirmed
        ledger_id, entry_id = position
        if ledger_id == last_ledger and -1 <= entry_id < last_entry:
            return Position(ledger_id, entry_id + 1)
        return self._ledgers.after(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before ``position``; or else the last that was trimmed, or (-1, -1)."""
        return self._ledgers.before(position)

    def valid_position_at_or_after(self, position: Position) -> Position:
        """The first entry that is not before ``position``; or else the place after the last."""
        return self._ledgers.at_or_after(position)

    def entries_between(self, after: Position, through: Position) -> int:
        """Entries after ``after`` and up to ``through``."""
        return self._ledgers.between(after, through)

    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers, oldest first."""
        infos = self._ledgers.infos()
        if self._writer is not None and infos and infos[-1].open:
            infos[-1] = infos[-1]._replace(size=self._writer.length)
        return infos

    @property
    def entries(self) -> int:
        """Entries that can be read."""
        return self._ledgers.entries

    @property
    def total_size(self) -> int:
        """Their bytes."""
        return self._closed_bytes + (self._writer.length if self._writer is not None else 0)

    @property
    def properties(self) -> Mapping[str, str]:
        """What the topic was given; see ``set_properties``."""
        return self._record.properties

    @property
    def created_ms(self) -> int:
        """When the topic was created."""
        return self._record.created_ms

    @property
    def is_terminated(self) -> bool:
        """Whether nothing will ever be appended again."""
        return self._record.state is TopicState.TERMINATED

    @property
    def is_fenced(self) -> bool:
        """Whether another owner took over; this object is of no more use then."""
        return isinstance(self._refusal, LedgerFencedError)

    def full_error(self) -> StorageError | MetadataError | None:
        """The error with which appends fail at present without being tried, if they do."""
        failing = self._clock.monotonic() < self._retry_at
        return self._storage_error if failing else None


async def delete_managed_ledger(
    path: str, manager: LedgerManager, metadata: MetadataStore, *, topic_id: str | None = None
) -> None:
    """Delete a managed ledger, loaded or not; goes on where an earlier attempt stopped.

    With ``topic_id`` only that one, not a successor of the same name. No error if it is gone.
    """
    while True:
        found = await metadata.get(path)
        if found is None:
            return
        record, version = decode_record(path, found.value), found.version
        if topic_id not in (None, record.topic_id):
            return
        try:
            if record.state is not TopicState.DELETING:
                record = replace(record, state=TopicState.DELETING)
                version = await metadata.put(path, record.encode(), version)
            for ledger_id in (*(info.ledger_id for info in record.ledgers), *record.removing):
                await manager.delete(ledger_id)
            await metadata.delete(path, version)
        except BadVersionError:
            continue  # its owner changed it meanwhile; now, it cannot any more
        return


async def _load_or_create(
    path: str, metadata: MetadataStore, runtime: Runtime, properties: Mapping[str, str] | None
) -> tuple[ManagedLedgerRecord, int]:
    while True:
        found = await metadata.get(path)
        if found is not None:
            return decode_record(path, found.value), found.version
        topic_id = f"{runtime.rng.getrandbits(128):032x}"
        record = ManagedLedgerRecord(
            topic_id, runtime.clock.now_ms(), properties=dict(properties or {})
        )
        try:
            return record, await metadata.put(path, record.encode(), ABSENT)
        except BadVersionError:
            continue  # created by somebody else just now


def _with_closed(
    record: ManagedLedgerRecord, metadata: LedgerMetadata, now_ms: int
) -> ManagedLedgerRecord:
    """With a ledger's final size; one without entries goes."""
    if metadata.last_entry_id < 0:
        return record.without_ledgers({metadata.ledger_id})
    return record.with_ledger(
        LedgerInfo(metadata.ledger_id, metadata.last_entry_id + 1, metadata.length, now_ms)
    )


def _end(info: LedgerInfo) -> Position:
    return Position(info.ledger_id, info.entries - 1)


def _terminated(path: str) -> ClientError:
    return ClientError(ServerError.TopicTerminatedError, f"{path} is terminated")
