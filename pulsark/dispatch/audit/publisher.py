"""The producer of the audit topic: the broker's own, and the only one that the topic has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.holdings import Holdings
from pulsark.dispatch.model.producer import Producer
from pulsark.dispatch.policies.schemas import encode_version
from pulsark.errors import ClientError, ProtocolError, ServerError, StorageError
from pulsark.limits import DECOMPRESSED_BYTES_MAX
from pulsark.metadata.records import AlreadyExistsError
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.security.audit.chain import NOTHING, Head, head_of, is_record
from pulsark.security.audit.definition import POLICIES, SCHEMA, TOPIC
from pulsark.security.audit.limits import AUDIT_HEAD_SEARCH_MAX, AUDIT_HEAD_TRIES
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import read_messages
from pulsark.wire.entry import build_entry, parse_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.policies.schemas import Schemas
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.resources import Resources
    from pulsark.runtime import Clock
    from pulsark.security.audit.chain import AuditRecord
    from pulsark.wire.position import Position


log = logging.getLogger(__name__)


class AuditPublisher:
    """Opens the topic and publishes to it as a ``model.client.Client``."""

    client_version = "Pulsark"

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        resources: Resources,
        catalog: TopicCatalog,
        creation: TopicCreation,
        topics: Topics,
        schemas: Schemas,
        whose: Callable[[], str],
    ) -> None:
        """``whose``: the broker whose records are published."""
        self.host, self.address = "", "/broker"
        self.writable = False
        self.non_persistent_in_flight = 0
        self.holdings = Holdings(settings)
        self._clock = clock
        self._resources = resources
        self._catalog = catalog
        self._creation = creation
        self._topics = topics
        self._schemas = schemas
        self._whose = whose
        self._producer: Producer | None = None
        self._published_ms = 0
        """The newest publish time in the topic: it never goes back, even if the clock does. So what
        happened since a time is found by a search."""
        self._unreadable = 0
        """How often in a row the end of the topic could not be read."""
        self._opened = 0
        self._unanswered = 0
        self._answer: asyncio.Future[None] | None = None

    @property
    def broker(self) -> str:
        """Whose records are published."""
        return self._whose()

    @property
    def is_open(self) -> bool:
        """Whether records can be published."""
        return self._producer is not None

    async def open(self) -> Head:
        """Make the topic if it is missing, and join it; says which record is its last."""
        if not await self._topic_exists():
            await self._resources.topic_policies.update(TOPIC, lambda old: {**POLICIES, **old})
            with contextlib.suppress(AlreadyExistsError):  # made by a broker that died then
                await self._creation.create_topic(TOPIC, {})
        version = await self._schemas.register(
            TOPIC, SCHEMA, SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
        )
        topic = await self._topics.load(TOPIC)
        self._opened += 1
        producer = Producer(
            topic,
            self,
            self._opened,
            f"audit-{self.broker}",
            epoch=self._opened,
            user_provided_name=True,
            metadata={},
            schema_version=encode_version(version),
            connected_since_ms=self._clock.now_ms(),
            encrypted=True,  # that clients have to encrypt does not concern the broker
        )
        await topic.add_producer(producer)
        self._producer = producer
        return await self._last_if_readable(topic)

    async def _last_if_readable(self, topic: Topic) -> Head:
        """The last record; none if the end of the topic is damaged, which ends no audit."""
        try:
            found = await self._last(topic)
        except StorageError as error:
            self._unreadable += 1
            if self._unreadable < AUDIT_HEAD_TRIES:
                raise
            log.error(
                "audit: the end of %s cannot be read, so its records begin a new chain, and "
                "pulsark audit verify finds a break there: %s",
                TOPIC,
                error,
            )
            found = NOTHING
        self._unreadable = 0
        return found

    async def _topic_exists(self) -> bool:
        partitioned = await self._resources.partitioned_topics.get(TOPIC)
        if partitioned is not None:
            raise ClientError(ServerError.NotAllowedError, f"{TOPIC} has partitions; delete it")
        return await self._catalog.exists(TOPIC)

    async def _last(self, topic: Topic) -> Head:
        """The last record of this broker, not counting entries that clients may have published."""
        position = topic.ledger.last_confirmed
        self._published_ms = await _published_ms(topic, position)
        for _ in range(AUDIT_HEAD_SEARCH_MAX):
            entries = await topic.entries.read(position, 1, 1) if position.entry_id >= 0 else []
            if not entries or entries[0].position != position:
                break
            found = _record_in(entries[0])
            if found is not None and found["broker"] == self.broker:
                return head_of(found)
            position = topic.ledger.previous_position(position)
        return NOTHING

    async def publish(self, records: Sequence[AuditRecord], times_ms: Sequence[int]) -> None:
        """Return once they are durable. After an error, whether they are is not known."""
        producer = self._producer
        if producer is None:
            raise ClientError(ServerError.ServiceNotReady, "The audit topic is not open")
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._unanswered = len(records)
        try:
            for record, time_ms in zip(records, times_ms, strict=True):
                producer.topic.publish(self._entry(producer, record, time_ms))
            producer.topic.flush()
            await answer
        finally:
            self._answer = None

    def _entry(self, producer: Producer, record: AuditRecord, time_ms: int) -> Entry:
        self._published_ms = max(self._published_ms, self._clock.now_ms())
        head = pb.MessageMetadata(
            producer_name=producer.name,
            sequence_id=record.head.seq,
            publish_time=self._published_ms,
            event_time=time_ms,
            schema_version=producer.schema_version,
        )
        data = build_entry(head, record.payload)
        return Entry(data, 1, False, False, producer, record.head.seq)

    def close(self) -> None:
        """Leave the topic."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.topic.remove_producer(producer)

    # -- what the topic tells it ---

    def send_receipts(
        self, producer: Producer, entries: list[Entry], successive: bool = True
    ) -> None:
        """Records are durable."""
        for entry in entries:
            entry.producer = None
            producer.bytes_in += len(entry.data)
        producer.messages_in += len(entries)
        if producer is self._producer:
            self._unanswered -= len(entries)
            if not self._unanswered and self._answer is not None and not self._answer.done():
                self._answer.set_result(None)

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        """A record may not be stored."""
        if producer is self._producer:
            self._fail(ClientError(code, message))

    def close_producer(self, producer: Producer) -> None:
        """The topic goes away from here, or was not able to store something."""
        producer.topic.remove_producer(producer)
        self.forget_producer(producer)

    def forget_producer(self, producer: Producer) -> None:
        """The topic has it no more."""
        if producer is self._producer:
            self._producer = None
            self._fail(ClientError(ServerError.ServiceNotReady, "The audit topic was closed"))

    def _fail(self, error: ClientError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    async def probe(self) -> bool:
        """It answers."""
        return True

    # It consumes nothing.

    def flush(self) -> None:
        """Nothing is sent."""

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Has no consumer."""

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Has no consumer."""

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Has no consumer."""

    def close_consumer(self, consumer: Consumer) -> None:
        """Has no consumer."""


async def _published_ms(topic: Topic, position: Position) -> int:
    """When an entry was published; 0 if it is not there, or is no message."""
    entries = await topic.entries.read(position, 1, 1) if position.entry_id >= 0 else []
    with contextlib.suppress(ProtocolError):
        return parse_entry(entries[0].data).publish_time if entries else 0
    return 0


def _record_in(entry: Entry) -> dict[str, Any] | None:
    """The record in an entry, if it is one."""
    try:
        payload = next(read_messages(entry.data, DECOMPRESSED_BYTES_MAX))[1]
        found = json.loads(payload)
    except (ValueError, RecursionError, ProtocolError, StopIteration):
        return None
    return found if is_record(found) else None
