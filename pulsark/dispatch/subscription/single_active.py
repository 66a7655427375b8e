"""What Exclusive and Failover share: one consumer receives, and nothing is owned by it.

The active consumer gets all entries in order. When another one becomes active, or asks for
redelivery, dispatch starts again behind the cursor, so entries never have to wait here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.wire.position import Position


class SingleActive:
    """The part of a type with one receiver; who that is, a subclass decides."""

    tracks_pending = False
    replay_count = 0
    unwanted: Callable[[Entry], bool] | None = None
    plan = None

    def __init__(self) -> None:
        self._active: Consumer | None = None

    @property
    def active(self) -> Consumer | None:
        return self._active

    def wake(self, consumer: Consumer) -> None:
        """Nothing to note: the active consumer is asked each time."""

    def room(self) -> int:
        consumer = self._active
        return consumer.permits if consumer is not None and consumer.can_receive() else 0

    def choose(self, entry: Entry) -> Consumer | None:
        consumer = self._active
        return consumer if consumer is not None and consumer.can_receive() else None

    def put_aside(self, entry: Entry) -> bool:
        return False

    def give_back(self, position: Position) -> None:
        """Nothing to note: the subscription rewinds."""

    def forget(self, position: Position) -> None:
        """Nothing was noted."""

    def waits(self, position: Position) -> bool:
        return False

    def held_up(self) -> Collection[Position]:
        return ()

    def next_replay(self) -> Position | None:
        return None

    def clear(self) -> None:
        """Nothing was noted."""
