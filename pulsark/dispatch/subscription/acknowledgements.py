"""Acknowledgements: the cursor takes them, and pending entries are released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.subscription.ack_sets import credible, is_credible
from pulsark.errors import ClientError, ServerError
from pulsark.runtime import new_done
from pulsark.security.effects import Changed, report
from pulsark.storage.cursor.owners import CursorOwner, check_owner
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.model.subscription_stats import Totals
    from pulsark.dispatch.subscription.dispatcher import Dispatcher
    from pulsark.dispatch.subscription.pending import PendingEntries
    from pulsark.dispatch.subscription.stored_topic import StoredTopic
    from pulsark.runtime import Done
    from pulsark.storage.cursor.cursor import Ack, Cursor


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgements:
    """The acknowledgements of one subscription, by its consumers or on their behalf."""

    topic: StoredTopic
    cursor: Cursor
    totals: Totals
    members: Members
    dispatcher: Dispatcher
    pending: PendingEntries

    def individual(
        self, consumer: Consumer, acks: Sequence[Ack], done: Done | None, now_ms: int
    ) -> None:
        """Acknowledge entries, or messages of batches, one by one."""
        if not self.topic.settings.acknowledgmentAtBatchIndexLevelEnabled:
            acks = [a for a in acks if a[1] is None or not any(a[1])]
        acks = credible(acks, self._messages_of)
        left = self.cursor.ack(acks, done)
        acked = len(acks)
        if self.members.type.tracks_pending:
            acked = self.pending.acknowledged(consumer, acks, left)
        self._count(consumer, acked, now_ms)

    def cumulative(
        self,
        consumer: Consumer,
        position: Position,
        ack_set: list[int] | None,
        done: Done | None,
        now_ms: int,
    ) -> None:
        """Acknowledge everything up to a position. Not for types that track pending entries."""
        type_ = self.members.type
        if type_.tracks_pending:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Cumulative acknowledgement is not allowed on a {type_.sub_type.name} "
                "subscription; acknowledge messages one by one",
            )
        if not self.topic.settings.acknowledgmentAtBatchIndexLevelEnabled and ack_set:
            # Without batch-index tracking only the entries before this one are done.
            position = Position(position.ledger_id, max(position.entry_id, 0) - 1)
            ack_set = None
        if not is_credible(position, ack_set, self._messages_of):
            raise ClientError(
                ServerError.NotAllowedError,
                f"The ack set of {position.ledger_id}:{position.entry_id} has {len(ack_set or ())} "
                "words; its batch, as far as it is known, has fewer messages",
            )
        self.cursor.ack_cumulative(position, ack_set, done)
        self._count(consumer, 1, now_ms)

    def _count(self, consumer: Consumer, messages: int, now_ms: int) -> None:
        totals = self.totals
        totals.messages_acked += messages
        consumer.messages_acked += messages
        consumer.last_acked_ms = totals.last_acked_ms = now_ms
        if self.topic.ledger.is_terminated:
            self.members.announce_end()

    def _messages_of(self, position: Position) -> int | None:
        """How many messages an entry has, if that is known without reading it."""
        entry = self.topic.entries.cached_entry(position)
        if entry is not None:
            return entry.messages
        mask = self.cursor.state.masks.get(position)
        known = 0 if mask is None else mask.bit_length()
        return max(self.pending.messages_of(position), known) or None

    async def administered(self, acks: Sequence[Ack]) -> None:
        """Acknowledge messages durably for a client that is no consumer. ``ClientError``."""
        check_owner(self.cursor.name, CursorOwner.CLIENTS)
        durable, done = new_done()
        self._from_others(acks, done)
        report(Changed.CURSOR_MOVED, self.topic.name, self.cursor.name)
        await durable

    async def administered_through(self, through: Position) -> None:
        """Acknowledge everything up to a position durably, also what consumers hold.

        Nothing behind the last entry is acknowledged. ``ClientError``.
        """
        check_owner(self.cursor.name, CursorOwner.CLIENTS)
        self.pass_over(min(through, self.topic.ledger.last_confirmed))
        report(Changed.CURSOR_MOVED, self.topic.name, self.cursor.name)
        durable, done = new_done()
        self.cursor.flush(done)
        await durable

    def erased(self, acks: Sequence[Ack]) -> None:
        """Acknowledge messages that do not exist any more, whoever owns the cursor."""
        self._from_others(acks, None)

    def _from_others(self, acks: Sequence[Ack], done: Done | None) -> None:
        left = self.cursor.ack(acks, done)
        type_ = self.members.type
        if type_.tracks_pending and type_.consumer_count:
            self.pending.acknowledged(type_.consumers[0], acks, left)
        self.members.announce_end()

    def pass_over(self, through: Position) -> None:
        """Everything up to there counts as acknowledged, though no consumer did it."""
        if self.cursor.ack_cumulative(through):
            self.dispatcher.pass_over(through)
            self.pending.acknowledged_through(through)
            self.members.announce_end()

    def expire(self, through: Position) -> None:
        """Pass over entries that are too old, and count them. ``ClientError``."""
        check_owner(self.cursor.name, CursorOwner.CLIENTS)
        before = self.cursor.backlog()
        self.pass_over(through)
        expired = before - self.cursor.backlog()
        if expired:
            report(Changed.CURSOR_MOVED, self.topic.name, self.cursor.name)
            self.totals.entries_expired += expired
            self.totals.last_expire_ms = self.topic.clock.now_ms()

    def trimmed(self, through: Position) -> None:
        """Entries up to there are deleted. A reader that was to get them goes on behind."""
        self.pass_over(through)
        self.cursor.ledgers_changed()
