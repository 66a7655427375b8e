"""The permissions of roles, kept in a namespace's policies in Pulsar's form. Pure.

``auth_policies`` has the actions of each role in ``namespace_auth``, of each role on single topics
in ``destination_auth``, and the roles that may use a subscription in ``subscription_auth_roles``.
A partition has the grants of its topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AUTH_POLICIES = "auth_policies"
ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
SUBSCRIPTION_AUTH_MODE = "subscription_auth_mode"
"""A policy: with ``Prefix`` a subscription's name must begin with the role that uses it."""
NAMESPACE, TOPICS, SUBSCRIPTIONS = "namespace_auth", "destination_auth", "subscription_auth_roles"

Policies = dict[str, Any]
"""The policies of a namespace, which the functions below modify in place."""


def granted(policies: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """All grants of one kind."""
    return dict(policies.get(AUTH_POLICIES, {}).get(kind, {}))


def granted_on_topic(policies: Mapping[str, Any], topic: str) -> dict[str, list[str]]:
    """The actions of each role on a topic: those granted on its namespace, and its own."""
    found = granted(policies, NAMESPACE)
    for role, actions in granted(policies, TOPICS).get(topic, {}).items():
        found[role] = sorted({*found.get(role, ()), *actions})
    return found


def count(policies: Mapping[str, Any]) -> int:
    """The number of roles with grants."""
    lists = (*granted(policies, TOPICS).values(), *granted(policies, SUBSCRIPTIONS).values())
    return len(granted(policies, NAMESPACE)) + sum(map(len, lists))


def grant(policies: Policies, role: str, actions: Iterable[str]) -> None:
    """Grant a role actions on the whole namespace, in place of its earlier ones."""
    _put(policies, NAMESPACE, {**granted(policies, NAMESPACE), role: sorted(set(actions))})


def revoke(policies: Policies, role: str) -> None:
    """Revoke a role's actions on the whole namespace."""
    _put(policies, NAMESPACE, _without(granted(policies, NAMESPACE), role))


def grant_on_topic(policies: Policies, topic: str, role: str, actions: Iterable[str]) -> None:
    """Grant a role actions on one topic, in place of its earlier ones there."""
    topics = granted(policies, TOPICS)
    _put(policies, TOPICS, {**topics, topic: {**topics.get(topic, {}), role: sorted(set(actions))}})


def revoke_on_topic(policies: Policies, topic: str, role: str) -> bool:
    """Revoke a role's actions on one topic; returns whether it had any."""
    topics = granted(policies, TOPICS)
    of_topic = topics.get(topic, {})
    rest = _without(of_topic, role)
    _put(policies, TOPICS, {**topics, topic: rest} if rest else _without(topics, topic))
    return role in of_topic


def forget_topic(policies: Policies, topic: str) -> None:
    """Remove the grants on a deleted topic."""
    _put(policies, TOPICS, _without(granted(policies, TOPICS), topic))


def grant_on_subscription(policies: Policies, subscription: str, roles: Iterable[str]) -> None:
    """Restrict the subscriptions of a name to these roles."""
    found = granted(policies, SUBSCRIPTIONS)
    _put(policies, SUBSCRIPTIONS, {**found, subscription: sorted(set(roles))})


def revoke_on_subscription(policies: Policies, subscription: str, role: str) -> None:
    """Remove a role from those that may use the subscriptions of a name."""
    found = granted(policies, SUBSCRIPTIONS)
    rest = [one for one in found.get(subscription, ()) if one != role]
    kept = {**found, subscription: rest} if rest else _without(found, subscription)
    _put(policies, SUBSCRIPTIONS, kept)


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: item for k, item in mapping.items() if k != key}


def _put(policies: Policies, kind: str, content: Mapping[str, Any]) -> None:
    before = {NAMESPACE: {}, TOPICS: {}, SUBSCRIPTIONS: {}, **policies.get(AUTH_POLICIES, {})}
    after = {**before, kind: dict(content)}
    policies.pop(AUTH_POLICIES, None)
    if any(after.values()):
        policies[AUTH_POLICIES] = after
