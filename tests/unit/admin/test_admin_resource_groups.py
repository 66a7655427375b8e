"""Resource groups over HTTP: made, shown, joined, deleted."""

from __future__ import annotations

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
