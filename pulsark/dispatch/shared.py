"""Shared: entries go round robin to the consumers of the best priority level with room."""

from __future__ import annotations

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.replay import ReplaySet
from pulsark.dispatch.rota import Rota
from pulsark.dispatch.subscription_type import SubType
from pulsark.storage.position import Position


class Shared:
    """Lower levels receive only while no consumer of a better level can.

    A consumer takes up to ``turn_entries`` entries in a row, so that its socket is not written
    for each, and is then last of its level.
    """

    sub_type = SubType.Shared
    tracks_pending = True
    active = None

    def __init__(self, turn_entries: int = 1) -> None:
        self._turn_entries = turn_entries
        self._consumers: list[Consumer] = []
        self._levels: dict[int, Rota] = {}
        """By priority, best first."""
        self._replay = ReplaySet()
        self._turn: Consumer | None = None
        self._turn_left = 0

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    @property
    def replay_count(self) -> int:
        return len(self._replay)

    def add(self, consumer: Consumer) -> None:
        level = consumer.priority
        if level not in self._levels:
            self._levels = dict(sorted([*self._levels.items(), (level, Rota())]))
        self._levels[level].add(consumer)
        self._consumers.append(consumer)
        self._turn = None

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
        self._turn = None

    def wake(self, consumer: Consumer) -> None:
        if self._levels[consumer.priority].wake(consumer):
            self._turn = None  # it may be of a better level than the one whose turn it is

    def room(self) -> int:
        self._turn = None
        return sum(level.room() for level in self._levels.values())

    def choose(self, entry: Entry) -> Consumer | None:
        consumer = self._turn
        if consumer is None or not self._turn_left or not consumer.can_receive():
            consumer = self._turn = self._next()
            if consumer is None:
                return None
            self._turn_left = self._turn_entries
        self._turn_left -= 1
        if self._replay:
            self._replay.discard(entry.position)
        return consumer

    def _next(self) -> Consumer | None:
        for level in self._levels.values():
            consumer = level.next()
            if consumer is not None:
                return consumer
        return None

    # -- entries that wait ---

    def put_aside(self, entry: Entry) -> bool:
        return False  # nobody has room for it, so nobody has for a later one

    def give_back(self, position: Position) -> None:
        self._replay.add(position)

    def forget(self, position: Position) -> None:
        if self._replay:
            self._replay.discard(position)

    def waits(self, position: Position) -> bool:
        return position in self._replay

    def next_replay(self) -> Position | None:
        if not self._replay or all(level.front() is None for level in self._levels.values()):
            return None
        return self._replay.lowest()

    def clear(self) -> None:
        self._replay.clear()
