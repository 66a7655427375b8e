"""Strangers who asked for metrics again and again kept Prometheus from them.

Did: opened 60 connections without a login, asked for a large ``/metrics`` on each, read nothing.
Saw: Prometheus got 503, as its address had used up its share of unread answers.
Expected: metrics and health are always answered, in full, whoever else asks.
"""

from __future__ import annotations

import gzip
import json
import uuid
from urllib.request import Request, urlopen

from tests.support.standalone import Standalone, silent_clients

PARTITIONS = 100


def call(standalone: Standalone, method: str, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{standalone.web_url}{path}", data=data, method=method)
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=60) as answer:
        assert answer.status < 300
        return bytes(answer.read())


def test_metrics_are_answered_whoever_else_asks(shared_standalone: Standalone) -> None:
    topic = f"/admin/v2/persistent/public/default/metrics-{uuid.uuid4().hex[:8]}"
    call(shared_standalone, "PUT", f"{topic}/partitions", PARTITIONS)
    call(shared_standalone, "PUT", f"{topic}/subscription/s")
    port = int(shared_standalone.web_url.rpartition(":")[2])
    request_bytes = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        with silent_clients(port, request_bytes, 60) as silent:
            for connection in silent:
                assert connection.recv(12)[9:] == b"200"
            for _ in range(3):
                plain = call(shared_standalone, "GET", "/metrics")
                assert plain.count(b"pulsar_subscription_back_log{") >= PARTITIONS
                request = Request(f"{shared_standalone.web_url}/metrics")
                request.add_header("Accept-Encoding", "gzip")
                with urlopen(request, timeout=60) as answer:
                    packed = answer.read()
                assert len(packed) < len(plain) / 5
                assert gzip.decompress(packed).count(b"pulsar_subscription_back_log{") >= PARTITIONS
                assert call(shared_standalone, "GET", "/admin/v2/brokers/health") == b"ok"
                assert call(shared_standalone, "GET", "/status.html") == b"OK"
    finally:
        call(shared_standalone, "DELETE", f"{topic}/partitions?force=true")
