"""Whether a principal may do something: one pure function.

Super users may do everything, the administrators of a tenant everything in it, and other roles what
was granted to them. Everything else is denied. The system's tenant is for super users only, and not
even they may publish to the audit's topic or terminate it. A request through a proxy is allowed
only if both roles have the right.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pulsark.metadata.resources import AUDIT_TOPIC, SYSTEM_TENANT
from pulsark.security.operations import Right, TopicOperation

if TYPE_CHECKING:
    from collections.abc import Collection

    from pulsark.security.facts import Facts, Grants
    from pulsark.security.operations import Operation
    from pulsark.security.principal import Principal
    from pulsark.wire.topic_name import TopicName

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
"""Clients that use transactions look this topic up."""
WEBSOCKET_PROXY = "__websocket_dummy_original_principle"
"""The role that Pulsar's WebSocket proxies name for every client; they check clients themselves."""


class Target(NamedTuple):
    """The target of an operation. Parts that do not matter for the operation are empty."""

    tenant: str = ""
    namespace: str = ""
    """``tenant/namespace``."""
    topic: str = ""
    """The full name without partition, because a partition has the grants of its topic."""
    subscription: str | None = None

    @classmethod
    def of_topic(cls, name: TopicName, subscription: str | None = None) -> Target:
        """A topic or partition, or a subscription of it."""
        return cls(name.tenant, name.namespace_name, str(name.base), subscription)

    @classmethod
    def of_namespace(cls, namespace: str, subscription: str | None = None) -> Target:
        """A namespace ``tenant/local``, or all its subscriptions of one name."""
        return cls(namespace.partition("/")[0], namespace, "", subscription)


class Rule(Enum):
    """The reason of a decision."""

    OPEN = "open"
    LOGIN = "login"
    SUPER_USER = "superuser"
    TENANT_ADMIN = "tenant_admin"
    NAMESPACE_GRANT = "namespace_grant"
    TOPIC_GRANT = "topic_grant"
    WILDCARD = "wildcard"
    SUBSCRIPTION_LIST = "subscription_list"
    """The subscription is reserved for other roles."""
    PREFIX = "prefix"
    """The subscription's name does not begin with the role."""
    PROXY = "proxy"
    """A proxy must name an original role, and no other client may."""
    NO_TENANT = "no_tenant"
    SYSTEM = "system"
    """The target belongs to the broker."""
    NONE = "none"


class Decision(NamedTuple):
    """Whether an operation is allowed, and why."""

    granted: bool
    rule: Rule


# Module-level names make the look-up of enumeration members fast.
_LOOKUP, _PRODUCE, _CONSUME_NAMED = TopicOperation.LOOKUP, Right.PRODUCE, Right.CONSUME_NAMED
_NEEDS_NOTHING, _NEEDS_LOGIN, _NEEDS_SUPER_USER = Right.NOTHING, Right.LOGIN, Right.SUPER_USER

_OPEN = Decision(True, Rule.OPEN)
_LOGIN = Decision(True, Rule.LOGIN)
_SUPER_USER = Decision(True, Rule.SUPER_USER)
_TENANT_ADMIN = Decision(True, Rule.TENANT_ADMIN)
_NAMESPACE_GRANT = Decision(True, Rule.NAMESPACE_GRANT)
_TOPIC_GRANT = Decision(True, Rule.TOPIC_GRANT)
_WILDCARD = Decision(True, Rule.WILDCARD)
_NOT_LISTED = Decision(False, Rule.SUBSCRIPTION_LIST)
_NOT_PREFIXED = Decision(False, Rule.PREFIX)
_NO_PROXY = Decision(False, Rule.PROXY)
_NO_TENANT = Decision(False, Rule.NO_TENANT)
_SYSTEM = Decision(False, Rule.SYSTEM)
_NONE = Decision(False, Rule.NONE)
_ONLY_THE_BROKER = (TopicOperation.PRODUCE, TopicOperation.TERMINATE)
"""Operations on the audit's topic that only the broker may do."""


def decide(
    principal: Principal | None, operation: Operation, target: Target, facts: Facts
) -> Decision:
    """Whether a principal may do something. ``None`` may do only what needs no login."""
    if operation.right is _NEEDS_NOTHING:
        return _OPEN
    if principal is None or not principal.role:
        return _NONE
    if target.topic == AUDIT_TOPIC and operation in _ONLY_THE_BROKER:
        return _SYSTEM
    roles = roles_of(principal, facts.rules.proxies)
    if roles is None:
        return _NO_PROXY
    decision = _NONE
    for role in roles:
        decision = _decide(role, operation, target, facts)
        if not decision.granted:
            break
    return decision


def roles_of(principal: Principal, proxies: Collection[str]) -> tuple[str, ...] | None:
    """The roles that must all have the right; ``None`` if proxy and original role do not fit."""
    role, original = principal.role, principal.original
    if original == WEBSOCKET_PROXY:
        return (role,)
    if role in proxies:
        return (role, original) if original and original not in proxies else None
    return (role,) if not original or original == role else None


def owner_of(principal: Principal) -> str:
    """The role that owns what a principal creates: the original role, not the proxy."""
    original = principal.original
    return original if original and original != WEBSOCKET_PROXY else principal.role


def _decide(role: str, operation: Operation, target: Target, facts: Facts) -> Decision:
    right = operation.right
    if role in facts.rules.super_users:
        return _SUPER_USER
    if right is _NEEDS_LOGIN or (operation is _LOOKUP and target.topic == COORDINATORS):
        return _LOGIN
    if right is _NEEDS_SUPER_USER:
        return _NONE
    if target.tenant == SYSTEM_TENANT:
        return _SYSTEM
    if facts.admins is None:
        return _NO_TENANT
    if role in facts.admins:
        return _TENANT_ADMIN
    if facts.grants is None or (right is _CONSUME_NAMED and target.subscription is None):
        return _NONE
    actions = right.actions
    if not actions:
        return _NONE
    if target.subscription is not None and right is not _PRODUCE:
        refused = _refused(role, target.subscription, facts.grants)
        if refused is not None:
            return refused
    return _granted(role, actions, target.topic, facts.grants, facts.rules.wildcards)


def _refused(role: str, subscription: str, grants: Grants) -> Decision | None:
    """The rules of subscriptions, which can only deny."""
    listed = grants.subscriptions.get(subscription)
    if listed is not None and role not in listed:
        return _NOT_LISTED
    if grants.prefix and not subscription.startswith(role):
        return _NOT_PREFIXED
    return None


def _granted(
    role: str, actions: frozenset[str], topic: str, grants: Grants, wildcards: bool
) -> Decision:
    if grants.namespace.gives(role, actions):
        return _NAMESPACE_GRANT
    on_topic = grants.on_topic(topic) if topic else None
    if on_topic is not None and on_topic.gives(role, actions):
        return _TOPIC_GRANT
    if wildcards and (
        grants.namespace.gives_by_pattern(role, actions)
        or (on_topic is not None and on_topic.gives_by_pattern(role, actions))
    ):
        return _WILDCARD
    return _NONE
