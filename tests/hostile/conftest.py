"""One broker with every lock, and what must be true of it after each attack."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.fuzz.aftermath import log_lines
from tests.fuzz.live import EAGER
from tests.support.secured import SECRET, SUPER_USER, Secured, token
from tests.support.wire_client import WireClient

ATTACKER = "attacker"
"""May publish and consume in ``ATTACKED``."""
OTHER = "other"
"""The innocent client, in ``public/default``."""
ATTACKED = "public/attacked"
GROWTH_BYTES_MAX = 64 << 20
CACHE = "--set=managedLedgerCacheSizeMB=16"
CANARY = "canary-of-a-secret"

Connect = Callable[..., WireClient]
_numbers = count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One process for all attacks of this folder."""
    folder = tmp_path_factory.mktemp("hostile")
    standalone = Secured(folder, "--set=logLevel=DEBUG", CACHE, env=EAGER)
    standalone.start(timeout=240)
    try:
        warm_up(standalone)
        admin = standalone.admin()
        admin.call("PUT", f"/namespaces/{ATTACKED}")
        for namespace, role in ((ATTACKED, ATTACKER), ("public/default", OTHER)):
            path = f"/namespaces/{namespace}/permissions/{role}"
            admin.call("POST", path, ["produce", "consume"])
        serve_another(standalone)  # the ports have loaded what is behind them
        yield standalone
    finally:
        standalone.stop()


@pytest.fixture(autouse=True)
def nothing_happened(broker: Secured, others: None) -> Iterator[None]:
    """The invariant: the process lives, others are served, it has not grown, it tells no secret."""
    pid = broker.pid
    said = len(broker.log_path.read_bytes())
    before = _memory(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
    yield
    with WireClient(broker.broker_port, token=token(OTHER)) as client:
        client.producer("persistent://public/default/others")
        client.publish(b"still here")
    assert broker.pid == pid
    grown = _memory(pid, "VmHWM") - before
    assert grown < GROWTH_BYTES_MAX, f"the process had {grown >> 20} MiB more"
    assert log_lines(broker.log_path, secrets_of()) == [], "in the log"
    assert said <= len(broker.log_path.read_bytes())


@pytest.fixture(scope="module")
def others(broker: Secured) -> Iterator[None]:
    """After the attacks of a file all ports serve another client."""
    yield
    serve_another(broker)


@pytest.fixture(params=["plain", "tls"])
def connect(broker: Secured, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Opens connections to the binary port; ``role`` logs in, else nothing is said."""
    opened = []

    def open_one(role: str | None = None, timeout: float = 30.0) -> WireClient:
        over_tls = request.param == "tls"
        client = WireClient(
            broker.broker_port,
            handshake=role is not None,
            timeout=timeout,
            token=token(role) if role else "",
            connection=broker.over_tls("brokerServiceUrlTls") if over_tls else None,
        )
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def target() -> str:
    """A topic of its own for one attack."""
    return f"persistent://{ATTACKED}/t{next(_numbers)}"


def secrets_of() -> list[str]:
    """What must be in no line of the log."""
    tokens = [token(role) for role in (SUPER_USER, ATTACKER, OTHER)]
    return [CANARY, SECRET.hex(), *tokens, *(found.rpartition(".")[2] for found in tokens)]


def serve_another(broker: Secured) -> None:
    """An innocent client publishes, consumes, asks over HTTP and reads over Flight."""
    topic = f"persistent://public/default/other-{next(_numbers)}"
    with WireClient(broker.broker_port, token=token(OTHER)) as client:
        client.producer(topic)
        client.publish(b"still here")
        client.subscribe(topic, "s")
        assert client.message().payload == b"still here"
    path = topic.replace("://", "/", 1)
    assert broker.admin().get(f"/{path}/stats")["msgInCounter"] == 1
    options = fl.FlightCallOptions(
        timeout=30, headers=[(b"authorization", f"Bearer {token(OTHER)}".encode())]
    )
    with fl.connect(broker.flight_url) as flight:
        ticket = {"topic": topic, "first": [0, 0], "last": [2**62, 0]}
        read = flight.do_get(fl.Ticket(json.dumps(ticket).encode()), options).read_all()
    assert read.num_rows == 1


def warm_up(broker: Secured) -> None:
    """The first request waits for imports, on a busy machine for long."""
    host, port = broker.web_url.rsplit("/", 1)[1].split(":")
    first = http.client.HTTPConnection(host, int(port), timeout=120)
    first.request("GET", "/metrics")
    assert first.getresponse().status == 200
    first.close()


def logged(broker: Secured, *texts: str, seconds: float = 10.0) -> bool:
    """Whether a line of the log has these texts; it may still be on its way.

    An address alone is not enough: an earlier client may have had it.
    """
    deadline = time.monotonic() + seconds
    while True:
        lines = broker.log_path.read_text(errors="replace").splitlines()
        if any(all(text in line for text in texts) for line in lines):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


def _memory(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no {name}")
