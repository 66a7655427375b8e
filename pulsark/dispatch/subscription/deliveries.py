"""Entries on their way to consumers: what each one costs in permits, and where it is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.subscription.unacked import Unacked

_WORD = 2**64 - 1


class Deliveries:
    """The deliveries of one subscription."""

    __slots__ = ("_members", "_unacked", "now_ms")

    def __init__(self, members: Members, unacked: Unacked) -> None:
        self.now_ms = 0
        """The time of what is being delivered, taken once for many entries."""
        self._members = members
        self._unacked = unacked

    def deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Send an entry to the consumer that the type chose for it."""
        messages = entry.messages
        if ack_set is not None:
            messages = sum((word & _WORD).bit_count() for word in ack_set)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += 1
        if entry.is_chunk:
            consumer.chunks_out += 1
        consumer.bytes_out += len(entry.data)
        consumer.last_consumed_ms = self.now_ms
        if self._members.type.tracks_pending:
            unacked = self._unacked
            consumer.pending[entry.position] = messages
            consumer.unacked += messages
            unacked.messages += messages
            if consumer.unacked >= unacked.consumer_limit:
                consumer.blocked = True
            if redeliveries:
                consumer.messages_redelivered += messages
            if unacked.messages >= unacked.watched_from:
                unacked.update()
        consumer.connection.send_message(consumer, entry, redeliveries, ack_set)
