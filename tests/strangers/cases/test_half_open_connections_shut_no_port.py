"""Connections without a login shut the ports and took all file descriptors.

Did: opened 2,100 half HTTP requests from one address, and 700 silent connections to the port for
clients of a broker that may open 600 files.
Saw: ``/status.html``, the liveness probe, answered 503, and topics could not be stored.
Expected: probes and known clients are served meanwhile, and new clients log in.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.standalone import Standalone

DESCRIPTORS = 600
PROGRAM = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
from pulsark.cli import main
main()
"""


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Standalone]:
    """A standalone that may open few files; this process may open enough to flood it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with Standalone(tmp_path / "data", env={"PULSARK_TEST_MAIN": str(program)}) as standalone:
        yield standalone
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _flood(port: int, number: int, said: bytes) -> list[socket.socket]:
    held = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        with contextlib.suppress(OSError):
            connection.sendall(said)
        held.append(connection)
    return held


def _get(standalone: Standalone, path: str) -> int:
    with urllib.request.urlopen(standalone.web_url + path, timeout=10) as answer:
        return int(answer.status)


def test_floods_without_a_login_keep_nobody_out(cramped: Standalone) -> None:
    client = pulsar.Client(
        cramped.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    producer = client.create_producer("before")
    producer.send(b"1")
    half = b"GET /status.html HTTP/1.1\r\nHost: localhost\r\n"
    held = _flood(int(cramped.web_url.rpartition(":")[2]), 2100, half)
    held += _flood(int(cramped.service_url.rpartition(":")[2]), 700, b"")
    try:
        for path in ("/status.html", "/admin/v2/brokers/health", "/metrics"):
            assert _get(cramped, path) == 200
        producer.send(b"2")
        later = pulsar.Client(cramped.service_url)
        later.create_producer("meanwhile").send(b"3")
        later.close()
        client.close()
    finally:
        for connection in held:
            connection.close()
