"""Which policies there are: their names in paths, their keys in documents.

A policy that no code acts on yet is refused: it must not look as if it held. Policies for parts
that Pulsark does without (offloading, racks of bookies) are kept and shown, because no client waits
for their effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from pulsark.admin.http.errors import fail
from pulsark.admin.http.requests import INT64_MAX, integer
from pulsark.admin.pulsar import policy_values as values
from pulsark.dispatch.brokers.anti_affinity import ANTI_AFFINITY_GROUP
from pulsark.dispatch.policies.policies import (
    BACKLOG_QUOTAS,
    DISPATCH_RATE,
    PUBLISH_RATE,
    REPLICATOR_DISPATCH_RATE,
    SEALING,
    STORAGE_QUOTA,
    SUBSCRIBE_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    TABLE_RETENTION,
)
from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.security import grants


class Unset(Enum):
    """How a policy that is not set is answered, if not by a value."""

    EMPTY = 200
    NO_CONTENT = 204


@dataclass(frozen=True, slots=True)
class PolicyPath:
    """A policy in the paths of one level: its name, its verbs, and what stands for "not set"."""

    name: str
    write: str = "POST"
    removable: bool = True
    unset: Any = Unset.EMPTY
    in_query: bool = False
    """The value is in the query, under the policy's name, and not in the body."""
    empty_removes: bool = False
    """To write nothing is to remove it."""
    empty_sets: Any = None
    """What a write without a body means."""
    plain: bool = False
    """It is shown as a bare text."""
    bare: bool = False
    """It is given as a bare text, or as one in quotes: Pulsar's clients differ."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its key in documents, its values, and where it can be set."""

    key: str
    check: values.Check
    namespace: PolicyPath | None
    topic: PolicyPath | None = None


def _both(name: str) -> tuple[PolicyPath, PolicyPath]:
    return PolicyPath(name), PolicyPath(name)


_NO_204 = Unset.NO_CONTENT

POLICIES = (
    Policy(
        "message_ttl_in_seconds",
        values.count("messageTTL", refusal="Invalid value for message TTL"),
        PolicyPath("messageTTL"),
        PolicyPath("messageTTL", in_query=True),
    ),
    Policy("retention_policies", values.retention, *_both("retention")),
    Policy(
        TABLE_RETENTION,
        values.retention,
        *_both("tableRetention"),
    ),
    Policy("persistence", values.persistence, *_both("persistence")),
    Policy(
        "deduplicationEnabled",
        values.flag("deduplication"),
        PolicyPath("deduplication"),
        PolicyPath("deduplicationEnabled"),
    ),
    Policy(
        "deduplicationSnapshotIntervalSeconds",
        values.count("deduplicationSnapshotInterval"),
        PolicyPath("deduplicationSnapshotInterval", removable=False, empty_removes=True),
        PolicyPath("deduplicationSnapshotInterval"),
    ),
    Policy(
        "max_topics_per_namespace",
        values.count("maxTopicsPerNamespace"),
        PolicyPath("maxTopicsPerNamespace", unset=0),
    ),
    Policy(
        "max_message_size",
        values.count("maxMessageSize"),
        None,
        PolicyPath("maxMessageSize", unset=_NO_204),
    ),
    Policy(
        "max_producers_per_topic",
        values.count("maxProducersPerTopic"),
        PolicyPath("maxProducersPerTopic"),
        PolicyPath("maxProducers"),
    ),
    Policy(
        "max_consumers_per_topic",
        values.count("maxConsumersPerTopic"),
        PolicyPath("maxConsumersPerTopic"),
        PolicyPath("maxConsumers"),
    ),
    Policy(
        "max_subscriptions_per_topic",
        values.count("maxSubscriptionsPerTopic"),
        PolicyPath("maxSubscriptionsPerTopic"),
        PolicyPath("maxSubscriptionsPerTopic", unset=_NO_204),
    ),
    Policy(
        "max_consumers_per_subscription",
        values.count("maxConsumersPerSubscription"),
        PolicyPath("maxConsumersPerSubscription"),
        PolicyPath("maxConsumersPerSubscription", unset=_NO_204),
    ),
    Policy(
        "max_unacked_messages_per_consumer",
        values.count("maxUnackedMessagesPerConsumer"),
        PolicyPath("maxUnackedMessagesPerConsumer"),
        PolicyPath("maxUnackedMessagesOnConsumer"),
    ),
    Policy(
        "max_unacked_messages_per_subscription",
        values.count("maxUnackedMessagesPerSubscription"),
        PolicyPath("maxUnackedMessagesPerSubscription"),
        PolicyPath("maxUnackedMessagesOnSubscription"),
    ),
    Policy("autoTopicCreationOverride", values.auto_topics, PolicyPath("autoTopicCreation")),
    Policy(
        "autoSubscriptionCreationOverride",
        values.auto_subscriptions,
        *_both("autoSubscriptionCreation"),
    ),
    Policy(
        PUBLISH_RATE,
        values.publish_rate,
        PolicyPath("publishRate"),
        PolicyPath("publishRate", unset=_NO_204),
    ),
    Policy(RESOURCE_GROUP, values.resource_group, PolicyPath("resourcegroup", plain=True)),
    Policy(
        ANTI_AFFINITY_GROUP,
        values.anti_affinity_group,
        PolicyPath("antiAffinity", unset=_NO_204, plain=True, bare=True),
    ),
    Policy("delayed_delivery_policies", values.delayed, *_both("delayedDelivery")),
    Policy("inactive_topic_policies", values.inactive, *_both("inactiveTopicPolicies")),
    Policy(
        "schema_compatibility_strategy",
        values.strategy,
        PolicyPath("schemaCompatibilityStrategy", "PUT", removable=False, unset="UNDEFINED"),
        PolicyPath("schemaCompatibilityStrategy", "PUT"),
    ),
    Policy(
        "schema_validation_enforced",
        values.flag("schemaValidationEnforced"),
        PolicyPath("schemaValidationEnforced", removable=False, unset=False),
        PolicyPath("schemaValidationEnforced", removable=False, unset=False),
    ),
    Policy(
        "is_allow_auto_update_schema",
        values.flag("isAllowAutoUpdateSchema"),
        PolicyPath("isAllowAutoUpdateSchema", removable=False, unset=True),
    ),
    Policy(
        "compaction_threshold",
        values.count("compactionThreshold", INT64_MAX),
        PolicyPath("compactionThreshold", "PUT"),
        PolicyPath("compactionThreshold"),
    ),
    Policy(
        "encryption_required",
        values.flag("encryptionRequired"),
        PolicyPath("encryptionRequired", removable=False, unset=False),
    ),
    Policy(
        "subscription_types_enabled",
        values.subscription_types,
        PolicyPath("subscriptionTypesEnabled", unset=[]),
        PolicyPath("subscriptionTypesEnabled", unset=_NO_204),
    ),
    Policy(
        "subscription_expiration_time_minutes",
        values.count(
            "subscriptionExpirationTime", refusal="Invalid value for subscription expiration time"
        ),
        PolicyPath("subscriptionExpirationTime"),
    ),
    Policy(
        grants.SUBSCRIPTION_AUTH_MODE,
        values.subscription_auth_mode,
        PolicyPath("subscriptionAuthMode", removable=False, unset="None"),
    ),
    Policy(STORAGE_QUOTA, values.storage_quota, PolicyPath("storageQuota")),
    Policy(DISPATCH_RATE, values.dispatch_rate, *_both("dispatchRate")),
    Policy(
        SUBSCRIPTION_DISPATCH_RATE,
        values.dispatch_rate,
        *_both("subscriptionDispatchRate"),
    ),
    Policy(
        REPLICATOR_DISPATCH_RATE,
        values.dispatch_rate,
        *_both("replicatorDispatchRate"),
    ),
    Policy(SUBSCRIBE_RATE, values.subscribe_rate, *_both("subscribeRate")),
    Policy(SEALING, values.sealing, *_both("sealing")),
    Policy("properties", values.properties, PolicyPath("properties", "PUT", unset={})),
    Policy("offload_policies", values.kept("offloadPolicies"), *_both("offloadPolicies")),
    Policy(
        "offload_threshold",
        partial(integer, what="offloadThreshold"),
        PolicyPath("offloadThreshold", "PUT", removable=False, unset=-1),
    ),
    Policy(
        "offload_threshold_in_seconds",
        partial(integer, what="offloadThresholdInSeconds"),
        PolicyPath("offloadThresholdInSeconds", "PUT", removable=False, unset=-1),
    ),
    Policy(
        "offload_deletion_lag_ms",
        partial(integer, what="offloadDeletionLagMs"),
        PolicyPath("offloadDeletionLagMs", "PUT"),
    ),
    Policy(
        # All that is acknowledged is stored, however scattered it is, so dispatch need never pause.
        "dispatcherPauseOnAckStatePersistentEnabled",
        values.flag("dispatcherPauseOnAckStatePersistent"),
        *(
            PolicyPath("dispatcherPauseOnAckStatePersistent", unset=False, empty_sets=True)
            for _ in range(2)
        ),
    ),
    Policy(
        "bookie_affinity_group",
        values.kept("bookieAffinity"),
        PolicyPath("persistence/bookieAffinity", unset=_NO_204),
    ),
)
"""The policies that hold once they are set. Backlog quotas come on top: they are two in one."""


def _not_built(value: Any) -> Any:
    raise fail(501, "This policy is not implemented yet; nothing would follow it")


def _plain(*names: str) -> list[PolicyPath]:
    return [PolicyPath(name) for name in names]


_NOT_BUILT_NAMESPACE = (
    *_plain("entryFilters"),
    PolicyPath("schemaAutoUpdateCompatibilityStrategy", "PUT", removable=False, unset=_NO_204),
    PolicyPath("allowedClusters", removable=False, unset=[]),
)
_NOT_BUILT_TOPIC = tuple(_plain("entryFilters", "replication"))

NAMESPACE_POLICIES: dict[str, tuple[Policy, PolicyPath]] = {
    **{p.namespace.name: (p, p.namespace) for p in POLICIES if p.namespace is not None},
    **{place.name: (Policy("", _not_built, place), place) for place in _NOT_BUILT_NAMESPACE},
}
TOPIC_POLICIES: dict[str, tuple[Policy, PolicyPath]] = {
    **{p.topic.name: (p, p.topic) for p in POLICIES if p.topic is not None},
    **{place.name: (Policy("", _not_built, None, place), place) for place in _NOT_BUILT_TOPIC},
}

APPLIED_TO_TOPICS: dict[str, Any] = {
    "entryFilters": {"entryFilterNames": ""},
}
"""What holds for topics of policies that are not built, which is what holds in Pulsar by itself."""

NEUTRAL: dict[str, Any] = {
    "auth_policies": {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    },
    "allowed_clusters": [],
    BACKLOG_QUOTAS: {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""What a namespace's document always has, with the values that say nothing."""

BY_CLUSTER = {
    PUBLISH_RATE: "publishMaxMessageRate",
    DISPATCH_RATE: "topicDispatchRate",
    SUBSCRIPTION_DISPATCH_RATE: "subscriptionDispatchRate",
    REPLICATOR_DISPATCH_RATE: "replicatorDispatchRate",
    SUBSCRIBE_RATE: "clusterSubscribeRate",
}
"""Policies that a namespace's document has for each cluster, and the names that they have there."""

_TOPIC_RATE, _OLD_TOPIC_RATE = BY_CLUSTER[DISPATCH_RATE], "clusterDispatchRate"
"""A document has the dispatch rate of topics under its former name as well."""

_NOT_BUILT_KEYS = frozenset(
    {
        *(
            NEUTRAL.keys()
            - {p.key for p in POLICIES}
            - {BACKLOG_QUOTAS, grants.AUTH_POLICIES, *BY_CLUSTER.values(), _OLD_TOPIC_RATE}
        ),
        "schema_auto_update_compatibility_strategy",
        "entryFilters",
    }
)


def document_of(policies: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Stored policies as a namespace's document shows them."""
    of_cluster = {
        name: {cluster: policies[key]} for key, name in BY_CLUSTER.items() if key in policies
    }
    others = {key: item for key, item in policies.items() if key not in BY_CLUSTER}
    found = {**NEUTRAL, **others, **of_cluster}
    return {**found, _OLD_TOPIC_RATE: found[_TOPIC_RATE]}


def policies_of(document: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """The policies in the document with which a namespace is created, checked.

    Unknown members are left out, as everywhere. Those that Pulsar has and Pulsark lacks are
    refused, unless they have no effect.
    """
    given = {key: item for key, item in document.items() if item is not None}
    given = {_TOPIC_RATE: given.pop(_OLD_TOPIC_RATE, {}), **given}
    for key, name in BY_CLUSTER.items():
        rates = values.object_of(given.pop(name, {}), name)
        given.pop(key, None)
        if rates.get(cluster) is not None:
            given[key] = rates[cluster]
    refused = sorted(
        key
        for key in _NOT_BUILT_KEYS & given.keys()
        if given[key] != NEUTRAL.get(key) and given[key] not in ({}, [], False)
    )
    if refused:
        raise fail(501, f"Namespace policies are not implemented yet: {', '.join(refused)}")
    checks = {
        BACKLOG_QUOTAS: values.backlog_quotas,
        grants.AUTH_POLICIES: values.permissions,
        **{p.key: p.check for p in POLICIES},
    }
    checked = {key: check(given[key]) for key, check in checks.items() if key in given}
    policies = {key: item for key, item in checked.items() if item not in (None, {}, [])}
    values.check_quotas_below_retention(policies)
    return policies
