"""A consumer of one subscription, as one connection sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.successive_frames import MessageHeads

if TYPE_CHECKING:
    from collections.abc import Collection

    from pulsark.dispatch.model.client import Client
    from pulsark.dispatch.model.interfaces import AnySubscription
    from pulsark.schemas.definition import SchemaType
    from pulsark.wire.position import Position


class Consumer:
    """State and counters of a connected consumer.

    ``permits`` counts messages and may go below zero, because a batch is never split.
    ``pending`` maps the entries delivered to this consumer and not yet acknowledged to their
    number of unacknowledged messages; only Shared and Key_Shared keep it. ``blocked`` is set
    while too many messages are unacknowledged. ``key_ranges`` are the ranges of hashes, both
    ends included, that the consumer of a sticky Key_Shared subscription asks for.
    """

    __slots__ = (
        "__weakref__",
        "blocked",
        "bytes_out",
        "chunks_out",
        "closed",
        "connected_since_ms",
        "connection",
        "consumer_id",
        "entries_out",
        "epoch",
        "greeted",
        "heads",
        "key_ranges",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_acked",
        "messages_dropped",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "name",
        "pending",
        "permits",
        "priority",
        "read_compacted",
        "schema_type",
        "subscription",
        "unacked",
    )

    def __init__(
        self,
        subscription: AnySubscription,
        connection: Client,
        consumer_id: int,
        name: str,
        *,
        priority: int,
        read_compacted: bool = False,
        epoch: int | None,
        metadata: dict[str, str],
        connected_since_ms: int,
        schema_type: SchemaType | None = None,
        key_ranges: Collection[tuple[int, int]] = (),
    ) -> None:
        self.subscription = subscription
        self.connection = connection
        self.consumer_id = consumer_id
        self.name = name
        self.priority = priority
        self.read_compacted = read_compacted
        self.epoch = epoch
        self.heads = MessageHeads(consumer_id, subscription.topic.name.partition)
        self.metadata = metadata
        self.schema_type = schema_type
        self.connected_since_ms = connected_since_ms
        self.key_ranges = key_ranges
        self.permits = 0
        self.unacked = 0
        self.pending: dict[Position, int] = {}
        self.messages_out = 0
        self.entries_out = 0
        self.bytes_out = 0
        self.chunks_out = 0
        """Pieces of large messages."""
        self.messages_acked = 0
        self.messages_redelivered = 0
        self.messages_dropped = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.blocked = False
        self.closed = False
        self.greeted = False
        """Whether it was told what it is: nothing of the kind is sent to it before."""

    def can_continue(self) -> bool:
        """Whether it can be sent more of a message that it has begun to receive."""
        return self.connection.writable

    def can_receive(self) -> bool:
        """Whether an entry may be sent now: permits, unacked limit and socket allow it."""
        return self.permits > 0 and not self.blocked and self.connection.writable
