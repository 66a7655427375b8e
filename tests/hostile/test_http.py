"""Requests to the admin API that no tool sends, on both of its ports."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from pulsark.limits import HTTP_BODY_BYTES_MAX
from tests.hostile.conftest import ATTACKED, ATTACKER, CANARY
from tests.support.secured import SUPER_USER, Secured, token

TENANT = "/admin/v2/tenants/hostile"
TOPIC = f"/admin/v2/persistent/{ATTACKED}/over-http"
TEXTS = (
    "'; DROP TABLE node; --", "1 OR 1=1", "../../../etc/passwd", "..\\..\\windows", "/etc/passwd",
    "%2e%2e%2f", "a\0b", "\r\nX-Injected: 1", "${jndi:ldap://127.0.0.1/a}", "{{7*7}}", "<script>",
    "\u202e", "\ud7ff\uffff", "x" * 10_000, "file:///etc/passwd", CANARY,
)  # fmt: skip
WRONG: tuple[Any, ...] = (None, True, -1, 2**63, 1.5, "text", [], [[]], {}, {"a": {"a": []}})
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Ask = Callable[..., Answer]


@pytest.fixture(params=["plain", "tls"])
def open_socket(broker: Secured, request: pytest.FixtureRequest) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        if request.param == "tls":
            return broker.over_tls("webServiceUrlTls")
        host, port = broker.web_url.rsplit("/", 1)[1].split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    return connect


@pytest.fixture
def ask(open_socket: Callable[[], socket.socket]) -> Iterator[Ask]:
    """Sends one request, as who it is told, and nobody without a role."""
    opened: list[http.client.HTTPConnection] = []

    def call(
        method: str, path: str, body: Any = None, role: str | None = SUPER_USER, **headers: str
    ) -> Answer:
        if not opened:
            opened.append(http.client.HTTPConnection("localhost", timeout=60))
        connection = opened[0]
        if connection.sock is None:
            connection.sock = open_socket()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            given["Authorization"] = f"Bearer {token(role)}"
        if body is not None and not isinstance(body, bytes):
            body, given = json.dumps(body).encode(), {"Content-Type": "application/json", **given}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    yield call
    for connection in opened:
        connection.close()


def refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in statuses, answer
    assert json.loads(answer.body)["reason"]
    assert b"Traceback" not in answer.body


def sent(connection: socket.socket, data: bytes) -> bytes:
    """What comes back for bytes that are a request, up to the end of the connection."""
    with connection:
        connection.settimeout(60)
        answer = b""
        try:
            connection.sendall(data)
            while piece := connection.recv(1 << 16):
                answer += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer


def answered(connection: socket.socket, data: bytes) -> bytes:
    """The status that comes for a request that is never whole."""
    with connection:
        connection.settimeout(60)
        connection.sendall(data)
        return connection.recv(100).partition(b" ")[2][:3]


# -- bodies ------------------------------------------------------------------------------------

JSON = {"Content_Type": "application/json"}
BODIES = {
    "arrays 2e4 deep": b"[" * 20_000 + b"]" * 20_000,
    "objects 1e4 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "NaN": b'{"allowedClusters": NaN}',
    "infinity": b'{"allowedClusters": Infinity}',
    "a number that is infinite": b'{"allowedClusters": 1e999}',
    "a number of 1e5 digits": b'{"allowedClusters": ' + b"9" * 100_000 + b"}",
    "half a surrogate": b'{"allowedClusters": ["\\ud800"]}',
    "no UTF-8": b'{"allowedClusters": ["\xff"]}',
    "cut": b'{"allowedClusters": [',
    "two values": b"{} {}",
}
TOO_MANY = {
    "arrays 1e5 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects 1e5 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "1e5 numbers": b"[" + b"1," * 100_000 + b"1]",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_json_that_is_none(ask: Ask, body: bytes) -> None:
    refused(ask("PUT", TENANT, body, **JSON), 400)


@pytest.mark.parametrize("body", TOO_MANY.values(), ids=TOO_MANY.keys())
def test_json_of_too_many_values(ask: Ask, body: bytes) -> None:
    refused(ask("PUT", TENANT, body, **JSON), 413)


def test_of_two_members_with_one_name_the_last_one_counts(ask: Ask) -> None:
    """One rule for all readers of a body: no check sees the first, and no use either."""
    body = b'{"adminRoles": ["first"], "allowedClusters": ["none"], "adminRoles": ["last"], '
    assert ask("PUT", TENANT, body + b'"allowedClusters": ["standalone"]}', **JSON).status == 204
    assert json.loads(ask("GET", TENANT).body)["adminRoles"] == ["last"]
    assert ask("DELETE", TENANT).status == 204


def test_a_body_of_100_megabytes(ask: Ask, open_socket: Callable[[], socket.socket]) -> None:
    head = (
        f"PUT {TENANT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token(SUPER_USER)}\r\nConnection: close\r\n"
    ).encode()
    large = head + b"Content-Length: 100000000\r\n\r\n" + b" " * (2 << 20)
    assert answered(open_socket(), large) == b"413"
    refused(ask("PUT", TENANT, b" " * (HTTP_BODY_BYTES_MAX + 1), **JSON), 413)
    chunks = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 3
    assert answered(open_socket(), chunked) == b"413"


def test_ten_thousand_parts(ask: Ask) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n1\r\n'
    for path in (TENANT, TOPIC, f"{TOPIC}/subscription/s"):
        answer = ask("PUT", path, part * 10_000, Content_Type="multipart/form-data; boundary=x")
        refused(answer, 413, 415)


def test_a_body_that_ends_early_leaves_no_trace(open_socket: Callable[[], socket.socket]) -> None:
    head = f"PUT {TENANT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {token(SUPER_USER)}\r\nContent-Length: 100\r\n\r\n"
    for _ in range(20):
        with open_socket() as connection:
            connection.sendall(head.encode() + b"{")
            time.sleep(0.01)


# -- every route -------------------------------------------------------------------------------

SLOTS = {"tenant": "public", "namespace": "attacked", "topic": "over-http", "subscription": "s"}
OPEN = {("GET", "/metrics"), ("GET", "/status.html")}


@pytest.fixture(scope="module")
def routes(broker: Secured) -> list[tuple[str, str]]:
    host, port = broker.web_url.rsplit("/", 1)[1].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    headers = {"Authorization": f"Bearer {token(SUPER_USER)}"}
    connection.request("GET", "/admin/openapi.json", headers=headers)
    described = json.loads(connection.getresponse().read())["paths"]
    connection.close()
    found = [(verb.upper(), path) for path, verbs in described.items() for verb in verbs]
    assert len(found) > 200
    return found


def path_of(template: str, **slots: str) -> str:
    given = {**SLOTS, "domain": "persistent", "policy": "messageTTL", **slots}
    return _PARAMETER.sub(lambda found: quote(given.get(found[1], "1"), safe=""), template)


@pytest.mark.parametrize("open_socket", ["plain"], indirect=True)  # TLS ends before routes begin
def test_every_route_wants_a_login(
    open_socket: Callable[[], socket.socket], routes: list[tuple[str, str]]
) -> None:
    def ask_as_nobody(route: tuple[str, str]) -> Answer:
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = open_socket()
        connection.request(route[0], path_of(route[1]))
        answer = connection.getresponse()
        found = Answer(answer.status, {}, answer.read())
        connection.close()
        return found

    closed = [route for route in routes if route not in OPEN]
    with ThreadPoolExecutor(64) as pool:  # answers to nobody come late
        for answer in pool.map(ask_as_nobody, closed):
            refused(answer, 401)


PROXIES = {
    "X_Original_Principal": SUPER_USER,
    "X_Forwarded_User": SUPER_USER,
    "X_Remote_User": SUPER_USER,
    "X_Pulsar_Role": SUPER_USER,
    "Role": SUPER_USER,
    "X_Pulsar_Auth_Method_Name": "none",
    "X_Forwarded_For": "127.0.0.1",
    "X_Original_URL": "/metrics",
    "X_Rewrite_URL": "/metrics",
    "Cookie": f"role={SUPER_USER}",
}


@pytest.mark.parametrize("role", [None, ATTACKER])
@pytest.mark.parametrize("header", PROXIES)
def test_no_header_makes_a_role(ask: Ask, header: str, role: str | None) -> None:
    path = "/admin/v2/brokers/configuration/runtime"
    assert ask("GET", path).status == 200
    refused(ask("GET", path, role=role, **{header: PROXIES[header]}), 401, 403)


@pytest.mark.parametrize("role", [None, ATTACKER])
def test_nobody_is_a_broker_who_says_so(broker: Secured, ask: Ask, role: str | None) -> None:
    for value in ("e30.00", "x" * 8000, "." * 100, "{}.") * 3:
        answer = ask("GET", TENANT, role=role, X_Pulsark_Broker_Call=value)
        assert answer.status in (400, 403, 431)
    lines = broker.log_path.read_text().splitlines()
    warned = [each for each in lines if "WARNING" in each and "claims to come from" in each]
    assert 1 <= len(warned) <= 2, "once a minute"


@pytest.mark.parametrize("header", ["X_HTTP_Method_Override", "X_Method_Override", "X_HTTP_Method"])
def test_a_method_cannot_be_overridden(ask: Ask, header: str) -> None:
    path = f"/admin/v2/namespaces/{ATTACKED}"
    assert ask("GET", path, **{header: "DELETE"}).status == 200
    assert ask("GET", f"{path}?_method=DELETE").status == 200
    assert ask("GET", path).status == 200


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "OPTIONS", "PATCH", "PROPFIND", "X" * 500])
def test_methods_that_are_not_there(ask: Ask, method: str) -> None:
    assert ask(method, f"/admin/v2/namespaces/{ATTACKED}").status in (404, 405)


RANGES = {
    "1e4 of them": "bytes=" + ",".join("0-" for _ in range(10_000)),
    "overlapping": "bytes=" + ",".join(f"{n}-{n + 100}" for n in range(2000)),
    "from the end": "bytes=-" + "9" * 1000,
    "none": "bytes=9-1,x-y,-",
    "another unit": "items=0-1",
}


@pytest.mark.parametrize("asked", RANGES.values(), ids=RANGES.keys())
def test_ranges_are_nobodys_business(ask: Ask, asked: str) -> None:
    for path in ("/metrics", "/admin/openapi.json"):
        answer = ask("GET", path, Range=asked, If_Range="x")
        assert answer.status == 200
        assert "content-range" not in answer.headers
        assert len(answer.body) > 1000
