"""What the cursors of a topic were at a time: the cursor log, read again.

A ledger that held the cursors of a bundle begins with a snapshot of them and has every change
after it. So the state of a moment is the replay, up to that moment, of the ledger that held
them then. History costs no write: ledgers out of use are deleted later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import NoSuchLedgerError, StorageError
from pulsark.limits import HISTORY_BYTES_PER_TURN
from pulsark.storage.cursor.bundle_cursors import SavedCursor
from pulsark.storage.cursor.records import acked_of, identity_of, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pulsark.storage.cursor.bundle_record import BundleState, FormerLedger
    from pulsark.storage.cursor.state import CursorState
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.proto import cursor_pb2 as pb
    from pulsark.wire.position import Position

_READ_BYTES = 4 << 20
_TO_THE_END = 2**62


class NoHistoryError(StorageError):
    """A moment before the history that is kept, or in the future."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How long ledgers out of use are kept (milliseconds), and how many bytes of them."""

    age_ms: int = 0
    size: int = 0

    def kept(self, history: Sequence[FormerLedger], now_ms: int) -> tuple[FormerLedger, ...]:
        """The newest ones that are within the limits; without a gap."""
        kept: list[FormerLedger] = []
        size = 0
        for former in reversed(history):
            size += former.size
            if size > self.size or former.until_ms <= now_ms - self.age_ms:
                break
            kept.append(former)
        return tuple(reversed(kept))


NO_HISTORY = HistoryLimits()


@dataclass(frozen=True, slots=True)
class CursorChange:
    """What one group of the log says of one cursor."""

    subscription: str
    time_ms: int
    kind: str
    """``known`` (the history begins with it), ``created``, ``acknowledged``, ``seek``,
    ``properties`` or ``deleted``."""
    mark_delete: Position
    acked_entries: int
    """Entries above the mark-delete position that it says are acknowledged."""


class PastCursor(NamedTuple):
    """A subscription as it was."""

    state: CursorState
    properties: Mapping[str, str]


def known_since(state: BundleState) -> int | None:
    """The first moment that history knows, in ms since the epoch; ``None``: it knows none."""
    if state.history:
        return state.history[0].since_ms
    return state.since_ms or None


def ledger_at(state: BundleState, at_ms: int) -> int:
    """The ledger that held the cursors at a time; ``NoHistoryError``."""
    if state.ledger_id is not None and 0 < state.since_ms <= at_ms:
        return state.ledger_id
    for former in reversed(state.history):
        if former.since_ms <= at_ms:
            return former.ledger_id
    raise NoHistoryError("The history of cursors does not go back that far")


async def cursors_at(
    manager: LedgerManager, state: BundleState, topic_id: str, at_ms: int
) -> list[SavedCursor]:
    """The durable cursors of a topic as they were at a time. ``NoHistoryError``, ``StorageError``.

    Times are those of the clock of the broker that wrote; a change counts from the moment in
    which it was written, at most the flush interval after it was made.
    """
    replay = _TopicReplay(topic_id)
    complete = False
    async for batch in _batches(manager, ledger_at(state, at_ms), state):
        if complete and batch.time_ms > at_ms:
            break
        for record in batch.records:
            replay.apply(record)
        complete = complete or batch.HasField("snapshot_end")
    return sorted(replay.cursors.values(), key=lambda saved: saved.identity.subscription)


async def changes(
    manager: LedgerManager, state: BundleState, topic_id: str
) -> AsyncIterator[CursorChange]:
    """Everything that is kept of what happened to the cursors of a topic, in order.

    First what each was when the history begins.
    """
    ledgers = [former.ledger_id for former in state.history]
    if state.ledger_id is not None and state.since_ms:
        ledgers.append(state.ledger_id)
    for number, ledger_id in enumerate(ledgers):
        replay = _TopicReplay(topic_id)
        complete = False
        async for batch in _batches(manager, ledger_id, state):
            for record in batch.records:
                change = replay.apply(record)
                if complete and change is not None:
                    yield CursorChange(
                        change.subscription,
                        batch.time_ms,
                        change.kind,
                        change.mark_delete,
                        change.acked_entries,
                    )
            if batch.HasField("snapshot_end"):
                complete = True
                for saved in replay.cursors.values() if number == 0 else ():
                    acked, name = saved.acked, saved.identity.subscription
                    yield CursorChange(name, batch.time_ms, "known", acked.mark_delete, acked.count)


async def _batches(
    manager: LedgerManager, ledger_id: int, state: BundleState
) -> AsyncIterator[pb.Batch]:
    if ledger_id != state.ledger_id:
        try:
            await manager.recover(ledger_id)  # its writer may have abandoned it
        except NoSuchLedgerError as error:
            if any(each.borrowed for each in state.history if each.ledger_id == ledger_id):
                raise NoHistoryError("The history of cursors does not go back that far") from error
            raise
    position = taken = 0
    while True:
        entries = await manager.read(ledger_id, position, _TO_THE_END, _READ_BYTES)
        if not entries:
            return
        for _, entry in entries:
            yield unpack(entry)
            taken += len(entry)
            if taken >= HISTORY_BYTES_PER_TURN:
                taken = 0
                await asyncio.sleep(0)
        position = entries[-1][0] + 1


@dataclass(frozen=True, slots=True)
class _Change:
    subscription: str
    kind: str
    mark_delete: Position
    acked_entries: int


class _TopicReplay:
    """Applies the records about the cursors of one topic, and skips all others."""

    def __init__(self, topic_id: str) -> None:
        self.cursors: dict[int, SavedCursor] = {}
        self._topic_id = topic_id

    def apply(self, record: pb.Record) -> _Change | None:
        """Take a record in; what it changed, if it is about this topic."""
        saved = self.cursors.get(record.cursor_id)
        if record.deleted:
            if saved is None:
                return None
            del self.cursors[record.cursor_id]
            return _Change(saved.identity.subscription, "deleted", saved.acked.mark_delete, 0)
        created = saved is None
        if saved is None:
            if not record.HasField("identity") or record.identity.topic_id != self._topic_id:
                return None
            saved = self.cursors[record.cursor_id] = SavedCursor(identity_of(record))
        era = saved.acked.era
        saved.apply(record)
        if created:
            kind = "created"
        elif not record.HasField("acks"):
            kind = "properties"
        else:
            kind = "seek" if saved.acked.era > era else "acknowledged"
        news = acked_of(record.acks).count if record.HasField("acks") else 0
        return _Change(saved.identity.subscription, kind, saved.acked.mark_delete, news)
