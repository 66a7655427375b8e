"""Policies of namespaces and of single topics: get, set, remove."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response
from starlette.convertors import register_url_convertor

from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import (
    READ,
    WRITE,
    Guarded,
    namespace_policy,
    superuser,
    tenant_admin,
    topic_policy,
)
from pulsark.admin.http.paths import TOPICS, one_of
from pulsark.admin.http.places import ANYWHERE, OWNER_IF_VOLATILE, OWNER_OF_BASE
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    NamespaceOf,
    SubscriptionOf,
    bare_text,
    done,
    empty,
    flag,
    json_body,
    name_part,
    number,
    property_map,
    text,
    unquoted,
    value,
)
from pulsark.admin.pulsar.partitioned import is_there, staying
from pulsark.admin.pulsar.policy_rights import NAMESPACE_POLICY, TOPIC_POLICY, needs_super_user
from pulsark.admin.pulsar.policy_table import (
    APPLIED_TO_TOPICS,
    NAMESPACE_POLICIES,
    TOPIC_POLICIES,
    Policy,
    PolicyPath,
    Unset,
)
from pulsark.admin.pulsar.policy_values import (
    backlog_quota,
    check_quotas_below_retention,
    dispatch_rate,
)
from pulsark.admin.pulsar.resource_groups import check_group
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.policies.policies import (
    BACKLOG_QUOTAS,
    BY_AGE,
    BY_SIZE,
    OWN_DISPATCH_RATES,
    SUBSCRIPTION_DISPATCH_RATE,
    applied,
)
from pulsark.limits import SUBSCRIPTION_RATES_MAX
from pulsark.metadata.namespaces import Namespace
from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.metadata.resources import initial_policies
from pulsark.storage.cursor.owners import check_new_name
from pulsark.wire.topic_name import TopicName

router = Guarded(at=ANYWHERE, tags=["policies"])

Json = dict[str, Any]
Edit = Callable[[Json], None]
Change = Callable[[Edit], Awaitable[None]]
"""Applies an edit to the stored policies of one level, and to the topics it concerns."""


register_url_convertor("nspolicy", one_of(NAMESPACE_POLICIES))
register_url_convertor("topicpolicy", one_of(TOPIC_POLICIES))

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPIC = TOPICS + "/{topic}"


# -- the two levels ----------------------------------------------------------------------------


async def existing_namespace(broker: Broker, name: str) -> Namespace:
    """A namespace; 404 if it is missing."""
    found = await broker.resources.namespaces.get(name)
    if found is None:
        raise fail(404, "Namespace does not exist")
    return found


def of_namespace(broker: Broker, name: str, *, by_super_user: bool = False) -> Change:
    """Changes the policies of a namespace; they are in force when it returns."""

    async def change(edit: Edit) -> None:
        changed: tuple[Mapping[str, Any], Json] = {}, {}

        def apply(old: Namespace) -> Namespace:
            nonlocal changed
            changed = old.policies, _edited(old.policies, edit)
            return replace(old, policies=changed[1])

        await broker.resources.namespaces.update(name, apply, by_super_user=by_super_user)
        tell(*changed)
        await broker.policy_updates.refresh_namespace(name)

    return change


async def _base_of(topic: AnyTopicOf, broker: BrokerOf) -> TopicName:
    """The topic whose policies are meant; partitions have those of their topic. 404, 405, 412."""
    if not broker.settings.topicLevelPoliciesEnabled:
        raise fail(405, "Policies of topics are disabled: set topicLevelPoliciesEnabled")
    if topic.partition >= 0:
        raise fail(412, "Not allowed to set/get topic policy for a partition")
    if not await is_there(broker, topic):
        raise fail(404, "Topic does not exist")
    return topic


BaseOf = Annotated[TopicName, Depends(_base_of)]


def _of_topic(broker: Broker, base: TopicName) -> Change:
    async def change(edit: Edit) -> None:
        changed: tuple[Json, Json] = {}, {}

        def apply(old: Json) -> Json:
            nonlocal changed
            changed = old, _edited(old, edit)
            return changed[1]

        async with staying(broker, base):
            await broker.resources.topic_policies.update(base, apply)
            tell(*changed)
        await broker.policy_updates.refresh_topic(base)

    return change


def _edited(old: Mapping[str, Any], edit: Edit) -> Json:
    policies = dict(old)
    edit(policies)
    return policies


# -- any policy --------------------------------------------------------------------------------


@router.get(_NAMESPACE + "/{policy:nspolicy}", needs=NAMESPACE_POLICY)
async def get_namespace_policy(
    name: NamespaceOf, policy: str, request: Request, broker: BrokerOf
) -> Response:
    """One policy of a namespace."""
    row, place = NAMESPACE_POLICIES[policy]
    policies = (await existing_namespace(broker, name)).policies
    if flag(request, "applied"):
        return _answer(applied(row.key, broker.settings, policies), place)
    return _answer(policies.get(row.key), place)


@router.put(_NAMESPACE + "/{policy:nspolicy}", needs=NAMESPACE_POLICY)
@router.post(_NAMESPACE + "/{policy:nspolicy}", needs=NAMESPACE_POLICY)
async def set_namespace_policy(
    name: NamespaceOf, policy: str, request: Request, broker: BrokerOf
) -> Response:
    """Set one policy of a namespace."""
    await existing_namespace(broker, name)
    change = of_namespace(broker, name, by_super_user=needs_super_user(policy))
    await _set(*NAMESPACE_POLICIES[policy], request, broker, change)
    return done()


@router.delete(_NAMESPACE + "/{policy:nspolicy}", needs=NAMESPACE_POLICY)
async def remove_namespace_policy(name: NamespaceOf, policy: str, broker: BrokerOf) -> Response:
    """Remove one policy of a namespace: what held before it was ever set holds again."""
    await existing_namespace(broker, name)
    change = of_namespace(broker, name, by_super_user=needs_super_user(policy))
    await _remove(*NAMESPACE_POLICIES[policy], change, initial_policies(name))
    return done()


@router.get(_TOPIC + "/{policy:topicpolicy}", needs=TOPIC_POLICY, at=OWNER_IF_VOLATILE)
async def get_topic_policy(
    base: BaseOf, policy: str, request: Request, broker: BrokerOf
) -> Response:
    """One policy of a topic; with ``applied`` the value that holds, from whichever level."""
    row, place = TOPIC_POLICIES[policy]
    own = await broker.resources.topic_policies.get(base)
    if not flag(request, "applied"):
        return _answer(own.get(row.key), place)
    namespace = await broker.ownership.namespace(base)
    if policy == "replication":
        return value(list(namespace.replication_clusters))
    if not row.key:
        found = APPLIED_TO_TOPICS.get(policy)
    else:
        found = applied(row.key, broker.settings, own, namespace.policies)
    return done() if found is None else value(found)


@router.put(_TOPIC + "/{policy:topicpolicy}", needs=TOPIC_POLICY, at=OWNER_OF_BASE)
@router.post(_TOPIC + "/{policy:topicpolicy}", needs=TOPIC_POLICY, at=OWNER_OF_BASE)
async def set_topic_policy(
    base: BaseOf, policy: str, request: Request, broker: BrokerOf
) -> Response:
    """Set one policy of a topic."""
    await _set(*TOPIC_POLICIES[policy], request, broker, _of_topic(broker, base))
    return done()


@router.delete(_TOPIC + "/{policy:topicpolicy}", needs=TOPIC_POLICY, at=OWNER_OF_BASE)
async def remove_topic_policy(base: BaseOf, policy: str, broker: BrokerOf) -> Response:
    """Remove one policy of a topic: its namespace's holds again."""
    await _remove(*TOPIC_POLICIES[policy], _of_topic(broker, base), {})
    return done()


@router.delete(_TOPIC + "/policies", needs=topic_policy("MAX_PRODUCERS", WRITE), at=OWNER_OF_BASE)
async def remove_topic_policies(base: BaseOf, broker: BrokerOf) -> Response:
    """Remove all policies of a topic."""
    await _of_topic(broker, base)(dict.clear)
    return done()


def _answer(found: Any, place: PolicyPath) -> Response:
    if found is not None:
        return text(found) if place.plain else value(found)
    if isinstance(place.unset, Unset):
        return empty() if place.unset is Unset.EMPTY else done()
    return value(place.unset)


async def _set(
    policy: Policy, place: PolicyPath, request: Request, broker: Broker, change: Change
) -> None:
    if request.method != place.write:
        raise fail(405, f"{place.name} is set by {place.write}")
    given: Any
    if place.in_query:
        given = number(request.query_params.get(place.name, ""), low=-1)
    elif place.bare:
        given = await bare_text(request)
    else:
        given = await json_body(request)
        given = place.empty_sets if given is None else given
    if given is None and not place.empty_removes:
        raise fail(400, f"The body must say what {place.name} is to be")
    checked = None if given is None else policy.check(given)
    if checked is not None:
        await _check_possible(policy, checked, broker)

    def edit(policies: Json) -> None:
        before = policies.pop(policy.key, {})
        if policy.key == "properties":  # they are added to those that there are
            policies[policy.key] = property_map(checked, before)
        elif checked is not None:
            policies[policy.key] = checked
        check_quotas_below_retention(policies)

    await change(edit)


async def _check_possible(policy: Policy, checked: Any, broker: Broker) -> None:
    """412 for what this broker cannot do: without enough bookies no ledger could be created."""
    if policy.key == "persistence":
        bookies = broker.ledgers.bookie_count
        if checked["bookkeeperAckQuorum"] > bookies:
            raise fail(412, f"bookkeeperAckQuorum is at most the number of bookies, {bookies}")
    if policy.key == RESOURCE_GROUP:
        await check_group(broker, checked)
    if policy.key == "max_message_size" and checked > broker.settings.maxMessageSize:
        raise fail(412, f"maxMessageSize is at most the broker's, {broker.settings.maxMessageSize}")


async def _remove(
    policy: Policy, place: PolicyPath, change: Change, initial: Mapping[str, Any]
) -> None:
    if not place.removable:
        raise fail(405, f"{place.name} cannot be removed, only set")

    def edit(policies: Json) -> None:
        policies.pop(policy.key, None)
        if policy.key in initial:
            policies[policy.key] = initial[policy.key]

    await change(edit)


@router.post(_NAMESPACE + "/resourcegroup/{group}", needs=superuser)
async def join_resource_group(name: NamespaceOf, group: str, broker: BrokerOf) -> Response:
    """Put a namespace into a resource group, as Pulsar's clients do it."""
    await existing_namespace(broker, name)
    checked = name_part("resource group", group)
    await check_group(broker, checked)

    def edit(policies: Json) -> None:
        policies[RESOURCE_GROUP] = checked

    await of_namespace(broker, name, by_super_user=True)(edit)
    return done()


# -- properties one by one ---------------------------------------------------------------------


@router.get(_NAMESPACE + "/property/{key}", needs=tenant_admin)
async def get_property(name: NamespaceOf, key: str, broker: BrokerOf) -> Response:
    """The bare text of one property of a namespace."""
    policies = (await existing_namespace(broker, name)).policies
    found = policies.get("properties", {}).get(unquoted(key))
    return empty() if found is None else text(found)


@router.put(_NAMESPACE + "/property/{key}/{content}", needs=tenant_admin)
async def set_property(name: NamespaceOf, key: str, content: str, broker: BrokerOf) -> Response:
    """Add one property to a namespace."""
    await existing_namespace(broker, name)

    def edit(policies: Json) -> None:
        given = {unquoted(key): unquoted(content)}
        policies["properties"] = property_map(given, policies.get("properties"))

    await of_namespace(broker, name)(edit)
    return done()


@router.delete(_NAMESPACE + "/property/{key}", needs=tenant_admin)
async def remove_property(name: NamespaceOf, key: str, broker: BrokerOf) -> Response:
    """Remove one property of a namespace; answers what it was."""
    before = (await existing_namespace(broker, name)).policies.get("properties", {})

    def edit(policies: Json) -> None:
        rest = {k: v for k, v in policies.pop("properties", {}).items() if k != unquoted(key)}
        if rest:
            policies["properties"] = rest

    await of_namespace(broker, name)(edit)
    found = before.get(unquoted(key))
    return empty() if found is None else text(found)


# -- backlog quotas: two policies under one name -----------------------------------------------


def _quota_kind(request: Request) -> str:
    kind = request.query_params.get("backlogQuotaType", BY_SIZE)
    if kind not in (BY_SIZE, BY_AGE):
        raise fail(404, f"backlogQuotaType is {BY_SIZE} or {BY_AGE}")
    return kind


@router.get(_NAMESPACE + "/backlogQuotaMap", needs=namespace_policy("BACKLOG", READ))
async def get_namespace_quotas(name: NamespaceOf, broker: BrokerOf) -> Response:
    """The backlog quotas of a namespace by their kind."""
    return value((await existing_namespace(broker, name)).policies.get(BACKLOG_QUOTAS, {}))


@router.post(_NAMESPACE + "/backlogQuota", needs=namespace_policy("BACKLOG", WRITE))
async def set_namespace_quota(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Set a backlog quota of a namespace."""
    await existing_namespace(broker, name)
    await _set_quota(request, of_namespace(broker, name))
    return done()


@router.delete(_NAMESPACE + "/backlogQuota", needs=namespace_policy("BACKLOG", WRITE))
async def remove_namespace_quota(name: NamespaceOf, request: Request, broker: BrokerOf) -> Response:
    """Remove a backlog quota of a namespace."""
    await existing_namespace(broker, name)
    await _remove_quota(request, of_namespace(broker, name))
    return done()


@router.get(_TOPIC + "/backlogQuotaMap", needs=topic_policy("BACKLOG", READ), at=OWNER_IF_VOLATILE)
async def get_topic_quotas(base: BaseOf, request: Request, broker: BrokerOf) -> Response:
    """The backlog quotas of a topic by their kind."""
    own = await broker.resources.topic_policies.get(base)
    if not flag(request, "applied"):
        return value(own.get(BACKLOG_QUOTAS, {}))
    namespace = (await broker.ownership.namespace(base)).policies
    return value(applied(BACKLOG_QUOTAS, broker.settings, own, namespace))


@router.post(_TOPIC + "/backlogQuota", needs=topic_policy("BACKLOG", WRITE), at=OWNER_OF_BASE)
async def set_topic_quota(base: BaseOf, request: Request, broker: BrokerOf) -> Response:
    """Set a backlog quota of a topic."""
    await _set_quota(request, _of_topic(broker, base))
    return done()


@router.delete(_TOPIC + "/backlogQuota", needs=topic_policy("BACKLOG", WRITE), at=OWNER_OF_BASE)
async def remove_topic_quota(base: BaseOf, request: Request, broker: BrokerOf) -> Response:
    """Remove a backlog quota of a topic."""
    await _remove_quota(request, _of_topic(broker, base))
    return done()


async def _set_quota(request: Request, change: Change) -> None:
    kind = _quota_kind(request)
    quota = backlog_quota(await json_body(request))

    def edit(policies: Json) -> None:
        policies[BACKLOG_QUOTAS] = {**policies.get(BACKLOG_QUOTAS, {}), kind: quota}
        check_quotas_below_retention(policies)

    await change(edit)


async def _remove_quota(request: Request, change: Change) -> None:
    kind = _quota_kind(request)

    def edit(policies: Json) -> None:
        rest = {k: q for k, q in policies.pop(BACKLOG_QUOTAS, {}).items() if k != kind}
        if rest:
            policies[BACKLOG_QUOTAS] = rest

    await change(edit)


# -- dispatch rates of single subscriptions ----------------------------------------------------


@router.get(
    _TOPIC + "/{subscription}/dispatchRate", needs=topic_policy("RATE", READ), at=OWNER_IF_VOLATILE
)
async def get_subscription_rate(
    base: BaseOf, subscription: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """The dispatch rate of one subscription; with ``applied``, what holds for it."""
    own = await broker.resources.topic_policies.get(base)
    found = own.get(OWN_DISPATCH_RATES, {}).get(subscription)
    if found is None and flag(request, "applied"):
        namespace = (await broker.ownership.namespace(base)).policies
        found = applied(SUBSCRIPTION_DISPATCH_RATE, broker.settings, own, namespace)
    return empty() if found is None else value(found)


@router.post(
    _TOPIC + "/{subscription}/dispatchRate", needs=topic_policy("RATE", WRITE), at=OWNER_OF_BASE
)
async def set_subscription_rate(
    base: BaseOf, subscription: SubscriptionOf, request: Request, broker: BrokerOf
) -> Response:
    """Set the dispatch rate of one subscription. It need not exist yet."""
    check_new_name(subscription)
    rate = dispatch_rate(await json_body(request))

    def edit(policies: Json) -> None:
        rates = {**policies.get(OWN_DISPATCH_RATES, {}), subscription: rate}
        if len(rates) > SUBSCRIPTION_RATES_MAX:
            raise fail(
                412, f"At most {SUBSCRIPTION_RATES_MAX} subscriptions of a topic have their own"
            )
        policies[OWN_DISPATCH_RATES] = rates

    await _of_topic(broker, base)(edit)
    return done()


@router.delete(
    _TOPIC + "/{subscription}/dispatchRate", needs=topic_policy("RATE", WRITE), at=OWNER_OF_BASE
)
async def remove_subscription_rate(
    base: BaseOf, subscription: SubscriptionOf, broker: BrokerOf
) -> Response:
    """Remove the dispatch rate of one subscription: that of all of them holds again."""

    def edit(policies: Json) -> None:
        rates = policies.pop(OWN_DISPATCH_RATES, {})
        rest = {name: rate for name, rate in rates.items() if name != subscription}
        if rest:
            policies[OWN_DISPATCH_RATES] = rest

    await _of_topic(broker, base)(edit)
    return done()
