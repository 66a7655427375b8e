"""The values of policies.

A value is checked once, when it is set, and stored in the shape in which it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from fastapi import HTTPException

from pulsark.admin.http.errors import fail
from pulsark.admin.http.requests import (
    INT64_MAX,
    boolean,
    integer,
    number_of,
    property_map,
    string_map,
    strings,
)
from pulsark.config.spec import SCHEMA_COMPATIBILITY_STRATEGIES
from pulsark.dispatch.policies.policies import (
    BACKLOG_QUOTAS,
    BY_AGE,
    BY_SIZE,
    BYTE_RATE,
    MESSAGE_RATE,
)
from pulsark.limits import (
    GRANTS_PER_NAMESPACE_MAX,
    KEPT_FIELDS_MAX,
    PARTITIONS_MAX,
)
from pulsark.security import grants
from pulsark.security.limits import ROLE_CHARS_MAX
from pulsark.wire.topic_name import TopicName, check_name_part

Check = Callable[[Any], Any]
"""From what was sent to what is stored; ``None``: remove it. Raises 400 or 412."""

INT32_MAX = 2**31 - 1


def count(what: str, most: int = INT32_MAX, refusal: str = "") -> Check:
    """A number from 0 on. ``refusal`` is what Pulsar says of others, where it is not the rule."""

    def check(value: Any) -> int:
        number = integer(value, what)
        if number < 0:
            raise fail(412, refusal or f"{what} must be 0 or more")
        if number > most:
            raise fail(412, f"{what} is at most {most}")
        return number

    return check


def flag(what: str) -> Check:
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


def retention(value: Any) -> dict[str, int]:
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


def backlog_quotas(value: Any) -> dict[str, Any]:
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


def persistence(value: Any) -> dict[str, Any]:
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


def auto_topics(value: Any) -> dict[str, Any]:
    allowed, kind, partitions = _fields(
        value,
        "autoTopicCreation",
        ("allowAutoTopicCreation", "topicType", "defaultNumPartitions"),
    )
    kinds = ("partitioned", "non-partitioned")
    if not boolean(allowed, "allowAutoTopicCreation"):
        # As in Pulsar, the other members may have any value: nothing is made of them.
        if kind == kinds[0] and type(partitions) is int and 1 <= partitions <= PARTITIONS_MAX:
            return {
                "allowAutoTopicCreation": False,
                "topicType": kind,
                "defaultNumPartitions": partitions,
            }
        return {"allowAutoTopicCreation": False, "topicType": kinds[1]}
    kind = "non-partitioned" if kind is None else _choice(kind, "topicType", kinds)
    found = {"allowAutoTopicCreation": True, "topicType": kind}
    if kind != kinds[0]:
        if partitions is not None:
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


def auto_subscriptions(value: Any) -> dict[str, Any]:
    name = "allowAutoSubscriptionCreation"
    return {name: flag(name)(*_fields(value, "autoSubscriptionCreation", (name,)))}


def delayed(value: Any) -> dict[str, Any]:
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


def inactive(value: Any) -> dict[str, Any]:
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
        "maxInactiveDurationSeconds": count("maxInactiveDurationSeconds")(seconds),
        "deleteWhileInactive": boolean(False if delete is None else delete, "deleteWhileInactive"),
    }


def publish_rate(value: Any) -> dict[str, int]:
    """What is missing is not limited, as what is 0 or less."""
    messages, size = _fields(value, "publishRate", (MESSAGE_RATE, BYTE_RATE))
    messages, size = integer(messages, MESSAGE_RATE, -1), integer(size, BYTE_RATE, -1)
    if messages > INT32_MAX:
        raise fail(412, f"{MESSAGE_RATE} is at most {INT32_MAX}")
    return {MESSAGE_RATE: messages, BYTE_RATE: size}


def resource_group(value: Any) -> str:
    if not isinstance(value, str):
        raise fail(400, "resourcegroup is the name of a resource group")
    return check_name_part("resource group", value)


def anti_affinity_group(value: Any) -> str:
    if not isinstance(value, str):
        raise fail(400, "antiAffinity is the name of a group")
    return check_name_part("anti-affinity group", value)


def sealing(value: Any) -> dict[str, Any]:
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


def storage_quota(value: Any) -> dict[str, Any]:
    limit, policy = _fields(value, "storageQuota", ("limitBytes", "policy"))
    limit = integer(limit, "limitBytes")
    if limit < -1:
        raise fail(412, "limitBytes is a number from 0 on; -1 is no limit")
    policy = _choice("producer_exception" if policy is None else policy, "policy", _STORAGE_ACTIONS)
    return {"limitBytes": limit, "policy": policy}


_STORAGE_ACTIONS = ("producer_exception",)


def dispatch_rate(value: Any) -> dict[str, Any]:
    """A DispatchRate; what is left out is no limit."""
    names = ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")
    messages, size, relative, period = _fields(
        value, "A dispatch rate", (*names, "relativeToPublishRate", "ratePeriodInSecond")
    )
    return {
        names[0]: _rate(messages, names[0], INT32_MAX),
        names[1]: _rate(size, names[1], INT64_MAX),
        "relativeToPublishRate": boolean(
            False if relative is None else relative, "relativeToPublishRate"
        ),
        "ratePeriodInSecond": _period(period, 1),
    }


def subscribe_rate(value: Any) -> dict[str, Any]:
    names = ("subscribeThrottlingRatePerConsumer", "ratePeriodInSecond")
    most, period = _fields(value, "A subscribe rate", names)
    return {names[0]: _rate(most, names[0], INT32_MAX), names[1]: _period(period, 30)}


def _rate(given: Any, what: str, most: int) -> int:
    number = integer(given, what, -1)
    if not -1 <= number <= most:
        raise fail(412, f"{what} is a number from -1 to {most}; 0 and -1 are no limit")
    return number


def _period(given: Any, default: int) -> int:
    seconds = integer(given, "ratePeriodInSecond", default)
    if not 1 <= seconds <= INT32_MAX:
        raise fail(412, "ratePeriodInSecond is a number from 1 on")
    return seconds


_SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


def subscription_types(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise fail(400, f"A list of {', '.join(_SUBSCRIPTION_TYPES)} is expected")
    given = {_choice(item, "A subscription type", _SUBSCRIPTION_TYPES) for item in value}
    return [name for name in _SUBSCRIPTION_TYPES if name in given]


def strategy(value: Any) -> str | None:
    chosen = _choice(value, "A schema compatibility strategy", SCHEMA_COMPATIBILITY_STRATEGIES)
    return None if chosen == "UNDEFINED" else chosen


def subscription_auth_mode(value: Any) -> str | None:
    """``Prefix``, or nothing of the kind."""
    chosen = _choice(value, "subscriptionAuthMode", ("None", "Prefix"))
    return None if chosen == "None" else chosen


def properties(value: Any) -> dict[str, str]:
    return property_map(value)


def kept(what: str) -> Check:
    """An object of texts, numbers and flags, or of such objects, that nothing follows.

    It is shown as it came: Pulsar's client sends a map of further settings with offload policies.
    """

    def check(value: Any) -> dict[str, Any]:
        given = object_of(value, what)
        plain: dict[str, Any] = {}
        for key, item in given.items():
            if isinstance(item, Mapping):
                string_map(item, f"{what}.{key}", KEPT_FIELDS_MAX)
            elif item is not None:
                plain[key] = item
        string_map(plain, what, KEPT_FIELDS_MAX)
        if len(given) > KEPT_FIELDS_MAX:
            raise fail(412, f"At most {KEPT_FIELDS_MAX} {what} are allowed")
        return dict(given)

    return check


def object_of(value: Any, what: str) -> Mapping[str, Any]:
    """Refuses whatever is no object."""
    if not isinstance(value, Mapping):
        raise fail(400, f"{what} is an object")
    return value


def permissions(value: Any) -> dict[str, Any]:
    """What roles may do, in the document with which a namespace is created."""
    given = object_of(value, grants.AUTH_POLICIES)
    of_namespace, of_topics, of_subscriptions = (
        object_of({} if given.get(kind) is None else given[kind], kind)
        for kind in (grants.NAMESPACE, grants.TOPICS, grants.SUBSCRIPTIONS)
    )
    found: dict[str, Any] = {}
    for role, actions in of_namespace.items():
        grants.grant(found, _role(role), _actions(actions))
    for topic, roles in of_topics.items():
        for role, actions in object_of(roles, grants.TOPICS).items():
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
