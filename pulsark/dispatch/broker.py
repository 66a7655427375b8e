"""The broker: its parts, how they are put together, started and closed.

Each part gets what it uses and none of them the broker. Connections and the admin API ask the
parts, most often ``topics``.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.dispatch.broker_chores import chores_of
from pulsark.dispatch.brokers.anti_affinity import AntiAffinityGroups
from pulsark.dispatch.brokers.candidates import Candidates
from pulsark.dispatch.brokers.feature_level import (
    STATED_CHANGES_LEVEL,
    TYPED_FILES_LEVEL,
    FeatureLevels,
)
from pulsark.dispatch.brokers.isolation_source import IsolationSource
from pulsark.dispatch.brokers.leader import Leader
from pulsark.dispatch.brokers.owners import BundleOwners
from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
from pulsark.dispatch.connections import Connections
from pulsark.dispatch.dynamic_settings import DynamicSettings
from pulsark.dispatch.frame_room import FrameRoom
from pulsark.dispatch.lookup_limit import LookupLimit
from pulsark.dispatch.loop.chores import Chores
from pulsark.dispatch.loop.defects import Defects
from pulsark.dispatch.loop.request_turns import LargeJobs, RequestTurns
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.output_buffer import OutputBuffer
from pulsark.dispatch.policies.policies import max_topics
from pulsark.dispatch.policies.schemas import Schemas
from pulsark.dispatch.producer.producer_names import ProducerNames
from pulsark.dispatch.publish_buffer import PublishBuffer
from pulsark.dispatch.publish_rates import PublishRates
from pulsark.dispatch.stats.bundle_loads import BundleLoads
from pulsark.dispatch.stats.load_reports import LoadReports
from pulsark.dispatch.stats.rates import Rates
from pulsark.dispatch.stats.stats import Stats
from pulsark.dispatch.tables.far_tables import FarTables
from pulsark.dispatch.tables.sealing import Sealing
from pulsark.dispatch.topics.assigned_bundles import AssignedBundles
from pulsark.dispatch.topics.bundle_release import BundleRelease
from pulsark.dispatch.topics.bundle_split import BundleSplit
from pulsark.dispatch.topics.catalog import TopicCatalog
from pulsark.dispatch.topics.consumer_admission import Subscribing
from pulsark.dispatch.topics.creation import TopicCreation
from pulsark.dispatch.topics.cursor_logs import CursorLogs
from pulsark.dispatch.topics.deletion import TopicDeletion
from pulsark.dispatch.topics.group_throttles import GroupThrottles
from pulsark.dispatch.topics.guarded_storage import GuardedStorage
from pulsark.dispatch.topics.isolation_moves import IsolationMoves
from pulsark.dispatch.topics.loader import TopicLoader
from pulsark.dispatch.topics.lookup import Lookup
from pulsark.dispatch.topics.namespace_deletion import NamespaceDeletion
from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
from pulsark.dispatch.topics.ownership import Ownership
from pulsark.dispatch.topics.policy_source import PolicySource
from pulsark.dispatch.topics.policy_updates import PolicyUpdates
from pulsark.dispatch.topics.registry import Topics
from pulsark.dispatch.topics.remains import Remains
from pulsark.dispatch.topics.schema_admission import SchemaAdmission
from pulsark.dispatch.topics.topic_lists import TopicFeeds
from pulsark.dispatch.topics.topic_making import TopicMaking
from pulsark.dispatch.topics.topic_tables import TopicTables
from pulsark.dispatch.upkeep.load_balance import AutoSplit, LoadShedding
from pulsark.dispatch.upkeep.share import Share
from pulsark.dispatch.upkeep.storage_quotas import StorageQuotas
from pulsark.limits import LARGE_FRAMES_BYTES_MAX, REQUESTS_BYTES_MAX
from pulsark.metadata.resources import Resources
from pulsark.rates.shares import SharedBudget
from pulsark.storage.bookie.disk_watch import disk_watch_of
from pulsark.storage.bookie.known_bookies import KnownBookies, OwnBookies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.audit.for_others import AuditForOthers
    from pulsark.dispatch.audit.writer import AuditWriter
    from pulsark.dispatch.loop.stalls import LoopStalls
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere
    from pulsark.dispatch.scalable.scalable_topics import ScalableTopics
    from pulsark.dispatch.tables.bulk_publishing import BulkPublishing
    from pulsark.dispatch.tables.erasure import Erasure
    from pulsark.dispatch.tables.table_calls import PeerTableCalls
    from pulsark.dispatch.tables.table_retention import TableRetention
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.security.audit.audit import Audit
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.logins import Logins
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName


PROBLEMS_SHOWN = 20
"""Topics with a damaged log that health names; the rest is counted."""


class Broker:
    """One broker. Create it on the event loop, then ``await start()``."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        metadata: MetadataStore,
        ledgers: LedgerManager,
        tables: Tables,
    ) -> None:
        settings = dataclasses.replace(settings)  # some change while it runs, and no other's do
        self.settings = settings
        self.runtime = runtime
        self.clock = runtime.clock
        self.sure_clock = runtime.sure_clock
        self.metadata = metadata
        self.ledgers = ledgers
        self.known_bookies: KnownBookies = OwnBookies(ledgers.bookies)
        """Replaced by who has a list of bookies that the brokers share."""
        self.tables = tables
        self.disks = disk_watch_of(settings, (), (), runtime)
        """Replaced by the process whose disks they are."""
        self.storage_problems: Sequence[str] = ()
        """What the bookies of this machine had lost when they were opened, one sentence each."""
        self.loop_stalls: LoopStalls | None = None
        """Set by the process whose loop it is."""
        self.urls = ServiceUrls()
        self.started_ms = self.clock.now_ms()
        self.run_queue = RunQueue(self.clock)
        self.request_turns = RequestTurns(self.clock)
        self.request_room = SharedBudget(max(REQUESTS_BYTES_MAX, 4 * settings.maxMessageSize))
        self.large_jobs = LargeJobs(runtime)
        self.defects = Defects(self.clock)
        self.registry = BrokerRegistry(metadata)
        self.leader = Leader(metadata)
        self.feature_levels = FeatureLevels(metadata, self.clock)
        tables.states = lambda: self.feature_levels.allows(STATED_CHANGES_LEVEL)
        tables.knows_format_3 = lambda: self.feature_levels.allows(TYPED_FILES_LEVEL)
        self.resources = Resources(metadata, runtime)
        self.owners = BundleOwners(metadata)
        self.isolation = IsolationSource(metadata, self.resources.isolation, settings.clusterName)
        self.anti_affinity = AntiAffinityGroups(metadata, self.resources.namespaces, self.owners)
        self.candidates = Candidates(self.registry, self.isolation, self.anti_affinity)
        self.schemas = Schemas(metadata, runtime, self.run_queue, self._most_topics)
        self.schema_admission = SchemaAdmission(self.schemas, settings)
        self.ownership = Ownership(metadata, self.resources, runtime, self.registry, self.isolation)
        self.assigned_bundles = AssignedBundles(metadata, self.ownership, self.registry)
        self.authorization: AuthorizationProvider | None = None
        """Who decides what clients may do; without it they may do everything."""
        if settings.authorizationEnabled:
            from pulsark.security.authorization import provider_of  # for those who need it

            self.authorization = provider_of(settings, metadata, self.resources)
        self.logins: Logins | None = None
        """Who lets clients in; without it nobody has to log in."""
        if settings.authenticationEnabled:
            from pulsark.security.logins import Logins  # for those who need it

            self.logins = Logins(settings, runtime)
        self.storage = GuardedStorage(metadata, ledgers, self.ownership)
        tables.guard_with(self.storage.metadata)
        self.policy_source = PolicySource(settings, metadata, self.resources, self.ownership)
        self.topic_tables = TopicTables(metadata, self.resources, tables)
        self._make_topics()
        self.lookup = Lookup(
            settings,
            self.clock,
            metadata,
            self.ownership,
            self.owners,
            self.registry,
            self.candidates,
            self.topics.check_enabled,
        )
        self.share = Share(self.resources, self.ownership, self.registry, self.leader, self.lookup)
        self.sealing = Sealing(
            settings,
            runtime,
            metadata,
            self.storage,
            self.resources,
            ledgers,
            tables,
            self.topic_tables,
            self.catalog,
            self.topics,
            self.ownership,
            FarTables(self.registry, self.ownership, self.lookup, tables, self._table_calls),
            self.policy_source.current,
        )
        self.producer_names = ProducerNames(settings.clusterName, metadata)
        self.topic_feeds = TopicFeeds(metadata, self.catalog)
        self.subscribing = Subscribing(settings, self.clock, self.creation, self.schema_admission)
        self.rates = Rates(self.clock, self.run_queue, self.topics)
        self.stats = Stats(self.clock, self.rates, self.ownership, tables.lost.of)
        self.stats.sealing_of = self.sealing.shown
        self.bundle_loads = BundleLoads(self.resources.namespaces, self.topics, self.rates)
        self.bundle_split.weight = self.bundle_loads.weight
        self.load_reports = LoadReports(
            self.clock,
            self.registry,
            self.ownership,
            self.topics,
            self.bundle_loads,
            settings.loadBalancerMaxNumberOfBundlesInBundleLoadReport,
        )
        self.auto_split = AutoSplit(
            settings,
            self.resources.namespaces,
            self.ownership,
            self.registry,
            self.bundle_split,
            lambda: self.bundle_loads.loads,
        )
        self.load_shedding = LoadShedding(
            settings,
            self.clock,
            metadata,
            self.registry,
            self.candidates,
            self.share,
            self.bundle_release,
            self.other_brokers,
        )
        self.storage_quotas = StorageQuotas(
            metadata, self.resources, self.policy_source, self.topics, self.loader.over_quota
        )
        self.connections = Connections(settings, runtime.clock)
        self.lookups = LookupLimit(settings)
        self.output_buffer = OutputBuffer(settings.maxUnreadOutputBufferSizeInMB << 20)
        self.frame_room = FrameRoom(
            max(LARGE_FRAMES_BYTES_MAX, 4 * settings.maxMessageSize), self.clock
        )
        self.publish_buffer = PublishBuffer(
            settings.maxMessagePublishBufferSizeInMB << 20, self.run_queue
        )
        self.group_throttles = GroupThrottles(self.clock, metadata, self.resources.resource_groups)
        self.publish_rates = PublishRates(settings, self.clock, self.group_throttles)
        self.dynamic_settings = DynamicSettings(
            settings, metadata, self.resources.configuration, self._settings_changed
        )
        self.chores = Chores()
        self.scalable: ScalableTopics | None = None
        """For clients of Pulsar 5; made for the first of them."""
        self._elsewhere: TopicsElsewhere | None = None
        self._peers: Peers | None = None
        """Made when another broker is called for the first time, or calls."""
        self.audit: Audit | None = None
        """Notes who did what; ``None`` where nobody asks for that."""
        self._audit_writer: AuditWriter | None = None
        self.audit_for_others: AuditForOthers | None = None
        wanted = settings.auditEnabled
        if settings.authenticationEnabled if wanted is None else wanted:
            self._make_audit()

    async def _settings_changed(self) -> None:
        self.publish_rates.settings_changed()
        await self.policy_updates.refresh_all()

    def _make_audit(self) -> None:
        from pulsark.dispatch.audit.making import make_audit  # for those who need it

        self.audit, self._audit_writer, self.audit_for_others = make_audit(
            self.settings,
            self.clock,
            self.metadata,
            self.resources,
            self.catalog,
            self.creation,
            self.topics,
            self.schemas,
            self.other_brokers,
        )
        self.publish_rates.tell(self.audit.throttled)
        if self.logins is not None:
            self.logins.tell(self.audit)

    async def _most_topics(self, name: TopicName) -> int:
        return max_topics(self.settings, (await self.ownership.namespace(name)).policies)

    def _make_topics(self) -> None:
        """The parts that know topics, from those that look them up to those that delete them."""
        settings, metadata, resources = self.settings, self.metadata, self.resources
        self.non_persistent = NonPersistentTopics()
        self.catalog = TopicCatalog(metadata, resources, self.non_persistent)
        self.cursor_logs = CursorLogs(settings, self.runtime, self.storage, self.ownership)
        remains = Remains(
            metadata,
            resources,
            self.catalog,
            self.schemas,
            self.storage,
            self.cursor_logs,
            self.topic_tables,
        )
        self.loader = TopicLoader(
            settings,
            self.runtime,
            self.storage,
            self.ownership,
            self.cursor_logs,
            self.policy_source,
            self.run_queue,
            self.topic_tables.existing,
        )
        self.topics = Topics(
            settings,
            self.clock,
            self.catalog,
            remains,
            self.loader,
            self.non_persistent,
            self.ownership,
        )
        self.bundle_release = BundleRelease(
            self.ownership,
            self.topics,
            self.cursor_logs,
            self.owners,
            self.registry,
            self.tables,
            self.clock,
        )
        self.isolation_moves = IsolationMoves(
            self.registry, self.ownership, self.candidates, self.isolation, self.bundle_release
        )
        self.bundle_split = BundleSplit(
            settings,
            self.runtime,
            metadata,
            resources.namespaces,
            self.ownership,
            self.registry,
            self.storage,
            self.cursor_logs,
            self.catalog,
            self.bundle_release,
        )
        self.policy_updates = PolicyUpdates(
            settings, metadata, resources, self.policy_source, self.topics
        )
        making = TopicMaking(
            settings, self.clock, self.ownership, self.catalog, lambda: self.registry.is_alone
        )
        self.deletion = TopicDeletion(
            resources,
            self.catalog,
            self.topics,
            self.non_persistent,
            remains,
            making,
            self.topics_elsewhere,
        )
        self.creation = TopicCreation(
            settings,
            resources,
            self.ownership,
            self.catalog,
            self.topics,
            self.deletion,
            making,
            self.topics_elsewhere,
        )
        self.namespace_deletion = NamespaceDeletion(
            metadata,
            resources,
            self.schemas,
            self.catalog,
            self.non_persistent,
            self.deletion,
            self.topics_elsewhere,
        )

    async def start(
        self, urls: ServiceUrls, shared: ServiceUrls | None = None, *, of_cluster: bool = False
    ) -> None:
        """Make the broker known under its addresses.

        ``shared`` are those by which clients reach any broker of this machine; one that comes by
        them is passed on to the broker whose address it was told. ``of_cluster``: the cluster's
        record and first tenants are an operator's, and not made here.
        """
        await self.feature_levels.check()
        self.urls = urls
        self.lookup.hands_over = shared is not None
        self.ownership.announce(urls)
        if not of_cluster:
            await self.resources.initialize(
                self.settings.clusterName,
                (shared or urls).of_cluster(),
                self.settings.defaultNumberOfNamespaceBundles,
            )
        await self.dynamic_settings.start()
        if self.authorization is not None:
            self.authorization.start()
        self.policy_source.start()
        self.policy_updates.start()
        await self.group_throttles.start()
        self.tables.elsewhere.follow()
        own = LiveBroker(
            urls.broker_id,
            self.ownership.instance,
            urls,
            self.started_ms,
            __version__,
            self.settings.enablePersistentTopics,
            self.settings.enableNonPersistentTopics,
            feature_level=self.feature_levels.known,
        )
        await self.isolation.start()
        self.anti_affinity.start()
        await self.registry.announce(own)
        await self.feature_levels.join()
        await self.leader.start(own)
        self.owners.start()
        self.assigned_bundles.start()
        self.sealing.start()
        self.chores.start(chores_of(self))
        if self.audit is not None and (of_cluster or shared is not None):
            self.audit.belong_to(urls.broker_id)
        if self._audit_writer is not None:
            self._audit_writer.start()

    async def close(self) -> None:
        """Close connections and topics; what was acknowledged is on disk already."""
        self.topics.refuse_all()
        alone = self.registry.is_alone
        await self.registry.retire()
        self.registry.close()
        self.leader.close()
        self.assigned_bundles.close()
        self.owners.close()
        self.isolation.close()
        self.anti_affinity.close()
        self.dynamic_settings.close()
        self.isolation_moves.close()
        self.policy_updates.close()
        self.group_throttles.close()
        self.policy_source.close()
        if self.authorization is not None:
            self.authorization.close()
        self.topic_feeds.close()
        if self.scalable is not None:
            self.scalable.close()
        for connection in list(self.connections):
            connection.close()
        await self.chores.close()
        if self._audit_writer is not None:
            await self._audit_writer.close()
        if "bulk_publishing" in vars(self):
            await self.bulk_publishing.close()
        if not alone:
            await self.bundle_release.release_all()
        await self.bundle_release.settled()
        await self.non_persistent.close_all()
        await self.sealing.close()
        await self.topics.close()
        await self.cursor_logs.close()
        self.bundle_release.close()
        self.schemas.close()
        self.large_jobs.close()

    @property
    def refuses_publishes(self) -> bool:
        """Whether the disks of so many bookies are full that publishes to new ledgers fail."""
        needed, disks = self.settings.managedLedgerDefaultAckQuorum, self.disks
        too_few = len(disks.homes) - disks.full_journals < needed if disks.homes else False
        return too_few or self.ledgers.is_full(needed)

    def problems(self) -> list[str]:
        """Return one sentence for each thing that an operator has to see to."""
        damaged = list(self.sealing.damaged_logs.items())
        found = [f"{base}: {reason}" for base, reason in damaged[:PROBLEMS_SHOWN]]
        if len(damaged) > PROBLEMS_SHOWN:
            found.append(f"{len(damaged) - PROBLEMS_SHOWN} more tables have damaged logs")
        return [*self.storage_problems, *self.disks.problems(), *found]

    @cached_property
    def bulk_publishing(self) -> BulkPublishing:
        """Ledgers that Spark wrote as files."""
        from pulsark.dispatch.tables.bulk_publishing import BulkPublishing  # for those who need it

        return BulkPublishing(
            self.runtime, self.resources, self.topics, self.schema_admission, self.sealing,
            self.policy_source.current,
        )  # fmt: skip

    @cached_property
    def erasure(self) -> Erasure:
        """Messages that are erased wherever they are."""
        from pulsark.dispatch.tables.erasure import Erasure  # for those who need it

        return Erasure(
            self.settings, self.runtime, self.ledgers, self.sealing, self.policy_source.current
        )

    @cached_property
    def table_retention(self) -> TableRetention:
        """The retention of tables, applied when somebody asks."""
        from pulsark.dispatch.tables.table_retention import TableRetention  # for those who need it

        return TableRetention(self.settings, self.sure_clock, self.sealing)

    def other_brokers(self) -> Peers | None:
        """How to call the other brokers; ``None`` if this one is alone."""
        return None if self.registry.is_alone else self.peers()

    def peers(self) -> Peers:
        """The same, for who is called; nobody may be left to call."""
        if self._peers is None:
            from pulsark.dispatch.peers.peers import Peers  # where there are several brokers
            from pulsark.dispatch.topics.whereabouts import KnownBrokers

            knows = KnownBrokers(
                self.registry, self.leader, self.owners, self.ownership, self.lookup
            )
            self._peers = Peers(self.settings, self.runtime, self.metadata, knows)
        return self._peers

    def topics_elsewhere(self) -> TopicsElsewhere | None:
        """The topics of other brokers; ``None`` if this one is alone."""
        if self.registry.is_alone:
            return None
        if self._elsewhere is None:
            from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere

            self._elsewhere = TopicsElsewhere(self.peers())
        return self._elsewhere

    def _table_calls(self) -> PeerTableCalls:
        from pulsark.dispatch.tables.table_calls import PeerTableCalls  # see ``peers``

        return PeerTableCalls(self.peers(), self.runtime)

    def scalable_topics(self) -> ScalableTopics:
        """What clients of Pulsar 5 need beside the topics themselves."""
        if self.scalable is None:
            from pulsark.dispatch.scalable.scalable_topics import ScalableTopics  # for them alone

            self.scalable = ScalableTopics(
                self.metadata, self.clock, self.creation, self.topics, self.subscribing
            )
        return self.scalable
