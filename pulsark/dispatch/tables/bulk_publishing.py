"""Bulk publish, as the broker offers it: permission, staging directories, and the result.

One broker makes those of a topic: the one that commits to its table. Of partitions that other
brokers own it asks these (``far_partitions``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.tables.far_partitions import FarPartitions
from pulsark.dispatch.tables.reserved_for_others import ReservedForOthers, check_writable
from pulsark.errors import ClientError, CorruptEntryError, ServerError
from pulsark.schemas.column_types import BINARY, ColumnType
from pulsark.storage.managed_ledger.reservations import Reservations
from pulsark.tasks import to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.schema_admission import SchemaAdmission
    from pulsark.metadata.resources import Resources
    from pulsark.runtime import Runtime
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.managed_ledger.reservations import Reserving
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


class _Leaves(NamedTuple):
    """Partitions of a topic by where they are."""

    here: dict[int, Topic]
    elsewhere: dict[str, list[int]]
    """By the id of the broker that owns them."""


class BulkPublishing:
    """Everything runs on the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        resources: Resources,
        topics: Topics,
        schema_admission: SchemaAdmission,
        sealing: Sealing,
        policies_of: Callable[[TopicName], Awaitable[TopicPolicies]],
    ) -> None:
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._resources = resources
        self._topics = topics
        self._schema_admission = schema_admission
        self._sealing = sealing
        self._policies_of = policies_of
        self.for_others = ReservedForOthers(runtime.clock, topics, sealing.far.is_live)

    async def staging(self, topic: TopicName, *, with_schema: bool = False) -> Staging:
        """Where files for a topic are staged; ``ClientError`` if it cannot be written to now.

        ``with_schema``: what is to be written has a version of the topic's schema.
        """
        topic_id, partitions = await self._identity(topic)
        await self._check_writable(topic, await self._leaves(topic, range(partitions) or [-1]))
        if not with_schema:
            policies = await self._policies_of(topic)
            await self._schema_admission.of_producer(topic, policies, None)
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
        known = range(partitions) if partitions else [-1]
        rows: dict[int, int] = {}
        for ledger in staged:
            if ledger.partition not in known:
                raise _refused(f"{topic} has no partition {ledger.partition}")
            rows[ledger.partition] = rows.get(ledger.partition, 0) + ledger.rows
        leaves = await self._leaves(topic, sorted(rows))
        if not await self._sealing.tables.publishing.has_published(topic, topic_id, ident, number):
            await self._check_writable(topic, leaves)
        return await to_its_end(
            self._publish(leaves, rows, topic, topic_id, ident, number, staged, value)
        )

    async def close(self) -> None:
        """Let others end what they have begun here."""
        await self.for_others.close()

    async def _publish(
        self,
        leaves: _Leaves,
        rows: dict[int, int],
        topic: TopicName,
        topic_id: str,
        ident: str,
        number: int,
        staged: Sequence[StagedLedger],
        value: ColumnType,
    ) -> bool:
        here = Reservations({partition: leaf.ledger for partition, leaf in leaves.here.items()})
        places: dict[int, Reserving] = dict.fromkeys(leaves.here, here)
        for broker_id, partitions in leaves.elsewhere.items():
            far = FarPartitions(
                self._sealing.far.calls(),
                self._clock,
                broker_id,
                topic,
                self._sealing.far.process,
                f"{self._rng.getrandbits(128):032x}",
                {partition: rows[partition] for partition in partitions},
                self._sealing.far.is_gone,
            )
            places.update(dict.fromkeys(partitions, far))
        try:
            done = await self._sealing.tables.publishing.publish(
                topic, topic_id, places, staged, ident, number, value
            )
        except CorruptEntryError as error:
            raise _refused(f"A staged file is damaged: {error}") from None
        if done:
            for partition, leaf in leaves.here.items():
                leaf.messages_in += rows[partition]
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

    async def _leaves(self, topic: TopicName, partitions: Sequence[int]) -> _Leaves:
        """Some partitions, loaded as far as they are this broker's; -1 is the topic itself."""
        found = _Leaves({}, {})
        for partition in partitions:
            name = topic if partition < 0 else topic.with_partition(partition)
            broker_id = None if partition < 0 else await self._sealing.far.broker_of(name)
            if broker_id is None:
                leaf = await self._topics.load(name, create=partition >= 0)
                found.here[partition] = leaf
            else:
                found.elsewhere.setdefault(broker_id, []).append(partition)
        return found

    async def _check_writable(self, topic: TopicName, leaves: _Leaves) -> None:
        for leaf in leaves.here.values():
            check_writable(leaf)
        for broker_id, partitions in leaves.elsewhere.items():
            await self._sealing.far.calls().check_writable(broker_id, topic, partitions)


def _refused(reason: str) -> ClientError:
    return ClientError(ServerError.NotAllowedError, reason)
