"""Who may do what with a real Apache Pulsar 4.0.7, beside ``tests/security/matrix.tsv``.

Each route and command that both have is asked for by everybody. What is not as in Pulsar has a line
with its reason in ``tests/security/beside_pulsar.tsv``.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pulsark.wire import pulsar_pb2 as pb
from tests.support.admin_api import AdminApi
from tests.support.locked_pulsar import LockedPulsar
from tests.support.routes import Route, routes_of
from tests.support.samples import TOPIC, sample_of
from tests.support.secured import SUPER_USER, token
from tests.support.wire_client import Closed, Refused, WireClient
from tests.unit.security.test_everybody import harmless_first, path_of, who_may
from tests.unit.security.test_matrix import matrix

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

DIFFERENCES = Path(__file__).parents[1] / "security" / "beside_pulsar.tsv"
ROLES = ("stranger", "rival", None, "reader", "writer", "boss")
NUMBERS = (
    "messageTTL",
    "compactionThreshold",
    "deduplicationSnapshotInterval",
    "subscriptionExpirationTime",
    "offloadThreshold",
    "offloadThresholdInSeconds",
    "offloadDeletionLagMs",
    "partitions",
)
SWITCHES = (
    "deduplication",
    "deduplicationEnabled",
    "schemaValidationEnforced",
    "isAllowAutoUpdateSchema",
    "encryptionRequired",
    "replicatedSubscriptionStatus",
)
GRANTED = [{"topic": TOPIC, "role": "r", "actions": ["consume"]}]
BODIES: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, 3),
    **dict.fromkeys(SWITCHES, False),
    **{
        name: {"ledgerId": 0, "entryId": 0} for name in ("resetcursor", "expireMessages", "offload")
    },
    "properties": {"a": "b"},
    "acme": {"adminRoles": ["boss"], "allowedClusters": ["standalone"]},
    "grantPermissionsOnTopics": GRANTED,
    "revokePermissionsOnTopics": GRANTED,
}
LEFT_OUT = (
    "shutdown",
    "/migrat",
    "antiAffinity/",
    "/lookup/v2/destination/",
    "{namespace}/clearBacklog",
)
"""What would end it, what it answers in time or not, and names of Pulsar's first version, which are
other namespaces there."""

NOT_IN_PULSAR_4 = ("SCALABLE", "WATCH_TC_ASSIGNMENTS")


class Asked:
    """The broker, with what everything is about."""

    def __init__(self, pulsar: LockedPulsar) -> None:
        self._pulsar = pulsar
        self.there()

    @property
    def port(self) -> int:
        return self._pulsar.port

    def there(self) -> None:
        """Make all of it that is missing."""
        for method, path, body in (
            ("PUT", "/tenants/acme", BODIES["acme"]),
            ("PUT", "/tenants/other", {"adminRoles": ["rival"], "allowedClusters": ["standalone"]}),
            ("PUT", "/namespaces/acme/web", None),
            ("POST", "/namespaces/acme/web/permissions/writer", ["produce"]),
            ("POST", "/namespaces/acme/web/permissions/reader", ["consume"]),
            ("PUT", "/persistent/acme/web/clicks", None),
            ("PUT", "/persistent/acme/web/clicks/subscription/s", None),
        ):
            status, text = self.call(SUPER_USER, method, f"/admin/v2{path}", body)
            assert status in (200, 204, 409), f"{method} {path}: {status} {text}"

    def call(self, role: str | None, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._pulsar.web_port, timeout=20)
        headers = {"Content-Type": "application/json"}
        if role is not None:
            headers["Authorization"] = f"Bearer {token(role)}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            return 504, f"{method} {path} is never answered"
        finally:
            connection.close()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with LockedPulsar(tmp_path_factory.mktemp("pulsar")) as pulsar:
        yield Asked(pulsar)


def known(port: str) -> dict[str, str]:
    """The lines of the file: what differs, and how."""
    text = DIFFERENCES.read_text().splitlines()
    lines = [line.split("\t") for line in text if not line.startswith("#")]
    return {what: how for where, what, how, _ in lines if where == port}


def difference(needs: str, theirs: set[str | None]) -> str:
    """Who may with one of the two only."""
    ours = who_may(needs) - {SUPER_USER}
    words = []
    for whose, roles in (("only here", ours - theirs), ("only there", theirs - ours)):
        if roles:
            words.append(f"{whose}: {', '.join(sorted(role or 'nobody' for role in roles))}")
    return "; ".join(words)


def routes() -> list[Route]:
    api = AdminApi()
    try:
        return [
            route
            for route in harmless_first(routes_of(api.app))
            if not any(word in route.path for word in LEFT_OUT)
        ]
    finally:
        api.close()


def body_of(method: str, path: str) -> Any:
    last = path.rpartition("/")[2]
    if method in ("GET", "DELETE"):
        return None
    return 3 if last.startswith("max") else BODIES.get(last)


def is_missing(status: int, text: str) -> bool:
    """Whether Pulsar has no such route, or never answers."""
    is_none = status in (404, 405) and not text.startswith('{"reason":')
    return status == 504 or is_none or "HTTP 40" in text


def test_every_route_that_both_have(asked: Asked) -> None:
    needs, found, compared = matrix("http"), dict[str, str](), 0
    for route in routes():
        what, path = f"{route.method} {route.path}", path_of(route)
        body = body_of(route.method, path)
        theirs: set[str | None] = set()
        for role in ROLES:
            status, text = asked.call(role, route.method, path, body)
            if is_missing(status, text):
                break
            if status not in (401, 403):
                theirs.add(role)
                if route.method != "GET" and status < 300:
                    asked.there()
        else:
            compared += 1
            if how := difference(needs[what], theirs):
                found[what] = how
    assert compared > 250
    assert sorted(found.items() ^ known("http").items()) == []


def test_every_command_that_both_have(asked: Asked) -> None:
    found = {}
    for name, needs in matrix("binary").items():
        if needs == "none" or needs.startswith("own ") or any(n in name for n in NOT_IN_PULSAR_4):
            continue
        theirs = {role for role in ROLES if role and not is_refused(asked.port, role, name)}
        if how := difference(needs, theirs):
            found[name] = how
    assert sorted(found.items() ^ known("binary").items()) == []


def is_refused(port: int, role: str, name: str) -> bool:
    kind = pb.BaseCommand.Type.Value(name)
    with WireClient(port, token=token(role), timeout=20) as client, suppress(TimeoutError):
        client.send(sample_of(kind))
        answers = set(pb.BaseCommand.Type.values()) - {pb.BaseCommand.PING}
        try:
            answer = client.take(*answers)
        except (Closed, Refused):
            return False
        fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
        response = getattr(answer, fields[answer.type].name)
        return pb.AuthorizationError in (
            getattr(response, field, None) for field in ("error", "error_code")
        )
    return False
