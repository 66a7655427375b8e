"""The right to consume was enough to take the broker's own cursors away.

Did: as a role with ``consume`` only, skipped, rewound and deleted ``__compaction`` over REST, and
claimed ``pulsar.dedup`` and reserved names by the routes of Spark queries.
Saw: compaction lost the newest values, duplicates were stored after a restart, and 30 subscriptions
passed ``maxSubscriptionsPerTopic`` of 2.
Expected: each attempt is refused with a reason, and the cursors stay where they are.
"""

from __future__ import annotations

from typing import Any

import pulsar

from tests.strangers.conftest import Locked

TOPIC = "persistent://a/ns/system-cursors"
PATH = "/admin/v2/persistent/a/ns/system-cursors"
PLACE = {"ledgerId": 2**62, "entryId": 0}
RESERVED = ("__compaction", "pulsar.dedup", "pulsar.repl.x", "", "a\nb", "n" * 2000)


def _cursors(locked: Locked) -> dict[str, Any]:
    _, found = locked.http("GET", f"{PATH}/internalStats")
    return {name: each["markDeletePosition"] for name, each in found["cursors"].items()}


def test_the_brokers_cursors_stay_where_they_are(locked: Locked) -> None:
    client = locked.client("a-both")
    producer = client.create_producer(TOPIC)
    for number in range(10):
        producer.send(b"%d" % number, partition_key="k")
    assert locked.http("PUT", f"{PATH}/compaction")[0] == 204
    for _ in range(1000):
        if locked.http("GET", f"{PATH}/compaction")[1]["status"] == "SUCCESS":
            break
    assert locked.http("POST", f"{PATH}/maxSubscriptionsPerTopic", body=2)[0] == 204
    before = _cursors(locked)
    assert "__compaction" in before
    own = f"{PATH}/subscription/__compaction"
    for role in ("a-consume", "a-admin", "root"):
        for method, path, body in (
            ("POST", f"{own}/skip_all", None),
            ("POST", f"{own}/skip/1", None),
            ("POST", f"{own}/resetcursor/0", None),
            ("POST", f"{own}/resetcursor", {"ledgerId": 0, "entryId": 0}),
            ("POST", f"{own}/expireMessages/1", None),
            ("POST", f"{own}/acknowledge", PLACE),
            ("PUT", f"{own}/properties", {"a": "b"}),
            ("DELETE", f"{own}?force=true", None),
            ("PUT", f"{PATH}/subscription/pulsar.dedup", PLACE),
        ):
            status, answer = locked.http(method, path, role, body)
            assert 400 <= status < 500, (method, path, answer)
            assert answer["reason"]
    for number, name in enumerate(RESERVED):
        query = f"/admin/v2/spark-queries/reserved{number}"
        claim = {"client": "c", "subscription": name, "topics": [TOPIC]}
        assert 400 <= locked.http("PUT", query, "a-consume", claim)[0] < 500
        given = {"positions": {TOPIC: PLACE}}
        assert 400 <= locked.http("PUT", f"{query}/subscriptions", "a-consume", given)[0] < 500
    assert _cursors(locked) == before
    made = 0
    for number in range(5):
        query = f"/admin/v2/spark-queries/many{number}"
        claim = {"client": "c", "subscription": f"s{number}", "topics": [TOPIC]}
        assert locked.http("PUT", query, "a-consume", claim)[0] == 204
        given = {"positions": {TOPIC: {"ledgerId": 0, "entryId": 0}}}
        made += locked.http("PUT", f"{query}/subscriptions", "a-consume", given)[0] == 200
    assert made == 2
    client.close()


def test_the_official_client_gets_no_reserved_name(locked: Locked) -> None:
    client = locked.client("a-both", operation_timeout_seconds=5)
    for name in ("__compaction", "pulsar.dedup", "pulsar.repl.x", "a\nb"):
        try:
            client.subscribe("persistent://a/ns/reserved", name)
        except pulsar.PulsarException:
            continue
        raise AssertionError(f"{name!r} was subscribed")
    client.close()
