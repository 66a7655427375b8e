"""A broker whose clients may do what their role was granted, with the official Python client."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import jwt
import pulsar
import pytest

from tests.support.standalone import Standalone

SECRET = bytes(range(32))
TOPIC = "persistent://acme/web/clicks"
OTHER = "persistent://acme/web/views"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    home = tmp_path_factory.mktemp("authorization")
    (home / "secret.key").write_bytes(SECRET)
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{home / 'secret.key'}",
        "superUserRoles": "root",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    found = Standalone(home / "data", *words).start()
    clusters = ["standalone"]
    for method, path, body in (
        ("PUT", "/tenants/acme", {"adminRoles": ["boss"], "allowedClusters": clusters}),
        ("PUT", "/namespaces/acme/web", None),
        ("PUT", "/persistent/acme/web/clicks/partitions", 2),
        ("POST", "/persistent/acme/web/clicks/permissions/writer", ["produce"]),
        ("POST", "/namespaces/acme/web/permissions/reader", ["consume"]),
    ):
        role = "root" if "tenants" in path else "boss"
        assert call(found, role, method, path, body) == 204
    yield found
    found.stop()


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


def call(standalone: Standalone, role: str, method: str, path: str, body: Any = None) -> int:
    """The status of a request."""
    request = urllib.request.Request(
        f"{standalone.web_url}/admin/v2{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token(role)}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def clients(standalone: Standalone) -> Iterator[Any]:
    opened: list[pulsar.Client] = []

    def connect(role: str) -> pulsar.Client:
        opened.append(
            pulsar.Client(
                standalone.service_url,
                authentication=pulsar.AuthenticationToken(token(role)),
                operation_timeout_seconds=5,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
        )
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


@pytest.mark.feature("F81")
def test_granted_roles_do_what_they_were_granted(clients: Any) -> None:
    consumer = clients("reader").subscribe(TOPIC, "s")
    producer = clients("writer").create_producer(TOPIC)
    producer.send(b"x")
    assert consumer.receive(60_000).data() == b"x"


@pytest.mark.feature("F81")
def test_others_are_refused(clients: Any) -> None:
    for role, topic in (("stranger", TOPIC), ("reader", TOPIC), ("writer", OTHER)):
        with pytest.raises(pulsar.AuthorizationError):
            clients(role).create_producer(topic)
    for role in ("stranger", "writer"):
        with pytest.raises(pulsar.AuthorizationError):
            clients(role).subscribe(TOPIC, "s2")


@pytest.mark.feature("F80")
def test_the_admin_api_asks_too(standalone: Standalone) -> None:
    stats = "/persistent/acme/web/clicks/partitioned-stats"
    assert call(standalone, "reader", "GET", stats) == 200
    assert call(standalone, "stranger", "GET", stats) == 401
    assert call(standalone, "reader", "DELETE", "/namespaces/acme/web") == 401
    assert call(standalone, "boss", "GET", "/tenants") == 401
    assert call(standalone, "root", "GET", "/brokers/health") == 200


def test_why_a_role_may_or_may_not(standalone: Standalone) -> None:
    def why(role: str) -> tuple[int, str]:
        words = ["--auth-plugin", "token", "--auth-params", f"token:{token('boss')}"]
        words += ["permissions", "why", role, "PRODUCE", TOPIC, "--admin-url", standalone.web_url]
        ended = subprocess.run(
            [sys.executable, "-m", "pulsark", *words], capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout

    assert why("writer") == (
        0,
        "writer may PRODUCE: it was granted on the topic. It needs produce.\n",
    )
    assert why("reader") == (1, "reader may not PRODUCE: nothing grants it. It needs produce.\n")
