"""Shared: entries go round robin to the consumers of the best priority level with room."""

from __future__ import annotations

from collections import deque

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.replay import ReplaySet
from pulsark.dispatch.subscription_type import SubType
from pulsark.storage.position import Position

_ENOUGH = 500
"""Room for more entries than that need not be counted: no read is larger."""


class Shared:
    """Lower levels receive only while no consumer of a better level can.

    A consumer takes up to ``turn_entries`` entries in a row, so that its socket is not written
    for each, and is then last of its level. One that is found without room leaves the round
    until it is woken: the cost of an entry does not grow with the number of consumers.
    """

    sub_type = SubType.Shared
    tracks_pending = True
    active = None

    def __init__(self, turn_entries: int = 1) -> None:
        self._turn_entries = turn_entries
        self._consumers: list[Consumer] = []
        self._rounds: dict[int, deque[Consumer]] = {}
        """Per priority level, best first, those that may have room; the next one in front."""
        self._resting: set[Consumer] = set()
        """Consumers that are in no round."""
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
        self._consumers.append(consumer)
        if consumer.priority not in self._rounds:
            self._rounds = dict(sorted([*self._rounds.items(), (consumer.priority, deque())]))
        self._resting.add(consumer)
        self.wake(consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        if consumer in self._resting:
            self._resting.remove(consumer)
        else:
            self._rounds[consumer.priority].remove(consumer)
        if all(c.priority != consumer.priority for c in self._consumers):
            del self._rounds[consumer.priority]
        self._turn = None

    def wake(self, consumer: Consumer) -> None:
        if consumer in self._resting:
            self._resting.remove(consumer)
            self._rounds[consumer.priority].append(consumer)
            self._turn = None  # it may be of a better level than the one whose turn it is

    def room(self) -> int:
        self._turn = None
        permits = 0
        for consumers in self._rounds.values():
            for consumer in consumers:
                if consumer.can_receive():
                    permits += consumer.permits
                    if permits >= _ENOUGH:
                        return permits
        if not permits:
            for consumers in self._rounds.values():
                self._resting.update(consumers)
                consumers.clear()
        return permits

    def choose(self, entry: Entry) -> Consumer | None:
        consumer = self._turn
        if consumer is None or not self._turn_left or not consumer.can_receive():
            consumers = self._best_round()
            if consumers is None:
                return None
            consumer = self._turn = consumers[0]
            consumers.rotate(-1)
            self._turn_left = self._turn_entries
        self._turn_left -= 1
        if self._replay:
            self._replay.discard(entry.position)
        return consumer

    def _best_round(self) -> deque[Consumer] | None:
        """The best level where somebody has room: whoever is in front of it."""
        for consumers in self._rounds.values():
            while consumers:
                if consumers[0].can_receive():
                    return consumers
                self._resting.add(consumers.popleft())
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
        if not self._replay or self._best_round() is None:
            return None
        return self._replay.lowest()

    def clear(self) -> None:
        self._replay.clear()
