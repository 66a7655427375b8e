"""Failover: one consumer is active, the others stand by.

Consumers are ordered by *standing*, which a consumer's own name determines when it joins; the
first one is active. So a join or leave costs the same however many others are connected.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.subscription.single_active import SingleActive
from pulsark.wire.hashes import murmur3_32

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer

RING_POINTS = 100
_RING = 1 << 31

_Standing = tuple[int, int, str, int]
"""Priority level (the lowest is the best), distance, name, arrival."""


class Failover(SingleActive):
    """The active consumer, among those of the best priority level, receives everything.

    Partitions are spread evenly: by name, index ``partition`` modulo the number of consumers.
    Otherwise (``partition`` -1) a topic takes the owner of its hash on a Murmur3 ring with 100
    points a consumer, so that many topics spread over the same consumers, and few move when one
    leaves: the consumer is active whose next point on the ring is the nearest.
    """

    sub_type = SubType.Failover

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__()
        self._partition = partition
        self._place = murmur3_32(topic)
        self._arrivals = 0
        self._standings: dict[Consumer, _Standing] = {}
        """In order of arrival."""
        self._order: list[tuple[_Standing, Consumer]] = []
        """Ascending by standing; no two are equal."""

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._standings)

    @property
    def consumer_count(self) -> int:
        return len(self._standings)

    def add(self, consumer: Consumer) -> None:
        distance = 0 if self._partition >= 0 else _distance(self._place, consumer.name)
        standing = consumer.priority, distance, consumer.name, self._arrivals
        self._arrivals += 1
        self._standings[consumer] = standing
        insort(self._order, (standing, consumer), key=_standing)
        self._active = self._first()

    def remove(self, consumer: Consumer) -> None:
        standing = self._standings.pop(consumer, None)
        if standing is not None:
            del self._order[self._rank(standing)]
            self._active = self._first()

    def _first(self) -> Consumer | None:
        order = self._order
        if not order:
            return None
        if self._partition < 0:
            return order[0][1]
        next_level = order[0][0][0] + 1
        eligible = self._rank((next_level, -1, "", -1))
        return order[self._partition % eligible][1]

    def _rank(self, standing: _Standing) -> int:
        """How many come before it."""
        return bisect_left(self._order, standing, key=_standing)


def _standing(ranked: tuple[_Standing, Consumer]) -> _Standing:
    return ranked[0]


def _distance(place: int, name: str) -> int:
    """From a place on the ring on to the nearest point of a consumer."""
    return min((murmur3_32(f"{name}{i}") - place) % _RING for i in range(RING_POINTS))
