"""A broker whose clients may do what their role was granted, with the official Python client."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pulsar
import pyarrow.flight as fl
import pytest
from deltalake import DeltaTable

from tests.support.standalone import Standalone

SECRET = bytes(range(32))
TOPIC = "persistent://acme/web/clicks"
OTHER = "persistent://acme/web/views"
FLOWN = "persistent://acme/web/flown"
AUDIT = "persistent://pulsar/system/audit"


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
        "sealFreshnessSeconds": "1",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    found = Standalone(home / "data", *words).start()
    clusters = ["standalone"]
    for method, path, body in (
        ("PUT", "/tenants/acme", {"adminRoles": ["boss"], "allowedClusters": clusters}),
        ("PUT", "/tenants/other", {"adminRoles": ["rival"], "allowedClusters": clusters}),
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


FLIGHT: dict[str | None, type[Exception] | None] = {
    "root": None,
    "boss": None,
    "reader": None,
    "writer": fl.FlightUnauthorizedError,
    "rival": fl.FlightUnauthorizedError,
    "stranger": fl.FlightUnauthorizedError,
    None: fl.FlightUnauthenticatedError,
}
"""Who may read a topic over Flight: those who may consume it."""


@pytest.mark.feature("F81")
@pytest.mark.parametrize("role", FLIGHT)
def test_every_ticket_for_everybody(standalone: Standalone, clients: Any, role: str | None) -> None:
    clients("boss").create_producer(FLOWN).send(b"x")
    headers = [] if role is None else [(b"authorization", f"Bearer {token(role)}".encode())]
    options = fl.FlightCallOptions(timeout=60, headers=headers)
    whole = {"topic": FLOWN, "first": [0, 0], "last": [2**62, 0]}
    with fl.connect(standalone.flight_url) as client:

        def read(**changed: Any) -> int:
            asked = json.dumps({**whole, **changed}).encode()
            return int(client.do_get(fl.Ticket(asked), options).read_all().num_rows)

        def describe() -> int:
            client.get_flight_info(fl.FlightDescriptor.for_path(FLOWN), options)
            return 1

        expected = FLIGHT[role]
        if expected is None:
            assert describe() == 1
            assert read() >= 1
            return
        calls: tuple[Callable[[], int], ...] = (
            describe,
            read,
            lambda: read(compacted=True),
            lambda: read(topic=f"{FLOWN}-that-is-not-there"),  # nor is that told
            lambda: read(topic=AUDIT),
        )
        for call in calls:
            with pytest.raises(expected):
                call()


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


def test_who_did_what_is_a_topic_and_a_table(standalone: Standalone, clients: Any) -> None:
    """An event of each kind is found by a reader, by the command line and in the table."""
    with pytest.raises(pulsar.AuthorizationError):
        clients("stranger").create_producer(TOPIC)
    assert call(standalone, "CANARY", "GET", "/tenants") == 401
    request = urllib.request.Request(
        f"{standalone.web_url}/admin/v2/tenants",
        headers={"Authorization": "Bearer CANARY.CANARY.CANARY"},
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=60)

    def audit(*words: str) -> str:
        login = ("--auth-plugin", "token", "--auth-params", f"token:{token('root')}")
        words = (*login, "audit", *words, "--service-url", standalone.service_url)
        ended = subprocess.run(
            [sys.executable, "-m", "pulsark", *words], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    events = [
        json.loads(line)
        for line in audit("show", "--since", "all", "--json", "-n", "1000").splitlines()
    ]
    denied = [e for e in events if not e.get("authz", {}).get("granted", True)]
    assert {("stranger", "binary"), ("CANARY", "rest")} <= {
        (e["actor"]["role"], e["via"]) for e in denied
    }
    granted = [e for e in events if e["operation"].endswith("/permissions/{role}")]
    assert [(e["actor"]["role"], e["parameters"]) for e in granted] == [
        ("boss", {"role": "writer"}),
        ("boss", {"role": "reader"}),
    ]
    assert [('["produce"]' in e["after"], '["consume"]' in e["after"]) for e in granted] == [
        (True, False),
        (False, True),
    ]
    lately = audit("show", "--since", "1h", "--json", "-n", "1000").splitlines()
    assert [json.loads(line) for line in lately][: len(events)] == events
    # Nothing lies so far back, and the newest of all is not shown for that.
    assert audit("show", "--since", "0s", "--json") == ""
    failed = [e for e in events if e["operation"] == "login"]
    assert "malformed" in {e["status_detail"] for e in failed}
    assert "CANARY.CANARY" not in json.dumps(events)
    assert " 0 problems" in audit("verify")

    for role in ("boss", "stranger"):
        with pytest.raises(pulsar.AuthorizationError):
            clients(role).create_reader(AUDIT, pulsar.MessageId.earliest)
    for role in ("boss", "root"):
        with pytest.raises(pulsar.AuthorizationError):
            clients(role).create_producer(AUDIT)

    table = table_of(standalone, AUDIT)
    values = table.to_pyarrow_table(columns=["value", "event_time"]).to_pylist()
    in_table = {(row["value"]["seq"], row["value"]["operation"]) for row in values}
    assert {(e["seq"], e["operation"]) for e in events} <= in_table
    by_seq = {row["value"]["seq"]: row for row in values}
    assert by_seq[denied[0]["seq"]]["value"]["authz"]["granted"] is False
    assert by_seq[denied[0]["seq"]]["event_time"].timestamp() * 1000 == denied[0]["time"]


def table_of(standalone: Standalone, topic: str) -> DeltaTable:
    """A topic's table, once all that is stored now is in it."""
    path = topic.replace("://", "/")
    assert call(standalone, "root", "POST", f"/{path}/seal") < 300
    request = urllib.request.Request(
        f"{standalone.web_url}/admin/v2/{path}/table",
        headers={"Authorization": f"Bearer {token('root')}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return DeltaTable(json.load(answer)["uri"])
