"""Entries of a Key_Shared subscription that wait, in the order in which each key goes on."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.limits import SLOTS_PLANNED_AT_ONCE_MAX
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.consumer import Consumer


class Agenda:
    """Slots with which one consumer could go on, by the entries with which they go on."""

    __slots__ = ("_entries", "_firsts", "_ledgers")

    def __init__(self) -> None:
        self._firsts: dict[int, Position] = {}
        self._entries: dict[int, BitMap] = {}
        """Entry ids of ``_firsts`` by their ledgers. Nothing is void: slots leave as they come."""
        self._ledgers: list[int] = []
        """A heap of the ledgers."""

    def __len__(self) -> int:
        return len(self._firsts)

    def put(self, slot: int, position: Position) -> None:
        """A slot goes on with this entry."""
        before = self._firsts.get(slot)
        if before == position:
            return
        if before is not None:
            self._entries[before.ledger_id].discard(before.entry_id)
        self._firsts[slot] = position
        entries = self._entries.get(position.ledger_id)
        if entries is None:
            entries = self._entries[position.ledger_id] = BitMap()
            heappush(self._ledgers, position.ledger_id)
        entries.add(position.entry_id)

    def remove(self, slot: int) -> None:
        """Take a slot off."""
        position = self._firsts.pop(slot, None)
        if position is not None:
            self._entries[position.ledger_id].discard(position.entry_id)

    def first(self) -> Position | None:
        """The lowest entry."""
        while self._ledgers:
            ledger_id = self._ledgers[0]
            entries = self._entries[ledger_id]
            if entries:
                return Position(ledger_id, entries.min())
            del self._entries[ledger_id]
            heappop(self._ledgers)
        return None


class WaitingSlots:
    """For each slot its waiting entries, for each consumer the slots that it could go on with.

    A slot is on the agenda of its consumer, unless it is blocked: then ``retry`` puts it there.
    Slots that moved are planned anew some at a time, by ``plan_moved``. Until then they are on
    the agenda of the former consumer, which does not get them. Costs are logarithmic in what
    waits, and independent of the number of consumers.
    """

    def __init__(
        self, owner: Callable[[int], Consumer | None], blocked: Callable[[int, Consumer], bool]
    ) -> None:
        self._owner = owner
        self._blocked = blocked
        self.slots: dict[Position, int] = {}
        """What waits, and in which slot."""
        self._queues: dict[int, list[Position]] = {}
        """A heap for each slot. The first position of one does wait; others may have left."""
        self._slots = BitMap()
        """Those with a queue."""
        self._moved = BitMap()
        """Those that may belong to other consumers by now."""
        self._agendas: dict[Consumer, Agenda] = {}
        self._planned: dict[int, Agenda] = {}
        """The agenda that a slot is on."""
        self._eager: dict[Consumer, None] = {}
        """Consumers with an agenda that may have room, the next one first."""

    def first_of(self, slot: int) -> Position | None:
        """The entry with which a slot goes on; ``None`` if none of it waits."""
        queue = self._queues.get(slot)
        return queue[0] if queue else None

    def add(self, position: Position, slot: int) -> None:
        """An entry begins to wait."""
        self.slots[position] = slot
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = []
            self._slots.add(slot)
        heappush(queue, position)
        if queue[0] is position:
            self._plan(slot)

    def discard(self, position: Position) -> None:
        """An entry does not wait any more, if it did."""
        slot = self.slots.pop(position, None)
        if slot is None:
            return
        queue = self._queues[slot]
        if queue[0] != position:
            return
        while queue and queue[0] not in self.slots:
            heappop(queue)
        if queue:
            self._plan(slot)
        else:
            del self._queues[slot]
            self._slots.discard(slot)
            self._take_off(slot)

    def retry(self, slot: int) -> None:
        """A slot is not blocked any more."""
        if slot in self._queues:
            self._plan(slot)

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""
        if consumer in self._agendas:
            self._eager[consumer] = None

    def drop(self, consumer: Consumer) -> None:
        """A consumer left. Its slots moved."""
        self._agendas.pop(consumer, None)
        self._eager.pop(consumer, None)

    def slots_moved(self, moved: BitMap) -> None:
        """Slots belong to other consumers now."""
        self._moved |= moved & self._slots

    def plan_moved(self) -> bool:
        """Plan some of the slots that moved; returns whether more are left."""
        moved = self._moved
        if not moved:
            return False
        some = moved[:SLOTS_PLANNED_AT_ONCE_MAX]
        moved -= some
        for slot in some:
            self.retry(slot)
        return bool(moved)

    def next(self) -> Position | None:
        """The lowest planned entry that can go to some consumer with room."""
        left = SLOTS_PLANNED_AT_ONCE_MAX
        while self._eager:
            consumer = next(iter(self._eager))
            agenda = self._agendas.get(consumer)
            if agenda is not None and consumer.can_receive():
                while (first := agenda.first()) is not None:
                    slot = self.slots[first]
                    if self._owner(slot) is consumer and not self._blocked(slot, consumer):
                        return self._queues[slot][0]
                    if not left:
                        return None  # they moved, and the rest is to be planned
                    left -= 1
                    self._moved.discard(slot)
                    self._plan(slot)
                del self._agendas[consumer]
            del self._eager[consumer]
        return None

    def clear(self) -> None:
        """Nothing waits."""
        self.slots.clear()
        self._queues.clear()
        self._slots.clear()
        self._moved.clear()
        self._agendas.clear()
        self._planned.clear()
        self._eager.clear()

    def _plan(self, slot: int) -> None:
        consumer = self._owner(slot)
        if consumer is None or self._blocked(slot, consumer):
            self._take_off(slot)
            return
        agenda = self._agendas.get(consumer)
        if agenda is None:
            agenda = self._agendas[consumer] = Agenda()
        if self._planned.get(slot) is not agenda:
            self._take_off(slot)
            self._planned[slot] = agenda
        agenda.put(slot, self._queues[slot][0])
        self._eager[consumer] = None

    def _take_off(self, slot: int) -> None:
        agenda = self._planned.pop(slot, None)
        if agenda is not None:
            agenda.remove(slot)
