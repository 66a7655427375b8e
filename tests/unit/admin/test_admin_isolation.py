"""Isolation policies of namespaces over HTTP, and what two brokers do about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.limits import ISOLATION_PATTERNS_MAX
from pulsark.metadata.paths import isolation_policies_path
from tests.support.admin_api import AdminApi
from tests.support.bundle_nodes import turns
from tests.support.two_brokers import TwoBrokers

CLUSTER = "/admin/v2/clusters/standalone"
POLICIES = f"{CLUSTER}/namespaceIsolationPolicies"
LOOKUP = "/lookup/v2/topic/persistent/public/default/"


def policy(namespaces: str, primary: str, secondary: str = "", **more: Any) -> dict[str, Any]:
    return {
        "namespaces": [namespaces],
        "primary": [primary],
        "secondary": [secondary] if secondary else [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
        **more,
    }


@pytest.mark.feature("F79", "F91")
def test_policies_are_set_shown_and_deleted(api: AdminApi) -> None:
    assert api.get(POLICIES).status == api.get(f"{POLICIES}/p").status == 404
    assert api.delete(f"{POLICIES}/p").status == 204
    p, q = policy("public/.*", "broker.*", "x"), policy("t/.*", "other", unload_scope="none")
    assert api.post(f"{POLICIES}/p", {**p, "later": 1, "secondary": ["x"]}).status == 204
    assert api.post(f"{POLICIES}/q", q).status == 204
    assert api.get(POLICIES).json == {"p": p, "q": q}
    assert api.get(f"{POLICIES}/p").json == p
    assert [each.name for each in api.broker.isolation.policies] == ["p", "q"]
    assert api.delete(f"{POLICIES}/p").status == api.delete(f"{POLICIES}/p").status == 204
    assert api.get(POLICIES).json == {"q": q}
    assert api.get(f"{POLICIES}/p").status == 404
    assert [each.name for each in api.broker.isolation.policies] == ["q"]


@pytest.mark.feature("F79", "F91")
def test_brokers_are_shown_with_the_namespaces_that_come_to_them(api: AdminApi) -> None:
    assert api.get(f"{POLICIES}/brokers").status == 404
    api.post(f"{POLICIES}/p", policy("public/.*", "broker"))
    api.post(f"{POLICIES}/q", policy("t/.*", "other", "broker:8080"))
    own = {
        "brokerName": "broker:8080",
        "policyName": "q",
        "namespaceRegex": ["public/.*", "t/.*"],
        "primary": False,
    }
    assert api.get(f"{POLICIES}/brokers").json == [own]
    assert api.get(f"{POLICIES}/brokers/broker:8080").json == own
    assert api.get(f"{POLICIES}/brokers/other%3A1").json["primary"] is True
    assert api.get(f"{POLICIES}/brokers/none:1").json["namespaceRegex"] == []
    assert api.get(f"{POLICIES}/brokers/{'x' * 301}").status == 412


def test_what_is_no_policy_is_refused(api: AdminApi) -> None:
    for body, status in [
        (None, 400),
        ([], 400),
        ({}, 400),
        (policy("(", "x"), 400),
        (policy("public/.*", ""), 400),
    ]:
        assert api.post(f"{POLICIES}/p", body).status == status
    assert api.post(f"{POLICIES}/..", policy("a", "b")).status == 412
    none = "/admin/v2/clusters/none/namespaceIsolationPolicies"
    assert api.post(f"{none}/p", policy("a", "b")).status == 404
    assert api.get(POLICIES).status == 404


def test_all_policies_together_are_bounded(api: AdminApi) -> None:
    half = ISOLATION_PATTERNS_MAX // 2
    large = {**policy("public/.*", "x"), "secondary": ["y"] * (half - 2)}
    assert [api.post(f"{POLICIES}/{name}", large).status for name in "pqrp"] == [204, 204, 400, 204]
    assert set(api.get(POLICIES).json) == {"p", "q"}


def test_policies_go_with_their_cluster(api: AdminApi) -> None:
    other = "/admin/v2/clusters/other"
    api.put(other, {"serviceUrl": "http://other:8080"})
    assert api.post(f"{other}/namespaceIsolationPolicies/p", policy("a", "b")).status == 204
    assert api.broker.isolation.policies == ()  # they are another cluster's
    assert api.delete(other).status == 204
    assert api.run(api.broker.metadata.get(isolation_policies_path("other"))) is None


@pytest.mark.feature("F79", "F91")
def test_a_broker_that_is_alone_obeys_them_too(api: AdminApi) -> None:
    api.post(f"{POLICIES}/p", policy("public/.*", "other"))
    answer = api.get(f"{LOOKUP}t")
    assert answer.status == 503
    assert "policy p leaves no live broker for public/default" in answer.reason
    api.delete(f"{POLICIES}/p")
    assert api.get(f"{LOOKUP}t").status == 200


# -- two brokers -------------------------------------------------------------------------------


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    both = TwoBrokers()
    yield both
    both.close()


@pytest.mark.feature("F79", "F91")
def test_bundles_move_to_a_broker_that_may_have_them(both: TwoBrokers) -> None:
    name = "persistent://public/default/t"
    both.topic(name, both.a)
    (bundle,) = both.a.broker.ownership.owned()
    only_b = policy("public/.*", both.b.peer.broker_id)
    assert both.call(both.b, "POST", f"{POLICIES}/p", only_b).status == 204
    both.run(turns(500))
    assert both.a.broker.ownership.owned() == []
    assert both.b.broker.ownership.owned() == [bundle]
    assert not both.is_loaded(name, both.a)
    unload = f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={both.a.peer.broker_id}"
    answer = both.call(both.b, "PUT", unload)
    assert answer.status == 412
    assert "isolation policies keep public/default away" in answer.reason
    only_a = {**policy("public/.*", both.a.peer.broker_id), "unload_scope": "none"}
    both.call(both.b, "POST", f"{POLICIES}/p", only_a)
    both.run(turns(500))
    assert both.b.broker.ownership.owned() == [bundle]
    nobody = policy("public/.*", "nobody")
    both.call(both.b, "POST", f"{POLICIES}/p", nobody)
    both.run(turns(500))
    assert both.b.broker.ownership.owned() == [bundle]


@pytest.mark.feature("F50")
@pytest.mark.parametrize("asked", ["a", "b"])
def test_any_broker_is_asked_for_topics_of_any_kind(asked: str) -> None:
    other_kind = {"enablePersistentTopics": False, "enableNonPersistentTopics": True}
    both = TwoBrokers(other_kind, enableNonPersistentTopics=False)
    node = getattr(both, asked)
    for kind, namespace, serving in (
        ("persistent", "public/default", both.a),
        ("non-persistent", "pulsar/system", both.b),
    ):
        topic = f"{kind}/{namespace}/t"
        found = both.call(node, "GET", f"/lookup/v2/topic/{topic}")
        assert found.json["httpUrl"] == serving.peer.web_url
        admin = f"/admin/v2/{topic}"
        may_create = "?checkAllowAutoCreation=true"
        assert both.call(node, "GET", f"{admin}/partitions{may_create}").json["partitions"] == 0
        assert both.call(node, "PUT", admin).status == 204
        assert both.call(node, "PUT", f"{admin}2/partitions", 2).status == 204
        assert both.run(both.owner(f"{kind}://{namespace}/t")) is serving
    both.close()


@pytest.mark.feature("F50", "F79")
def test_a_broker_of_one_kind_keeps_what_it_may_have() -> None:
    both = TwoBrokers({"enablePersistentTopics": False})
    both.give("non-persistent://pulsar/system/t", both.b)
    held = both.b.broker.ownership.owned()
    assert both.call(both.a, "POST", f"{POLICIES}/p", policy("pulsar/system", ".*")).status == 204
    both.run(turns(500))
    assert both.b.broker.ownership.owned() == held
    only_a = policy("pulsar/system", both.a.peer.broker_id)
    assert both.call(both.a, "POST", f"{POLICIES}/p", only_a).status == 204
    both.run(turns(500))
    assert both.a.broker.ownership.owned() == held
    both.close()


# -- groups of namespaces that should not be at one broker --------------------------------------


def test_a_namespace_joins_a_group_and_leaves_it(api: AdminApi) -> None:
    policy = "/admin/v2/namespaces/public/default/antiAffinity"
    group = "/admin/v2/namespaces/standalone/antiAffinity"
    head = {"content-type": "application/json"}
    assert api.get(policy).status == 204
    for body in (b"g", b' "g"\n'):  # as the Java client sends it, and as the one of Go does
        assert api.call("POST", policy, raw=body, headers=head).status == 204
        assert (api.get(policy).status, api.get(policy).body) == (200, b"g")
    assert api.get("/admin/v2/namespaces/public/default").json["antiAffinityGroup"] == "g"
    assert api.get(f"{group}/g?tenant=public").json == ["public/default"]
    older = group.replace("/v2", "")
    assert api.get(f"{older}/g?property=public").json == ["public/default"]
    assert api.get(f"{group}/other?tenant=public").json == []
    assert api.get(f"{group}/g?tenant=pulsar").json == []
    assert api.get(f"{group}/g").status == 400
    assert api.delete(policy).status == 204
    assert api.get(policy).status == 204
    assert api.get(f"{group}/g?tenant=public").json == []


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"a/b", 412), (b'"', 400), (b'""', 412), (b"\xff", 412)]
)
def test_what_is_no_name_of_a_group_is_refused(api: AdminApi, body: bytes, status: int) -> None:
    policy = "/admin/v2/namespaces/public/default/antiAffinity"
    head = {"content-type": "application/json"}
    assert api.call("POST", policy, raw=body, headers=head).status == status
    assert api.call("POST", policy, raw=b"g", headers={"content-type": "text/plain"}).status == 415
    assert api.get(policy).status == 204
