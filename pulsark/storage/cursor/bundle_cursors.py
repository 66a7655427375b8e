"""All cursors of a bundle, in memory: those in use as objects, the others at rest.

At rest a cursor is packed records, a hundred bytes or so. A large one stays as it is: its
bitmaps are as compact, and packing it would hold the event loop up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.storage.cursor.cursor import Cursor, CursorSink, Reached
from pulsark.storage.cursor.records import (
    VERSION,
    CursorIdentity,
    acked_of,
    identity_of,
    snapshot_records,
    unpack,
)
from pulsark.storage.cursor.state import AckedSet, CursorState, Ledgers
from pulsark.storage.proto import cursor_pb2 as pb
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from pulsark.runtime import Clock

LARGE = 10_000
"""Acknowledged entries and masks from which on a cursor is not packed."""

_CURSORS_A_STEP = 64


class SavedCursor:
    """A cursor without its ledgers: what records say."""

    __slots__ = ("acked", "identity", "properties")

    def __init__(self, identity: CursorIdentity, acked: AckedSet | None = None) -> None:
        self.identity = identity
        self.properties: dict[str, str] = {}
        self.acked = AckedSet() if acked is None else acked

    @classmethod
    def of(cls, cursor: Cursor) -> SavedCursor:
        """What a cursor is now."""
        saved = cls(cursor.identity, cursor.state.copy())
        saved.properties = cursor.properties
        return saved

    @property
    def large(self) -> bool:
        """Whether packing it takes long."""
        return self.acked.count + len(self.acked.masks) > LARGE

    def apply(self, record: pb.Record) -> None:
        """Take in what a record says."""
        if record.HasField("properties"):
            self.properties = dict(record.properties.values)
        if record.HasField("acks"):
            acks = record.acks
            if acks.ledgers:
                self.acked.merge(acked_of(acks))
            else:  # as nearly always; a log has very many of these
                self.acked.advance(Position(acks.ledger_id, acks.entry_id), acks.era)

    def records(self) -> Iterator[pb.Record]:
        """The cursor as a snapshot."""
        return snapshot_records(self.identity, self.properties, self.acked)


AtRest = bytes | list[SavedCursor]
"""The cursors of a topic that is not loaded; never changed."""


class CursorTable:
    """Cursors by topic id: objects while the topic is loaded, else at rest."""

    def __init__(self, at_rest: dict[str, AtRest], next_cursor_id: int) -> None:
        self._at_rest = at_rest
        self._loaded: dict[str, dict[str, Cursor]] = {}
        self.next_cursor_id = next_cursor_id

    @property
    def is_empty(self) -> bool:
        """Whether there is no cursor."""
        return not self._at_rest and not any(self._loaded.values())

    def new_identity(self, topic_id: str, subscription: str, now_ms: int) -> CursorIdentity:
        """The identity of a cursor that is about to be made."""
        self.next_cursor_id += 1
        return CursorIdentity(self.next_cursor_id - 1, topic_id, subscription, now_ms)

    def load(self, topic_id: str, ledgers: Ledgers, clock: Clock, sink: CursorSink) -> list[Cursor]:
        """Make the objects of a topic, which must not be loaded."""
        cursors = []
        for saved in _saved(self._at_rest.pop(topic_id, b"")):
            state = CursorState.of(saved.acked, ledgers)
            cursor = Cursor(saved.identity, state, saved.properties, clock, sink)
            cursor.durably_reached = Reached(saved.acked.era, saved.acked.mark_delete)
            cursors.append(cursor)
        self._loaded[topic_id] = {cursor.name: cursor for cursor in cursors}
        return cursors

    def unload(self, topic_id: str) -> list[Cursor]:
        """Lay the cursors of a topic to rest; returns the objects, which are of no more use."""
        cursors = list(self._loaded.pop(topic_id, {}).values())
        if cursors:
            self._at_rest[topic_id] = _at_rest([SavedCursor.of(cursor) for cursor in cursors])
        return cursors

    def loaded(self, topic_id: str) -> dict[str, Cursor] | None:
        """The objects of a topic by subscription, or ``None`` if it is not loaded."""
        return self._loaded.get(topic_id)

    def saved(self, topic_id: str) -> list[SavedCursor]:
        """The cursors of a topic that is not loaded."""
        return _saved(self._at_rest.get(topic_id, b""))

    def subscriptions(self, topic_id: str) -> list[str]:
        """Sorted names of the cursors of a topic, loaded or not."""
        loaded = self._loaded.get(topic_id)
        if loaded is not None:
            return sorted(loaded)
        return sorted(saved.identity.subscription for saved in self.saved(topic_id))

    def add(self, cursor: Cursor) -> None:
        """Add a new cursor of a loaded topic."""
        self._loaded.setdefault(cursor.identity.topic_id, {})[cursor.name] = cursor

    def remove(self, topic_id: str, subscription: str) -> int | None:
        """Remove a cursor; returns its id, or ``None`` if there is no such cursor."""
        if topic_id in self._loaded:
            cursor = self._loaded[topic_id].pop(subscription, None)
            return None if cursor is None else cursor.identity.cursor_id
        saved = {s.identity.subscription: s for s in self.saved(topic_id)}
        gone = saved.pop(subscription, None)
        self._at_rest.pop(topic_id, None)
        if saved:
            self._at_rest[topic_id] = _at_rest(list(saved.values()))
        return None if gone is None else gone.identity.cursor_id

    def records(self, but_for: Container[str] = ()) -> Iterator[pb.Record]:
        """A snapshot of everything, ``but_for`` some topics by their ids.

        Made as it is consumed, with changes going on in between: each cursor appears as it is
        when its turn comes, and not at all if it was deleted by then. One that is made
        meanwhile may be left out.
        """
        for topic_id in [*self._at_rest, *self._loaded]:
            if topic_id in but_for:
                continue
            at_rest = self._at_rest.get(topic_id)
            for saved in _saved(at_rest or b""):
                if self._at_rest.get(topic_id) is at_rest:
                    yield from saved.records()
                else:
                    yield from self._records_of(topic_id, saved.identity.subscription)
            for name in list(self._loaded.get(topic_id, ())) if at_rest is None else ():
                yield from self._records_of(topic_id, name)

    def _records_of(self, topic_id: str, name: str) -> Iterator[pb.Record]:
        loaded = self._loaded.get(topic_id)
        if loaded is not None:
            return SavedCursor.of(loaded[name]).records() if name in loaded else iter(())
        found = [saved for saved in self.saved(topic_id) if saved.identity.subscription == name]
        return found[0].records() if found else iter(())


class Replay:
    """Reads a cursor ledger from its first entry to its last."""

    def __init__(self) -> None:
        self.complete = False
        """Whether the snapshot at the head of the ledger was read to its end."""
        self._untouched: dict[int, tuple[str, bytes]] = {}
        """Topic id and packed records of cursors that one record tells everything of so far."""
        self._saved: dict[int, SavedCursor] = {}
        self._next_cursor_id = 0

    def read(self, entry: bytes) -> None:
        """Apply one entry."""
        batch = unpack(entry)
        for record in batch.records:
            self._apply(record)
        if batch.HasField("snapshot_end"):
            self.complete = True
            self._next_cursor_id = max(self._next_cursor_id, batch.snapshot_end.next_cursor_id)

    def pack(self) -> Iterator[None]:
        """Make what was read small, in steps. ``table`` can follow."""
        for step, cursor_id in enumerate(list(self._saved)):
            saved = self._saved[cursor_id]
            if not saved.large:
                self._untouched[cursor_id] = (saved.identity.topic_id, _packed(saved.records()))
                del self._saved[cursor_id]
            if step % _CURSORS_A_STEP == _CURSORS_A_STEP - 1:
                yield

    def table(self) -> CursorTable:
        """All cursors, none of them loaded."""
        packed: dict[str, list[bytes]] = {}
        for cursor_id in sorted(self._untouched):
            topic_id, records = self._untouched[cursor_id]
            packed.setdefault(topic_id, []).append(records)
        large: dict[str, list[SavedCursor]] = {}
        for saved in self._saved.values():
            large.setdefault(saved.identity.topic_id, []).append(saved)
        at_rest: dict[str, AtRest] = {
            topic_id: b"".join(pieces) for topic_id, pieces in packed.items()
        }
        for topic_id, cursors in large.items():
            at_rest[topic_id] = [*_saved(at_rest.get(topic_id, b"")), *cursors]
        return CursorTable(at_rest, self._next_cursor_id)

    def _apply(self, record: pb.Record) -> None:
        cursor_id = record.cursor_id
        self._next_cursor_id = max(self._next_cursor_id, cursor_id + 1)
        if record.deleted:
            self._untouched.pop(cursor_id, None)
            self._saved.pop(cursor_id, None)
            return
        known = cursor_id in self._untouched or cursor_id in self._saved
        if not known and record.HasField("identity"):
            self._untouched[cursor_id] = (record.identity.topic_id, _packed((record,)))
        elif known:
            saved = self._thaw(cursor_id)
            saved.apply(record)
        # Otherwise it was deleted, or its place in the snapshot is still to come.

    def _thaw(self, cursor_id: int) -> SavedCursor:
        saved = self._saved.get(cursor_id)
        if saved is None:
            (saved,) = _saved(self._untouched.pop(cursor_id)[1])
            self._saved[cursor_id] = saved
        return saved


def _at_rest(cursors: list[SavedCursor]) -> AtRest:
    if any(saved.large for saved in cursors):
        return cursors
    return _packed(record for saved in cursors for record in saved.records())


def _packed(records: Iterable[pb.Record]) -> bytes:
    """Records as one message. Two of these, one after the other, are one with both's records."""
    return pb.Batch(version=VERSION, records=records).SerializeToString()


def _saved(at_rest: AtRest) -> list[SavedCursor]:
    if isinstance(at_rest, list):
        return at_rest
    found: dict[int, SavedCursor] = {}
    if at_rest:
        for record in unpack(at_rest).records:
            if record.cursor_id not in found:
                found[record.cursor_id] = SavedCursor(identity_of(record))
            found[record.cursor_id].apply(record)
    return list(found.values())
