"""The settings of policies that hold where neither the topic nor its namespace has its own."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.spec import setting
from pulsark.config.storage import StorageSettings


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class PolicySettings(StorageSettings):
    """That part of ``Settings``, and what it needs."""

    topicLevelPoliciesEnabled: bool = setting(
        True, "", "A topic may have policies of its own, above those of its namespace"
    )
    maxProducersPerTopic: int = setting(
        0, "count", "Most producers connected to a topic; 0: no limit", ge=0
    )
    maxConsumersPerTopic: int = setting(
        0, "count", "Most consumers connected to a topic; 0: no limit", ge=0
    )
    maxConsumersPerSubscription: int = setting(
        0, "count", "Most consumers connected to a subscription; 0: no limit", ge=0
    )
    maxSubscriptionsPerTopic: int = setting(
        0, "count", "Most durable subscriptions of a topic; 0: no limit", ge=0
    )
    subscriptionPropertiesMaxBytesPerTopic: int = setting(
        8 << 20,
        "bytes",
        "Most bytes of the properties of all subscriptions of a topic together, which stay in "
        "memory while it is loaded. Subscriptions that exist keep theirs; 0: no limit",
        ge=0,
        own=True,
    )
    ttlDurationDefaultInSeconds: int = setting(
        0, "s", "A message older than this counts as acknowledged; 0: never", ge=0
    )
    messageExpiryCheckIntervalInMinutes: int = setting(
        5, "min", "Time between two searches for messages that are too old", ge=1
    )
    retentionCheckIntervalInSeconds: int = setting(
        120, "s", "Time between two searches for ledgers that are no longer needed", ge=1
    )
    backlogQuotaCheckEnabled: bool = setting(True, "", "Backlogs are compared with their quotas")
    backlogQuotaCheckIntervalInSeconds: int = setting(
        60, "s", "Time between two checks of all backlogs", ge=1
    )
    backlogQuotaDefaultLimitBytes: int = setting(
        -1, "bytes", "Largest backlog of a topic; -1: no limit", ge=-1
    )
    backlogQuotaDefaultLimitSecond: int = setting(
        -1, "s", "Greatest age of the oldest message in a topic's backlog; -1: no limit", ge=-1
    )
    backlogQuotaDefaultRetentionPolicy: str = setting(
        "producer_request_hold",
        "",
        "What happens to a topic whose backlog is over its quota",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    brokerDeleteInactiveTopicsEnabled: bool = setting(True, "", "Unused topics are deleted")
    brokerDeleteInactiveTopicsFrequencySeconds: int = setting(
        60, "s", "Time between two searches for unused topics", ge=1
    )
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int | None = setting(
        None,
        "s",
        "A topic unused for this time is deleted; "
        "empty: as brokerDeleteInactiveTopicsFrequencySeconds",
        ge=1,
    )
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = setting(
        False, "", "A partitioned topic is deleted with the last of its unused partitions"
    )
    topicsAtRestCheckIntervalInSeconds: int = setting(
        3600,
        "s",
        "Time between two walks over all unloaded topics, to apply their policies; 0: never",
        ge=0,
        own=True,
    )
    brokerDeleteInactiveTopicsMode: str = setting(
        "delete_when_no_subscriptions",
        "",
        "Which topics without clients count as unused",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    )
    subscriptionExpirationTimeMinutes: int = setting(
        0, "min", "A subscription unused for this time is deleted; 0: never", ge=0
    )
    subscriptionExpiryCheckIntervalInMinutes: int = setting(
        5, "min", "Time between two searches for unused subscriptions", ge=1
    )
    brokerDeduplicationEntriesInterval: int = setting(
        1000, "count", "Entries between two snapshots of deduplication", ge=1
    )
    brokerDeduplicationSnapshotFrequencyInSeconds: int = setting(
        120, "s", "Time between two searches for topics whose snapshot is due", ge=1
    )
    brokerDeduplicationSnapshotIntervalSeconds: int = setting(
        120,
        "s",
        "A snapshot is due after this time, whatever the number of entries; 0: never",
        ge=0,
    )
    brokerDeduplicationMaxNumberOfProducers: int = setting(
        10_000, "count", "Disconnected producers that a topic remembers", ge=1
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = setting(
        360,
        "min",
        "Time after its disconnection at which a producer's sequence ids are forgotten",
        ge=1,
    )
    encryptionRequireOnProducer: bool = setting(
        False, "", "Producers must encrypt, whatever the namespace's policy is"
    )
    delayedDeliveryEnabled: bool = setting(
        True, "", "Shared and Key_Shared subscriptions deliver delayed messages when they are due"
    )
    delayedDeliveryTickTimeMillis: int = setting(1000, "ms", "Accuracy of delayed delivery", ge=1)
    isDelayedDeliveryDeliverAtTimeStrict: bool = setting(
        False,
        "",
        "Delayed messages never arrive early; otherwise up to a tick early, which saves work",
    )
    delayedDeliveryMaxDelayInMillis: int = setting(
        0, "ms", "A message with a longer delay is refused; 0: no limit", ge=0
    )
    brokerServiceCompactionThresholdInBytes: int = setting(
        0, "bytes", "A topic with this much uncompacted data is compacted; 0: never", ge=0
    )
