"""Loading of topics: from what is stored of one to the topic that clients use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_stats import Level
from pulsark.dispatch.policies.policies import broker_dispatch_rate
from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit
from pulsark.dispatch.topic.cache import CacheBudget
from pulsark.dispatch.topic.compactor import CompactionTurns
from pulsark.dispatch.topic.topic import Topic, TopicContext
from pulsark.errors import ClientError, OwnershipLostError, ServerError
from pulsark.metadata.paths import delayed_buckets_path, managed_ledger_path
from pulsark.storage.delayed.delayed_buckets import DelayedBuckets
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.topic.non_persistent_topic import NonPersistentTopic
    from pulsark.dispatch.topics.cursor_logs import CursorLogs
    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.policy_source import PolicySource
    from pulsark.runtime import Runtime
    from pulsark.storage.managed_ledger.record import StoredRecord
    from pulsark.wire.topic_name import TopicName

Existing = Callable[["TopicName", str, Collection[int]], Awaitable[set[int]]]
"""Returns the reserved ledgers of a partition that exist, given its name and topic id."""


class TopicLoader:
    """Makes topics that are ready to be used, and keeps what all of them share."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        storage: GuardedStorage,
        ownership: Ownership,
        cursor_logs: CursorLogs,
        policy_source: PolicySource,
        run_queue: RunQueue,
        existing: Existing,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._storage = storage
        self._ownership = ownership
        self._cursor_logs = cursor_logs
        self._policy_source = policy_source
        self._run_queue = run_queue
        self._existing = existing
        self.cache_budget = CacheBudget(settings.managedLedgerCacheSizeMB << 20)
        self.unacked = BrokerUnacked(
            settings.maxUnackedMessagesPerBroker,
            settings.maxUnackedMessagesPerSubscriptionOnBrokerBlocked,
        )
        rate = broker_dispatch_rate(settings)
        limit = DispatchLimit(Level.BROKER, rate, runtime.clock, run_queue)
        self.over_quota: set[str] = set()
        """Namespaces whose topics take no producers, because they store too much."""
        self._context = TopicContext(
            settings,
            runtime,
            self.cache_budget,
            self.unacked,
            run_queue,
            CompactionTurns(),
            limit if rate.limits else None,
            self.over_quota,
        )

    async def load(self, name: TopicName, bundle: str, stored: StoredRecord | None) -> Topic:
        """A persistent topic of a bundle; what is missing of it is made.

        ``stored``: its record, read since the bundle is this broker's.
        """
        try:
            return await self._load(name, bundle, stored)
        except OwnershipLostError as error:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"Another broker has taken {name} over; look it up again",
            ) from error

    async def _load(self, name: TopicName, bundle: str, stored: StoredRecord | None) -> Topic:
        cursors = await self._cursor_logs.of_bundle(bundle)
        metadata, ledgers = await self._storage.of_bundle(bundle)
        ledger = await ManagedLedger.open(
            managed_ledger_path(name),
            ledgers,
            metadata,
            ManagedLedgerConfig.from_settings(self._settings),
            self._runtime,
            attached=partial(self._existing, name),
            known=stored,
        )
        delayed = DelayedBuckets(
            delayed_buckets_path(name),
            ledger.topic_id,
            ledgers,
            metadata,
            ledger.ledger_config,
        )
        try:
            policies = partial(self._policy_source.current, name)
            topic = await Topic.open(name, self._context, ledger, cursors, delayed, policies)
        except BaseException:
            await ledger.close()
            raise
        try:
            while not topic.deduplication_switch.follows:
                await topic.deduplication_switch.follow()
                topic.set_policies(await self._policy_source.current(name))
        except BaseException:
            await topic.close()
            raise
        return topic

    async def make_non_persistent(self, name: TopicName) -> NonPersistentTopic:
        """A topic that stores nothing."""
        await self._ownership.own(name)
        policies = await self._policy_source.current(name)
        from pulsark.dispatch.topic.non_persistent_topic import NonPersistentTopic

        return NonPersistentTopic(
            name, self._settings, policies, self._runtime.clock, self._run_queue
        )
