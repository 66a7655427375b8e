"""All cursors of a bundle, in memory: those in use as objects, the others at rest.

At rest a cursor is packed records, a hundred bytes or so. A large one stays as it is: its
bitmaps are as compact, and packing it would hold the event loop up. A topic with very many cursors
has them in pieces, so that nothing handles all of them in one step.
"""

from __future__ import annotations

import asyncio
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
    from collections.abc import (
        AsyncIterator,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )  # fmt: skip

    from pulsark.runtime import Clock

LARGE = 10_000
"""Acknowledged entries and masks from which on a cursor is not packed."""

_CURSORS_A_STEP = 64

PIECE_BYTES = 64 << 10
"""A piece of packed cursors ends once it is this long; unpacking one takes about a millisecond."""


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

    @property
    def properties_bytes(self) -> int:
        """About the bytes of the properties."""
        return sum(map(len, self.properties)) + sum(map(len, self.properties.values()))

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


Piece = bytes | SavedCursor
"""Some packed cursors, or a large one."""

AtRest = bytes | list[Piece]
"""The cursors of a topic that is not loaded, in one piece or several; never changed."""


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

    async def load(
        self, topic_id: str, ledgers: Ledgers, clock: Clock, sink: CursorSink
    ) -> list[Cursor]:
        """Make the objects of a topic, which must not be loaded, in steps.

        The cursors are at rest until the last step. Nothing else may load or unload the topic
        meanwhile.
        """
        while True:
            at_rest = self._at_rest.get(topic_id, b"")
            cursors = []
            for piece in _pieces(at_rest):
                for saved in _unpacked(piece):
                    state = CursorState.of(saved.acked, ledgers)
                    cursor = Cursor(saved.identity, state, saved.properties, clock, sink)
                    cursor.durably_reached = Reached(saved.acked.era, saved.acked.mark_delete)
                    cursors.append(cursor)
                if piece is not at_rest:
                    await asyncio.sleep(0)
            if self._at_rest.get(topic_id, b"") is at_rest:
                break
        self._at_rest.pop(topic_id, None)
        self._loaded[topic_id] = {cursor.name: cursor for cursor in cursors}
        return cursors

    def unload(self, topic_id: str) -> list[Cursor]:
        """Lay the cursors of a topic to rest; returns the objects, which are of no more use.

        ``pack`` should follow.
        """
        cursors = list(self._loaded.pop(topic_id, {}).values())
        if cursors:
            self._at_rest[topic_id] = [SavedCursor.of(cursor) for cursor in cursors]
        return cursors

    async def pack(self, topic_id: str) -> None:
        """Make the cursors of a topic small, in steps, unless something changes them meanwhile."""
        at_rest = self._at_rest.get(topic_id, b"")
        packed: list[Piece] = []
        small: list[SavedCursor] = []
        size = 0
        for piece in _pieces(at_rest):
            if isinstance(piece, bytes) or piece.large:
                packed.append(piece)
                continue
            small.append(piece)
            size += piece.properties_bytes
            if size >= PIECE_BYTES or len(small) >= _CURSORS_A_STEP:
                packed.append(_packed_cursors(small))
                small, size = [], 0
                await asyncio.sleep(0)
        if small:
            packed.append(_packed_cursors(small))
        if self._at_rest.get(topic_id) is at_rest:
            self._at_rest[topic_id] = _at_rest(packed)

    def loaded(self, topic_id: str) -> dict[str, Cursor] | None:
        """The objects of a topic by subscription, or ``None`` if it is not loaded."""
        return self._loaded.get(topic_id)

    def saved(self, topic_id: str) -> Iterator[SavedCursor]:
        """The cursors of a topic that is not loaded, unpacked piece by piece."""
        for piece in _pieces(self._at_rest.get(topic_id, b"")):
            yield from _unpacked(piece)

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
        kept: list[Piece] = []
        removed = None
        for piece in _pieces(self._at_rest.get(topic_id, b"")):
            saved = {found.identity.subscription: found for found in _unpacked(piece)}
            if (gone := saved.pop(subscription, None)) is None:
                kept.append(piece)
                continue
            removed = gone.identity.cursor_id
            if saved:
                kept.append(_packed_cursors(list(saved.values())))
        if removed is not None:
            del self._at_rest[topic_id]
            if kept:
                self._at_rest[topic_id] = _at_rest(kept)
        return removed

    async def remove_topic(self, topic_id: str) -> AsyncIterator[list[int]]:
        """Remove the cursors of a topic that is not loaded; gives their ids, in steps."""
        while (at_rest := self._at_rest.get(topic_id)) is not None:
            first, *others = _pieces(at_rest)
            del self._at_rest[topic_id]
            if others:
                self._at_rest[topic_id] = _at_rest(others)
            yield [saved.identity.cursor_id for saved in _unpacked(first)]
            await asyncio.sleep(0)

    def records(self, but_for: Container[str] = ()) -> Iterator[pb.Record]:
        """A snapshot of everything, ``but_for`` some topics by their ids.

        Made as it is consumed, with changes going on in between: each cursor appears as it is
        when its turn comes, and not at all if it was deleted by then. One that is made
        meanwhile may be left out.
        """
        for topic_id in [*self._at_rest, *self._loaded]:
            if topic_id not in but_for:
                yield from self._records_of(topic_id)

    def _records_of(self, topic_id: str) -> Iterator[pb.Record]:
        done: set[int] = set()
        while True:
            at_rest, loaded = self._at_rest.get(topic_id), self._loaded.get(topic_id)
            if at_rest is None and loaded is None:
                return
            found = self.saved(topic_id) if at_rest is not None else _now(loaded or {})
            for saved in found:
                if self._at_rest.get(topic_id) is not at_rest:
                    break
                if self._loaded.get(topic_id) is not loaded:
                    break
                if saved.identity.cursor_id not in done:
                    done.add(saved.identity.cursor_id)
                    yield from saved.records()
            else:
                return


def _now(loaded: Mapping[str, Cursor]) -> Iterator[SavedCursor]:
    """The cursors of a loaded topic, each as it is when its turn comes."""
    for name in list(loaded):
        if name in loaded:
            yield SavedCursor.of(loaded[name])


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
        pieces: dict[str, list[Piece]] = {
            topic_id: _joined(records) for topic_id, records in packed.items()
        }
        for saved in self._saved.values():
            pieces.setdefault(saved.identity.topic_id, []).append(saved)
        at_rest = {topic_id: _at_rest(found) for topic_id, found in pieces.items()}
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
            (saved,) = _unpacked(self._untouched.pop(cursor_id)[1])
            self._saved[cursor_id] = saved
        return saved


def _at_rest(pieces: list[Piece]) -> AtRest:
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    return pieces


def _pieces(at_rest: AtRest) -> Sequence[Piece]:
    if isinstance(at_rest, list):
        return at_rest
    return (at_rest,) if at_rest else ()


def _joined(packed: list[bytes]) -> list[Piece]:
    """Packed cursors as few pieces."""
    pieces: list[Piece] = []
    some: list[bytes] = []
    size = 0
    for records in packed:
        some.append(records)
        size += len(records)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(some))
            some, size = [], 0
    if some:
        pieces.append(b"".join(some))
    return pieces


def _packed_cursors(cursors: list[SavedCursor]) -> bytes:
    return _packed(record for saved in cursors for record in saved.records())


def _packed(records: Iterable[pb.Record]) -> bytes:
    """Records as one message. Two of these, one after the other, are one with both's records."""
    return pb.Batch(version=VERSION, records=records).SerializeToString()


def _unpacked(piece: Piece) -> Sequence[SavedCursor]:
    if isinstance(piece, SavedCursor):
        return (piece,)
    found: dict[int, SavedCursor] = {}
    for record in unpack(piece).records:
        if record.cursor_id not in found:
            found[record.cursor_id] = SavedCursor(identity_of(record))
        found[record.cursor_id].apply(record)
    return list(found.values())
