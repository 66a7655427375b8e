"""The durable cursors of one namespace bundle.

Memory is ahead of what is stored, never behind. An operation changes its cursor at once, in
memory; what changed is written when the event loop turns if a client waits for it, else within
the flush interval. All that is written together is one group, and its callbacks run when it is
durable. How groups become durable is the business of ``cursor_log_writer``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pulsark.errors import StorageError
from pulsark.runtime import Done, Runtime, new_done
from pulsark.storage.cursor.bundle_cursors import CursorTable, Replay, SavedCursor
from pulsark.storage.cursor.bundle_record import BundleRecord
from pulsark.storage.cursor.cursor import NOTHING_REACHED, Cursor
from pulsark.storage.cursor.history import (
    CursorChange,
    NoHistoryError,
    changes,
    cursors_at,
    known_since,
)
from pulsark.storage.cursor.log_writer import CursorLogConfig, CursorLogWriter
from pulsark.storage.cursor.owners import CursorOwner, check_new_name, check_owner
from pulsark.storage.cursor.records import ack_records, property_record, snapshot_records
from pulsark.storage.cursor.state import CursorState, Ledgers
from pulsark.storage.proto import cursor_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.cursor.division import DividedCursors, Part
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.wire.position import Position

log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20
_CURSORS_A_STEP = 500
UNTOLD_CHANGES_MAX = 4096
"""More are not left for the flush interval: one turn of the loop has to write them."""

__all__ = ["CursorLog", "CursorLogConfig"]


class CursorLog:
    """Made by ``open``. Everything runs on the event loop."""

    def __init__(
        self,
        bundle: str,
        table: CursorTable,
        writer: CursorLogWriter,
        config: CursorLogConfig,
        runtime: Runtime,
        record: BundleRecord,
        manager: LedgerManager,
    ) -> None:
        self.bundle = bundle
        self._table = table
        self._writer = writer
        self._config = config
        self._clock = runtime.clock
        self._record = record
        self._manager = manager
        self._dirty: dict[int, Cursor] = {}
        self._deleted: list[int] = []
        self._dones: list[Done] = []
        self._untold = 0
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._creating: dict[tuple[str, str], asyncio.Task[Cursor]] = {}
        self._moving: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By topic id. Held while its cursors are loaded or unloaded, maybe in several steps."""

    @classmethod
    async def open(
        cls,
        bundle: str,
        manager: LedgerManager,
        metadata: MetadataStore,
        config: CursorLogConfig,
        runtime: Runtime,
    ) -> CursorLog:
        """Take the cursors of ``tenant/namespace/bundle`` over from their former owner."""
        record = BundleRecord(metadata, bundle)
        await record.claim()
        replay = Replay()
        size = 0
        if record.state.ledger_id is not None:
            size = await _read_ledger(manager, record.state.ledger_id, replay)
        for _ in replay.pack():
            await asyncio.sleep(0)
        table = replay.table()
        writer = CursorLogWriter(bundle, manager, record, table, config, runtime, size)
        await writer.delete_doomed()
        return cls(bundle, table, writer, config, runtime, record, manager)

    @property
    def failed(self) -> StorageError | None:
        """Why nothing can be made durable here any more: another owner has the bundle."""
        return self._writer.failed

    @property
    def has_cursors(self) -> bool:
        """Whether there is any cursor."""
        return not self._table.is_empty

    async def divide(
        self, parts: Sequence[Part], metadata: MetadataStore, runtime: Runtime
    ) -> DividedCursors:
        """Write what each part of the bundle gets of the cursors, when this log is closed."""
        size = self._writer.named_bytes
        from pulsark.storage.cursor.division import divide  # few bundles are ever divided

        return await divide(
            self.bundle, self._table, size, parts, self._manager, metadata, self._config, runtime
        )

    # -- cursors -----------------------------------------------------------------------------

    async def cursors(self, topic_id: str, ledgers: Ledgers) -> dict[str, Cursor]:
        """The durable cursors of a topic by subscription name.

        They are in use until ``unload``; objects that an earlier call returned no longer stand
        for them. Very many are made in steps.
        """
        async with self._alone_with(topic_id):
            return await self._load(topic_id, ledgers)

    def _alone_with(self, topic_id: str) -> asyncio.Lock:
        lock = self._moving.get(topic_id)
        if lock is None:
            lock = self._moving[topic_id] = asyncio.Lock()
        return lock

    async def _load(self, topic_id: str, ledgers: Ledgers) -> dict[str, Cursor]:
        await self._unload(topic_id)
        cursors = await self._table.load(topic_id, ledgers, self._clock, self)
        self._expect_again(cursors)
        return {cursor.name: cursor for cursor in cursors}

    def _expect_again(self, cursors: list[Cursor]) -> None:
        """Positions that were packed before they were durable are not durable yet."""
        group = self._writer.last_group
        pending = group is not None and not group.finished
        if not pending and not self._writer.unwritten:
            return
        reached = [(cursor, cursor.durably_reached) for cursor in cursors]
        for cursor in cursors:
            cursor.durably_reached = NOTHING_REACHED
        if group is not None and pending:
            group.also([], reached)
        else:
            self._dirty.update({cursor.identity.cursor_id: cursor for cursor in cursors})

    async def unload(self, topic_id: str) -> None:
        """Drop the objects of a topic. What they hold is in memory, packed, and will be written."""
        async with self._alone_with(topic_id):
            await self._unload(topic_id)

    async def _unload(self, topic_id: str) -> None:
        if self._table.loaded(topic_id) is None:
            return
        self._flush()
        for cursor in self._table.unload(topic_id):
            self._dirty.pop(cursor.identity.cursor_id, None)
            cursor.detach()
        await self._table.pack(topic_id)

    def subscriptions(self, topic_id: str) -> list[str]:
        """Names of the durable subscriptions of a topic, in use or not, sorted."""
        return self._table.subscriptions(topic_id)

    async def mark_deletes(self, topic_id: str) -> dict[str, Position]:
        """The mark-delete positions of a topic that is not in use, by subscription name."""
        found = {}
        for number, saved in enumerate(self._table.saved(topic_id), 1):
            found[saved.identity.subscription] = saved.acked.mark_delete
            if number % _CURSORS_A_STEP == 0:
                await asyncio.sleep(0)
        return found

    async def create(
        self,
        topic_id: str,
        name: str,
        mark_delete: Position,
        properties: Mapping[str, str],
        ledgers: Ledgers,
        *,
        by: CursorOwner = CursorOwner.CLIENTS,
    ) -> Cursor:
        """Create a cursor durably, or return the existing one of that name.

        Raises ``ClientError`` for a name that ``by`` may not use, and ``StorageError`` if the
        cursor could not be made durable; then it does not exist here, but may after a crash.
        """
        check_owner(name, by)
        key = (topic_id, name)
        if self._table.loaded(topic_id) is None:
            async with self._alone_with(topic_id):
                if self._table.loaded(topic_id) is None:
                    await self._load(topic_id, ledgers)
        if key not in self._creating:
            loaded = self._table.loaded(topic_id) or {}
            if name in loaded:
                return loaded[name]
            if by is CursorOwner.CLIENTS:
                check_new_name(name)
            task = asyncio.create_task(self._create(key, mark_delete, properties, ledgers))
            self._creating[key] = task
            task.add_done_callback(lambda done: self._created(key, done))
        return await asyncio.shield(self._creating[key])

    def _created(self, key: tuple[str, str], task: asyncio.Task[Cursor]) -> None:
        del self._creating[key]
        if not task.cancelled():
            task.exception()  # the caller may be gone, and then nothing else looks at it

    async def _create(
        self,
        key: tuple[str, str],
        mark_delete: Position,
        properties: Mapping[str, str],
        ledgers: Ledgers,
    ) -> Cursor:
        identity = self._table.new_identity(*key, self._clock.now_ms())
        state = CursorState(ledgers, mark_delete)
        cursor = Cursor(identity, state, properties, self._clock, self)
        cursor.durably_reached = NOTHING_REACHED
        cursor.unknown_to_log = True
        self._table.add(cursor)
        future, done = new_done()
        self.changed(cursor, done)
        try:
            await future
        except StorageError:
            self._forget(*key)
            raise
        # Another object stands for it if the topic was loaded anew meanwhile.
        return (self._table.loaded(key[0]) or {}).get(key[1], cursor)

    async def delete(
        self, topic_id: str, name: str, *, by: CursorOwner = CursorOwner.CLIENTS
    ) -> None:
        """Delete a subscription's cursor, durably; no error if there is none.

        Raises ``ClientError`` unless ``by`` owns it. After a ``StorageError`` it is gone here, but
        may be there again after a crash: call this again.
        """
        check_owner(name, by)
        creating = self._creating.get((topic_id, name))
        if creating is not None:
            await asyncio.wait((creating,))
        self._forget(topic_id, name)
        await self.sync()

    async def delete_topic(self, topic_id: str) -> None:
        """Delete all cursors of a topic, durably."""
        for number, name in enumerate(list(self._table.loaded(topic_id) or ()), 1):
            self._forget(topic_id, name)
            if number % _CURSORS_A_STEP == 0:
                self._flush()
                await asyncio.sleep(0)
        async for ids in self._table.remove_topic(topic_id):
            self._deleted += ids
            self._flush()
        await self.sync()

    def _forget(self, topic_id: str, name: str) -> None:
        cursor = (self._table.loaded(topic_id) or {}).get(name)
        if cursor is not None:
            self._dirty.pop(cursor.identity.cursor_id, None)
            cursor.detach()
        cursor_id = self._table.remove(topic_id, name)
        if cursor_id is not None:
            self._deleted.append(cursor_id)
            self._flush_later()

    # -- history -----------------------------------------------------------------------------

    async def cursors_at(self, topic_id: str, at_ms: int) -> list[SavedCursor]:
        """The cursors of a topic as they were at a time; ``NoHistoryError``, ``StorageError``."""
        now_ms = self._clock.now_ms()
        if at_ms > now_ms:
            raise NoHistoryError("The future is not known")
        await self.sync()
        return await cursors_at(self._manager, self._record.state, topic_id, at_ms)

    async def changes(self, topic_id: str) -> AsyncIterator[CursorChange]:
        """What is known of what happened to the cursors of a topic, oldest first."""
        await self.sync()
        async for change in changes(self._manager, self._record.state, topic_id):
            yield change

    @property
    def known_since(self) -> int | None:
        """The first moment that history knows, in ms since the epoch; ``None``: it knows none."""
        return known_since(self._record.state)

    # -- group commit ------------------------------------------------------------------------

    def changed(self, cursor: Cursor, done: Done | None) -> None:
        """A cursor changed. Without ``done`` it is written within the flush interval."""
        self._dirty[cursor.identity.cursor_id] = cursor
        self._untold += 1
        if done is not None:
            self._dones.append(done)
            self._flush_soon()
        elif self._untold > UNTOLD_CHANGES_MAX:
            self._flush_soon()
        else:
            self._flush_later()

    async def sync(self) -> None:
        """Return once everything that happened so far is durable; raises ``StorageError``."""
        future, done = new_done()
        self._dones.append(done)
        self._flush_soon()
        await future

    async def renew(self) -> None:
        """Make the log short, for an owner that is to open it and has clients that wait."""
        await self._writer.renew()

    async def close(self) -> None:
        """Write what is unwritten and close the ledger. The log cannot be used afterwards."""
        if self.failed is None:
            try:
                await self.sync()
            except StorageError as error:
                log.warning("%s: unanswered acknowledgements may be lost: %s", self.bundle, error)
        await self._writer.close()
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush_later(self) -> None:
        if self._timer is None and self.failed is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._config.flush_interval_ms / 1000, self._flush)

    def _flush(self) -> None:
        """Give everything unwritten to the writer, as one group."""
        self._flush_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dones, self._dones = self._dones, []
        records = [pb.Record(cursor_id=i, deleted=True) for i in self._deleted]
        reached = []
        for cursor in self._dirty.values():
            records += _changes_of(cursor)
            reached.append((cursor, cursor.reached))
        self._deleted = []
        self._dirty = {}
        self._untold = 0
        self._writer.submit(records, dones, reached)


async def _read_ledger(manager: LedgerManager, ledger_id: int, replay: Replay) -> int:
    """Fence the ledger and read all of it; returns its size in bytes."""
    last = (await manager.recover(ledger_id)).last_entry_id
    position = size = 0
    while position <= last:
        entries = await manager.read(ledger_id, position, last, _READ_BYTES)
        if not entries:
            raise StorageError(f"Cursor ledger {ledger_id} ends at {position}, not at {last}")
        for _, entry in entries:
            replay.read(entry)
            size += len(entry)
            await asyncio.sleep(0)
        position = entries[-1][0] + 1
    if not replay.complete:
        raise StorageError(f"Cursor ledger {ledger_id} does not begin with a whole snapshot")
    return size


def _changes_of(cursor: Cursor) -> list[pb.Record]:
    """What the log has not been told of a cursor."""
    state = cursor.state
    if cursor.unknown_to_log:
        cursor.unknown_to_log = cursor.properties_changed = False
        state.take_unsaved()
        return list(snapshot_records(cursor.identity, cursor.properties, state.copy()))
    records: list[pb.Record] = []
    if cursor.properties_changed:
        cursor.properties_changed = False
        records.append(property_record(cursor.identity.cursor_id, cursor.properties))
    if state.changed:
        records += ack_records(cursor.identity.cursor_id, state.take_unsaved())
    return records
