"""Bulk publish, as the broker offers it: permission, staging directories, and the result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.topics.topic_names import check_clients_may_publish
from pulsark.errors import ClientError, CorruptEntryError, ServerError
from pulsark.schemas.column_types import BINARY, ColumnType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.schema_admission import SchemaAdmission
    from pulsark.metadata.resources import Resources
    from pulsark.runtime import Clock
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.table.staging.staged_ledger import StagedLedger
    from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Staging:
    """What a writer of files has to know. ``partitions`` is 0 for a topic without any."""

    topic: TopicName
    topic_id: str
    partitions: int
    directories: list[str]
    """One on each storage root of the topic's table."""
    directories_needed: int
    """How many of them must have each file."""
    values: ValueSchemas
    """Which type the column ``value`` has, and with which schemas."""
    time_ms: int
    """Where names of files begin: what was staged long ago is deleted."""


class BulkPublishing:
    """Everything runs on the event loop."""

    def __init__(
        self,
        clock: Clock,
        resources: Resources,
        topics: Topics,
        schema_admission: SchemaAdmission,
        sealing: Sealing,
    ) -> None:
        self._clock = clock
        self._resources = resources
        self._topics = topics
        self._schema_admission = schema_admission
        self._sealing = sealing

    async def staging(self, topic: TopicName, *, with_schema: bool = False) -> Staging:
        """Where files for a topic are staged; ``ClientError`` if it cannot be written to now.

        ``with_schema``: what is to be written has a version of the topic's schema.
        """
        topic_id, partitions = await self._identity(topic)
        leaves = await self._leaves(topic, partitions)
        for leaf in leaves:
            await self._check_writable(leaf)
        if not with_schema:
            await self._schema_admission.of_producer(topic, leaves[0].policies, None)
        directories, needed, values = await self._sealing.staging(topic, topic_id)
        now_ms = self._clock.now_ms()
        return Staging(topic, topic_id, partitions, directories, needed, values, now_ms)

    async def is_published(self, topic: TopicName, ident: str, number: int) -> bool:
        """Whether a publish was made, or a later one of the same origin."""
        topic_id, _ = await self._identity(topic)
        return await self._sealing.tables.publishing.has_published(topic, topic_id, ident, number)

    async def publish(
        self,
        topic: TopicName,
        topic_id: str,
        partitions: int,
        ident: str,
        number: int,
        staged: Sequence[StagedLedger],
        value: ColumnType = BINARY,
    ) -> bool:
        """Make staged files part of a topic; ``False`` if that was done before.

        ``topic_id``, ``partitions`` and ``value``, the type of that column, are those with which
        the files were written. Goes to its
        end even if the caller is cancelled.
        """
        found_id, found_partitions = await self._identity(topic)
        if found_id != topic_id:
            raise _refused(f"{topic} was deleted and created again since the files were written")
        if found_partitions != partitions:
            raise _refused(
                f"{topic} has {found_partitions} partitions; the files were written for "
                f"{partitions}, and keys may belong to others now"
            )
        leaves: dict[int, Topic] = {}
        known = range(partitions) if partitions else [-1]
        for partition in sorted({ledger.partition for ledger in staged}):
            if partition not in known:
                raise _refused(f"{topic} has no partition {partition}")
            name = topic if partition < 0 else topic.with_partition(partition)
            leaves[partition] = await self._topics.load(name, create=True)
        if not await self._sealing.tables.publishing.has_published(topic, topic_id, ident, number):
            for leaf in leaves.values():
                await self._check_writable(leaf)
        publishing = asyncio.create_task(
            self._publish(leaves, topic, topic_id, ident, number, staged, value)
        )
        return await asyncio.shield(publishing)

    async def _publish(
        self,
        leaves: dict[int, Topic],
        topic: TopicName,
        topic_id: str,
        ident: str,
        number: int,
        staged: Sequence[StagedLedger],
        value: ColumnType,
    ) -> bool:
        ledgers = {partition: leaf.ledger for partition, leaf in leaves.items()}
        try:
            done = await self._sealing.tables.publishing.publish(
                topic, topic_id, ledgers, staged, ident, number, value
            )
        except CorruptEntryError as error:
            raise _refused(f"A staged file is damaged: {error}") from None
        if done:
            for ledger in staged:
                leaves[ledger.partition].messages_in += ledger.rows
        return done

    async def _identity(self, topic: TopicName) -> tuple[str, int]:
        """The id of a topic's table, and the number of its partitions, 0 without any."""
        if topic.partition >= 0:
            parent = await self._resources.partitioned_topics.get(topic.base)
            if parent is not None:
                raise _refused(f"{topic} is a partition; a bulk publish is to all of {topic.base}")
        found = await self._resources.partitioned_topics.get(topic)
        if found is not None:
            return found.topic_id, found.partitions
        return (await self._topics.load(topic)).ledger.topic_id, 0

    async def _leaves(self, topic: TopicName, partitions: int) -> list[Topic]:
        names = [topic.with_partition(n) for n in range(partitions)] or [topic]
        return [await self._topics.load(name, create=partitions > 0) for name in names]

    async def _check_writable(self, topic: Topic) -> None:
        check_clients_may_publish(topic.name)
        topic.check_writable()
        topic.backlog.check_admission()


def _refused(reason: str) -> ClientError:
    return ClientError(ServerError.NotAllowedError, reason)
