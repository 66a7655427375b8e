"""Requests log in before anything else is looked at."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from passlib.hash import apr_md5_crypt

from pulsark.admin.http.requests import CERTIFICATE
from pulsark.security import request_login
from pulsark.security.principal import Principal
from tests.support.admin_api import AdminApi
from tests.support.logging_in import SECRET, inline, token
from tests.unit.security.test_certificates import certificate

ON: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProviders": ("tls", "token", "basic"),
    "tokenSecretKey": inline(SECRET),
    "basicAuthConf": inline(b"admin:" + apr_md5_crypt.hash("123456").encode()),
}
TENANTS = "/admin/v2/tenants"
BEARER = f"Bearer {token().decode()}"
BASIC = "Basic " + base64.b64encode(b"admin:123456").decode()


def serving(**settings: Any) -> Iterator[AdminApi]:
    found = AdminApi(**ON, **settings)
    yield found
    found.close()


@pytest.fixture
def closed() -> Iterator[AdminApi]:
    yield from serving()


@pytest.fixture
def with_anonymous() -> Iterator[AdminApi]:
    yield from serving(anonymousUserRole="nobody")


@pytest.fixture
def with_metrics_closed() -> Iterator[AdminApi]:
    yield from serving(authenticateMetricsEndpoint=True)


def principal_of(api: AdminApi, **scope: Any) -> Principal | None:
    """Whom the routes are told of."""
    found: list[Principal | None] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["state"].get("principal"))

    login = api._app._app._app._app
    before, login._app = login._app, route
    try:
        given = {"type": "http", "path": TENANTS, "headers": [], "client": ("10.0.0.1", 9)}
        api.run(login({**given, **scope}, None, None))
    finally:
        login._app = before
    return found[0]


def test_each_way_to_log_in(closed: AdminApi) -> None:
    for header in (BEARER, BASIC):
        assert closed.get(TENANTS, authorization=header).status == 200
    assert principal_of(closed, headers=[(b"authorization", BEARER.encode())]) == (
        Principal("orders", None, "token", None, "10.0.0.1:9")
    )
    by_certificate = {CERTIFICATE: certificate("cn")}
    assert principal_of(closed, state=by_certificate) == (
        Principal("cn", None, "tls", None, "10.0.0.1:9", "cn")
    )
    both = principal_of(closed, state=by_certificate, headers=[(b"authorization", BASIC.encode())])
    assert both is not None
    assert (both.role, both.method) == ("admin", "basic")


@pytest.mark.parametrize("header", ["", "Bearer x", "bearer " + BEARER[7:], "Basic !", "Digest x"])
def test_all_others_get_401_before_404(with_anonymous: AdminApi, header: str) -> None:
    for target in (TENANTS, "/admin/v2/nothing", "/admin/v2/tenants/nobody", "/"):
        answer = with_anonymous.get(target, authorization=header)
        assert (answer.status, answer.reason) == (401, "Authentication required")
        assert "www-authenticate" not in answer.headers


def test_without_credentials(closed: AdminApi, with_anonymous: AdminApi) -> None:
    assert closed.get(TENANTS).status == 401
    assert closed.put(f"{TENANTS}/x", {"adminRoles": [], "allowedClusters": []}).status == 401
    assert with_anonymous.get(TENANTS).status == 200
    assert principal_of(with_anonymous) == Principal("nobody", None, "none", None, "10.0.0.1:9")


def test_the_method_may_be_named(closed: AdminApi) -> None:
    name = "x-pulsar-auth-method-name"
    assert closed.get(TENANTS, **{"authorization": BEARER, name: "token"}).status == 200
    assert closed.get(TENANTS, **{"authorization": BEARER, name: "basic"}).status == 401
    assert closed.get(TENANTS, **{"authorization": BEARER, name: "unknown"}).status == 401


def test_headers_that_are_there_twice(closed: AdminApi) -> None:
    for name in (b"authorization", b"x-pulsar-auth-method-name", b"x-original-principal"):
        once = [(b"authorization", BEARER.encode())]
        twice = [(name, b"token"), (name, b"token")]
        with pytest.raises(TypeError):  # it is answered, and here is nobody to take that
            principal_of(closed, headers=once + twice)


def test_whom_a_proxy_names(closed: AdminApi) -> None:
    headers = [(b"authorization", BEARER.encode())]
    for name, original in ((b"alice", "alice"), (b"orders", None), (b"", None)):
        found = principal_of(closed, headers=[*headers, (b"x-original-principal", name)])
        assert found is not None
        assert found.original == original


def test_metrics_are_open_unless_they_are_not(
    closed: AdminApi, with_metrics_closed: AdminApi
) -> None:
    assert closed.get("/metrics").status == 200
    assert with_metrics_closed.get("/metrics").status == 401
    assert with_metrics_closed.get("/metrics", authorization=BEARER).status == 200


def test_probes_need_no_login(closed: AdminApi) -> None:
    assert closed.get("/status.html").body == b"OK"
    assert closed.get("/admin/v2/brokers/ready").status == 401


def test_logins_are_counted(closed: AdminApi) -> None:
    closed.get(TENANTS, authorization=BEARER)
    closed.get(TENANTS, authorization="Bearer x")
    lines = closed.get("/metrics").body.decode().splitlines()
    assert (
        'pulsar_authentication_success_total{cluster="standalone",'
        'provider_name="AuthenticationProviderToken",auth_method="token"} 1'
    ) in lines
    assert (
        'pulsar_authentication_failures_total{cluster="standalone",'
        'provider_name="AuthenticationProviderToken",auth_method="token",reason="malformed"} 1'
    ) in lines
    assert 'pulsar_expiring_token_minutes_bucket{cluster="standalone",le="240"} 0' in lines


def test_few_failures_wait_at_a_time(closed: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_login, "FAILED_LOGINS_DELAYED_MAX", 0)

    async def sleep(seconds: float) -> None:
        raise AssertionError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(12):
        assert closed.get(TENANTS, authorization="Bearer x").status == 401


def test_many_failures_wait(closed: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(12):
        assert closed.get(TENANTS, authorization="Bearer x").status == 401
    assert [seconds for seconds in waited if seconds] == [1.0, 1.0]


def test_credentials_are_in_no_log(closed: AdminApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = base64.b64encode(b"admin:CANARY").decode()
    for header in ("Bearer CANARY.CANARY.CANARY", f"Basic {secret}", "CANARY"):
        answer = closed.get(TENANTS, authorization=header)
        assert b"CANARY" not in answer.body
    assert caplog.text.count("login failed") == 3
    assert "CANARY" not in caplog.text
    assert secret not in caplog.text
