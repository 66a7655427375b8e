"""Entries that consumers have and did not acknowledge, for types that track them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.subscription.reader import READ_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.model.subscription_type import SubscriptionType
    from pulsark.dispatch.subscription.dispatcher import Dispatcher
    from pulsark.dispatch.subscription.unacked import Unacked
    from pulsark.storage.cursor.cursor import Ack
    from pulsark.wire.position import Position


HOLDER_QUESTIONS = 64
"""After this many of them, one ACK gets an index of who holds what."""


class Holders:
    """Finds the consumers that hold what another one acknowledges, for one ACK.

    Mostly it is asked once or never. A command that names very many entries of others is
    answered from an index, made once: the work must not grow with ids times consumers.
    """

    __slots__ = ("_asked", "_index", "_type")

    def __init__(self, type_: SubscriptionType) -> None:
        self._type = type_
        self._asked = 0
        self._index: dict[Position, Consumer] | None = None

    def find(self, position: Position) -> Consumer | None:
        """The consumer that holds an entry now."""
        self._asked += 1
        if self._asked < HOLDER_QUESTIONS:
            return next((c for c in self._type.consumers if position in c.pending), None)
        if self._index is None:
            self._index = {p: c for c in self._type.consumers for p in c.pending}
        owner = self._index.get(position)
        return owner if owner is not None and position in owner.pending else None


@dataclass(frozen=True, slots=True, eq=False)
class PendingEntries:
    """The pending entries of one subscription. Entries leave ``Consumer.pending`` only here."""

    members: Members
    dispatcher: Dispatcher
    unacked: Unacked

    def messages_of(self, position: Position) -> int:
        """How many messages a pending entry has at least; 0 if it is not pending."""
        return max((c.pending.get(position, 0) for c in self.members.type.consumers), default=0)

    def acknowledged(self, consumer: Consumer, acks: Sequence[Ack], left: Sequence[int]) -> int:
        """Release what is acknowledged; returns the number of messages.

        ``left`` has for each entry how many of its messages are still unacknowledged. An
        acknowledgement may come from another consumer than the one that received the entry.
        """
        forget, release = self.dispatcher.forget, self.unacked.release
        holders: Holders | None = None
        released = 0
        waited = self.members.type.replay_count > 0
        for (position, _, _), remaining in zip(acks, left, strict=True):
            owner: Consumer | None = consumer
            if position not in consumer.pending:
                holders = holders or Holders(self.members.type)
                owner = holders.find(position)
            if not remaining:
                forget(position)
            if owner is None:
                continue
            before = owner.pending[position]
            if not remaining:
                del owner.pending[position]
            else:
                remaining = owner.pending[position] = min(remaining, before)
            release(owner, before - remaining)
            released += before - remaining
        self.unacked.update()
        if waited:
            # Waiting entries may go out now, or there is room to look ahead.
            self.dispatcher.schedule_pump()
        return released

    def acknowledged_through(self, through: Position) -> None:
        """Release all entries up to a position, some in each turn."""
        self.dispatcher.take_steps(self._release_through(through))

    def _release_through(self, through: Position) -> Iterator[None]:
        looked_at = 0
        for consumer in self.members.type.consumers:
            for position in list(consumer.pending):
                looked_at += 1
                if looked_at % READ_ENTRIES == 0:
                    yield
                # The consumer may have given the entry back in an earlier turn.
                if position <= through and position in consumer.pending:
                    self.dispatcher.forget(position)
                    self.unacked.release(consumer, consumer.pending.pop(position))
        self.unacked.update()
        self.dispatcher.schedule_pump()

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """A consumer asks for entries again that it has; ``None``: for all of them."""
        pending = consumer.pending
        if positions is None:
            taken, consumer.pending = pending, {}
        else:
            taken = {p: pending.pop(p) for p in positions if p in pending}
        self.dispatcher.replay(taken, counted=True)
        self.unacked.release_wish(consumer, sum(taken.values()))
        self.unacked.update()
        self.dispatcher.schedule_pump()

    def give_back(self, consumers: Iterable[Consumer]) -> None:
        """Consumers left: what they had goes to the others, if there are any."""
        others = self.members.type.consumer_count > 0
        for consumer in consumers:
            self.unacked.messages -= consumer.unacked
            consumer.unacked = 0
            given_back, consumer.pending = consumer.pending, {}
            if others:
                self.dispatcher.replay(given_back)
        self.unacked.update()

    def clear(self) -> None:
        """Forget all of them: the cursor moved, and dispatch starts again behind it."""
        for consumer in self.members.type.consumers:
            consumer.pending.clear()
            self.unacked.release(consumer, consumer.unacked)
        self.unacked.update()
