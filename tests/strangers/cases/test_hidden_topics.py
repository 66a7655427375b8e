"""Topics whose names begin with ``__`` were in no list, and no limit counted them.

Did: set ``maxTopicsPerNamespace`` to 2 and as a producer made 50 topics ``__h0``, ``__h1`` ....
Saw: all were made, and the tenant's administrator saw none of them.
Expected: the third topic is refused, whatever its name is; all are listed.
"""

from __future__ import annotations

import pulsar

from tests.strangers.conftest import Locked


def test_a_prefix_is_no_privilege(locked: Locked) -> None:
    few = "/admin/v2/namespaces/a/few"
    assert locked.http("PUT", few, body={"max_topics_per_namespace": 2})[0] == 204
    assert locked.http("POST", f"{few}/permissions/a-produce", body=["produce"])[0] == 204
    client = locked.client("a-produce", operation_timeout_seconds=5)
    made = []
    for name in ("__change_events", "__h0", "__h1", "t", "__transaction_buffer_snapshot"):
        topic = f"persistent://a/few/{name}"
        try:
            client.create_producer(topic).close()
            made.append(topic)
        except pulsar.PulsarException:
            pass
    client.close()
    assert len(made) == 2
    assert sorted(locked.http("GET", f"{few}/topics", "a-admin")[1]) == sorted(made)
    assert sorted(locked.http("GET", "/admin/v2/persistent/a/few", "a-admin")[1]) == sorted(made)
