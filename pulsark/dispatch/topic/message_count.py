"""How many messages lie in a range of a topic: entries are batches, and only they can tell.

For Spark queries that limit the rows of a micro-batch. Nothing is remembered here: a query goes
on behind what it has counted, so no entry is looked at twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.loop.request_turns import pause
from pulsark.dispatch.model.erased_entries import is_gone
from pulsark.errors import ProtocolError
from pulsark.limits import COUNTED_ENTRIES_MAX
from pulsark.wire.compacted_entry import unpack
from pulsark.wire.entry import message_counts, parse_entry
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.dispatch.topic.topic import Topic
    from pulsark.storage.managed_ledger.compacted_ledger import CompactedLedger

_CHUNK_ENTRIES = 1000
_CHUNK_BYTES = 1 << 20


class Counted(NamedTuple):
    """The number of counted messages, and the last of them."""

    messages: int
    last: MessageId


async def count_messages(
    topic: Topic,
    after: MessageId,
    through: Position,
    limit: int,
    compacted: CompactedLedger | None = None,
) -> Counted:
    """Count the messages after a place, up to the entry ``through`` and to ``limit`` messages.

    Places are in ``compacted`` by its own ids, if it is given.

    Stops early, with at least one entry counted, after ``COUNTED_ENTRIES_MAX`` entries. Where
    nothing is left in the range, ``last`` is its end. ``StorageError`` if it cannot be read.
    """
    counted = 0
    skipped = after.batch_index + 1  # of the first entry, if it was read in part
    place = Position(after.ledger_id, after.entry_id + (0 if skipped else 1))
    last = after.position
    for _ in range(-(-COUNTED_ENTRIES_MAX // _CHUNK_ENTRIES)):
        progressed = False
        for position, messages in await _sizes(topic, place, compacted):
            if position > through:
                break
            progressed = True
            left = messages - skipped if position == after.position else messages
            if counted + left > limit:
                index = messages - left + limit - counted - 1
                in_part = MessageId(*position, batch_index=index)
                return Counted(limit, in_part if counted < limit else MessageId(*last))
            counted += max(left, 0)
            last = position
            place = Position(position.ledger_id, position.entry_id + 1)
        if not progressed or last >= through:
            return Counted(counted, MessageId(*max(last, through)))
        await pause()  # what is in memory is read without a pause
    return Counted(counted, MessageId(*last))


async def _sizes(
    topic: Topic, place: Position, compacted: CompactedLedger | None
) -> Iterable[tuple[Position, int]]:
    """Some entries from a place on, each with its number of messages."""
    if compacted is not None:
        first = max(place.entry_id, 0)
        packed = await compacted.stored(first, first + _CHUNK_ENTRIES - 1, _CHUNK_BYTES)
        return [(position, _messages(unpack(data)[1])) for position, data in packed]
    cached = topic.entries.read_cached(place, _CHUNK_ENTRIES, _CHUNK_BYTES)
    if cached is not None:
        return [(entry.position, 0 if is_gone(entry) else entry.messages) for entry in cached]
    stored = await topic.ledger.read(place, _CHUNK_ENTRIES, _CHUNK_BYTES)
    return [(position, _messages(data)) for position, data in stored]


def _messages(entry: bytes) -> int:
    try:
        messages, _, marker, *_ = message_counts(entry)
        return 0 if marker and parse_entry(entry).marker else messages
    except ProtocolError:
        return 1  # readers get a damaged entry as one row
