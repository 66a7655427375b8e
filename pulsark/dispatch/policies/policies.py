"""The effective policies of a topic: its own, else its namespace's, else the broker's setting.

Keys and values of the given policies are those of Pulsar's admin API, as they are stored. A
policy has the same key at both levels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.rates.publish_limit import PublishRate
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.storage.managed_ledger.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.config.settings import Settings

BACKLOG_QUOTAS = "backlog_quota_map"
BY_SIZE, BY_AGE = "destination_storage", "message_age"
"""The two kinds of backlog quota: bytes, and seconds since the oldest backlog was published."""

PUBLISH_RATE = "publishRate"
MESSAGE_RATE, BYTE_RATE = "publishThrottlingRateInMsg", "publishThrottlingRateInByte"

RETENTION = "retention_policies"
TABLE_RETENTION = "table_retention"
"""How long sealed messages stay in the topic's table. Pulsark's own, in the shape of the retention
of messages, which holds unless this is set."""

SEALING = "sealing_policies"
"""Pulsark's own, in the manner of Pulsar's: ``enabled``, ``targetFileSizeInMB``,
``freshnessInSeconds``; what is left out is as the broker's settings say."""

STORAGE_QUOTA = "storage_quota"
"""At namespaces only, Pulsark's own: ``limitBytes`` of what all topics store, -1 for no limit, and
``policy``, which is always that producers are refused."""

DISPATCH_RATE = "dispatchRate"
SUBSCRIPTION_DISPATCH_RATE = "subscriptionDispatchRate"
REPLICATOR_DISPATCH_RATE = "replicatorDispatchRate"
SUBSCRIBE_RATE = "subscribeRate"
OWN_DISPATCH_RATES = "dispatchRatesOfSubscriptions"
"""At topics only: the dispatch rates of single subscriptions, by name."""


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How much backlog a topic may have, in one respect, and what happens above it.

    ``limit`` is in bytes or seconds; 0 or less is none. ``action`` is one of Pulsar's three
    retention policies.
    """

    limit: int
    action: str


@dataclass(frozen=True, slots=True)
class InactiveTopics:
    """Whether a topic without clients is deleted, when, and what may still be in it."""

    delete: bool
    mode: str
    seconds: int


@dataclass(frozen=True, slots=True)
class DelayedDeliveryPolicy:
    """Whether messages may be delivered later; ``max_delay_ms`` 0: by any time."""

    active: bool
    tick_ms: int
    max_delay_ms: int

    @property
    def limit_ms(self) -> int:
        """The longest delay with which a message may be published; 0: any."""
        return self.max_delay_ms if self.active else 0


@dataclass(frozen=True, slots=True)
class Quorums:
    """Bookies of a ledger, copies of an entry, and copies that a receipt stands for."""

    ensemble: int
    write: int
    ack: int


@dataclass(frozen=True, slots=True)
class SealingPolicy:
    """Whether messages go to the topic's table, the size of its files, and how soon.

    ``freshness_seconds`` 0: when their ledger is closed, or has enough for a file.
    """

    enabled: bool
    target_file_bytes: int
    freshness_seconds: int

    def when_read(self, seconds: int) -> SealingPolicy:
        """For a table that is being read: at most this long, if that is not 0."""
        fresher = min(seconds, self.freshness_seconds) if self.freshness_seconds else seconds
        return replace(self, freshness_seconds=fresher) if seconds else self


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """How much may be delivered in a period; 0 or less is no limit.

    ``relative``: on top of what is published at the same time.
    """

    messages: int
    bytes: int
    relative: bool = False
    period_seconds: int = 1

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return self.messages > 0 or self.bytes > 0


NO_DISPATCH_RATE = DispatchRate(0, 0)
_NO_RATES: Mapping[str, DispatchRate] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often a consumer may subscribe in a period; 0 or less is no limit."""

    per_consumer: int
    period_seconds: int


NO_SUBSCRIBE_RATE = SubscribeRate(0, 30)


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The rules of one topic. A limit of 0 means no limit.

    ``retention_minutes`` and ``retention_mb`` are of acknowledged messages; -1 is for ever. What is
    in the table, or on its way there, stays for as long as ``table_retention`` keeps it, too.
    """

    subscription_types: frozenset[str]
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    max_producers: int
    max_message_size: int
    """Bytes of an entry; pieces of large messages are not held to it."""
    max_consumers: int
    max_consumers_per_subscription: int
    max_subscriptions: int
    max_same_address_producers: int
    max_same_address_consumers: int
    allow_auto_subscription_creation: bool
    subscription_expiration_minutes: int
    deduplication: bool
    deduplication_snapshot_seconds: int
    encryption_required: bool
    schema_compatibility_strategy: SchemaCompatibilityStrategy
    is_allow_auto_update_schema: bool
    schema_validation_enforced: bool
    delayed_delivery: DelayedDeliveryPolicy
    retention_minutes: int
    retention_mb: int
    table_retention_minutes: int
    table_retention_mb: int
    message_ttl_seconds: int
    backlog_by_size: BacklogQuota
    backlog_by_age: BacklogQuota
    inactive: InactiveTopics
    compaction_threshold_bytes: int
    quorums: Quorums
    sealing: SealingPolicy
    publish_rate: PublishRate
    resource_group: str
    """The namespace's group; empty: none."""
    has_publish_rate: bool
    """Whether a rate applies to what is published, or may because of a group."""
    dispatch_rate: DispatchRate
    """The rate of all its subscriptions together."""
    subscription_dispatch_rate: DispatchRate
    """The rate of each subscription that has none of its own."""
    own_dispatch_rates: Mapping[str, DispatchRate]
    """The rates of single subscriptions, by name."""
    subscribe_rate: SubscribeRate

    def dispatch_rate_of(self, subscription: str) -> DispatchRate:
        """What holds for one subscription."""
        return self.own_dispatch_rates.get(subscription, self.subscription_dispatch_rate)

    def without_rates(self) -> TopicPolicies:
        """The same for a topic that no rate slows down."""
        return replace(
            self,
            dispatch_rate=NO_DISPATCH_RATE,
            subscription_dispatch_rate=NO_DISPATCH_RATE,
            own_dispatch_rates=_NO_RATES,
            subscribe_rate=NO_SUBSCRIBE_RATE,
        )

    @property
    def retention(self) -> Retention:
        """How long ledgers are kept."""
        return Retention.of(self.retention_minutes, self.retention_mb)

    @property
    def table_retention(self) -> Retention:
        """How long ledgers are kept that are in the topic's table."""
        return Retention.of(self.table_retention_minutes, self.table_retention_mb)


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether clients create topics by using them; ``partitions`` 0: without partitions."""

    allowed: bool
    partitions: int


def applied(key: str, settings: Settings, *levels: Mapping[str, Any]) -> Any:
    """The effective value of one policy, in the admin API's JSON; ``None`` if it is not set.

    ``levels`` are what was set, the nearest first. Below them are the broker's settings.
    """
    default = _BROKER.get(key)
    if key in _MERGED:
        merged = dict(_BROKER[key](settings))
        for level in reversed(levels):
            merged |= level.get(key) or {}
        return merged
    for level in levels:
        value = level.get(key)
        if value is not None and value != []:
            return value
    if key == TABLE_RETENTION:
        return applied(RETENTION, settings, *levels)
    return None if default is None else default(settings)


def effective(
    settings: Settings, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> TopicPolicies:
    """The rules of a topic from what was set at each level."""

    def given(key: str) -> Any:
        return applied(key, settings, topic, namespace)

    retention, quorums = given(RETENTION), given("persistence")
    table_retention, sealing = given(TABLE_RETENTION), given(SEALING)
    quotas, delayed = given(BACKLOG_QUOTAS), given("delayed_delivery_policies")
    inactive = given("inactive_topic_policies")
    publish_rate = PublishRate(given(PUBLISH_RATE)[MESSAGE_RATE], given(PUBLISH_RATE)[BYTE_RATE])
    group = namespace.get(RESOURCE_GROUP) or ""
    return TopicPolicies(
        subscription_types=frozenset(
            given("subscription_types_enabled") or settings.subscriptionTypesEnabled
        ),
        max_unacked_messages_per_consumer=given("max_unacked_messages_per_consumer"),
        max_unacked_messages_per_subscription=given("max_unacked_messages_per_subscription"),
        max_producers=given("max_producers_per_topic"),
        max_message_size=given("max_message_size") or 0,
        max_consumers=given("max_consumers_per_topic"),
        max_consumers_per_subscription=given("max_consumers_per_subscription"),
        max_subscriptions=given("max_subscriptions_per_topic"),
        max_same_address_producers=settings.maxSameAddressProducersPerTopic,
        max_same_address_consumers=settings.maxSameAddressConsumersPerTopic,
        allow_auto_subscription_creation=given("autoSubscriptionCreationOverride")[
            "allowAutoSubscriptionCreation"
        ],
        subscription_expiration_minutes=given("subscription_expiration_time_minutes"),
        deduplication=given("deduplicationEnabled"),
        deduplication_snapshot_seconds=given("deduplicationSnapshotIntervalSeconds"),
        encryption_required=settings.encryptionRequireOnProducer or given("encryption_required"),
        schema_compatibility_strategy=_defined(given("schema_compatibility_strategy")),
        is_allow_auto_update_schema=given("is_allow_auto_update_schema"),
        # A broker that enforces schemas does so everywhere.
        schema_validation_enforced=settings.isSchemaValidationEnforced
        or given("schema_validation_enforced"),
        delayed_delivery=DelayedDeliveryPolicy(
            delayed["active"], delayed["tickTime"], delayed["maxDeliveryDelayInMillis"]
        ),
        retention_minutes=retention["retentionTimeInMinutes"],
        retention_mb=retention["retentionSizeInMB"],
        table_retention_minutes=table_retention["retentionTimeInMinutes"],
        table_retention_mb=table_retention["retentionSizeInMB"],
        message_ttl_seconds=given("message_ttl_in_seconds"),
        backlog_by_size=BacklogQuota(quotas[BY_SIZE]["limitSize"], quotas[BY_SIZE]["policy"]),
        backlog_by_age=BacklogQuota(quotas[BY_AGE]["limitTime"], quotas[BY_AGE]["policy"]),
        inactive=InactiveTopics(
            inactive["deleteWhileInactive"],
            inactive["inactiveTopicDeleteMode"],
            inactive["maxInactiveDurationSeconds"],
        ),
        compaction_threshold_bytes=given("compaction_threshold"),
        quorums=Quorums(
            quorums["bookkeeperEnsemble"],
            quorums["bookkeeperWriteQuorum"],
            quorums["bookkeeperAckQuorum"],
        ),
        sealing=SealingPolicy(
            sealing["enabled"], sealing["targetFileSizeInMB"] << 20, sealing["freshnessInSeconds"]
        ),
        publish_rate=publish_rate,
        resource_group=group,
        has_publish_rate=(
            publish_rate.is_limit or bool(group) or broker_publish_rate(settings).is_limit
        ),
        dispatch_rate=_dispatch_rate(given(DISPATCH_RATE)),
        subscription_dispatch_rate=_dispatch_rate(given(SUBSCRIPTION_DISPATCH_RATE)),
        own_dispatch_rates={
            name: _dispatch_rate(rate)
            for name, rate in topic.get(OWN_DISPATCH_RATES, _NO_RATES).items()
        }
        or _NO_RATES,
        subscribe_rate=_subscribe_rate(given(SUBSCRIBE_RATE)),
    )


def broker_publish_rate(settings: Settings) -> PublishRate:
    """The rate of all publishes to a broker together."""
    return PublishRate(
        settings.brokerPublisherThrottlingMaxMessageRate,
        settings.brokerPublisherThrottlingMaxByteRate,
    )


# What limits nothing is one object for all topics: there may be very many of them.


def _dispatch_rate(given: Mapping[str, Any]) -> DispatchRate:
    rate = DispatchRate(
        given["dispatchThrottlingRateInMsg"],
        given["dispatchThrottlingRateInByte"],
        given["relativeToPublishRate"],
        given["ratePeriodInSecond"],
    )
    return rate if rate.limits else NO_DISPATCH_RATE


def _subscribe_rate(given: Mapping[str, Any]) -> SubscribeRate:
    most = given["subscribeThrottlingRatePerConsumer"]
    return SubscribeRate(most, given["ratePeriodInSecond"]) if most > 0 else NO_SUBSCRIBE_RATE


def broker_dispatch_rate(settings: Settings) -> DispatchRate:
    """The rate of all subscriptions of a broker together."""
    return DispatchRate(settings.dispatchThrottlingRateInMsg, settings.dispatchThrottlingRateInByte)


def _defined(strategy: str) -> SchemaCompatibilityStrategy:
    """The strategy of a name; a broker that leaves it undefined means FULL."""
    found = SchemaCompatibilityStrategy(strategy)
    undefined = found is SchemaCompatibilityStrategy.UNDEFINED
    return SchemaCompatibilityStrategy.FULL if undefined else found


def auto_topic_creation(settings: Settings, namespace: Mapping[str, Any]) -> AutoTopicCreation:
    """How topics of a namespace come into being by being used."""
    given = applied("autoTopicCreationOverride", settings, namespace)
    partitioned = given["topicType"] == "partitioned"
    return AutoTopicCreation(
        given["allowAutoTopicCreation"], given["defaultNumPartitions"] if partitioned else 0
    )


def max_topics(settings: Settings, namespace: Mapping[str, Any]) -> int:
    """Most topics of a namespace, each partition counts; 0: no limit."""
    most: int = applied("max_topics_per_namespace", settings, namespace)
    return most


def _backlog_quotas(settings: Settings) -> dict[str, Any]:
    size, seconds = settings.backlogQuotaDefaultLimitBytes, settings.backlogQuotaDefaultLimitSecond
    policy = settings.backlogQuotaDefaultRetentionPolicy
    return {
        BY_SIZE: {"limitSize": size, "limit": size, "limitTime": -1, "policy": policy},
        BY_AGE: {"limitSize": -1, "limit": -1, "limitTime": seconds, "policy": policy},
    }


def _inactive_topics(settings: Settings) -> dict[str, Any]:
    seconds = settings.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
    return {
        "inactiveTopicDeleteMode": settings.brokerDeleteInactiveTopicsMode,
        "maxInactiveDurationSeconds": (
            settings.brokerDeleteInactiveTopicsFrequencySeconds if seconds is None else seconds
        ),
        "deleteWhileInactive": settings.brokerDeleteInactiveTopicsEnabled,
    }


def _rate(messages: int, size: int, settings: Settings) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "relativeToPublishRate": settings.dispatchThrottlingRateRelativeToPublishRate,
        "ratePeriodInSecond": 1,
    }


_BROKER: dict[str, Callable[[Settings], Any]] = {
    "max_unacked_messages_per_consumer": lambda s: s.maxUnackedMessagesPerConsumer,
    "max_unacked_messages_per_subscription": lambda s: s.maxUnackedMessagesPerSubscription,
    "max_topics_per_namespace": lambda s: s.maxTopicsPerNamespace,
    "max_producers_per_topic": lambda s: s.maxProducersPerTopic,
    "max_consumers_per_topic": lambda s: s.maxConsumersPerTopic,
    "max_consumers_per_subscription": lambda s: s.maxConsumersPerSubscription,
    "max_subscriptions_per_topic": lambda s: s.maxSubscriptionsPerTopic,
    "autoTopicCreationOverride": lambda s: {
        "allowAutoTopicCreation": s.allowAutoTopicCreation,
        "topicType": s.allowAutoTopicCreationType,
        "defaultNumPartitions": s.defaultNumPartitions,
    },
    "autoSubscriptionCreationOverride": lambda s: {
        "allowAutoSubscriptionCreation": s.allowAutoSubscriptionCreation
    },
    "subscription_expiration_time_minutes": lambda s: s.subscriptionExpirationTimeMinutes,
    "deduplicationEnabled": lambda s: s.brokerDeduplicationEnabled,
    "deduplicationSnapshotIntervalSeconds": lambda s: s.brokerDeduplicationSnapshotIntervalSeconds,
    "encryption_required": lambda _: False,
    "schema_compatibility_strategy": lambda s: s.schemaCompatibilityStrategy,
    "is_allow_auto_update_schema": lambda s: s.isAllowAutoUpdateSchemaEnabled,
    "schema_validation_enforced": lambda s: s.isSchemaValidationEnforced,
    "delayed_delivery_policies": lambda s: {
        "tickTime": s.delayedDeliveryTickTimeMillis,
        "active": s.delayedDeliveryEnabled,
        "maxDeliveryDelayInMillis": s.delayedDeliveryMaxDelayInMillis,
    },
    RETENTION: lambda s: {
        "retentionTimeInMinutes": s.defaultRetentionTimeInMinutes,
        "retentionSizeInMB": s.defaultRetentionSizeInMB,
    },
    "message_ttl_in_seconds": lambda s: s.ttlDurationDefaultInSeconds,
    BACKLOG_QUOTAS: _backlog_quotas,
    PUBLISH_RATE: lambda s: {
        MESSAGE_RATE: s.maxPublishRatePerTopicInMessages,
        BYTE_RATE: s.maxPublishRatePerTopicInBytes,
    },
    "inactive_topic_policies": _inactive_topics,
    "compaction_threshold": lambda s: s.brokerServiceCompactionThresholdInBytes,
    SEALING: lambda s: {
        "enabled": s.sealEnabled,
        "targetFileSizeInMB": s.sealTargetFileSizeMB,
        "freshnessInSeconds": s.sealFreshnessSeconds,
    },
    DISPATCH_RATE: lambda s: _rate(
        s.dispatchThrottlingRatePerTopicInMsg, s.dispatchThrottlingRatePerTopicInByte, s
    ),
    SUBSCRIPTION_DISPATCH_RATE: lambda s: _rate(
        s.dispatchThrottlingRatePerSubscriptionInMsg,
        s.dispatchThrottlingRatePerSubscriptionInByte,
        s,
    ),
    REPLICATOR_DISPATCH_RATE: lambda s: _rate(
        s.dispatchThrottlingRatePerReplicatorInMsg, s.dispatchThrottlingRatePerReplicatorInByte, s
    ),
    SUBSCRIBE_RATE: lambda s: {
        "subscribeThrottlingRatePerConsumer": s.subscribeThrottlingRatePerConsumer,
        "ratePeriodInSecond": s.subscribeRatePeriodPerConsumerInSecond,
    },
    "persistence": lambda s: {
        "bookkeeperEnsemble": s.managedLedgerDefaultEnsembleSize,
        "bookkeeperWriteQuorum": s.managedLedgerDefaultWriteQuorum,
        "bookkeeperAckQuorum": s.managedLedgerDefaultAckQuorum,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
}
"""What the settings of a broker say, by the key and in the shape of the policy."""

_MERGED = (BACKLOG_QUOTAS, SEALING)
"""Policies whose members hold one by one, each as the nearest level says that has it."""
