"""Hostile requests: every one gets an answer with a reason, none a trace."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.limits import HTTP_BODY_BYTES_MAX
from tests.support.admin_api import NAMESPACE, AdminApi

JSON = {"content-type": "application/json"}
TENANT = "/admin/v2/tenants/t"


@pytest.mark.parametrize(
    ("raw", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"\xff\xfe", JSON, 400),
        (b"[" * 20_000, JSON, 400),
        (b"[" * 100_000, JSON, 413),
        (b"[" * 40 + b"]" * 40, JSON, 400),
        (b'{"allowedClusters":' * 500 + b"1" + b"}" * 500, JSON, 400),
        (b'{"allowedClusters":["\\ud800"]}', JSON, 400),
        (b'{"allowedClusters":NaN}', JSON, 400),
        (b'{"allowedClusters":' + b"9" * 5000 + b"}", JSON, 400),
        (b"[]", JSON, 400),
        (b'"text"', JSON, 400),
        (b"1e999", JSON, 400),
        (b" " * (HTTP_BODY_BYTES_MAX + 1), JSON, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 400),
    ],
)
def test_bodies(api: AdminApi, raw: bytes, headers: dict[str, str], status: int) -> None:
    answer = api.call("PUT", TENANT, raw=raw, headers=headers)
    assert answer.status == status
    assert answer.reason
    assert len(answer.body) < 300


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"{NAMESPACE}/a%2Fb/stats", 412),
        (f"{NAMESPACE}/a%2fb/subscriptions", 412),
        (f"{NAMESPACE}/%00/stats", 412),
        (f"{NAMESPACE}/%0a/stats", 412),
        (f"{NAMESPACE}/%FF/stats", 412),
        (f"{NAMESPACE}/../stats", 412),
        (f"{NAMESPACE}/%2e%2e/stats", 412),
        (f"{NAMESPACE}/+/stats", 412),
        (f"{NAMESPACE}/{'x' * 2000}/stats", 412),
        ("/admin/v2/persistent/public/%2e%2e/t/stats", 412),
        ("/admin/v2/persistent/..%2f../default/t/stats", 412),
        ("/admin/v2/transient/public/default/t/stats", 404),
        (f"{NAMESPACE}/t/messageid/{'9' * 30}", 404),
        (f"{NAMESPACE}/t/messageid/-5", 404),
        (f"{NAMESPACE}/t/messageid/5e3", 404),
        (f"/{'a' * 20_000}", 414),
        (f"/admin/v2/clusters?{'a' * 20_000}", 414),
        ("/", 404),
        ("/%", 404),
        ("/admin/v2/clusters/%zz", 412),
    ],
)
def test_paths(api: AdminApi, target: str, status: int) -> None:
    answer = api.get(target)
    assert answer.status == status
    assert answer.reason


keys = [
    *("ledgerId", "entryId", "properties", "partitions", "bundles", "numBundles", "boundaries"),
    *("allowedClusters", "adminRoles", "replication_clusters", "serviceUrl"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=4)
    ),
    max_leaves=8,
)
routes = st.sampled_from(
    [
        ("PUT", "/admin/v2/clusters/c"),
        ("PUT", "/admin/v2/tenants/t"),
        ("PUT", "/admin/v2/namespaces/public/n"),
        ("PUT", f"{NAMESPACE}/t"),
        ("PUT", f"{NAMESPACE}/t/properties"),
        ("PUT", f"{NAMESPACE}/u/partitions"),
        ("POST", f"{NAMESPACE}/p/partitions"),
        ("PUT", f"{NAMESPACE}/t/subscription/s"),
        ("POST", f"{NAMESPACE}/t/subscription/s/resetcursor"),
        ("POST", f"{NAMESPACE}/t/subscription/s/acknowledge"),
        ("PUT", f"{NAMESPACE}/t/subscription/s/properties"),
    ]
)


def test_any_json_to_any_route_is_answered() -> None:
    api = AdminApi()
    api.put(f"{NAMESPACE}/t")
    api.put(f"{NAMESPACE}/p/partitions", 1)
    api.publish("t", b"x")

    @settings(max_examples=50)
    @given(routes, values)
    def check(route: tuple[str, str], value: object) -> None:
        method, path = route
        answer = api.call(method, path, raw=json.dumps(value).encode(), headers=JSON)
        assert answer.status < 500 or answer.status == 501, answer.body

    check()
    api.close()


segments = st.text(st.characters(exclude_characters="/?#", max_codepoint=127), max_size=8)


def test_any_path_is_answered() -> None:
    api = AdminApi()

    @settings(max_examples=50)
    @given(st.sampled_from(["GET", "PUT", "POST", "DELETE"]), st.lists(segments, max_size=6))
    def check(method: str, parts: list[str]) -> None:
        answer = api.call(method, f"{NAMESPACE}/" + "/".join(parts))
        assert answer.status < 500, answer.body

    check()
    api.close()
