"""A web page cannot make a browser use the admin API."""

from __future__ import annotations

import pytest

from tests.support.admin_api import NAMESPACE, AdminApi

LOCAL = "localhost:8080"


@pytest.fixture(scope="module")
def named() -> AdminApi:
    return AdminApi(advertisedAddress="broker.example", webServiceAllowedHosts=("ui.example",))


@pytest.mark.parametrize(
    "host",
    [
        LOCAL,
        "LocalHost",
        "localhost.:8080",
        "127.0.0.1:8080",
        "[::1]:8080",
        "10.1.2.3",
        "broker.example:8080",
        "Broker.Example",
        "ui.example",
        "",
    ],
)
def test_hosts_that_are_known(named: AdminApi, host: str) -> None:
    assert named.get("/admin/v2/clusters", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.evil.example",
        "localhost.evil.example:8080",
        "evil.example:127.0.0.1",
        "127.0.0.1.evil.example",
        "x@evil.example",
        "localhost@evil.example:8080",
        "[::1",
        "[evil.example]",
        ":8080",
        "\u00e9:1",
    ],
)
def test_a_name_that_somebody_lets_point_here(named: AdminApi, host: str) -> None:
    answer = named.call("DELETE", f"{NAMESPACE}/t?force=true", headers={"host": host})
    assert answer.status == 403
    assert "webServiceAllowedHosts" in answer.reason


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://localhost:8080", LOCAL, 200),
        ("http://10.1.2.3", "10.1.2.3", 200),
        ("https://ui.example", LOCAL, 200),
        ("https://ui.example:8443", "10.1.2.3:8080", 200),
        ("http://localhost:3000", LOCAL, 403),
        ("http://10.9.9.9", "10.1.2.3", 403),
        ("https://evil.example", LOCAL, 403),
        ("https://ui.example.evil.example", LOCAL, 403),
        ("file://localhost:8080", LOCAL, 403),
        ("null", LOCAL, 403),
    ],
)
def test_pages_of_other_origins(named: AdminApi, origin: str, host: str, status: int) -> None:
    assert named.get("/admin/v2/clusters", origin=origin, host=host).status == status


@pytest.mark.parametrize(
    ("site", "status"),
    [("cross-site", 403), ("Cross-Site", 403), ("same-origin", 200), ("none", 200)],
)
def test_what_browsers_say_of_a_request(named: AdminApi, site: str, status: int) -> None:
    found = named.get("/metrics", host=LOCAL, **{"sec-fetch-site": site})
    assert found.status == status


@pytest.mark.parametrize(
    "path", [f"{NAMESPACE}/t/terminate", "/admin/v2/namespaces/public/default/clearBacklog"]
)
def test_a_form_of_another_site_changes_nothing(api: AdminApi, path: str) -> None:
    api.publish("t", b"x")
    refused = api.call("POST", path, headers={"origin": "https://evil.example", "host": LOCAL})
    assert refused.status == 403
    assert not api.topic("t").ledger.is_terminated
    assert "access-control-allow-origin" not in refused.headers


def test_any_host_where_somebody_else_looks_at_it() -> None:
    api = AdminApi(webServiceAllowedHosts=("*",))
    assert api.get("/admin/v2/clusters", host="any.example", origin="http://x").status == 200
    api.close()
