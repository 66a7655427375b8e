"""The admin client: what it repeats, what it keeps, and what it says of failures."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable

import pytest

from pulsark.admin_client import client as module
from pulsark.admin_client.client import AdminClient, AdminError
from pulsark.admin_client.credentials import Credentials
from pulsark.datasource.admin import client as spark_module
from pulsark.datasource.admin.client import SparkAdmin, check_service
from pulsark.errors import PulsarkError

Behaviour = Callable[[], tuple[int, bytes]]


def answers(status: int, body: bytes = b"") -> Behaviour:
    return lambda: (status, body)


def drops() -> tuple[int, bytes]:
    raise http.client.RemoteDisconnected("dropped")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Broker:
    """Connections, each of which follows one script: a behaviour for each request."""

    def __init__(self, *scripts: list[Behaviour]) -> None:
        self.scripts = list(scripts)
        self.requests: list[tuple[str, str, str | None]] = []
        self.open = 0

    def connect(self, host: str, port: int | None, timeout: float) -> Connection:
        self.open += 1
        return Connection(self, self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0])


class Connection:
    def __init__(self, broker: Broker, script: list[Behaviour]) -> None:
        self.broker = broker
        self.script = list(script)
        self.status, self.body = 0, b""

    def request(self, method: str, path: str, text: str | None, headers: dict[str, str]) -> None:
        self.broker.requests.append((method, path, text))

    def getresponse(self) -> Connection:
        self.status, self.body = self.script.pop(0)()
        return self

    def read(self) -> bytes:
        return self.body

    def close(self) -> None:
        self.broker.open -= 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(spark_module, "time", clock)
    return clock


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[..., Broker]:
    def serve(*scripts: list[Behaviour]) -> Broker:
        broker = Broker(*scripts)
        monkeypatch.setattr(http.client, "HTTPConnection", broker.connect)
        return broker

    return serve


def test_a_call_has_its_path_below_the_root(serve: Callable[..., Broker]) -> None:
    broker = serve([answers(200, b'["c"]')])
    assert AdminClient("broker:8080/proxy/").call("PUT", "/clusters", {"a": 1}) == ["c"]
    assert broker.requests == [("PUT", "/proxy/admin/v2/clusters", '{"a": 1}')]


def test_without_patience_a_call_is_made_once_and_keeps_nothing(
    serve: Callable[..., Broker],
) -> None:
    broker = serve([answers(204)], [drops])
    client = AdminClient("http://broker:8080")
    assert client.get("/a") is None
    with pytest.raises(AdminError, match=r"no answer from the admin API .* \(dropped\); is the br"):
        client.get("/b")
    assert (len(broker.requests), broker.open) == (2, 0)


def test_a_kept_connection_that_the_broker_dropped_is_replaced_at_once(
    serve: Callable[..., Broker], clock: Clock
) -> None:
    broker = serve([answers(204), drops], [answers(204)])
    with AdminClient("http://broker:8080", 10.0) as client:
        client.get("/a")
        client.get("/b")
        assert (clock.now, broker.open) == (0.0, 1)
    assert broker.open == 0


def test_a_broker_that_never_answered_gets_less_time(
    serve: Callable[..., Broker], clock: Clock
) -> None:
    serve([drops])
    with pytest.raises(AdminError):
        AdminClient("http://broker:8080", 60.0).get("/a")
    first = clock.now
    with pytest.raises(AdminError):
        AdminClient("http://broker:8080", 60.0, known=True).get("/a")
    assert first <= module.FIRST_CONTACT_SECONDS < clock.now - first <= 60.0


def test_a_failing_broker_is_asked_again_and_its_last_answer_told(
    serve: Callable[..., Broker],
) -> None:
    failing = [answers(503, b'{"reason": "later"}')] * 3
    serve([*failing, answers(200, b"1")])
    assert AdminClient("http://broker:8080", 10.0).get("/a") == 1
    serve(failing)
    with pytest.raises(AdminError, match=r"a view: http://broker:8080 answered 503: later"):
        AdminClient("http://broker:8080").call("GET", "/a", what="a view")


@pytest.mark.parametrize(("body", "reason"), [(b"<html>", "<html>"), (b"[1]", r"\[1\]"), (b"", "")])
def test_a_refusal_without_a_reason_shows_what_came(
    serve: Callable[..., Broker], body: bytes, reason: str
) -> None:
    serve([answers(404, body)])
    with pytest.raises(AdminError, match=f"answered 404: {reason}$"):
        AdminClient("http://broker:8080").get("/a")


def distrusts() -> tuple[int, bytes]:
    error = ssl.SSLCertVerificationError("self-signed certificate")
    error.verify_message = "self-signed certificate"
    raise error


def test_who_does_not_trust_the_broker_is_told_what_names_its_ca(
    serve: Callable[..., Broker],
) -> None:
    serve([distrusts, distrusts])
    with pytest.raises(AdminError, match="; --tls-trust-cert-path, or PULSARK_TLS_TRUST_CERTS,"):
        AdminClient("http://broker:8080").get("/x")
    with pytest.raises(PulsarkError, match="; tlsTrustCertsFilePath names the file"):
        SparkAdmin("http://broker:8080", 0.0).get("/x")


def test_waiting_for_an_absent_broker_is_counted_apart_from_its_answers(
    serve: Callable[..., Broker], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def slowly() -> tuple[int, bytes]:
        clock.now += 7.0
        return 200, b"1"

    failing = [answers(503)] * 10
    serve([*failing, slowly, slowly])
    client = AdminClient("http://broker:8080", 60.0, known=True)
    client.get("/a")
    assert client.waited_s == pytest.approx(clock.now - 7.0)
    assert 2.0 < client.waited_s <= 10 * module._PAUSE_SECONDS_MAX
    before = client.waited_s
    client.get("/a")
    assert client.waited_s == before
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" (")[0] for text in said] == [
        "No answer from http://broker:8080",
        f"http://broker:8080 answers again, after {before:.0f} s",
    ]


def test_a_connection_notices_soon_that_the_other_machine_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
        with module._connected(address, 30.0) as found:
            assert found.gettimeout() == 30.0
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            limit_ms = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == 1000 * module.SILENT_SECONDS


def test_a_refused_login_is_explained_by_what_was_sent(serve: Callable[..., Broker]) -> None:
    serve([answers(401, b'{"reason": "Authentication required"}')])
    with pytest.raises(AdminError, match="answered 401: Authentication required, and no login"):
        AdminClient("http://broker:8080").get("/a")
    with pytest.raises(PulsarkError, match=r"a view: .* answered 401: .*options authPluginCl"):
        SparkAdmin("http://broker:8080", 0.0).call("GET", "/a", what="a view")
    with pytest.raises(AdminError, match="answered 401: the broker does not accept this token"):
        AdminClient("http://broker:8080", credentials=Credentials.of("token", "x")).get("/a")


def test_a_service_url_where_nothing_listens_is_an_error(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_service(f"pulsar://127.0.0.1:1,127.0.0.1:{port}", "http://a:1")
    with pytest.raises(PulsarkError, match=r"'serviceUrl': nothing listens at pulsar://127.*http"):
        check_service(f"pulsar://127.0.0.1:{port}", "http://a:1")
