"""Which consumer owns a slot of Key_Shared: consistent hashing, the default."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.wire.hashes import murmur3_32

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer

_SLOTS = 65535


class HashRing:
    """Slots 1 to 65535 in a ring, on which each consumer has some points.

    A slot belongs to the first point at or after it. So a consumer that comes or goes moves
    slots from or to itself only. Several consumers may want the same point: the first one has
    it, the others take it over in order.
    """

    def __init__(self, points: int = 100) -> None:
        self._points = points
        self._ring: list[int] = []
        self._claims: dict[int, list[Consumer]] = {}
        self._numbers: dict[str, dict[int, Consumer]] = {}
        """Consumers of the same name have numbers, so that their points differ."""

    def slot(self, key_hash: int) -> int:
        """The slot of a key."""
        return key_hash % _SLOTS + 1

    def owner(self, slot: int) -> Consumer | None:
        """The consumer of a slot; ``None`` while there is none at all."""
        if not self._ring:
            return None
        place = bisect_left(self._ring, slot)
        return self._claims[self._ring[place % len(self._ring)]][0]

    def add(self, consumer: Consumer) -> BitMap:
        """A consumer joins; returns the slots that it has now."""
        namesakes = self._numbers.setdefault(consumer.name, {})
        number = next(n for n in range(len(namesakes) + 1) if n not in namesakes)
        namesakes[number] = consumer
        points = self._points_of(consumer.name, number)
        for point in points:
            claims = self._claims.setdefault(point, [])
            if not claims:
                insort(self._ring, point)
            claims.append(consumer)
        return self._slots_before(points, consumer)

    def remove(self, consumer: Consumer) -> BitMap:
        """A consumer leaves; returns the slots that it had."""
        namesakes = self._numbers[consumer.name]
        number = next(n for n, namesake in namesakes.items() if namesake is consumer)
        del namesakes[number]
        if not namesakes:
            del self._numbers[consumer.name]
        points = self._points_of(consumer.name, number)
        moved = self._slots_before(points, consumer)
        for point in points:
            claims = self._claims[point]
            claims.remove(consumer)
            if not claims:
                del self._claims[point]
                del self._ring[bisect_left(self._ring, point)]
        return moved

    def _slots_before(self, points: set[int], consumer: Consumer) -> BitMap:
        """The slots of those of its points that a consumer has."""
        ring = self._ring
        slots = BitMap()
        for point in points:
            if self._claims[point][0] is not consumer:
                continue
            place = bisect_left(ring, point)
            slots.add_range(ring[place - 1] + 1 if place else 1, point + 1)
            if not place:
                slots.add_range(ring[-1] + 1, _SLOTS + 1)
        return slots

    def _points_of(self, name: str, number: int) -> set[int]:
        return {self.slot(murmur3_32(f"{name}\0{number}\0{i}")) for i in range(self._points)}

    def ranges(self) -> list[tuple[int, int, Consumer]]:
        """Who owns what: first and last slot, in order."""
        owned = []
        first = 1
        for point in self._ring:
            owned.append((first, point, self._claims[point][0]))
            first = point + 1
        if owned and first <= _SLOTS:
            owned.append((first, _SLOTS, owned[0][2]))
        return owned
