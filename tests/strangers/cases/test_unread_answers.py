"""A hundred clients that did not read their answers took all of the memory.

Did: published one message of 16 KB that decompresses to 16 MiB, asked 100 times over HTTP to see
it, and read none of the answers.
Saw: the broker held 1.7 GB. ``/metrics`` without a login behaved likewise.
Expected: a bound for all unread answers together; above it requests are refused for the moment,
and those of another role are not.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pulsar

from tests.strangers.conftest import Locked
from tests.support.secured import token
from tests.support.standalone import silent_clients

PATH = "/admin/v2/persistent/a/ns/unread/examinemessage?initialPosition=earliest"


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def test_unread_answers_have_a_bound_for_all(locked: Locked) -> None:
    client = locked.client("a-both")
    producer = client.create_producer(
        "persistent://a/ns/unread",
        compression_type=pulsar.CompressionType.ZLib,
        batching_enabled=False,
        chunking_enabled=False,
    )
    producer.send(bytes(4 << 20))
    client.close()
    before, port = resident_mib(locked.pid), int(locked.web_url.rpartition(":")[2])
    request = (
        f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('a-both')}\r\n\r\n"
    ).encode()
    with silent_clients(port, request, 100) as unread:
        time.sleep(1)
        firsts = [connection.recv(12)[9:] for connection in unread]
        assert set(firsts) == {b"200", b"503"}
        assert resident_mib(locked.pid) - before < 128
        assert locked.http("GET", PATH, "a-both")[0] == 503
        assert locked.http("GET", "/admin/v2/clusters", "b-both")[0] == 200
    for _ in range(100):
        if locked.http("GET", PATH, "a-both")[0] == 200:
            break
        time.sleep(0.1)
    assert locked.http("GET", PATH, "a-both")[0] == 200
