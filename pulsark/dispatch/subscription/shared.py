"""Shared: entries go round robin to the consumers of the best priority level with room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.subscription.round_robin import Rota
from pulsark.limits import CHUNK_UUID_CHARS_MAX, CHUNKED_MESSAGES_MAX
from pulsark.storage.position_set import PositionSet
from pulsark.wire.entry import Chunk, chunk_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.wire.position import Position


class Shared:
    """Lower levels receive only while no consumer of a better level can.

    A consumer takes up to ``entries_in_a_row`` entries in a row, so that its socket is not written
    for each, and is then last of its level. All chunks of a message go to one consumer, which
    gets them whether it has permits or not, as if they were a batch.
    """

    sub_type = SubType.Shared
    tracks_pending = True
    active = None
    unwanted = None
    plan = None

    def __init__(self, entries_in_a_row: int = 1) -> None:
        self._in_a_row = entries_in_a_row
        self._consumers: dict[Consumer, None] = {}
        """In order of arrival."""
        self._levels: dict[int, Rota] = {}
        """By priority, best first."""
        self._replay = PositionSet()
        self._chunked: dict[str | bytes, Consumer] = {}
        """Consumers that get the rest of large messages, by the messages' ids (``_short``)."""
        self._current: Consumer | None = None
        self._left = 0

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    @property
    def replay_count(self) -> int:
        return len(self._replay)

    def add(self, consumer: Consumer) -> None:
        level = consumer.priority
        if level not in self._levels:
            self._levels = dict(sorted([*self._levels.items(), (level, Rota())]))
        self._levels[level].add(consumer)
        self._consumers[consumer] = None
        self._current = None

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._consumers:
            return
        del self._consumers[consumer]
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
        self._chunked = {uuid: c for uuid, c in self._chunked.items() if c is not consumer}
        self._current = None

    def wake(self, consumer: Consumer) -> None:
        if self._levels[consumer.priority].wake(consumer):
            self._current = None  # it may be of a better level than the current one

    def room(self) -> int:
        self._current = None
        permits = 0
        for level in self._levels.values():
            permits += level.room()
        return permits

    def choose(self, entry: Entry) -> Consumer | None:
        consumer = self._current
        if entry.is_chunk and (chunk := chunk_of(entry.data)) is not None:
            consumer = self._receiver_of(chunk)
        elif consumer is not None and self._left and consumer.can_receive():
            self._left -= 1  # as in _same_or_next, without a call for each entry
        else:
            consumer = self._next()
        if self._replay.ledgers and consumer is not None:
            self._replay.discard(entry.position)
        return consumer

    def _receiver_of(self, chunk: Chunk) -> Consumer | None:
        begun, message = self._chunked, _short(chunk.uuid)
        consumer = begun.get(message)
        if consumer is None:
            consumer = self._same_or_next()
        elif not consumer.can_continue():
            return None
        if consumer is None or chunk.is_last:
            begun.pop(message, None)
            return consumer
        begun[message] = consumer
        if len(begun) > CHUNKED_MESSAGES_MAX:
            del begun[next(iter(begun))]
        return consumer

    def _same_or_next(self) -> Consumer | None:
        consumer = self._current
        if consumer is None or not self._left or not consumer.can_receive():
            return self._next()
        self._left -= 1
        return consumer

    def _next(self) -> Consumer | None:
        """The next consumer, which gets this entry and perhaps more in a row."""
        for level in self._levels.values():
            consumer = level.next()
            if consumer is not None:
                self._current, self._left = consumer, self._in_a_row - 1
                return consumer
        self._current = None
        return None

    def put_aside(self, entry: Entry) -> bool:
        return False  # nobody has room; or a chunk's receiver does not read, which ends soon

    def give_back(self, position: Position) -> None:
        self._replay.add(position)

    def forget(self, position: Position) -> None:
        if self._replay:
            self._replay.discard(position)

    def waits(self, position: Position) -> bool:
        return position in self._replay

    def held_up(self) -> Collection[Position]:
        return ()

    def next_replay(self) -> Position | None:
        if not self._replay or all(level.front() is None for level in self._levels.values()):
            return None
        return self._replay.lowest()

    def clear(self) -> None:
        self._replay.clear()
        self._chunked.clear()


def _short(uuid: str) -> str | bytes:
    """Return a stand-in for a message's id: clients may choose one as large as a message."""
    if len(uuid) <= CHUNK_UUID_CHARS_MAX:
        return uuid
    from hashlib import blake2b  # no client that is known makes one as long

    return blake2b(uuid.encode("utf-8", "surrogatepass"), digest_size=32).digest()
