"""Shared: entries go round robin to the consumers of the best priority level with room."""

from __future__ import annotations

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.subscription_type import SubType


class Shared:
    """Lower levels receive only while no consumer of a better level can."""

    sub_type = SubType.Shared
    tracks_pending = True

    def __init__(self) -> None:
        self._levels: dict[int, list[Consumer]] = {}
        self._turns: dict[int, int] = {}
        self._order: list[int] = []

    @property
    def consumers(self) -> list[Consumer]:
        return [c for level in self._order for c in self._levels[level]]

    @property
    def active(self) -> Consumer | None:
        return None

    def add(self, consumer: Consumer) -> None:
        level = consumer.priority
        if level not in self._levels:
            self._levels[level] = []
            self._turns[level] = 0
            self._order = sorted(self._levels)
        self._levels[level].append(consumer)

    def remove(self, consumer: Consumer) -> None:
        level = self._levels.get(consumer.priority, [])
        if consumer not in level:
            return
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
            del self._turns[consumer.priority]
            self._order = sorted(self._levels)

    def has_room(self) -> bool:
        return any(c.can_receive() for level in self._levels.values() for c in level)

    def choose(self, entry: Entry) -> Consumer | None:
        for level in self._order:
            consumers = self._levels[level]
            count = len(consumers)
            turn = self._turns[level]
            for step in range(count):
                index = (turn + step) % count
                if consumers[index].can_receive():
                    self._turns[level] = (index + 1) % count
                    return consumers[index]
        return None
