"""Failover: one consumer is active, the others stand by."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.single_active import SingleActive
from pulsark.dispatch.subscription_type import SubType
from pulsark.wire.hashes import murmur3_32

RING_POINTS = 100


class Failover(SingleActive):
    """The active consumer receives everything, chosen as ``pick_active`` says."""

    sub_type = SubType.Failover

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__()
        self._topic = topic
        self._partition = partition
        self._consumers: list[Consumer] = []

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self._active = pick_active(self._consumers, self._topic, self._partition)

    def remove(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self._active = pick_active(self._consumers, self._topic, self._partition)


def pick_active(consumers: list[Consumer], topic: str, partition: int) -> Consumer | None:
    """The consumer that is active, among those of the best (lowest) priority level.

    Partitions are spread evenly: by name, index ``partition`` modulo their number. Otherwise
    (``partition`` -1) a topic takes the owner of its hash on a Murmur3 ring with 100 points a
    consumer, so that many topics spread over the same consumers, and few move when one leaves.
    """
    if not consumers:
        return None
    best = min(c.priority for c in consumers)
    eligible = sorted((c for c in consumers if c.priority == best), key=lambda c: c.name)
    if partition >= 0:
        return eligible[partition % len(eligible)]
    if len(eligible) == 1:
        return eligible[0]
    ring = sorted((point, index) for index, c in enumerate(eligible) for point in _points(c.name))
    place = bisect_left(ring, (murmur3_32(topic.encode()), -1))
    return eligible[ring[place % len(ring)][1]]


@lru_cache(maxsize=4096)
def _points(name: str) -> tuple[int, ...]:
    return tuple(murmur3_32(f"{name}{point}".encode()) for point in range(RING_POINTS))
