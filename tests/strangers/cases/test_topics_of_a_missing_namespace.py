"""A pattern over a namespace that does not exist ended in an error, or in a time-out.

Did: subscribed to ``persistent://a/missing/.*`` with authorization on.
Saw: the client waited for its operation timeout and failed.
Expected: an empty list, as Pulsar answers it, and a consumer that waits for topics.
"""

from __future__ import annotations

import re

from tests.strangers.conftest import Locked


def test_a_pattern_may_name_a_namespace_that_is_not_there(locked: Locked) -> None:
    client = locked.client("a-admin", operation_timeout_seconds=5)
    for number in range(3):
        pattern = re.compile(f"persistent://a/missing{number}/.*")
        client.subscribe(pattern, "s").close()
    client.close()
