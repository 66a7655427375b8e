"""A role without any right stopped all clients with one request.

Did: sent one body of 1 MiB with 260,000 names or 340,000 lists.
Saw: everybody waited 0.7 s; 60 of them at once, and the supervisor killed the broker.
Expected: it is refused, and others hardly notice.
"""

from __future__ import annotations

import threading
import time

import pytest

from tests.strangers.conftest import Locked


@pytest.mark.parametrize("values", ['"a"', "[]", '{"":1}'])
def test_a_body_of_very_many_values_is_refused(locked: Locked, values: str) -> None:
    count = (1 << 20) // (len(values) + 1) - 100
    body = "[" + ",".join([values] * count) + "]"
    client = locked.client("b-both")
    producer = client.create_producer("persistent://b/ns/waits", batching_enabled=False)
    producer.send(b"x")
    waits: list[float] = []
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            begun = time.monotonic()
            producer.send(b"x")
            waits.append(time.monotonic() - begun)

    publishing = threading.Thread(target=publish)
    publishing.start()
    request = "/admin/v2/namespaces/grantPermissionsOnTopics"
    for _ in range(3):
        status, _ = locked.raw("POST", request, "nobody", body.encode())
        assert status in (401, 413)
    over.set()
    publishing.join()
    client.close()
    assert sorted(waits)[len(waits) // 2] < 0.1
