"""Storage quotas: how much namespaces and tenants may store, and what happens above it.

From time to time the sizes of all topics that count are summed up: those of loaded ones as they
are, those of others from the metadata store, where what an open ledger has is missing. A topic is
counted at most once in a round; one that is loaded during it may be left out, until the next one.
Between two rounds a quota may be exceeded.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.policies.policies import STORAGE_QUOTA
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.record import TopicState, read_record, read_runs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.policy_source import PolicySource
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.upkeep.unloaded_topics import UnloadedTopics
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
FIRST_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits in bytes: of tenants, of namespaces, and which namespaces count for either."""

    tenants: Mapping[str, int]
    namespaces: Mapping[str, int]
    counting: frozenset[str]


@dataclass(frozen=True, slots=True)
class Use:
    """What is stored, and what may be."""

    bytes: int
    limit: int


def over_quota(quotas: Quotas, used: Mapping[str, int]) -> set[str]:
    """Namespaces that may store nothing more, by what namespaces store. Pure."""
    of_tenants = tenant_sums(used)
    return {
        name
        for name in quotas.counting
        if (name in quotas.namespaces and used.get(name, 0) >= quotas.namespaces[name])
        or (
            (tenant := name.partition("/")[0]) in quotas.tenants
            and of_tenants[tenant] >= quotas.tenants[tenant]
        )
    }


def tenant_sums(used: Mapping[str, int]) -> Counter[str]:
    """What tenants store, by what their namespaces store. Pure."""
    sums: Counter[str] = Counter()
    for name, size in used.items():
        sums[name.partition("/")[0]] += size
    return sums


class StorageQuotas:
    """Measures, and tells topics whether they may have producers."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        policy_source: PolicySource,
        topics: Topics,
        over: set[str],
    ) -> None:
        """``over`` has the namespaces over their quota: topics look there."""
        self._metadata = metadata
        self._resources = resources
        self._policy_source = policy_source
        self._topics = topics
        self._over = over
        self._quotas = Quotas({}, {}, frozenset())
        self._seen_changes = -1
        self.namespaces: dict[str, Use] = {}
        """What namespaces with a quota store, as it was measured last."""
        self.tenants: dict[str, Use] = {}
        """The same for tenants."""

    async def enforce(self, unloaded: UnloadedTopics) -> None:
        """Measure, and close the producers of those that have too much."""
        quotas = await self._current()
        used: Counter[str] = Counter()
        if quotas.counting:
            counted = await self._count_loaded(quotas, used)
            care = _Measuring(self._metadata, counted, used)
            await unloaded.look_after(care, quotas.counting, everywhere=True)
        sums = tenant_sums(used)
        self.namespaces = {n: Use(used[n], most) for n, most in quotas.namespaces.items()}
        self.tenants = {t: Use(sums[t], most) for t, most in quotas.tenants.items()}
        over = over_quota(quotas, used)
        for name in sorted(over - self._over):
            log.warning(
                "%s is over its storage quota: its topics refuse producers until messages "
                "are deleted",
                name,
            )
        self._over.clear()
        self._over.update(over)
        if over:
            await self._close_producers()

    async def _current(self) -> Quotas:
        """The quotas that are set, read again only if policies have changed."""
        while self._seen_changes != self._policy_source.changes:
            seen = self._policy_source.changes
            self._quotas = await self._read()
            self._seen_changes = seen  # only now: else a read that fails would be the last one
        return self._quotas

    async def _read(self) -> Quotas:
        tenants: dict[str, int] = {}
        namespaces: dict[str, int] = {}
        counting = set()
        resources = self._resources
        async for tenant in in_turns(await resources.tenants.list()):
            found = await resources.tenants.get(tenant)
            if found is not None and found.storage_quota_bytes is not None:
                tenants[tenant] = found.storage_quota_bytes
            async for name in in_turns(await resources.namespaces.list(tenant)):
                namespace = await resources.namespaces.get(name)
                quota = None if namespace is None else namespace.policies.get(STORAGE_QUOTA)
                if quota is not None and quota["limitBytes"] >= 0:
                    namespaces[name] = quota["limitBytes"]
                if tenant in tenants or name in namespaces:
                    counting.add(name)
        return Quotas(tenants, namespaces, frozenset(counting))

    async def _count_loaded(self, quotas: Quotas, used: Counter[str]) -> set[TopicName]:
        counted = set()
        async for topic in in_turns(self._topics.loaded()):
            namespace = topic.name.namespace_name
            if namespace in quotas.counting:
                counted.add(topic.name)
                used[namespace] += topic.total_size
        return counted

    async def _close_producers(self) -> None:
        """They connect anew, and are refused."""
        async for topic in in_turns(self._topics.loaded()):
            if topic.name.namespace_name in self._over:
                for producer in list(topic.producers.values()):
                    producer.connection.close_producer(producer)


class _Measuring:
    """``Care`` that loads nothing: it only adds up what unloaded topics store."""

    looks_per_second = 500
    """Each reads a document or two: a hundred thousand take three minutes."""

    def __init__(
        self, metadata: MetadataStore, counted: Collection[TopicName], used: Counter[str]
    ) -> None:
        self._metadata = metadata
        self._counted = counted
        self._used = used

    def concerns(self, policies: TopicPolicies) -> bool:
        """All topics count."""
        return True

    async def is_due(self, name: TopicName, policies: TopicPolicies) -> bool:
        """Never."""
        if name in self._counted:
            return False  # it was loaded when this round began
        record = await read_record(managed_ledger_path(name), self._metadata)
        if record is not None and record.state is not TopicState.DELETING:
            folded = await read_runs(record, self._metadata)
            if folded is not None:
                self._used[name.namespace_name] += record.ledger_list(folded).closed_bytes
        return False

    async def attend(self, topic: Topic) -> None:
        """Nothing is due."""
