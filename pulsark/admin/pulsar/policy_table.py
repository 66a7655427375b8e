"""Which policies there are: their names in paths, their keys in documents, their values.

A value is checked once, when it is set, and stored in the shape in which it is shown. A policy
that no code acts on yet is refused: it must not look as if it held. Only what is about parts that
Pulsark does without (offloading, racks of bookies) is kept and shown, because nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from fastapi import HTTPException

from pulsark.admin.http.errors import fail
from pulsark.admin.http.requests import INT64_MAX, boolean, integer, number_of, string_map, strings
from pulsark.config.spec import SCHEMA_COMPATIBILITY_STRATEGIES
from pulsark.dispatch.policies.policies import (
    BACKLOG_QUOTAS,
    BY_AGE,
    BY_SIZE,
    SEALING,
    TABLE_RETENTION,
)
from pulsark.limits import (
    GRANTS_PER_NAMESPACE_MAX,
    KEPT_FIELDS_MAX,
    PARTITIONS_MAX,
    ROLE_CHARS_MAX,
    TOPIC_PROPERTIES_MAX,
)
from pulsark.security import grants
from pulsark.wire.topic_name import TopicName

Check = Callable[[Any], Any]
"""From what was sent to what is stored; ``None``: remove it. Raises 400 or 412."""

INT32_MAX = 2**31 - 1


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


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its key in documents, its values, and where it can be set."""

    key: str
    check: Check
    namespace: PolicyPath | None
    topic: PolicyPath | None = None


# -- values ------------------------------------------------------------------------------------


def _count(what: str, most: int = INT32_MAX, refusal: str = "") -> Check:
    """A number from 0 on. ``refusal`` is what Pulsar says of others, where it is not the rule."""

    def check(value: Any) -> int:
        number = integer(value, what)
        if number < 0:
            raise fail(412, refusal or f"{what} must be 0 or more")
        if number > most:
            raise fail(412, f"{what} is at most {most}")
        return number

    return check


def _flag(what: str) -> Check:
    """``true`` or ``false``."""
    return partial(boolean, what=what)


def _fields(value: Any, what: str, names: Iterable[str]) -> list[Any]:
    """The members of an object, ``None`` for those that are missing."""
    if not isinstance(value, Mapping):
        raise fail(400, f"{what} is an object with {', '.join(names)}")
    return [value.get(name) for name in names]


def _choice(value: Any, what: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise fail(400, f"{what} is one of {', '.join(choices)}")
    return str(value)


def _retention(value: Any) -> dict[str, int]:
    names = ("retentionTimeInMinutes", "retentionSizeInMB")
    minutes, megabytes = (
        integer(number, name, 0)
        for number, name in zip(_fields(value, "retention", names), names, strict=True)
    )
    if not (-1 <= minutes <= INT32_MAX and -1 <= megabytes <= INT64_MAX >> 20):
        raise fail(400, f"{' and '.join(names)} are numbers from -1, which is for ever")
    if (minutes == 0) != (megabytes == 0):
        raise fail(400, f"{' and '.join(names)} are both 0 or neither: either alone keeps nothing")
    return {names[0]: minutes, names[1]: megabytes}


_QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


def backlog_quota(value: Any) -> dict[str, Any]:
    """A BacklogQuota; ``limit`` is the former name of ``limitSize``."""
    size, old_size, seconds, action = _fields(
        value, "A backlog quota", ("limitSize", "limit", "limitTime", "policy")
    )
    size = integer(size, "limitSize", integer(old_size, "limit", -1))
    seconds = integer(seconds, "limitTime", -1)
    if size < -1 or not -1 <= seconds <= INT32_MAX:
        raise fail(412, "limitSize and limitTime are numbers from -1, which is no limit")
    action = _choice(action, "policy", _QUOTA_ACTIONS)
    return {"limitSize": size, "limit": size, "limitTime": seconds, "policy": action}


def _backlog_quotas(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not set(value) <= {BY_SIZE, BY_AGE}:
        raise fail(400, f"{BACKLOG_QUOTAS} has {BY_SIZE} and {BY_AGE}")
    return {kind: backlog_quota(quota) for kind, quota in value.items()}


def check_quotas_below_retention(policies: Mapping[str, Any]) -> None:
    """412 if a backlog could be larger or older than what retention keeps anyway."""
    retention = policies.get("retention_policies")
    if retention is None:
        return
    minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    for quota in policies.get(BACKLOG_QUOTAS, {}).values():
        if 0 < megabytes <= quota["limitSize"] >> 20 or 0 < minutes * 60 <= quota["limitTime"]:
            raise fail(412, "The backlog quota must be below the retention")


def _persistence(value: Any) -> dict[str, Any]:
    names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    *numbers, rate = _fields(value, "persistence", (*names, "managedLedgerMaxMarkDeleteRate"))
    ensemble, write, ack = (
        integer(number, name, 0) for number, name in zip(numbers, names, strict=True)
    )
    if not 5 >= ensemble >= write >= ack > 0:
        raise fail(400, f"5 >= {' >= '.join(names)} > 0 is required")
    rate = 0.0 if rate is None else number_of(rate, "managedLedgerMaxMarkDeleteRate")
    quorums = dict(zip(names, (ensemble, write, ack), strict=True))
    return {**quorums, "managedLedgerMaxMarkDeleteRate": rate}


def _auto_topics(value: Any) -> dict[str, Any]:
    allowed, kind, partitions = _fields(
        value,
        "autoTopicCreation",
        ("allowAutoTopicCreation", "topicType", "defaultNumPartitions"),
    )
    kinds = ("partitioned", "non-partitioned")
    kind = "non-partitioned" if kind is None else _choice(kind, "topicType", kinds)
    found = {
        "allowAutoTopicCreation": boolean(allowed, "allowAutoTopicCreation"),
        "topicType": kind,
    }
    if kind != kinds[0]:
        if partitions is not None and found["allowAutoTopicCreation"]:
            raise _not_auto_topics("is not allowed to be set when the type is non-partition.")
        return found
    if partitions is None:
        raise _not_auto_topics("cannot be null when the type is partitioned.")
    count = integer(partitions, "defaultNumPartitions")
    if count < 1:
        raise _not_auto_topics("cannot be less than 1 for partition type.")
    if count > PARTITIONS_MAX:
        raise _not_auto_topics(f"is at most {PARTITIONS_MAX}.")
    return {**found, "defaultNumPartitions": count}


def _not_auto_topics(what: str) -> HTTPException:
    """In Pulsar's words, which clients compare."""
    return fail(
        412,
        "Invalid configuration for autoTopicCreationOverride. the detail is "
        f"[defaultNumPartitions] {what}",
    )


def _auto_subscriptions(value: Any) -> dict[str, Any]:
    name = "allowAutoSubscriptionCreation"
    return {name: _flag(name)(*_fields(value, "autoSubscriptionCreation", (name,)))}


def _delayed(value: Any) -> dict[str, Any]:
    active, tick, longest = _fields(
        value, "delayedDelivery", ("active", "tickTime", "maxDeliveryDelayInMillis")
    )
    tick, longest = integer(tick, "tickTime", 1000), integer(longest, "maxDeliveryDelayInMillis", 0)
    if tick < 0 or longest < 0:
        raise fail(412, "tickTime and maxDeliveryDelayInMillis are from 0 on, in ms")
    return {
        "tickTime": tick,
        "active": boolean(active, "active"),
        "maxDeliveryDelayInMillis": longest,
    }


def _inactive(value: Any) -> dict[str, Any]:
    modes = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
    mode, seconds, delete = _fields(
        value,
        "inactiveTopicPolicies",
        ("inactiveTopicDeleteMode", "maxInactiveDurationSeconds", "deleteWhileInactive"),
    )
    return {
        "inactiveTopicDeleteMode": _choice(
            modes[0] if mode is None else mode, "inactiveTopicDeleteMode", modes
        ),
        "maxInactiveDurationSeconds": _count("maxInactiveDurationSeconds")(seconds),
        "deleteWhileInactive": boolean(False if delete is None else delete, "deleteWhileInactive"),
    }


def _sealing(value: Any) -> dict[str, Any]:
    """Only what is given: for the rest holds what the next level says."""
    names = ("enabled", "targetFileSizeInMB", "freshnessInSeconds")
    enabled, size, freshness = _fields(value, "sealing", names)
    found: dict[str, Any] = {}
    if enabled is not None:
        found[names[0]] = boolean(enabled, names[0])
    for name, given, low, most in ((names[1], size, 1, 4096), (names[2], freshness, 0, INT32_MAX)):
        if given is not None:
            found[name] = integer(given, name)
            if not low <= found[name] <= most:
                raise fail(412, f"{name} is from {low} to {most}")
    if not found:
        raise fail(400, f"sealing is an object with at least one of {', '.join(names)}")
    return found


_SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


def _subscription_types(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise fail(400, f"A list of {', '.join(_SUBSCRIPTION_TYPES)} is expected")
    given = {_choice(item, "A subscription type", _SUBSCRIPTION_TYPES) for item in value}
    return [name for name in _SUBSCRIPTION_TYPES if name in given]


def _strategy(value: Any) -> str | None:
    chosen = _choice(value, "A schema compatibility strategy", SCHEMA_COMPATIBILITY_STRATEGIES)
    return None if chosen == "UNDEFINED" else chosen


def _properties(value: Any) -> dict[str, str]:
    return string_map(value, "properties", TOPIC_PROPERTIES_MAX)


def _kept(what: str) -> Check:
    """An object of texts, numbers and flags that nothing follows: shown as it came."""

    def check(value: Any) -> dict[str, Any]:
        given = _object(value, what)
        string_map({k: v for k, v in given.items() if v is not None}, what, KEPT_FIELDS_MAX)
        return dict(given)

    return check


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fail(400, f"{what} is an object")
    return value


def _grants(value: Any) -> dict[str, Any]:
    """What roles may do, in the document with which a namespace is created."""
    given = _object(value, grants.AUTH_POLICIES)
    of_namespace, of_topics, of_subscriptions = (
        _object({} if given.get(kind) is None else given[kind], kind)
        for kind in (grants.NAMESPACE, grants.TOPICS, grants.SUBSCRIPTIONS)
    )
    found: dict[str, Any] = {}
    for role, actions in of_namespace.items():
        grants.grant(found, _role(role), _actions(actions))
    for topic, roles in of_topics.items():
        for role, actions in _object(roles, grants.TOPICS).items():
            grants.grant_on_topic(
                found, str(TopicName.parse(topic)), _role(role), _actions(actions)
            )
    for subscription, roles in of_subscriptions.items():
        names = [_role(role) for role in strings(roles, grants.SUBSCRIPTIONS)]
        grants.grant_on_subscription(found, subscription, names)
    if grants.count(found) > GRANTS_PER_NAMESPACE_MAX:
        raise fail(412, f"A namespace has at most {GRANTS_PER_NAMESPACE_MAX} grants")
    granted: dict[str, Any] = found.get(grants.AUTH_POLICIES, {})
    return granted


def _role(role: str) -> str:
    if not 0 < len(role) <= ROLE_CHARS_MAX:
        raise fail(412, f"A role has 1 to {ROLE_CHARS_MAX} characters")
    return role


def _actions(value: Any) -> list[str]:
    return [_choice(action, "An action", grants.ACTIONS) for action in strings(value, "Actions")]


# -- the table ---------------------------------------------------------------------------------

_NO_204 = Unset.NO_CONTENT

POLICIES = (
    Policy(
        "message_ttl_in_seconds",
        _count("messageTTL", refusal="Invalid value for message TTL"),
        PolicyPath("messageTTL"),
        PolicyPath("messageTTL", in_query=True),
    ),
    Policy("retention_policies", _retention, PolicyPath("retention"), PolicyPath("retention")),
    Policy(TABLE_RETENTION, _retention, PolicyPath("tableRetention"), PolicyPath("tableRetention")),
    Policy("persistence", _persistence, PolicyPath("persistence"), PolicyPath("persistence")),
    Policy(
        "deduplicationEnabled",
        _flag("deduplication"),
        PolicyPath("deduplication"),
        PolicyPath("deduplicationEnabled"),
    ),
    Policy(
        "deduplicationSnapshotIntervalSeconds",
        _count("deduplicationSnapshotInterval"),
        PolicyPath("deduplicationSnapshotInterval", removable=False, empty_removes=True),
        PolicyPath("deduplicationSnapshotInterval"),
    ),
    Policy(
        "max_topics_per_namespace",
        _count("maxTopicsPerNamespace"),
        PolicyPath("maxTopicsPerNamespace", unset=0),
    ),
    Policy(
        "max_message_size",
        _count("maxMessageSize"),
        None,
        PolicyPath("maxMessageSize", unset=_NO_204),
    ),
    Policy(
        "max_producers_per_topic",
        _count("maxProducersPerTopic"),
        PolicyPath("maxProducersPerTopic"),
        PolicyPath("maxProducers"),
    ),
    Policy(
        "max_consumers_per_topic",
        _count("maxConsumersPerTopic"),
        PolicyPath("maxConsumersPerTopic"),
        PolicyPath("maxConsumers"),
    ),
    Policy(
        "max_subscriptions_per_topic",
        _count("maxSubscriptionsPerTopic"),
        PolicyPath("maxSubscriptionsPerTopic"),
        PolicyPath("maxSubscriptionsPerTopic", unset=_NO_204),
    ),
    Policy(
        "max_consumers_per_subscription",
        _count("maxConsumersPerSubscription"),
        PolicyPath("maxConsumersPerSubscription"),
        PolicyPath("maxConsumersPerSubscription", unset=_NO_204),
    ),
    Policy(
        "max_unacked_messages_per_consumer",
        _count("maxUnackedMessagesPerConsumer"),
        PolicyPath("maxUnackedMessagesPerConsumer"),
        PolicyPath("maxUnackedMessagesOnConsumer"),
    ),
    Policy(
        "max_unacked_messages_per_subscription",
        _count("maxUnackedMessagesPerSubscription"),
        PolicyPath("maxUnackedMessagesPerSubscription"),
        PolicyPath("maxUnackedMessagesOnSubscription"),
    ),
    Policy("autoTopicCreationOverride", _auto_topics, PolicyPath("autoTopicCreation")),
    Policy(
        "autoSubscriptionCreationOverride",
        _auto_subscriptions,
        PolicyPath("autoSubscriptionCreation"),
        PolicyPath("autoSubscriptionCreation"),
    ),
    Policy(
        "delayed_delivery_policies",
        _delayed,
        PolicyPath("delayedDelivery"),
        PolicyPath("delayedDelivery"),
    ),
    Policy(
        "inactive_topic_policies",
        _inactive,
        PolicyPath("inactiveTopicPolicies"),
        PolicyPath("inactiveTopicPolicies"),
    ),
    Policy(
        "schema_compatibility_strategy",
        _strategy,
        PolicyPath("schemaCompatibilityStrategy", "PUT", removable=False, unset="UNDEFINED"),
        PolicyPath("schemaCompatibilityStrategy", "PUT"),
    ),
    Policy(
        "schema_validation_enforced",
        _flag("schemaValidationEnforced"),
        PolicyPath("schemaValidationEnforced", removable=False, unset=False),
        PolicyPath("schemaValidationEnforced", removable=False, unset=False),
    ),
    Policy(
        "is_allow_auto_update_schema",
        _flag("isAllowAutoUpdateSchema"),
        PolicyPath("isAllowAutoUpdateSchema", removable=False, unset=True),
    ),
    Policy(
        "compaction_threshold",
        _count("compactionThreshold", INT64_MAX),
        PolicyPath("compactionThreshold", "PUT"),
        PolicyPath("compactionThreshold"),
    ),
    Policy(
        "encryption_required",
        _flag("encryptionRequired"),
        PolicyPath("encryptionRequired", removable=False, unset=False),
    ),
    Policy(
        "subscription_types_enabled",
        _subscription_types,
        PolicyPath("subscriptionTypesEnabled", unset=[]),
        PolicyPath("subscriptionTypesEnabled", unset=_NO_204),
    ),
    Policy(
        "subscription_expiration_time_minutes",
        _count(
            "subscriptionExpirationTime", refusal="Invalid value for subscription expiration time"
        ),
        PolicyPath("subscriptionExpirationTime"),
    ),
    Policy(SEALING, _sealing, PolicyPath("sealing"), PolicyPath("sealing")),
    Policy("properties", _properties, PolicyPath("properties", "PUT", unset={})),
    Policy(
        "offload_policies",
        _kept("offloadPolicies"),
        PolicyPath("offloadPolicies"),
        PolicyPath("offloadPolicies"),
    ),
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
        "bookie_affinity_group",
        _kept("bookieAffinity"),
        PolicyPath("persistence/bookieAffinity", unset=_NO_204),
    ),
)
"""The policies that hold once they are set. Backlog quotas come on top: they are two in one."""


def _not_built(value: Any) -> Any:
    raise fail(501, "This policy is not implemented yet; nothing would follow it")


def _plain(*names: str) -> list[PolicyPath]:
    return [PolicyPath(name) for name in names]


_RATES = ("dispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate", "subscribeRate")
_NOT_BUILT_NAMESPACE = (
    *_plain(*_RATES, "publishRate", "entryFilters", "resourcegroup"),
    PolicyPath("schemaAutoUpdateCompatibilityStrategy", "PUT", removable=False, unset=_NO_204),
    PolicyPath("allowedClusters", removable=False, unset=[]),
    PolicyPath("subscriptionAuthMode", removable=False, unset="None"),
    PolicyPath("antiAffinity", unset=_NO_204),
    PolicyPath("dispatcherPauseOnAckStatePersistent", unset=False),
)
_NOT_BUILT_TOPIC = (
    *_plain(*_RATES, "entryFilters", "replication"),
    PolicyPath("publishRate", unset=_NO_204),
    PolicyPath("dispatcherPauseOnAckStatePersistent", unset=False),
)

NAMESPACE_POLICIES: dict[str, tuple[Policy, PolicyPath]] = {
    **{p.namespace.name: (p, p.namespace) for p in POLICIES if p.namespace is not None},
    **{place.name: (Policy("", _not_built, place), place) for place in _NOT_BUILT_NAMESPACE},
}
TOPIC_POLICIES: dict[str, tuple[Policy, PolicyPath]] = {
    **{p.topic.name: (p, p.topic) for p in POLICIES if p.topic is not None},
    **{place.name: (Policy("", _not_built, None, place), place) for place in _NOT_BUILT_TOPIC},
}

NO_DISPATCH_RATE = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
APPLIED_TO_TOPICS: dict[str, Any] = {
    "dispatchRate": NO_DISPATCH_RATE,
    "subscriptionDispatchRate": NO_DISPATCH_RATE,
    "replicatorDispatchRate": NO_DISPATCH_RATE,
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30},
    "entryFilters": {"entryFilterNames": ""},
    "dispatcherPauseOnAckStatePersistent": False,
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

_NOT_BUILT_KEYS = frozenset(
    {
        *(NEUTRAL.keys() - {p.key for p in POLICIES} - {BACKLOG_QUOTAS, grants.AUTH_POLICIES}),
        "schema_auto_update_compatibility_strategy",
        "resource_group_name",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "entryFilters",
        "antiAffinityGroup",
    }
)


def policies_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The policies in the document with which a namespace is created, checked.

    Members that nobody knows are left out, as everywhere. Those that Pulsar has and Pulsark
    has not are refused, unless they say nothing.
    """
    given = {key: item for key, item in document.items() if item is not None}
    refused = sorted(
        key
        for key in _NOT_BUILT_KEYS & given.keys()
        if given[key] != NEUTRAL.get(key) and given[key] not in ({}, [], False)
    )
    if refused:
        raise fail(501, f"Namespace policies are not implemented yet: {', '.join(refused)}")
    checks = {
        BACKLOG_QUOTAS: _backlog_quotas,
        grants.AUTH_POLICIES: _grants,
        **{p.key: p.check for p in POLICIES},
    }
    checked = {key: check(given[key]) for key, check in checks.items() if key in given}
    policies = {key: item for key, item in checked.items() if item not in (None, {}, [])}
    check_quotas_below_retention(policies)
    return policies
