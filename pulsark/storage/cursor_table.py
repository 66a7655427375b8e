"""All cursors of a bundle, in memory: those in use as objects, the others as packed records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pulsark.runtime import Clock
from pulsark.storage.cursor import Cursor, CursorSink
from pulsark.storage.cursor_records import (
    VERSION,
    CursorIdentity,
    acked_of,
    identity_of,
    snapshot_records,
    unpack,
)
from pulsark.storage.cursor_state import AckedSet, CursorState, Ledgers
from pulsark.storage.proto import cursor_pb2 as pb


class SavedCursor:
    """A cursor without its ledgers: what records say."""

    __slots__ = ("acked", "identity", "properties")

    def __init__(self, identity: CursorIdentity) -> None:
        self.identity = identity
        self.properties: dict[str, str] = {}
        self.acked = AckedSet()

    def apply(self, record: pb.Record) -> None:
        """Take in what a record says."""
        if record.HasField("properties"):
            self.properties = dict(record.properties.values)
        if record.HasField("acks"):
            self.acked.merge(acked_of(record.acks))

    def records(self) -> Iterator[pb.Record]:
        """The cursor as a snapshot."""
        return snapshot_records(self.identity, self.properties, self.acked)


class CursorTable:
    """Cursors by topic id. A topic has objects while it is loaded, and packed bytes otherwise."""

    def __init__(self, packed: dict[str, bytes], next_cursor_id: int) -> None:
        self._packed = packed
        self._loaded: dict[str, dict[str, Cursor]] = {}
        self.next_cursor_id = next_cursor_id

    def new_identity(self, topic_id: str, subscription: str, now_ms: int) -> CursorIdentity:
        """The identity of a cursor that is about to be made."""
        self.next_cursor_id += 1
        return CursorIdentity(self.next_cursor_id - 1, topic_id, subscription, now_ms)

    def load(self, topic_id: str, ledgers: Ledgers, clock: Clock, sink: CursorSink) -> list[Cursor]:
        """Make the objects of a topic, which must not be loaded."""
        cursors = []
        for saved in _saved(self._packed.pop(topic_id, b"")):
            state = CursorState.of(saved.acked, ledgers)
            cursor = Cursor(saved.identity, state, saved.properties, clock, sink)
            cursor.durable_mark_delete = saved.acked.mark_delete
            cursors.append(cursor)
        self._loaded[topic_id] = {cursor.name: cursor for cursor in cursors}
        return cursors

    def unload(self, topic_id: str) -> list[Cursor]:
        """Pack the cursors of a topic; returns the objects, which are of no more use."""
        cursors = list(self._loaded.pop(topic_id, {}).values())
        if cursors:
            self._packed[topic_id] = _packed(r for c in cursors for r in _records(c))
        return cursors

    def loaded(self, topic_id: str) -> dict[str, Cursor] | None:
        """The objects of a topic by subscription, or ``None`` if it is not loaded."""
        return self._loaded.get(topic_id)

    def saved(self, topic_id: str) -> list[SavedCursor]:
        """The cursors of a topic that is not loaded."""
        return _saved(self._packed.get(topic_id, b""))

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
        self._packed.pop(topic_id, None)
        if saved:
            self._packed[topic_id] = _packed(r for s in saved.values() for r in s.records())
        return None if gone is None else gone.identity.cursor_id

    def records(self) -> Iterator[pb.Record]:
        """A snapshot of everything.

        Made as it is consumed, with changes going on in between: each cursor appears as it is
        when its turn comes, and not at all if it was deleted by then. One that is made
        meanwhile may be left out.
        """
        for topic_id in [*self._packed, *self._loaded]:
            packed = self._packed.get(topic_id)
            for saved in _saved(packed or b""):
                if self._packed.get(topic_id) is packed:
                    yield from saved.records()
                else:
                    yield from self._records_of(topic_id, saved.identity.subscription)
            for name in list(self._loaded.get(topic_id, ())) if packed is None else ():
                yield from self._records_of(topic_id, name)

    def _records_of(self, topic_id: str, name: str) -> Iterator[pb.Record]:
        loaded = self._loaded.get(topic_id)
        if loaded is not None:
            return _records(loaded[name]) if name in loaded else iter(())
        found = [saved for saved in self.saved(topic_id) if saved.identity.subscription == name]
        return found[0].records() if found else iter(())


class Replay:
    """Reads a cursor ledger from its first entry to its last."""

    def __init__(self) -> None:
        self.complete = False
        """Whether the snapshot at the head of the ledger was read to its end."""
        self._packed: dict[int, bytes] = {}
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

    def table(self) -> CursorTable:
        """All cursors, none of them loaded."""
        packed: dict[str, bytes] = {}
        for cursor_id in sorted({*self._packed, *self._saved}):
            saved = self._thaw(cursor_id)
            assert saved is not None
            topic_id = saved.identity.topic_id
            packed[topic_id] = packed.get(topic_id, b"") + _packed(saved.records())
            del self._saved[cursor_id]
        return CursorTable(packed, self._next_cursor_id)

    def _apply(self, record: pb.Record) -> None:
        cursor_id = record.cursor_id
        self._next_cursor_id = max(self._next_cursor_id, cursor_id + 1)
        if record.deleted:
            self._packed.pop(cursor_id, None)
            self._saved.pop(cursor_id, None)
            return
        known = cursor_id in self._packed or cursor_id in self._saved
        if not known and record.HasField("identity"):
            self._packed[cursor_id] = _packed((record,))
        elif known:
            saved = self._thaw(cursor_id)
            saved.apply(record)
        # Otherwise it was deleted, or its place in the snapshot is still to come.

    def _thaw(self, cursor_id: int) -> SavedCursor:
        saved = self._saved.get(cursor_id)
        if saved is None:
            (saved,) = _saved(self._packed.pop(cursor_id))
            self._saved[cursor_id] = saved
        return saved


def _records(cursor: Cursor) -> Iterator[pb.Record]:
    return snapshot_records(cursor.identity, cursor.properties, cursor.state.copy())


def _packed(records: Iterable[pb.Record]) -> bytes:
    """Records as one message. Two of these, one after the other, are one with both's records."""
    return pb.Batch(version=VERSION, records=records).SerializeToString()


def _saved(packed: bytes) -> list[SavedCursor]:
    found: dict[int, SavedCursor] = {}
    if packed:
        for record in unpack(packed).records:
            if record.cursor_id not in found:
                found[record.cursor_id] = SavedCursor(identity_of(record))
            found[record.cursor_id].apply(record)
    return list(found.values())
