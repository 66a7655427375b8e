"""Resource groups over HTTP: made, shown, joined, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pulsark.metadata.records import ProtectedError
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from tests.support.admin_api import AdminApi

GROUPS = "/admin/v2/resourcegroups"
OWN = "/admin/v2/namespaces/public/own"
NONE = {
    "publishRateInMsgs": -1,
    "publishRateInBytes": -1,
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}


def test_a_group_is_made_changed_shown_and_deleted(api: AdminApi) -> None:
    assert api.get(GROUPS).json == []
    path = f"{GROUPS}/gold"
    assert api.get(path).status == api.delete(path).status == 404
    assert api.put(path, {"publishRateInMsgs": 10, "dispatchRateInBytes": 7}).status == 204
    given = {**NONE, "publishRateInMsgs": 10, "dispatchRateInBytes": 7}
    assert api.get(path).json == given
    assert api.put(path, {"publishRateInBytes": 5, "dispatchRateInBytes": None}).status == 204
    assert api.get(path).json == {**given, "publishRateInBytes": 5}
    assert api.get(GROUPS).json == ["gold"]
    assert api.delete(path).status == 204
    assert api.get(GROUPS).json == []
    assert api.broker.group_throttles.of("gold") is None


def test_what_is_no_group_is_refused(api: AdminApi) -> None:
    for name, body, status in [
        ("a%2Fb", {}, 412),
        ("..", {}, 412),
        ("g", [], 400),
        ("g", {"publishRateInMsgs": "x"}, 400),
        ("g", {"publishRateInMsgs": 1 << 63}, 400),
    ]:
        assert api.put(f"{GROUPS}/{name}", body).status == status
    assert api.get(GROUPS).json == []


def test_a_namespace_joins_a_group_and_leaves_it(api: AdminApi) -> None:
    api.put(OWN)
    path = f"{OWN}/resourcegroup"
    assert (api.get(path).status, api.get(path).body) == (200, b"")
    assert api.post(f"{path}/gold").status == api.post(path, "gold").status == 412
    api.put(f"{GROUPS}/gold", {})
    for join in (lambda: api.post(f"{path}/gold"), lambda: api.post(path, "gold")):
        assert join().status == 204
        assert api.get(path).body == b"gold"
        assert api.get(OWN).json["resource_group_name"] == "gold"
        assert api.delete(f"{GROUPS}/gold").status == 409
        assert api.delete(path).status == 204
        assert api.get(path).body == b""
    assert api.post(path, 7).status == 400
    assert api.delete(f"{GROUPS}/gold").status == 204


def test_a_namespace_is_created_in_a_group(api: AdminApi) -> None:
    body = {"resource_group_name": "gold"}
    assert api.put(OWN, body).status == 412
    api.put(f"{GROUPS}/gold", {})
    assert api.put(OWN, body).status == 204
    assert api.get(f"{OWN}/resourcegroup").body == b"gold"


@pytest.fixture
def tenants() -> Iterator[AdminApi]:
    """Two tenants with a namespace each; a group that the operator put one of them into."""
    api = AdminApi(rules=Rules(frozenset({"root"})))
    api.principal = Principal("root")
    for tenant in ("a", "b"):
        body = {"adminRoles": [f"{tenant}-admin"], "allowedClusters": ["standalone"]}
        assert api.put(f"/admin/v2/tenants/{tenant}", body).status == 204
        assert api.put(f"/admin/v2/namespaces/{tenant}/ns").status == 204
    assert api.put(f"{GROUPS}/gold", {"publishRateInMsgs": 1}).status == 204
    assert api.post("/admin/v2/namespaces/a/ns/resourcegroup/gold").status == 204
    yield api
    api.close()


def test_only_super_users_say_who_is_in_a_group(tenants: AdminApi) -> None:
    tenants.principal = Principal("b-admin")
    own, more = "/admin/v2/namespaces/b/ns", "/admin/v2/namespaces/b/more"
    for answer in (
        tenants.post(f"{own}/resourcegroup/gold"),
        tenants.post(f"{own}/resourcegroup", "gold"),
        tenants.put(f"{own}/resourcegroup", "gold"),
        tenants.delete(f"{own}/resourcegroup"),
        tenants.put(more, {"resource_group_name": "gold"}),
        tenants.put(more, {"bookie_affinity_group": {"bookkeeperAffinityGroupPrimary": "x"}}),
        tenants.put(more, {"delayed_delivery_policies": {"active": False, "tickTime": 1000}}),
    ):
        assert answer.status == 401
        assert answer.reason == "This operation requires super-user access"
    assert tenants.get(more).status == 404
    assert tenants.put(more, {"message_ttl_in_seconds": 7}).status == 204
    tenants.principal = Principal("a-admin")
    assert tenants.delete("/admin/v2/namespaces/a/ns/resourcegroup").status == 401
    assert tenants.get("/admin/v2/namespaces/a/ns/resourcegroup").body == b"gold"
    tenants.principal = Principal("root")
    assert tenants.put("/admin/v2/namespaces/b/m", {"resource_group_name": "gold"}).status == 204
    assert tenants.get("/admin/v2/namespaces/b/m/resourcegroup").body == b"gold"


def test_a_route_that_forgets_to_ask_cannot_change_who_is_in_a_group(tenants: AdminApi) -> None:
    namespaces = tenants.broker.resources.namespaces

    def change(**policies: str) -> None:
        tenants.run(namespaces.update("a/ns", lambda old: replace(old, policies=policies)))

    with pytest.raises(ProtectedError, match="resource_group_name"):
        change()
    with pytest.raises(ProtectedError, match="resource_group_name"):
        change(resource_group_name="silver")
    change(resource_group_name="gold", deduplicationEnabled="x")
    with pytest.raises(ProtectedError):
        tenants.run(namespaces.create("a/new", policies={"resource_group_name": "gold"}))
