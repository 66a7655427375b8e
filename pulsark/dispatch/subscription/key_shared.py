"""Key_Shared: all entries of a key go to one consumer, in order.

Keys are hashed to slots, and each slot has an owner, as a selector says. When consumers come or
go, slots move; then a slot *drains*: its new owner gets nothing of it while an earlier one holds
entries of it that are not acknowledged. This is one rule, independent of history: the
pending entries of a slot are all at one consumer, its holder, and only the holder may get more.

An entry that cannot go out (its owner has no room, its slot drains, an earlier entry of its slot
waits) is put aside, so that others may overtake it, up to a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.subscription.replay_queue import WaitingSlots
from pulsark.dispatch.subscription.round_robin import ENOUGH, Rota
from pulsark.storage.position_set import PositionSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyroaring import BitMap

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.wire.position import Position


class ConsumerSelector(Protocol):
    """Which consumer a slot belongs to. Slots are above 0."""

    def slot(self, key_hash: int) -> int:
        """The slot of a key."""

    def owner(self, slot: int) -> Consumer | None:
        """The consumer of a slot; ``None`` if it has none."""

    def add(self, consumer: Consumer) -> BitMap:
        """A consumer joins, or ``ClientError``; returns the slots that moved."""

    def remove(self, consumer: Consumer) -> BitMap:
        """A consumer leaves that has joined; returns the slots that moved."""

    def ranges(self) -> list[tuple[int, int, Consumer]]:
        """Who owns what: first and last slot, in order."""


class BusySlot:
    """Pending entries of a slot, at ``consumer``; how often another one wanted the next entry."""

    __slots__ = ("blocked_attempts", "consumer", "entries")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.entries = 1
        self.blocked_attempts = 0


class KeyShared:
    """Who owns the slot of a key gets its entries.

    With ``ordered`` false (allowOutOfOrderDelivery) a slot does not drain, and new entries do
    not wait for earlier ones. ``look_ahead`` gives the most entries that may wait while new
    ones are read, for a number of consumers.
    """

    sub_type = SubType.Key_Shared
    tracks_pending = True
    active = None
    unwanted = None

    def __init__(
        self, selector: ConsumerSelector, look_ahead: Callable[[int], int], *, ordered: bool = True
    ) -> None:
        self.selector = selector
        self._look_ahead = look_ahead
        self._ordered = ordered
        self._consumers: dict[Consumer, None] = {}
        """In order of arrival."""
        self._rota = Rota()
        self._slot_of = selector.slot
        self._owners: dict[int, Consumer | None] = {}
        """What the selector answered since consumers came or went last."""
        self._pending: dict[Position, int] = {}
        """The slots of pending entries."""
        self._holdings: dict[int, BusySlot] = {}
        self._waiting = WaitingSlots(self._owner, self._drains)
        self._unsorted = PositionSet()
        """Entries that wait and whose key is not known yet."""
        self.drained: dict[Consumer, int] = {}
        """How often a slot that a consumer had to give up was free at last."""

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    @property
    def replay_count(self) -> int:
        return len(self._waiting.slots) + len(self._unsorted)

    def add(self, consumer: Consumer) -> None:
        moved = self.selector.add(consumer)
        self._consumers[consumer] = None
        self._rota.add(consumer)
        self.drained[consumer] = 0
        self._slots_moved(moved)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._consumers:
            return
        del self._consumers[consumer]
        self._rota.remove(consumer)
        moved = self.selector.remove(consumer)
        del self.drained[consumer]
        self._waiting.drop(consumer)
        self._slots_moved(moved)

    def _slots_moved(self, moved: BitMap) -> None:
        self._owners.clear()
        self._waiting.slots_moved(moved)

    def plan(self) -> bool:
        return self._waiting.plan_moved()

    def _owner(self, slot: int) -> Consumer | None:
        owners = self._owners
        if slot in owners:
            return owners[slot]
        owner = owners[slot] = self.selector.owner(slot)
        return owner

    def wake(self, consumer: Consumer) -> None:
        self._rota.wake(consumer)
        self._waiting.wake(consumer)

    def room(self) -> int:
        if self._rota.front() is None:
            return 0
        return min(ENOUGH, max(self._look_ahead(len(self._consumers)) - self.replay_count, 0))

    def choose(self, entry: Entry) -> Consumer | None:
        slot = self._slot_of(entry.key_hash)
        consumer = self._owners.get(slot) or self._owner(slot)
        if consumer is None or not consumer.can_receive():
            return None
        position = entry.position
        if self._ordered:
            first = self._waiting.first_of(slot)
            if first is not None and first != position:
                return None
            holding = self._holdings.get(slot)
            if holding is None:
                self._holdings[slot] = BusySlot(consumer)
            elif holding.consumer is consumer:
                holding.entries += 1
            else:
                holding.blocked_attempts += 1
                return None
        if position in self._waiting.slots:
            self._waiting.discard(position)
        if self._unsorted:
            self._unsorted.discard(position)
        self._pending[position] = slot
        return consumer

    def _drains(self, slot: int, consumer: Consumer) -> bool:
        holding = self._holdings.get(slot)
        return holding is not None and holding.consumer is not consumer

    def put_aside(self, entry: Entry) -> bool:
        position = entry.position
        if position in self._unsorted:
            self._unsorted.discard(position)
        elif (
            self._rota.front() is None
            or position in self._waiting.slots
            or self.replay_count >= self._look_ahead(len(self._consumers))
        ):
            return False
        self._waiting.add(position, self.selector.slot(entry.key_hash))
        return True

    def give_back(self, position: Position) -> None:
        slot = self._pending.pop(position, None)
        if slot is not None:
            self._release(slot)
            self._waiting.add(position, slot)
        elif position not in self._waiting.slots:
            self._unsorted.add(position)

    def forget(self, position: Position) -> None:
        slot = self._pending.pop(position, None)
        if slot is not None:
            self._release(slot)
        elif position in self._waiting.slots:
            self._waiting.discard(position)
        elif self._unsorted:
            self._unsorted.discard(position)

    def _release(self, slot: int) -> None:
        """An entry of a slot is not pending any more; the last one frees the slot."""
        holding = self._holdings.get(slot)
        if holding is None:
            return
        holding.entries -= 1
        if not holding.entries:
            del self._holdings[slot]
            self._waiting.retry(slot)
            if self._owner(slot) is not holding.consumer and holding.consumer in self.drained:
                self.drained[holding.consumer] += 1

    def waits(self, position: Position) -> bool:
        return position in self._waiting.slots or position in self._unsorted

    def held_up(self) -> Collection[Position]:
        return self._waiting.slots

    def next_replay(self) -> Position | None:
        if self._unsorted and self._rota.front() is not None:
            return self._unsorted.lowest()
        return self._waiting.next() if self._waiting.slots else None

    def clear(self) -> None:
        self._pending.clear()
        self._holdings.clear()
        self._waiting.clear()
        self._unsorted.clear()

    def draining(self) -> dict[Consumer, list[tuple[int, BusySlot]]]:
        """The slots that each consumer holds although they belong to another one by now."""
        found: dict[Consumer, list[tuple[int, BusySlot]]] = {}
        for slot, holding in self._holdings.items():
            if self._owner(slot) is not holding.consumer:
                found.setdefault(holding.consumer, []).append((slot, holding))
        return found
