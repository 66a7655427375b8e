"""Permissions over HTTP: kept, shown, and gone with what they are about."""

from __future__ import annotations

import pytest

from pulsark.admin.pulsar import permissions
from tests.support.admin_api import NAMESPACE, AdminApi

NAMESPACES = "/admin/v2/namespaces"
NS = f"{NAMESPACES}/public/default"
TOPIC = "persistent://public/default/t"


def test_permissions_of_a_namespace(api: AdminApi) -> None:
    assert api.get(f"{NS}/permissions").json == {}
    assert api.post(f"{NS}/permissions/r%2Fo+le", ["produce", "consume"]).status == 204
    assert api.get(f"{NS}/permissions").json == {"r/o+le": ["consume", "produce"]}
    assert api.post(f"{NS}/permissions/r%2Fo+le", ["consume"]).status == 204
    namespace_auth = api.get(NS).json["auth_policies"]["namespace_auth"]
    assert namespace_auth == {"r/o+le": ["consume"]}
    assert api.delete(f"{NS}/permissions/r%2Fo+le").status == 204
    assert api.delete(f"{NS}/permissions/r%2Fo+le").status == 204
    assert api.get(f"{NS}/permissions").json == {}
    assert api.get(NS).json["auth_policies"] == {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    }


def test_permissions_of_a_topic_are_those_of_its_namespace_too(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t/partitions", 2)
    assert api.post(f"{NS}/permissions/a", ["consume"]).status == 204
    assert api.post(f"{NAMESPACE}/t/permissions/a", ["produce"]).status == 204
    assert api.post(f"{NAMESPACE}/t/permissions/b", ["produce"]).status == 204
    both = {"a": ["consume", "produce"], "b": ["produce"]}
    for topic in ("t", "t-partition-1"):
        assert api.get(f"{NAMESPACE}/{topic}/permissions").json == both
    assert api.get(f"{NS}/permissions").json == {"a": ["consume"]}
    assert api.delete(f"{NAMESPACE}/t/permissions/b").status == 204
    assert api.delete(f"{NAMESPACE}/t/permissions/b").status == 412
    assert api.delete(f"{NAMESPACE}/t/partitions").status == 204
    assert api.get(NS).json["auth_policies"]["destination_auth"] == {}
    assert api.get(f"{NAMESPACE}/t/permissions").status == 404


def test_roles_of_a_subscription(api: AdminApi) -> None:
    path = f"{NS}/permissions"
    assert api.post(f"{path}/subscription/s", ["a", "b"]).status == 204
    assert api.get(f"{path}/subscription").json == {"s": ["a", "b"]}
    assert api.delete(f"{path}/s/a").status == 204
    assert api.get(f"{path}/subscription").json == {"s": ["b"]}
    assert api.delete(f"{path}/s/b").status == 204
    assert api.get(f"{path}/subscription").json == {}


def test_many_topics_at_once(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    items = [{"topic": TOPIC, "role": role, "actions": ["produce"]} for role in "ab"]
    assert api.post(f"{NAMESPACES}/grantPermissionsOnTopics", items).status == 204
    assert set(api.get(f"{NAMESPACE}/t/permissions").json) == {"a", "b"}
    assert api.post(f"{NAMESPACES}/revokePermissionsOnTopics", items[:1]).status == 204
    assert set(api.get(f"{NAMESPACE}/t/permissions").json) == {"b"}
    missing = [{"topic": f"{TOPIC}-none", "role": "a", "actions": ["produce"]}]
    assert api.post(f"{NAMESPACES}/grantPermissionsOnTopics", missing).status == 404
    assert api.post(f"{NAMESPACES}/grantPermissionsOnTopics", {"topic": TOPIC}).status == 400
    assert api.post(f"{NAMESPACES}/grantPermissionsOnTopics", [{"role": "a"}]).status == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{NAMESPACES}/public/none/permissions/a", ["produce"], 404),
        (f"{NS}/permissions/a", ["fly"], 400),
        (f"{NS}/permissions/a", "produce", 400),
        (f"{NS}/permissions/{'a' * 257}", ["produce"], 412),
        (f"{NS}/permissions/subscription/s", [""], 412),
        (f"{NAMESPACE}/none/permissions/a", ["produce"], 404),
    ],
)
def test_what_is_refused(api: AdminApi, path: str, body: object, status: int) -> None:
    assert api.post(path, body).status == status


def test_a_namespace_names_only_so_many_roles(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "GRANTS_PER_NAMESPACE_MAX", 3)
    assert api.post(f"{NS}/permissions/a", ["produce"]).status == 204
    assert api.post(f"{NS}/permissions/subscription/s", ["a", "b"]).status == 204
    assert api.post(f"{NS}/permissions/c", ["produce"]).status == 412
    assert api.post(f"{NS}/permissions/a", ["consume"]).status == 204


@pytest.mark.parametrize(
    ("role", "operation", "query", "expected"),
    [
        ("w", "PRODUCE", "", (True, "topic_grant", "produce")),
        ("w", "produce", "", (True, "topic_grant", "produce")),
        ("w", "CONSUME", "", (False, "none", "consume")),
        ("r", "CONSUME", "?subscription=s", (True, "namespace_grant", "consume")),
        ("r", "CONSUME", "?subscription=closed", (False, "subscription_list", "consume")),
        ("r", "GET_TOPICS", "", (True, "namespace_grant", "produce or consume")),
        ("w", "GET_TOPICS", "", (False, "none", "produce or consume")),
        ("root", "UNLOAD", "", (True, "superuser", "an administrator of the tenant")),
    ],
)
def test_why_a_role_may_do_something(
    role: str, operation: str, query: str, expected: tuple[bool, str, str]
) -> None:
    api = AdminApi(superUserRoles=("root",))
    try:
        api.topic(TOPIC)
        assert api.post(f"{NS}/permissions/r", ["consume"]).status == 204
        assert api.post(f"{NS}/permissions/subscription/closed", ["other"]).status == 204
        assert api.post(f"{NAMESPACE}/t/permissions/w", ["produce"]).status == 204
        found = api.get(f"{NAMESPACE}/t/permissions/{role}/{operation}{query}").json
        assert (found["granted"], found["rule"], found["needs"]) == expected
    finally:
        api.close()


def test_an_operation_that_is_none_is_refused_with_the_nearest(api: AdminApi) -> None:
    answer = api.get(f"{NAMESPACE}/t/permissions/r/PRODUSE")
    assert answer.status == 412
    assert answer.reason.startswith("PRODUSE is not an operation (did you mean PRODUCE?)")
