"""One entry on its way through the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.entry import entry_metadata, message_counts, sticky_key
from pulsark.wire.hashes import murmur3_32
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.dispatch.model.producer import Producer


class Entry:
    """What a client sent in one SEND, with its place once it has one.

    One object serves an entry from the socket to the last consumer. Until it is confirmed,
    ``producer`` waits for the receipt and the ids are -1; afterwards the ids are final and
    nothing else changes. ``messages`` is the number of messages inside (at least 1);
    ``batched`` says whether the entry is a batch, even of one; a ``marker`` is never delivered,
    unless it is a batch, some messages of which were erased: it is delivered without them;
    ``deliver_at`` is the time (ms since the epoch) that a delayed one should wait for, or 0;
    ``is_chunk`` says whether it is a piece of a large message.
    """

    __slots__ = (
        "_key_hash",
        "_position",
        "batched",
        "data",
        "deliver_at",
        "entry_id",
        "highest_sequence_id",
        "is_chunk",
        "ledger_id",
        "marker",
        "messages",
        "producer",
        "sequence_id",
    )

    def __init__(
        self,
        data: bytes,
        messages: int,
        batched: bool,
        marker: bool,
        producer: Producer | None = None,
        sequence_id: int = 0,
        highest_sequence_id: int | None = None,
        deliver_at: int = 0,
        is_chunk: bool = False,
        ledger_id: int = -1,
        entry_id: int = -1,
    ) -> None:
        self.data = data
        self.messages = messages
        self.batched = batched
        self.marker = marker
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.deliver_at = deliver_at
        self.is_chunk = is_chunk
        self._position: Position | None = None
        self._key_hash = -1

    @property
    def position(self) -> Position:
        """The entry's position; only for an entry that is confirmed."""
        # Made at the first use and kept: it costs as much as all else that is done with it.
        position = self._position
        if position is None:
            position = self._position = Position(self.ledger_id, self.entry_id)
        return position

    @property
    def key_hash(self) -> int:
        """The hash of what Key_Shared goes by; taken from the metadata at the first use."""
        key_hash = self._key_hash
        if key_hash < 0:
            key_hash = self._key_hash = murmur3_32(sticky_key(entry_metadata(self.data)))
        return key_hash


def stored_entry(position: Position, data: bytes) -> Entry:
    """An entry as it comes back from storage."""
    messages, batched, marker, deliver_at, is_chunk = message_counts(data)
    return Entry(
        data,
        messages,
        batched,
        marker,
        deliver_at=deliver_at,
        is_chunk=is_chunk,
        ledger_id=position.ledger_id,
        entry_id=position.entry_id,
    )
