"""Records of topics: their partitions, and their own policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError
from pulsark.limits import PARTITIONS_MAX
from pulsark.metadata import records
from pulsark.metadata.paths import (
    PARTITIONED_TOPICS,
    TOPIC_POLICIES,
    partitioned_topic_path,
    topic_below,
    topic_policies_path,
    topics_path,
)
from pulsark.metadata.records import DoesNotExistError, InvalidResourceError, Json
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.runtime import Runtime


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """The number of partitions (at least 1), the identity and the properties of a topic."""

    partitions: int
    topic_id: str
    properties: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    """Whether the topic is being deleted, and therefore hidden."""


class PartitionedTopics:
    """Partitioned topics. Their names have no partition suffix."""

    def __init__(self, store: MetadataStore, runtime: Runtime) -> None:
        self._store = store
        self._rng = runtime.rng

    async def list(self, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """Names of a namespace's partitioned topics, even those being deleted, sorted."""
        children = await self._store.children(topics_path(PARTITIONED_TOPICS, namespace, domain))
        return [TopicName.parse(topic_below(namespace, child, domain)) for child in children]

    async def get(self, name: TopicName) -> PartitionedTopic | None:
        """The record of a topic; ``None`` if it has no partitions or does not exist."""
        found = await self.record(name)
        return None if found is None or found.deleting else found

    async def record(self, name: TopicName) -> PartitionedTopic | None:
        """A partitioned topic, even if it is being deleted; ``None`` if there is none."""
        found = await records.read(self._store, partitioned_topic_path(name))
        return None if found is None else _partitioned(found)

    async def create(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> PartitionedTopic:
        """Add a topic with a new identity. ``AlreadyExistsError``, ``InvalidResourceError``."""
        _check_partitions(partitions)
        # Random, so that it is unique among all instances: offsets of Spark contain it.
        topic_id = f"{self._rng.getrandbits(128):032x}"
        topic = PartitionedTopic(partitions, topic_id, properties or {})
        await records.create(
            self._store, partitioned_topic_path(name), _partitioned_json(topic), f"Topic {name}"
        )
        return topic

    async def update(self, name: TopicName, partitions: int) -> None:
        """Raise the number of partitions. ``DoesNotExistError``, ``InvalidResourceError``."""
        _check_partitions(partitions)

        def grow(old: Json) -> Json:
            _check_there(name, old)
            if partitions <= old["partitions"]:
                raise InvalidResourceError(
                    f"Topic {name} has {old['partitions']} partitions, and cannot have fewer"
                )
            return {**old, "partitions": partitions}

        await records.change(self._store, partitioned_topic_path(name), grow, f"Topic {name}")

    async def change_properties(
        self, name: TopicName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Change a topic's properties. Raises ``DoesNotExistError``, and what ``change`` does."""

        def replaced(old: Json) -> Json:
            _check_there(name, old)
            return {**old, "properties": dict(change(old["properties"]))}

        await records.change(self._store, partitioned_topic_path(name), replaced, f"Topic {name}")

    async def begin_delete(self, name: TopicName) -> None:
        """Hide the topic, durably. Raises ``DoesNotExistError``."""
        await records.change(
            self._store,
            partitioned_topic_path(name),
            lambda old: {**old, "deleting": True},
            f"Topic {name}",
        )

    async def delete(self, name: TopicName) -> None:
        """Remove a topic's record after ``begin_delete``. Raises ``DoesNotExistError``."""
        await records.delete_marked(
            self._store, partitioned_topic_path(name), "deleting", f"Topic {name}"
        )


class TopicPolicyRecords:
    """Policies of single topics, in the admin API's JSON. Partitions share their topic's."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self, namespace: str) -> list[TopicName]:
        """The topics of a namespace with policies of their own."""
        return [
            TopicName.parse(topic_below(namespace, child, domain))
            for domain in ("persistent", "non-persistent")
            for child in await self._store.children(topics_path(TOPIC_POLICIES, namespace, domain))
        ]

    async def get(self, base: TopicName) -> Json:
        """The policies of a topic; empty if it has none."""
        found = await records.read(self._store, topic_policies_path(base))
        return {} if found is None else dict(found["policies"])

    async def update(self, base: TopicName, change: Callable[[Json], Json]) -> None:
        """Apply ``change``, repeatedly if another writer is first."""
        path = topic_policies_path(base)
        while True:
            found = await self._store.get(path)
            old = {} if found is None else records.decode(found)["policies"]
            policies = change(old)
            try:
                if policies:
                    version = ABSENT if found is None else found.version
                    await self._store.put(path, records.encode({"policies": policies}), version)
                elif found is not None:
                    await self._store.delete(path, found.version)
            except BadVersionError:
                continue
            return

    async def delete(self, base: TopicName) -> None:
        """Remove all policies of a topic; no error if there are none."""
        await self.update(base, lambda _: {})


def _check_partitions(partitions: int) -> None:
    if not 0 < partitions <= PARTITIONS_MAX:
        raise InvalidResourceError(f"A topic has 1 to {PARTITIONS_MAX} partitions")


def _partitioned(record: Json) -> PartitionedTopic:
    return PartitionedTopic(
        record["partitions"],
        record["topicId"],
        record["properties"],
        bool(record.get("deleting")),
    )


def _check_there(name: TopicName, record: Json) -> None:
    if record.get("deleting"):
        raise DoesNotExistError(f"Topic {name} does not exist")


def _partitioned_json(topic: PartitionedTopic) -> Json:
    return {
        "partitions": topic.partitions,
        "topicId": topic.topic_id,
        "properties": dict(topic.properties),
    }
