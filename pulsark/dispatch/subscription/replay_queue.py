"""Entries of a Key_Shared subscription that wait, in the order in which each key goes on."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.wire.position import Position

_AGENDA_SPARE = 64


class WaitingSlots:
    """For each slot its waiting entries, for each consumer the slots that it could go on with.

    The consumer of a slot is asked once, when the slot comes onto that consumer's agenda; after
    consumers came or went ``reassign`` has it asked anew. A slot that is blocked leaves the
    agenda until ``retry``. Costs are logarithmic in what waits, and independent of the number
    of consumers.
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
        self._agendas: dict[Consumer, list[tuple[Position, int]]] = {}
        """Heaps of slots and their first positions. What does not match its queue is void."""
        self._eager: dict[Consumer, None] = {}
        """Consumers with an agenda that may have room, the next one first."""
        self._reassign = False

    def first_of(self, slot: int) -> Position | None:
        """The entry with which a slot goes on; ``None`` if none of it waits."""
        queue = self._queues.get(slot)
        return queue[0] if queue else None

    def add(self, position: Position, slot: int) -> None:
        """An entry begins to wait."""
        self.slots[position] = slot
        queue = self._queues.setdefault(slot, [])
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

    def retry(self, slot: int) -> None:
        """A slot is not blocked any more."""
        if slot in self._queues:
            self._plan(slot)

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""
        if consumer in self._agendas:
            self._eager[consumer] = None

    def reassign(self) -> None:
        """Slots may belong to other consumers now."""
        self._reassign = True

    def next(self) -> Position | None:
        """The lowest entry that can go to some consumer with room."""
        if self._reassign:
            self._reassign = False
            self._agendas.clear()
            self._eager.clear()
            for slot in self._queues:
                self._plan(slot)
        while self._eager:
            consumer = next(iter(self._eager))
            if consumer.can_receive():
                position = self._first_on(self._agendas[consumer], consumer)
                if position is not None:
                    return position
                del self._agendas[consumer]
            del self._eager[consumer]
        return None

    def clear(self) -> None:
        """Nothing waits."""
        self.slots.clear()
        self._queues.clear()
        self._agendas.clear()
        self._eager.clear()

    def _plan(self, slot: int) -> None:
        consumer = self._owner(slot)
        if consumer is None:
            return
        agenda = self._agendas.setdefault(consumer, [])
        heappush(agenda, (self._queues[slot][0], slot))
        self._eager[consumer] = None
        if len(agenda) > _AGENDA_SPARE + 2 * len(self._queues):
            self._reassign = True  # it is void for the most part

    def _first_on(self, agenda: list[tuple[Position, int]], consumer: Consumer) -> Position | None:
        while agenda:
            position, slot = agenda[0]
            if self.first_of(slot) == position and not self._blocked(slot, consumer):
                return position
            heappop(agenda)
        return None
