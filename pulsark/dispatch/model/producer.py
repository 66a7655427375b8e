"""A producer of one topic, as one connection sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.model.producer_access import AccessMode
from pulsark.errors import ServerError
from pulsark.metadata.resources import is_system_topic
from pulsark.wire.entry import entry_metadata

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pulsark.dispatch.model.client import Client
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.interfaces import AnyTopic


REPLICATOR_PREFIX = "pulsar.repl"
"""Begins the names of producers that are brokers, as in Pulsar."""


class Producer:
    """State and counters of a connected producer. Its receipts leave in SEND order."""

    __slots__ = (
        "access_mode",
        "bytes_in",
        "chunks_in",
        "closed",
        "connected_since_ms",
        "connection",
        "decide",
        "drained",
        "encrypted",
        "epoch",
        "has_rate",
        "inspected",
        "is_replicator",
        "last_published",
        "messages_dropped",
        "messages_in",
        "metadata",
        "name",
        "pending",
        "producer_id",
        "schema_version",
        "topic",
        "topic_epoch",
        "user_provided_name",
    )

    def __init__(
        self,
        topic: AnyTopic,
        connection: Client,
        producer_id: int,
        name: str,
        *,
        epoch: int,
        user_provided_name: bool,
        metadata: dict[str, str],
        schema_version: bytes,
        connected_since_ms: int,
        access_mode: AccessMode = AccessMode.Shared,
        topic_epoch: int | None = None,
        encrypted: bool = False,
        decide: Callable[[Producer, Exception | None], None] = lambda *_: None,
    ) -> None:
        self.topic = topic
        self.connection = connection
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.metadata = metadata
        self.schema_version = schema_version
        self.connected_since_ms = connected_since_ms
        self.encrypted = encrypted
        """Whether it said that it encrypts; then all its messages are."""
        self.inspected = encrypted
        """Whether each of its messages is looked at: with ``refusal``, or because of a rate."""
        self.has_rate = False
        """Whether there may be a rate for what it publishes."""
        self.is_replicator = name.startswith(REPLICATOR_PREFIX)
        """Whether it is a broker of another cluster, and may publish markers."""
        self.access_mode = access_mode
        self.topic_epoch = topic_epoch
        """The topic's epoch: first the client's, and the topic's once the producer is ready."""
        self.decide = decide
        """Called when a producer that had to wait is ready, or with the error that it gets."""
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        """Pieces of large messages."""
        self.messages_dropped = 0
        self.pending = 0
        self.last_published: Entry | None = None
        """With deduplication, the newest entry that waits to be confirmed."""
        self.drained: asyncio.Future[None] | None = None
        self.closed = False

    def policies_changed(self) -> None:
        """What its messages have to be like may be another."""
        policies = self.topic.policies
        self.has_rate = policies.has_publish_rate and not is_system_topic(str(self.topic.name))
        self.inspected = self.encrypted or policies.max_message_size > 0 or self.has_rate

    def refusal(self, entry: bytes, *, is_chunk: bool) -> tuple[ServerError, str] | None:
        """Why an entry is not taken, if it is not."""
        if self.encrypted and not entry_metadata(entry).encryption_keys:
            return ServerError.MetadataError, "Messages must be encrypted"
        largest = self.topic.policies.max_message_size
        if 0 < largest < len(entry) and not is_chunk:
            return ServerError.NotAllowedError, f"Exceed maximum message size of {largest} bytes"
        return None


def send_receipts(entries: list[Entry], *, successive: bool = True) -> None:
    """Confirm entries to their producers, as many at once as came in a row from one.

    ``successive`` says that the ids of all entries follow each other.
    """
    count, start = len(entries), 0
    while start < count:
        producer = entries[start].producer
        end = start + 1
        while end < count and entries[end].producer is producer:
            end += 1
        if producer is not None:
            producer.connection.send_receipts(producer, entries[start:end], successive)
        start = end
