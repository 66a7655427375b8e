"""Clusters, tenants, namespaces and partitioned topics, typed, over a metadata store.

Values are JSON objects with a ``version`` of the format. Each change is one compare-and-set,
so any number of brokers may call this at once.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsark.errors import BadVersionError, MetadataError
from pulsark.limits import NAMESPACE_BUNDLES_MAX, PARTITIONS_MAX
from pulsark.metadata.paths import (
    CLUSTERS,
    PARTITIONED_TOPICS,
    POLICIES,
    TOPIC_POLICIES,
    cluster_path,
    partitioned_topic_path,
    policies_path,
    topic_below,
    topic_policies_path,
    topics_path,
)
from pulsark.metadata.store import ABSENT, MetadataStore, Versioned
from pulsark.wire.topic_name import TopicName, check_name_part, parse_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pulsark.runtime import Runtime

FORMAT_VERSION = 1
DEFAULT_BUNDLES = 4
SYSTEM_TENANT = "pulsar"
PUBLIC_TENANT = "public"

KEEP_EVERYTHING: Mapping[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "table_retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
}
"""Policies with which ``public/default`` is made: its topics are tables, which do not forget."""


def initial_policies(namespace: str) -> Mapping[str, Any]:
    """The policies of a new namespace."""
    return KEEP_EVERYTHING if namespace == f"{PUBLIC_TENANT}/default" else {}


_HASH_SPACE = 1 << 32

Json: TypeAlias = dict[str, Any]


class AlreadyExistsError(MetadataError):
    """A resource of this name already exists."""


class DoesNotExistError(MetadataError):
    """There is no resource of this name."""


class InUseError(MetadataError):
    """The resource holds others and cannot be deleted."""


class InvalidResourceError(MetadataError):
    """A name or a value is not allowed."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who administers a tenant, and where its namespaces may live."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace ``tenant/local``.

    ``bundle_boundaries`` are hexadecimal texts from 0x00000000 to 0xffffffff; a bundle is
    ``[lower, upper)``. ``policies`` holds what was set, in the JSON of the admin API.
    """

    name: str
    bundle_boundaries: tuple[str, ...]
    replication_clusters: tuple[str, ...] = ()
    policies: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bundles(self) -> list[str]:
        """Bundle ranges like ``0x00000000_0x40000000``, ascending."""
        edges = self.bundle_boundaries
        return [f"{low}_{high}" for low, high in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """Number of partitions (at least 1), the identity of the topic, its properties."""

    partitions: int
    topic_id: str
    properties: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    """Whether it is being deleted, and so no longer visible."""


def even_boundaries(bundles: int) -> tuple[str, ...]:
    """The hash space cut in ``bundles`` equal ranges."""
    if not 0 < bundles <= NAMESPACE_BUNDLES_MAX:
        raise InvalidResourceError(f"A namespace has 1 to {NAMESPACE_BUNDLES_MAX} bundles")
    step = _HASH_SPACE // bundles
    edges = [i * step for i in range(bundles)]
    return tuple(f"0x{edge:08x}" for edge in [*edges, _HASH_SPACE - 1])


def check_boundaries(boundaries: Sequence[str]) -> tuple[str, ...]:
    """Boundaries in their normal form, if they cover the hash space in ascending order."""
    if not all(re.fullmatch("0x[0-9a-fA-F]{1,8}", edge) for edge in boundaries):
        raise InvalidResourceError("Bundle boundaries are 32-bit hexadecimal numbers")
    edges = [int(edge, 16) for edge in boundaries]
    if not 2 <= len(edges) <= NAMESPACE_BUNDLES_MAX + 1:
        raise InvalidResourceError(f"A namespace has 1 to {NAMESPACE_BUNDLES_MAX} bundles")
    if edges != sorted(set(edges)) or edges[0] != 0 or edges[-1] != _HASH_SPACE - 1:
        raise InvalidResourceError("Bundle boundaries must ascend from 0x00000000 to 0xffffffff")
    return tuple(f"0x{edge:08x}" for edge in edges)


class Clusters:
    """The clusters of the instance; data is what the admin API was given."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(CLUSTERS)

    async def get(self, name: str) -> Json | None:
        """A cluster's data."""
        found = await self._store.get(cluster_path(name))
        return None if found is None else _decode(found).get("data", {})

    async def create(self, name: str, data: Mapping[str, Any]) -> None:
        """Add a cluster. Raises ``AlreadyExistsError``."""
        check_name_part("cluster", name)
        await _create(self._store, cluster_path(name), {"data": dict(data)}, f"Cluster {name}")

    async def update(self, name: str, data: Mapping[str, Any]) -> None:
        """Replace a cluster's data. Raises ``DoesNotExistError``."""
        await _change(
            self._store,
            cluster_path(name),
            lambda old: {**old, "data": dict(data)},
            f"Cluster {name}",
        )

    async def delete(self, name: str) -> None:
        """Remove a cluster. Raises ``DoesNotExistError``."""
        await _delete(self._store, cluster_path(name), f"Cluster {name}")


class Tenants:
    """The tenants of the instance."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(POLICIES)

    async def get(self, name: str) -> Tenant | None:
        """A tenant."""
        found = await self._store.get(policies_path(name))
        return None if found is None else _tenant(_decode(found))

    async def create(self, name: str, tenant: Tenant) -> None:
        """Add a tenant. Raises ``AlreadyExistsError``."""
        check_name_part("tenant", name)
        await _create(self._store, policies_path(name), _tenant_json(tenant), f"Tenant {name}")

    async def update(self, name: str, tenant: Tenant) -> None:
        """Replace a tenant. Raises ``DoesNotExistError``."""
        await _change(
            self._store, policies_path(name), lambda _: _tenant_json(tenant), f"Tenant {name}"
        )

    async def delete(self, name: str) -> None:
        """Remove a tenant without namespaces. ``DoesNotExistError``, ``InUseError``."""
        path = policies_path(name)
        found = await self._store.get(path)
        if found is None:
            raise DoesNotExistError(f"Tenant {name} does not exist")
        if await self._store.children(path):
            raise InUseError(f"Tenant {name} still has namespaces")
        await self._store.delete(path, found.version)


class Namespaces:
    """The namespaces of all tenants; names are ``tenant/local``."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self, tenant: str) -> list[str]:
        """Full names of a tenant's namespaces, sorted."""
        names = [f"{tenant}/{c}" for c in await self._store.children(policies_path(tenant))]
        return [name for name in names if await self.get(name) is not None]

    async def hidden(self, tenant: str) -> Sequence[str]:
        """Full names of a tenant's namespaces whose deletion was begun, sorted."""
        found = []
        for child in await self._store.children(policies_path(tenant)):
            name = f"{tenant}/{child}"
            record = await self._store.get(policies_path(name))
            if record is not None and _decode(record).get("deleted"):
                found.append(name)
        return found

    async def get(self, name: str) -> Namespace | None:
        """A namespace, unless it is absent or being deleted."""
        found = await self._store.get(policies_path(name))
        record = None if found is None else _decode(found)
        return None if record is None or record.get("deleted") else _namespace(name, record)

    async def create(
        self,
        name: str,
        *,
        boundaries: Sequence[str] = (),
        replication_clusters: Sequence[str] = (),
        policies: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a namespace; without ``boundaries`` it has four bundles.

        Raises ``AlreadyExistsError``, ``DoesNotExistError`` (no such tenant) or
        ``InvalidResourceError``.
        """
        tenant, local = parse_namespace(name)
        if name != f"{tenant}/{local}":
            raise InvalidResourceError(f"{name} is not of the form tenant/namespace")
        record = _namespace_json(
            Namespace(
                name,
                check_boundaries(boundaries) if boundaries else even_boundaries(DEFAULT_BUNDLES),
                tuple(replication_clusters),
                policies or {},
            )
        )
        await self._require_tenant(tenant)
        path = policies_path(name)
        found = await self._store.get(path)
        if found is not None and not _decode(found).get("deleted"):
            raise AlreadyExistsError(f"Namespace {name} already exists")
        try:
            version = await self._store.put(
                path, _encode(record), ABSENT if found is None else found.version
            )
        except BadVersionError as error:
            raise AlreadyExistsError(f"Namespace {name} already exists") from error
        try:
            await self._require_tenant(tenant)  # it may have been deleted at the same time
        except DoesNotExistError:
            await self._store.delete(path, version)
            raise

    async def update(self, name: str, change: Callable[[Namespace], Namespace]) -> None:
        """Apply ``change``, again if another writer was first. ``DoesNotExistError``."""

        def apply(old: Json) -> Json:
            if old.get("deleted"):
                raise DoesNotExistError(f"Namespace {name} does not exist")
            return _namespace_json(change(_namespace(name, old)))

        await _change(self._store, policies_path(name), apply, f"Namespace {name}")

    async def begin_delete(self, name: str) -> None:
        """Make the namespace invisible, so that no topic can be created in it any more."""
        await self.update(name, lambda old: old)  # raises if it is absent
        await self._mark(name, deleted=True)

    async def cancel_delete(self, name: str) -> None:
        """Undo ``begin_delete``: the namespace turned out to be in use."""
        await self._mark(name, deleted=False)

    async def finish_delete(self, name: str) -> None:
        """Remove a namespace that ``begin_delete`` marked and that is empty."""
        await _delete(self._store, policies_path(name), f"Namespace {name}")

    async def _mark(self, name: str, *, deleted: bool) -> None:
        await _change(
            self._store,
            policies_path(name),
            lambda old: {**old, "deleted": deleted},
            f"Namespace {name}",
        )

    async def _require_tenant(self, tenant: str) -> None:
        if await self._store.get(policies_path(tenant)) is None:
            raise DoesNotExistError(f"Tenant {tenant} does not exist")


class PartitionedTopics:
    """Topics with partitions. A name with a partition suffix is never one."""

    def __init__(self, store: MetadataStore, runtime: Runtime) -> None:
        self._store = store
        self._rng = runtime.rng

    async def list(self, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """Names of a namespace's partitioned topics, sorted; those being deleted among them."""
        children = await self._store.children(topics_path(PARTITIONED_TOPICS, namespace, domain))
        return [TopicName.parse(topic_below(namespace, child, domain)) for child in children]

    async def get(self, name: TopicName) -> PartitionedTopic | None:
        """The partitions of a topic; ``None`` if it has none or does not exist."""
        found = await self.record(name)
        return None if found is None or found.deleting else found

    async def record(self, name: TopicName) -> PartitionedTopic | None:
        """A partitioned topic, even if it is being deleted; ``None`` if there is none."""
        found = await self._store.get(partitioned_topic_path(name))
        return None if found is None else _partitioned(_decode(found))

    async def create(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> PartitionedTopic:
        """Add a topic with a new identity. ``AlreadyExistsError``, ``InvalidResourceError``."""
        _check_partitions(partitions)
        # Random, so that no other instance has it either: stream offsets carry it.
        topic_id = f"{self._rng.getrandbits(128):032x}"
        topic = PartitionedTopic(partitions, topic_id, properties or {})
        await _create(
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
                    f"Topic {name} has {old['partitions']} partitions; it can only get more"
                )
            return {**old, "partitions": partitions}

        await _change(self._store, partitioned_topic_path(name), grow, f"Topic {name}")

    async def set_properties(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Replace a topic's properties. Raises ``DoesNotExistError``."""

        def replaced(old: Json) -> Json:
            _check_there(name, old)
            return {**old, "properties": dict(properties)}

        await _change(self._store, partitioned_topic_path(name), replaced, f"Topic {name}")

    async def begin_delete(self, name: TopicName) -> None:
        """From now on the topic is no longer visible, durably. Raises ``DoesNotExistError``."""
        await _change(
            self._store,
            partitioned_topic_path(name),
            lambda old: {**old, "deleting": True},
            f"Topic {name}",
        )

    async def delete(self, name: TopicName) -> None:
        """Remove a topic's record. Raises ``DoesNotExistError``."""
        await _delete(self._store, partitioned_topic_path(name), f"Topic {name}")


class TopicPolicyRecords:
    """What was set for single topics, in the JSON of the admin API. Partitions share it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self, namespace: str) -> list[TopicName]:
        """The topics of a namespace that have policies of their own."""
        return [
            TopicName.parse(topic_below(namespace, child, domain))
            for domain in ("persistent", "non-persistent")
            for child in await self._store.children(topics_path(TOPIC_POLICIES, namespace, domain))
        ]

    async def get(self, base: TopicName) -> Json:
        """The policies of a topic; empty if it has none."""
        found = await self._store.get(topic_policies_path(base))
        return {} if found is None else dict(_decode(found)["policies"])

    async def update(self, base: TopicName, change: Callable[[Json], Json]) -> None:
        """Apply ``change``, again if another writer was first."""
        path = topic_policies_path(base)
        while True:
            found = await self._store.get(path)
            old = {} if found is None else _decode(found)["policies"]
            policies = change(old)
            try:
                if policies:
                    version = ABSENT if found is None else found.version
                    await self._store.put(path, _encode({"policies": policies}), version)
                elif found is not None:
                    await self._store.delete(path, found.version)
            except BadVersionError:
                continue
            return

    async def delete(self, base: TopicName) -> None:
        """Remove all policies of a topic; no error if there are none."""
        await self.update(base, lambda _: {})


class Resources:
    """All resources over one store."""

    def __init__(self, store: MetadataStore, runtime: Runtime) -> None:
        self.clusters = Clusters(store)
        self.tenants = Tenants(store)
        self.namespaces = Namespaces(store)
        self.partitioned_topics = PartitionedTopics(store, runtime)
        self.topic_policies = TopicPolicyRecords(store)

    async def initialize(
        self, cluster: str, web_url: str, broker_url: str, bundles: int = DEFAULT_BUNDLES
    ) -> None:
        """Create what a new instance needs; keep what exists, but correct this cluster's URLs.

        A standalone may start on other ports than last time.
        """
        urls = {"serviceUrl": web_url, "brokerServiceUrl": broker_url}
        data = await self.clusters.get(cluster)
        if data is None:
            with suppress(AlreadyExistsError):  # several brokers may start at the same time
                await self.clusters.create(cluster, urls)
        elif {**data, **urls} != data:
            await self.clusters.update(cluster, {**data, **urls})
        for tenant, namespace, policies in (
            (PUBLIC_TENANT, "default", KEEP_EVERYTHING),
            (SYSTEM_TENANT, "system", {}),
        ):
            if await self.tenants.get(tenant) is None:
                with suppress(AlreadyExistsError):
                    await self.tenants.create(tenant, Tenant((), (cluster,)))
            name = f"{tenant}/{namespace}"
            if await self.namespaces.get(name) is None:
                with suppress(AlreadyExistsError):
                    await self.namespaces.create(
                        name,
                        boundaries=even_boundaries(bundles),
                        replication_clusters=(cluster,),
                        policies=policies,
                    )


def _check_partitions(partitions: int) -> None:
    if not 0 < partitions <= PARTITIONS_MAX:
        raise InvalidResourceError(f"A topic has 1 to {PARTITIONS_MAX} partitions")


def _tenant(record: Json) -> Tenant:
    return Tenant(tuple(record["adminRoles"]), tuple(record["allowedClusters"]))


def _tenant_json(tenant: Tenant) -> Json:
    return {
        "adminRoles": sorted(tenant.admin_roles),
        "allowedClusters": sorted(tenant.allowed_clusters),
    }


def _namespace(name: str, record: Json) -> Namespace:
    return Namespace(
        name,
        tuple(record["boundaries"]),
        tuple(record["replicationClusters"]),
        record["policies"],
    )


def _namespace_json(namespace: Namespace) -> Json:
    return {
        "boundaries": list(namespace.bundle_boundaries),
        "replicationClusters": list(namespace.replication_clusters),
        "policies": dict(namespace.policies),
    }


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


def _encode(record: Json) -> bytes:
    return json.dumps({"version": FORMAT_VERSION, **record}, separators=(",", ":")).encode()


def _decode(found: Versioned) -> Json:
    record: Json = json.loads(found.value)
    if record.get("version") != FORMAT_VERSION:
        raise MetadataError(
            f"a record has format version {record.get('version')}, this program knows "
            f"{FORMAT_VERSION}: it was written by a newer one"
        )
    return record


async def _create(store: MetadataStore, path: str, record: Json, what: str) -> None:
    try:
        await store.put(path, _encode(record), ABSENT)
    except BadVersionError as error:
        raise AlreadyExistsError(f"{what} already exists") from error


async def _change(
    store: MetadataStore, path: str, change: Callable[[Json], Json], what: str
) -> None:
    while True:
        found = await store.get(path)
        if found is None:
            raise DoesNotExistError(f"{what} does not exist")
        try:
            await store.put(path, _encode(change(_decode(found))), found.version)
        except BadVersionError:
            continue  # another writer was first: apply the change to what it left
        return


async def _delete(store: MetadataStore, path: str, what: str) -> None:
    found = await store.get(path)
    if found is None:
        raise DoesNotExistError(f"{what} does not exist")
    try:
        await store.delete(path, found.version)
    except BadVersionError as error:
        raise MetadataError(f"{what} was changed at the same time; try again") from error
