"""Who may do what: tables written by hand, from Pulsar's rules and not from the code."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.security.decisions import COORDINATORS, WEBSOCKET_PROXY, Rule, Target, decide
from pulsark.security.facts import Facts, Grants, Rules
from pulsark.security.operations import (
    GeneralOperation,
    NamespaceOperation,
    Operation,
    PolicyOperation,
    TargetKind,
    TenantOperation,
    TopicOperation,
)
from pulsark.security.principal import Principal
from pulsark.wire.topic_name import TopicName

POLICIES = {
    "auth_policies": {
        "namespace_auth": {
            "writer": ["produce"],
            "reader": ["consume"],
            "packer": ["packages"],
            "team.*": ["produce"],
            "*.ops": ["consume"],
        },
        "destination_auth": {
            "persistent://acme/web/clicks": {
                "clicker": ["produce"],
                "watcher": ["consume"],
                "app-*": ["consume"],
            }
        },
        "subscription_auth_roles": {"audit": ["reader", "boss"], "nobody": []},
    }
}
RULES = Rules(frozenset({"root"}), frozenset({"proxy", "proxy2"}), wildcards=True)
FACTS = Facts(RULES, frozenset({"boss"}), Grants(POLICIES))

CLICKS = Target.of_topic(TopicName.parse("persistent://acme/web/clicks"))
SECOND = Target.of_topic(TopicName.parse("persistent://acme/web/clicks-partition-1"))
VIEWS = Target.of_topic(TopicName.parse("persistent://acme/web/views"))
AUDIT = Target.of_topic(TopicName.parse("persistent://pulsar/system/audit"))
WEB = Target.of_namespace("acme/web")
NO_TOPIC = Target("acme")

T, N = TopicOperation, NamespaceOperation


def rule(
    role: str | None, operation: Operation, target: Target, facts: Facts = FACTS, **more: str
) -> tuple[bool, str]:
    principal = None if role is None else Principal(role, **more)
    granted, why = decide(principal, operation, target, facts)
    return granted, why.value


# role, operation, target, rule: allowed unless the rule begins with "not"
TABLE = [
    ("root", T.PRODUCE, CLICKS, "superuser"),
    ("root", GeneralOperation.SUPER_USER, NO_TOPIC, "superuser"),
    ("root", TenantOperation.DELETE_TENANT, NO_TOPIC, "superuser"),
    ("boss", T.PRODUCE, CLICKS, "tenant_admin"),
    ("boss", T.TERMINATE, VIEWS, "tenant_admin"),
    ("boss", T.CONSUME, VIEWS, "tenant_admin"),
    ("boss", N.GRANT_PERMISSION, WEB, "tenant_admin"),
    ("boss", N.CLEAR_BACKLOG, WEB, "tenant_admin"),
    ("boss", TenantOperation.GET_TENANT, NO_TOPIC, "tenant_admin"),
    ("boss", TenantOperation.CREATE_NAMESPACE, WEB, "tenant_admin"),
    ("boss", GeneralOperation.ADMINISTER_TENANT, WEB, "tenant_admin"),
    ("boss", PolicyOperation("TTL", writes=True), WEB, "tenant_admin"),
    ("boss", TenantOperation.UPDATE_TENANT, NO_TOPIC, "not none"),
    ("boss", TenantOperation.LIST_TENANTS, NO_TOPIC, "not none"),
    ("boss", GeneralOperation.SUPER_USER, NO_TOPIC, "not none"),
    ("root", T.CONSUME, AUDIT, "superuser"),
    ("root", T.PRODUCE, AUDIT, "not system"),
    ("root", T.TERMINATE, AUDIT, "not system"),
    ("boss", T.CONSUME, AUDIT, "not system"),
    ("boss", N.DELETE_TOPIC, Target.of_namespace("pulsar/system"), "not system"),
    ("boss", TenantOperation.DELETE_NAMESPACE, Target("pulsar"), "not system"),
    ("reader", T.CONSUME, AUDIT, "not system"),
    ("writer", T.PRODUCE, CLICKS, "namespace_grant"),
    ("writer", T.PRODUCE, VIEWS, "namespace_grant"),
    ("writer", T.LOOKUP, VIEWS, "namespace_grant"),
    ("writer", T.GET_STATS, VIEWS, "namespace_grant"),
    ("writer", T.GET_METADATA, VIEWS, "namespace_grant"),
    ("writer", N.GET_TOPICS, WEB, "namespace_grant"),
    ("writer", N.GET_BUNDLE, WEB, "namespace_grant"),
    ("writer", T.CONSUME, CLICKS, "not none"),
    ("writer", T.PEEK_MESSAGES, CLICKS, "not none"),
    ("writer", T.TERMINATE, CLICKS, "not none"),
    ("writer", N.CREATE_TOPIC, WEB, "not none"),
    ("writer", N.CLEAR_BACKLOG, WEB, "not none"),
    ("writer", PolicyOperation("TTL", writes=False), WEB, "not none"),
    ("reader", T.CONSUME, VIEWS, "namespace_grant"),
    ("reader", T.SUBSCRIBE, VIEWS, "namespace_grant"),
    ("reader", T.PEEK_MESSAGES, SECOND, "namespace_grant"),
    ("reader", T.LOOKUP, VIEWS, "namespace_grant"),
    ("reader", N.GET_TOPICS, WEB, "namespace_grant"),
    ("reader", N.CLEAR_BACKLOG, WEB._replace(subscription="mine"), "namespace_grant"),
    ("reader", N.UNSUBSCRIBE, WEB._replace(subscription="audit"), "namespace_grant"),
    ("reader", N.UNSUBSCRIBE, WEB, "not none"),
    ("reader", N.CLEAR_BACKLOG, WEB, "not none"),
    ("reader", T.PRODUCE, VIEWS, "not none"),
    ("reader", T.UNLOAD, VIEWS, "not none"),
    ("reader", N.GET_PERMISSION, WEB, "not none"),
    ("packer", T.LOOKUP, VIEWS, "not none"),
    ("packer", N.GET_TOPICS, WEB, "not none"),
    ("clicker", T.PRODUCE, CLICKS, "topic_grant"),
    ("clicker", T.PRODUCE, SECOND, "topic_grant"),
    ("clicker", T.LOOKUP, SECOND, "topic_grant"),
    ("clicker", T.PRODUCE, VIEWS, "not none"),
    ("clicker", T.CONSUME, CLICKS, "not none"),
    ("clicker", N.GET_TOPICS, WEB, "not none"),
    ("watcher", T.CONSUME, SECOND, "topic_grant"),
    ("watcher", T.CONSUME, CLICKS._replace(subscription="mine"), "topic_grant"),
    ("watcher", T.CONSUME, CLICKS._replace(subscription="audit"), "not subscription_list"),
    ("watcher", T.CONSUME, CLICKS._replace(subscription="nobody"), "topic_grant"),
    ("watcher", T.PRODUCE, CLICKS, "not none"),
    ("reader", T.CONSUME, CLICKS._replace(subscription="audit"), "namespace_grant"),
    ("boss", T.CONSUME, CLICKS._replace(subscription="audit"), "tenant_admin"),
    ("root", T.CONSUME, CLICKS._replace(subscription="audit"), "superuser"),
    ("team.a", T.PRODUCE, VIEWS, "wildcard"),
    ("team.", T.PRODUCE, VIEWS, "wildcard"),
    ("team", T.PRODUCE, VIEWS, "not none"),
    ("team.*", T.PRODUCE, VIEWS, "namespace_grant"),
    ("team.a", T.CONSUME, VIEWS, "not none"),
    ("x.ops", T.CONSUME, VIEWS, "wildcard"),
    ("x.ops", N.GET_TOPICS, WEB, "wildcard"),
    ("x.opsy", T.CONSUME, VIEWS, "not none"),
    ("app-1", T.CONSUME, SECOND, "wildcard"),
    ("app-1", T.CONSUME, VIEWS, "not none"),
    ("app-1", N.GET_TOPICS, WEB, "not none"),
    ("*", T.CONSUME, CLICKS, "not none"),
    ("stranger", T.LOOKUP, CLICKS, "not none"),
    ("stranger", GeneralOperation.LOGIN, NO_TOPIC, "login"),
    ("stranger", GeneralOperation.OPEN, NO_TOPIC, "open"),
    ("stranger", GeneralOperation.SUPER_USER, NO_TOPIC, "not none"),
    ("Boss", T.PRODUCE, CLICKS, "not none"),
    ("", GeneralOperation.LOGIN, NO_TOPIC, "not none"),
    (None, GeneralOperation.LOGIN, NO_TOPIC, "not none"),
    (None, T.LOOKUP, CLICKS, "not none"),
    (None, GeneralOperation.OPEN, NO_TOPIC, "open"),
    ("proxy", GeneralOperation.LOGIN, NO_TOPIC, "not proxy"),
]


@pytest.mark.parametrize(("role", "operation", "target", "expected"), TABLE, ids=repr)
def test_the_table(role: str | None, operation: Operation, target: Target, expected: str) -> None:
    why = expected.removeprefix("not ")
    assert rule(role, operation, target) == (why == expected, why)


def test_a_pattern_is_a_role_like_others_without_wildcards() -> None:
    plain = FACTS._replace(rules=RULES._replace(wildcards=False))
    assert rule("team.a", T.PRODUCE, VIEWS, plain) == (False, "none")
    assert rule("team.*", T.PRODUCE, VIEWS, plain) == (True, "namespace_grant")


def test_a_star_alone_is_everybody_but_in_no_other_list() -> None:
    policies = {"auth_policies": {"namespace_auth": {"*": ["produce"]}}}
    rules = Rules(frozenset({"*"}), frozenset(), wildcards=True)
    everybody = Facts(rules, frozenset({"*"}), Grants(policies))
    assert rule("anybody", T.PRODUCE, VIEWS, everybody) == (True, "wildcard")
    assert rule("anybody", T.TERMINATE, VIEWS, everybody) == (False, "none")


def test_a_subscription_begins_with_its_users_role_where_that_is_demanded() -> None:
    facts = FACTS._replace(grants=Grants({**POLICIES, "subscription_auth_mode": "Prefix"}))
    mine, other = (CLICKS._replace(subscription=name) for name in ("reader-1", "other"))
    assert rule("reader", T.CONSUME, mine, facts) == (True, "namespace_grant")
    assert rule("reader", T.CONSUME, other, facts) == (False, "prefix")
    assert rule("reader", T.PEEK_MESSAGES, CLICKS, facts) == (True, "namespace_grant")
    assert rule("boss", T.CONSUME, other, facts) == (True, "tenant_admin")
    assert rule("stranger", T.CONSUME, other._replace(subscription="stranger"), facts) == (
        False,
        "none",
    )


def test_a_tenant_that_is_missing_is_known_to_nobody_but_super_users() -> None:
    missing = Facts(RULES)
    assert rule("boss", T.LOOKUP, VIEWS, missing) == (False, "no_tenant")
    assert rule("root", T.LOOKUP, VIEWS, missing) == (True, "superuser")
    assert rule("boss", GeneralOperation.SUPER_USER, VIEWS, missing) == (False, "none")


def test_a_namespace_that_is_missing_grants_nothing() -> None:
    missing = Facts(RULES, frozenset({"boss"}))
    assert rule("reader", T.LOOKUP, VIEWS, missing) == (False, "none")
    assert rule("boss", T.LOOKUP, VIEWS, missing) == (True, "tenant_admin")


def test_everybody_who_logged_in_finds_the_coordinators_of_transactions() -> None:
    coordinators = Target.of_topic(TopicName.parse(COORDINATORS))
    partition = Target.of_topic(TopicName.parse(f"{COORDINATORS}-partition-3"))
    for target in (coordinators, partition):
        assert rule("stranger", T.LOOKUP, target) == (True, "login")
        assert rule("stranger", T.CONSUME, target) == (False, "system")
        assert rule(None, T.LOOKUP, target) == (False, "none")


# role, original, whether that pair is legal, and whether it may produce to "clicks"
PROXIED = [
    ("proxy", None, False, False),
    ("proxy", "", False, False),
    ("proxy", "proxy", False, False),
    ("proxy", "proxy2", False, False),
    ("proxy", "writer", True, False),
    ("proxy", WEBSOCKET_PROXY, True, False),
    ("writer", None, True, True),
    ("writer", "", True, True),
    ("writer", "writer", True, True),
    ("writer", "boss", False, False),
    ("writer", "proxy", False, False),
    ("writer", WEBSOCKET_PROXY, True, True),
    ("root", None, True, True),
    ("root", "writer", False, False),
    ("stranger", None, True, False),
    ("stranger", WEBSOCKET_PROXY, True, False),
]


@pytest.mark.parametrize(("role", "original", "legal", "may"), PROXIED)
def test_who_may_ask_for_whom(role: str, original: str | None, legal: bool, may: bool) -> None:
    principal = Principal(role, original)
    decision = decide(principal, T.PRODUCE, CLICKS, FACTS)
    assert decision.granted is may
    assert (decision.rule is not Rule.PROXY) is legal


def test_both_roles_need_the_right() -> None:
    policies = {"auth_policies": {"namespace_auth": {"proxy": ["produce"], "w": ["produce"]}}}
    facts = Facts(RULES, frozenset({"boss"}), Grants(policies))
    assert rule("proxy", T.PRODUCE, CLICKS, facts, original="w") == (True, "namespace_grant")
    assert rule("proxy", T.PRODUCE, CLICKS, facts, original="boss") == (True, "tenant_admin")
    assert rule("proxy", T.PRODUCE, CLICKS, facts, original="x") == (False, "none")
    assert rule("proxy", T.CONSUME, CLICKS, facts, original="boss") == (False, "none")
    assert rule("proxy", T.UNLOAD, CLICKS, facts, original="root") == (False, "none")
    supers = facts._replace(rules=RULES._replace(super_users=frozenset({"root", "proxy"})))
    assert rule("proxy", T.UNLOAD, CLICKS, supers, original="root") == (True, "superuser")
    assert rule("proxy", GeneralOperation.SUPER_USER, WEB, supers, original="w") == (False, "none")


RIGHTS = {
    GeneralOperation: {
        "nothing": {GeneralOperation.OPEN},
        "a login": {GeneralOperation.LOGIN},
        "a super user": {GeneralOperation.SUPER_USER},
        "an administrator of the tenant": {GeneralOperation.ADMINISTER_TENANT},
    },
    TenantOperation: {
        "a super user": {
            TenantOperation.LIST_TENANTS,
            TenantOperation.CREATE_TENANT,
            TenantOperation.UPDATE_TENANT,
            TenantOperation.DELETE_TENANT,
        },
        "an administrator of the tenant": {
            TenantOperation.GET_TENANT,
            TenantOperation.LIST_NAMESPACES,
            TenantOperation.CREATE_NAMESPACE,
            TenantOperation.DELETE_NAMESPACE,
        },
    },
    NamespaceOperation: {
        "produce or consume": {N.GET_TOPICS, N.GET_BUNDLE},
        "consume, of one subscription": {N.UNSUBSCRIBE, N.CLEAR_BACKLOG},
        "an administrator of the tenant": {
            N.DELETE_BUNDLE,
            N.CREATE_TOPIC,
            N.DELETE_TOPIC,
            N.GRANT_PERMISSION,
            N.GET_PERMISSION,
            N.REVOKE_PERMISSION,
        },
    },
    TopicOperation: {
        "produce or consume": {T.LOOKUP, T.GET_STATS, T.GET_METADATA},
        "produce": {T.PRODUCE},
        "consume": {
            T.CONSUME,
            T.SUBSCRIBE,
            T.UNSUBSCRIBE,
            T.GET_SUBSCRIPTIONS,
            T.SKIP,
            T.EXPIRE_MESSAGES,
            T.PEEK_MESSAGES,
            T.RESET_CURSOR,
            T.GET_BACKLOG_SIZE,
            T.GET_REPLICATED_SUBSCRIPTION_STATUS,
            T.SET_REPLICATED_SUBSCRIPTION_STATUS,
        },
        "an administrator of the tenant": {
            T.TERMINATE,
            T.COMPACT,
            T.OFFLOAD,
            T.UNLOAD,
            T.TRIM_TOPIC,
            T.UPDATE_METADATA,
            T.DELETE_METADATA,
            T.SEAL,
        },
    },
}


@pytest.mark.parametrize("kind", RIGHTS, ids=lambda kind: kind.__name__)
def test_what_each_operation_needs(kind: Any) -> None:
    found: dict[str, set[Any]] = {}
    for operation in kind:
        found.setdefault(operation.right.label, set()).add(operation)
    assert found == RIGHTS[kind]


def test_the_status_of_a_denial_follows_from_what_it_is_about() -> None:
    assert {operation.kind.status for operation in (*TopicOperation, *TenantOperation)} == {401}
    assert {operation.kind.status for operation in NamespaceOperation} == {403}
    assert {operation.kind.status for operation in GeneralOperation} == {401}
    assert TargetKind.NAMESPACE_POLICY.status == TargetKind.TOPIC_POLICY.status == 403
