"""Consumers in rotation."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer

ENOUGH = 500
"""Room for more messages than that need not be counted: no read is larger."""


class Rota:
    """Consumers in rotation; those without room sit out until they are woken.

    A consumer is looked at when it is in front, and again only after it was woken or has
    received: what an entry costs does not grow with the number of consumers. Whatever gives a
    consumer room has to wake it.
    """

    __slots__ = ("_order", "_resting")

    def __init__(self) -> None:
        self._order: deque[Consumer] = deque()
        self._resting: set[Consumer] = set()

    def __len__(self) -> int:
        return len(self._order) + len(self._resting)

    def add(self, consumer: Consumer) -> None:
        """A newcomer is last."""
        self._order.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Forget a member."""
        if consumer in self._resting:
            self._resting.remove(consumer)
        else:
            self._order.remove(consumer)

    def wake(self, consumer: Consumer) -> bool:
        """A member may have room again; whether it sat out."""
        if consumer not in self._resting:
            return False
        self._resting.remove(consumer)
        self._order.append(consumer)
        return True

    def front(self) -> Consumer | None:
        """The first one with room; ``None`` if none has."""
        order = self._order
        while order:
            if order[0].can_receive():
                return order[0]
            self._resting.add(order.popleft())
        return None

    def next(self) -> Consumer | None:
        """The first one with room, which is last from now on."""
        order = self._order
        while order:
            consumer = order[0]
            if consumer.can_receive():
                order.rotate(-1)
                return consumer
            self._resting.add(order.popleft())
        return None

    def room(self) -> int:
        """Messages that the members can take together, not counted beyond ``ENOUGH``."""
        consumer = self.front()
        if consumer is None:
            return 0
        permits = consumer.permits
        for other in self._order:
            if permits >= ENOUGH:
                break
            if other is not consumer and other.can_receive():
                permits += other.permits
        return permits
