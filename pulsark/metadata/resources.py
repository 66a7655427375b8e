"""Clusters, tenants, namespaces and partitioned topics, typed, over a metadata store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pulsark.errors import BadVersionError
from pulsark.metadata import records
from pulsark.metadata.bookie_racks import BookieRacks
from pulsark.metadata.configuration import ConfigurationRecord
from pulsark.metadata.isolation import IsolationRecords
from pulsark.metadata.namespaces import (
    DEFAULT_BUNDLES,
    Namespace,
    Namespaces,
    even_boundaries,
)
from pulsark.metadata.paths import CLUSTERS, POLICIES, cluster_path, policies_path
from pulsark.metadata.records import (
    AlreadyExistsError,
    DoesNotExistError,
    InUseError,
    InvalidResourceError,
    Json,
)
from pulsark.metadata.resource_groups import ResourceGroups
from pulsark.metadata.topic_resources import PartitionedTopics, TopicPolicyRecords
from pulsark.wire.topic_name import check_name_part, without_partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime

SYSTEM_TENANT = "pulsar"
"""The broker's own tenant. Only super users have rights there."""
SYSTEM_NAMESPACE = f"{SYSTEM_TENANT}/system"
AUDIT_TOPIC = f"persistent://{SYSTEM_NAMESPACE}/audit"
"""The audit. Only the broker publishes to it."""
SYSTEM_TOPICS = frozenset({AUDIT_TOPIC})
"""The topics that the broker itself makes. They are not listed, and no limit is about them. Topics
of clients whose names look similar, such as ``__x``, are topics like any other."""
PUBLIC_TENANT = "public"

KEEP_EVERYTHING: Mapping[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "table_retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
}
"""The initial policies of ``public/default``: its topics are tables, which keep everything."""


def initial_policies(namespace: str) -> Mapping[str, Any]:
    """The policies of a new namespace."""
    return KEEP_EVERYTHING if namespace == f"{PUBLIC_TENANT}/default" else {}


def is_system_topic(name: str) -> bool:
    """Return whether a full name is that of a topic that the broker itself makes."""
    return without_partition(name) in SYSTEM_TOPICS


@dataclass(frozen=True, slots=True)
class Tenant:
    """The roles that administer a tenant, and the clusters where its namespaces may live."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()
    storage_quota_bytes: int | None = None
    """The most that its namespaces may store together; ``None`` is no limit. Not in Pulsar."""


class Clusters:
    """The clusters of the instance. Their data is the JSON of the admin API."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(CLUSTERS)

    async def get(self, name: str) -> Json | None:
        """A cluster's data."""
        found = await records.read(self._store, cluster_path(name))
        return None if found is None else found.get("data", {})

    async def create(self, name: str, data: Mapping[str, Any]) -> None:
        """Add a cluster. Raises ``AlreadyExistsError``."""
        check_name_part("cluster", name)
        await records.create(
            self._store, cluster_path(name), {"data": dict(data)}, f"Cluster {name}"
        )

    async def update(self, name: str, data: Mapping[str, Any]) -> None:
        """Replace a cluster's data. Raises ``DoesNotExistError``."""
        await records.change(
            self._store,
            cluster_path(name),
            lambda old: {**old, "data": dict(data)},
            f"Cluster {name}",
        )

    async def delete(self, name: str) -> None:
        """Remove a cluster. Raises ``DoesNotExistError``."""
        await records.delete(self._store, cluster_path(name), f"Cluster {name}")


class Tenants:
    """The tenants of the instance."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._creating = asyncio.Lock()

    async def list(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(POLICIES)

    async def get(self, name: str) -> Tenant | None:
        """A tenant."""
        found = await records.read(self._store, policies_path(name))
        return None if found is None else _tenant(found)

    async def create(self, name: str, tenant: Tenant, most: int = 0) -> None:
        """Add a tenant. Raises ``AlreadyExistsError``.

        ``InvalidResourceError`` if there are ``most`` already; 0 is no limit.
        """
        check_name_part("tenant", name)
        async with self._creating:
            if 0 < most <= len(await self.list()):
                raise InvalidResourceError("Exceed the maximum number of tenants")
            await records.create(
                self._store, policies_path(name), _tenant_json(tenant), f"Tenant {name}"
            )

    async def update(
        self, name: str, tenant: Tenant, *, keep_quota: bool = False
    ) -> tuple[Tenant, Tenant]:
        """Replace a tenant, with or without its quota. ``DoesNotExistError``.

        Returns the old and the new tenant.
        """
        changed = tenant, tenant

        def change(old: Json) -> Json:
            nonlocal changed
            before = _tenant(old)
            after = tenant
            if keep_quota:
                after = replace(tenant, storage_quota_bytes=before.storage_quota_bytes)
            changed = before, after
            return _tenant_json(after)

        await records.change(self._store, policies_path(name), change, f"Tenant {name}")
        return changed

    async def delete(self, name: str) -> Tenant:
        """Remove a tenant without namespaces, and return it.

        ``DoesNotExistError``, ``InUseError``.
        """
        path = policies_path(name)
        found = await self._store.get(path)
        if found is None:
            raise DoesNotExistError(f"Tenant {name} does not exist")
        if await self._store.children(path):
            raise InUseError(f"Tenant {name} still has namespaces")
        try:
            await self._store.delete(path, found.version)
        except BadVersionError as error:
            raise InUseError(f"Tenant {name} was changed at the same time; try again") from error
        return _tenant(records.decode(found))


class Resources:
    """All resources over one store."""

    def __init__(self, store: MetadataStore, runtime: Runtime) -> None:
        self.clusters = Clusters(store)
        self.tenants = Tenants(store)
        self.namespaces = Namespaces(store)
        self.resource_groups = ResourceGroups(store)
        self.isolation = IsolationRecords(store)
        self.bookie_racks = BookieRacks(store)
        self.configuration = ConfigurationRecord(store)
        self.partitioned_topics = PartitionedTopics(store, runtime)
        self.topic_policies = TopicPolicyRecords(store)

    async def initialize(
        self,
        cluster: str,
        urls: Mapping[str, str],
        bundles: int = DEFAULT_BUNDLES,
        *,
        renew: bool = True,
    ) -> list[str]:
        """Create the resources of a new cluster that do not exist; returns what, in words.

        Tenants and namespaces that every cluster has get this one, too. ``renew``: a cluster that
        is there gets these addresses. A standalone may start on other ports than last time.
        """
        said = []
        data = await self.clusters.get(cluster)
        if data is None:
            with suppress(AlreadyExistsError):  # several brokers may start at the same time
                await self.clusters.create(cluster, urls)
                said.append(f"cluster {cluster}")
        elif renew and {**data, **urls} != data:
            await self.clusters.update(cluster, {**data, **urls})
            said.append(f"addresses of cluster {cluster}")
        for tenant, namespace, policies in (
            (PUBLIC_TENANT, "default", KEEP_EVERYTHING),
            (SYSTEM_TENANT, "system", {}),
        ):
            said += await self._make_tenant(tenant, cluster)
            name = f"{tenant}/{namespace}"
            said += await self._make_namespace(name, cluster, bundles, policies)
        return said

    async def _make_tenant(self, name: str, cluster: str) -> list[str]:
        found = await self.tenants.get(name)
        if found is None:
            with suppress(AlreadyExistsError):
                await self.tenants.create(name, Tenant((), (cluster,)))
                return [f"tenant {name}"]
            found = await self.tenants.get(name)
        if found is None or cluster in found.allowed_clusters:
            return []
        clusters = (*found.allowed_clusters, cluster)
        await self.tenants.update(name, replace(found, allowed_clusters=clusters))
        return [f"tenant {name} in cluster {cluster}"]

    async def _make_namespace(
        self, name: str, cluster: str, bundles: int, policies: Mapping[str, Any]
    ) -> list[str]:
        found = await self.namespaces.get(name)
        if found is None:
            with suppress(AlreadyExistsError):
                await self.namespaces.create(
                    name,
                    boundaries=even_boundaries(bundles),
                    replication_clusters=(cluster,),
                    policies=policies,
                )
                return [f"namespace {name} with {bundles} bundles"]
            found = await self.namespaces.get(name)
        if found is None or cluster in found.replication_clusters:
            return []

        def add(old: Namespace) -> Namespace:
            clusters = tuple(sorted({*old.replication_clusters, cluster}))
            return replace(old, replication_clusters=clusters)

        await self.namespaces.update(name, add)
        return [f"namespace {name} in cluster {cluster}"]


def _tenant(record: Json) -> Tenant:
    return Tenant(
        tuple(record["adminRoles"]),
        tuple(record["allowedClusters"]),
        record.get("storageQuotaBytes"),
    )


def _tenant_json(tenant: Tenant) -> Json:
    return {
        "adminRoles": sorted(tenant.admin_roles),
        "allowedClusters": sorted(tenant.allowed_clusters),
        **_quota_json(tenant),
    }


def _quota_json(tenant: Tenant) -> Json:
    quota = tenant.storage_quota_bytes
    return {} if quota is None else {"storageQuotaBytes": quota}
