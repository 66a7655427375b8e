"""The layout of an ordinary topic: one segment a partition. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.wire.layout_fields import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pulsark.wire.topic_name import TopicName

HASHES = 1 << 16
"""Clients share that many hashes out among the segments of a topic that can be split. Among
partitions they choose by the number of partitions; they only check that ranges are ranges."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The segments of a topic at some time."""

    topic: TopicName
    partitions: int
    """0 for a topic without, also for one that is still to be made."""
    epoch: int
    """Higher for a later layout: clients ignore one that is not above what they have."""
    created_ms: int

    def __len__(self) -> int:
        return max(self.partitions, 1)

    @property
    def resolved_name(self) -> str:
        """The topic's name as one that has a layout; clients accept no other."""
        topic = self.topic
        return f"topic://{topic.namespace_name}/{topic.local}"

    def partition(self, number: int) -> TopicName:
        """The topic behind a segment."""
        return self.topic.with_partition(number) if self.partitions else self.topic

    def segments(self, numbers: Iterable[int] | None = None) -> Iterator[Segment]:
        """The segments with these numbers; without numbers, all."""
        count, name = len(self), str(self.topic)
        for number in range(count) if numbers is None else numbers:
            topic = f"{name}-partition-{number}" if self.partitions else name
            yield Segment(number, *hash_range(number, count), topic)

    def after(self, partitions: int) -> Layout:
        """The layout with another number of partitions, which is later in any case."""
        epoch = max(partitions, self.epoch + 1)
        return Layout(self.topic, partitions, epoch, self.created_ms)


def first_layout(topic: TopicName, partitions: int, now_ms: int) -> Layout:
    """The layout of a topic that nobody follows yet.

    The number of partitions only grows while a topic is there, so it is a good epoch: whoever
    comes back to a broker that has started anew does not see an older one.
    """
    return Layout(topic, partitions, partitions, now_ms)


def hash_range(number: int, count: int) -> tuple[int, int]:
    """The hash range of one of several segments, both ends included."""
    width = max(HASHES // count, 1)
    last = HASHES - 1
    start = min(number * width, last)
    return start, last if number == count - 1 else min(start + width - 1, last)


def check_has_layout(name: TopicName) -> None:
    """Raise ``ClientError`` for a topic that clients of scalable topics cannot use."""
    if not name.is_persistent:
        raise ClientError(
            ServerError.NotAllowedError, f"{name} is not persistent: it has no layout of segments"
        )
    if name.partition >= 0:
        raise ClientError(
            ServerError.TopicNotFound,
            f"{name} is a single partition: ask for the layout of {name.base}",
        )
