"""Which consumer owns a slot of Key_Shared: ranges, split by themselves or named by consumers."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from itertools import pairwise
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.dispatch.model.subscription_type import PlaceTakenError
from pulsark.errors import ClientError, ServerError
from pulsark.limits import KEY_RANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pulsark.dispatch.model.consumer import Consumer

RANGE_SIZE = 65536


def range_slot(key_hash: int) -> int:
    """The slot of a key; there is no slot 0."""
    return key_hash % RANGE_SIZE or 1


class AutoSplitRanges:
    """Each consumer has one range of slots, and a newcomer gets half of the largest one."""

    def __init__(self) -> None:
        self._bounds: list[int] = []
        """The last slot of each range, ascending; a range begins behind the one before."""
        self._owners: list[Consumer] = []

    slot = staticmethod(range_slot)

    def owner(self, slot: int) -> Consumer | None:
        """The consumer of a slot; ``None`` while there is none at all."""
        return self._owners[bisect_left(self._bounds, slot)] if self._bounds else None

    def add(self, consumer: Consumer) -> BitMap:
        """A consumer joins; returns its slots. ``ClientError`` if every range is one slot."""
        bounds = self._bounds
        if not bounds:
            bounds.append(RANGE_SIZE)
            self._owners.append(consumer)
            return self._slots_at(0)
        sizes = [upper - lower for lower, upper in pairwise([0, *bounds])]
        largest = sizes.index(max(sizes))
        if sizes[largest] <= 1:
            raise ClientError(
                ServerError.ConsumerAssignError,
                f"No range of hashes is left for another consumer: there are {len(bounds)}",
            )
        bounds.insert(largest, bounds[largest] - (sizes[largest] >> 1))
        self._owners.insert(largest, consumer)
        return self._slots_at(largest)

    def remove(self, consumer: Consumer) -> BitMap:
        """A consumer leaves; a neighbour, first the right one, gets its slots, which it returns."""
        place = self._owners.index(consumer)
        moved = self._slots_at(place)
        last = place == len(self._owners) - 1
        del self._owners[place]
        del self._bounds[place - 1 if last and place else place]
        return moved

    def _slots_at(self, place: int) -> BitMap:
        below = self._bounds[place - 1] if place else 0
        return _slots([(below + 1, self._bounds[place])])

    def ranges(self) -> list[tuple[int, int, Consumer]]:
        """Who owns what: first and last slot, in order."""
        lowest = [1, *(bound + 1 for bound in self._bounds)]
        return list(zip(lowest, self._bounds, self._owners, strict=False))


class StickyRanges:
    """Each consumer names its ranges itself; a slot in none of them has no owner."""

    def __init__(self) -> None:
        self._firsts = array("H")
        """The first slot of each range, ascending; ranges do not overlap."""
        self._lasts = array("H")
        self._owners: list[Consumer] = []

    slot = staticmethod(range_slot)

    def owner(self, slot: int) -> Consumer | None:
        """The consumer that named a slot."""
        place = bisect_right(self._firsts, slot) - 1
        return self._owners[place] if place >= 0 and slot <= self._lasts[place] else None

    def add(self, consumer: Consumer) -> BitMap:
        """A consumer joins with its ranges; returns their slots. ``ClientError`` if it cannot."""
        check_ranges(consumer.key_ranges)
        own = [(first, last, consumer) for first, last in consumer.key_ranges]
        merged = sorted([*self.ranges(), *own], key=_first)
        for (first, last, holder), (next_first, next_last, next_holder) in pairwise(merged):
            if next_first > last:
                continue
            other = holder if holder is not consumer else next_holder
            raise PlaceTakenError(
                ServerError.ConsumerAssignError,
                f"The ranges of hashes of consumers {consumer.name} and {other.name} conflict: "
                f"[{first}, {last}] and [{next_first}, {next_last}] overlap",
                other,
            )
        self._set(merged)
        return _slots(consumer.key_ranges)

    def remove(self, consumer: Consumer) -> BitMap:
        """A consumer leaves; returns the slots that it had."""
        self._set([each for each in self.ranges() if each[2] is not consumer])
        return _slots(consumer.key_ranges)

    def ranges(self) -> list[tuple[int, int, Consumer]]:
        """Who owns what: first and last slot, in order."""
        return list(zip(self._firsts, self._lasts, self._owners, strict=True))

    def _set(self, ranges: Sequence[tuple[int, int, Consumer]]) -> None:
        self._firsts = array("H", [first for first, _, _ in ranges])
        self._lasts = array("H", [last for _, last, _ in ranges])
        self._owners = [consumer for _, _, consumer in ranges]


class SlotRanges(Collection[tuple[int, int]]):
    """Ranges of slots, first and last, in four bytes each. ``ClientError`` for invalid ones."""

    __slots__ = ("_ends",)

    def __init__(self, ranges: Collection[tuple[int, int]]) -> None:
        check_ranges(ranges)
        self._ends = array("H", [end for each in ranges for end in each])

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._ends[::2], self._ends[1::2], strict=True)

    def __contains__(self, wanted: object) -> bool:
        return any(each == wanted for each in self)


def check_ranges(ranges: Collection[tuple[int, int]]) -> None:
    """Raise ``ClientError`` if these ranges of slots are invalid for any consumer."""
    if not ranges:
        raise _refused("a consumer of a sticky subscription has to name some")
    if len(ranges) > KEY_RANGES_MAX:
        raise _refused(f"a consumer names at most {KEY_RANGES_MAX}; {len(ranges)} came")
    for first, last in ranges:
        if not 0 <= first <= last < RANGE_SIZE:
            raise _refused(f"[{first}, {last}] is not within [0, {RANGE_SIZE - 1}]")
    for (first, last), (next_first, next_last) in pairwise(sorted(ranges)):
        if next_first <= last:
            raise _refused(f"[{first}, {last}] and [{next_first}, {next_last}] overlap")


def _slots(ranges: Iterable[tuple[int, int]]) -> BitMap:
    slots = BitMap()
    for first, last in ranges:
        slots.add_range(first, last + 1)
    return slots


def _first(owned: tuple[int, int, Consumer]) -> int:
    return owned[0]


def _refused(reason: str) -> ClientError:
    return ClientError(ServerError.ConsumerAssignError, f"Ranges of hashes: {reason}")
