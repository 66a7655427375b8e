"""One topic with thousands of large subscriptions stopped all clients when it was loaded.

Did: made 7,300 subscriptions with properties of 32 KB each, and restarted the broker.
Saw: everybody waited for seconds while the topic was loaded, and whenever its statistics were read.
Expected: the properties of a topic's subscriptions have a bound together, the error names it, and
statistics and loads of a topic with many subscriptions hold nobody up.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

from tests.support.loop_steps import LongStep
from tests.support.standalone import Standalone

LARGE = "x" * 30_000
LONGEST_SECONDS = 0.25


class Admin:
    """One connection, for many requests."""

    def __init__(self, standalone: Standalone) -> None:
        self._connection = HTTPConnection(standalone.web_url.partition("//")[2], timeout=60)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        read = answer.read()
        return answer.status, json.loads(read) if read else None


def test_subscriptions_with_large_properties_hold_nobody_up(
    measured_standalone: tuple[Standalone, Callable[[], list[LongStep]]],
) -> None:
    standalone, long_steps = measured_standalone
    admin = Admin(standalone)
    topic = f"/admin/v2/persistent/public/default/t{uuid.uuid4().hex[:8]}"
    made = 0
    while True:
        new = {"ledgerId": -1, "entryId": -1, "properties": {"p": LARGE}}
        status, said = admin.call("PUT", f"{topic}/subscription/large-{made}", new)
        if status != 204:
            break
        made += 1
    assert status == 405
    assert "subscriptionPropertiesMaxBytesPerTopic" in said["reason"]
    assert 250 < made < 300
    for number in range(1000):
        assert admin.call("PUT", f"{topic}/subscription/small-{number}")[0] == 204
    for _ in range(2):
        stats = admin.call("GET", f"{topic}/stats")[1]
        assert len(stats["subscriptions"]) == made + 1000
        assert len(admin.call("GET", f"{topic}/internalStats")[1]["cursors"]) == made + 1000
        assert len(admin.call("GET", f"{topic}/subscriptions")[1]) == made + 1000
        assert admin.call("PUT", f"{topic}/unload")[0] == 204
    assert admin.call("DELETE", f"{topic}?force=true")[0] == 204
    assert [step for step in long_steps() if step.seconds > LONGEST_SECONDS] == []
