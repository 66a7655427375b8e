"""How many messages lie in a range of a topic: entries are batches, and only they can tell.

For Spark queries that limit the rows of a micro-batch. Nothing is remembered here: a query goes
on behind what it has counted, so no entry is looked at twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.erased_entries import is_gone
from pulsark.errors import ProtocolError
from pulsark.limits import COUNTED_ENTRIES_MAX
from pulsark.storage.compacted_entry import unpack
from pulsark.storage.position import Position
from pulsark.wire.entry import message_counts, parse_entry

if TYPE_CHECKING:
    from pulsark.dispatch.topic import Topic
    from pulsark.storage.compacted_ledger import CompactedLedger

_CHUNK_ENTRIES = 1000
_CHUNK_BYTES = 1 << 20


class Counted(NamedTuple):
    """So many messages were counted, and the last of them; ``batch_index`` -1: all of its entry."""

    messages: int
    last: Position
    batch_index: int = -1


async def count_messages(
    topic: Topic,
    after: Position,
    after_index: int,
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
    skipped = after_index + 1  # of the first entry, if it was read in part
    place = Position(after.ledger_id, after.entry_id + (0 if skipped else 1))
    last = after
    for _ in range(-(-COUNTED_ENTRIES_MAX // _CHUNK_ENTRIES)):
        progressed = False
        for position, messages in await _sizes(topic, place, compacted):
            if position > through:
                break
            progressed = True
            left = messages - skipped if position == after else messages
            if counted + left > limit:
                index = messages - left + limit - counted - 1
                return Counted(limit, position, index) if counted < limit else Counted(limit, last)
            counted += max(left, 0)
            last = position
            place = Position(position.ledger_id, position.entry_id + 1)
        if not progressed or last >= through:
            return Counted(counted, max(last, through))
        await asyncio.sleep(0)  # what is in memory is read without a pause
    return Counted(counted, last)


async def _sizes(
    topic: Topic, place: Position, compacted: CompactedLedger | None
) -> Iterable[tuple[Position, int]]:
    """Some entries from a place on, each with its number of messages."""
    if compacted is not None:
        first = max(place.entry_id, 0)
        packed = await compacted.stored(first, first + _CHUNK_ENTRIES - 1, _CHUNK_BYTES)
        return [(position, _messages(unpack(data)[1])) for position, data in packed]
    cached = topic.read_cached(place, _CHUNK_ENTRIES, _CHUNK_BYTES)
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
