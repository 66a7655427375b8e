"""What Spark's planner asks: ledgers not read yet, numbers of messages, claims of queries."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.limits import COUNTED_ENTRIES_MAX, QUERY_CLAIM_SECONDS
from pulsark.storage.position import Position
from tests.support.admin_api import NAMESPACE, AdminApi
from tests.support.wire_frames import entry_of

QUERIES = "/admin/v2/spark-queries"


@pytest.fixture
def api() -> Any:
    found = AdminApi(
        managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0
    )
    yield found
    found.close()


def count(api: AdminApi, after: str, through: str, limit: int = 100, topic: str = "t") -> Any:
    found = api.get(
        f"{NAMESPACE}/{topic}/messageCount?after={after}&through={through}&limit={limit}"
    )
    assert found.status == 200, found.body
    last = found.json["last"]
    return found.json["messages"], (last["ledgerId"], last["entryId"], last["batchIndex"])


def ledgers(api: AdminApi, query: str = "") -> list[int]:
    (partition,) = api.get(f"{NAMESPACE}/t/segments{query}").json["partitions"]
    return [ledger["ledgerId"] for ledger in partition["ledgers"]]


def test_the_plan_leaves_out_ledgers_that_are_read(api: AdminApi) -> None:
    for i in range(7):
        api.publish("t", b"%d" % i)
    everything = ledgers(api)
    assert len(everything) > 2
    assert ledgers(api, f"?after={everything[1]}") == everything[1:]
    assert ledgers(api, f"?after={everything[-1] + 1}") == []
    assert ledgers(api, "?after=-1") == everything
    assert api.get(f"{NAMESPACE}/t/segments?after=x").status == 404


def test_each_partition_has_its_own_place_in_the_plan(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 3)
    for i in range(3):
        api.publish(f"p-partition-{i}", b"a")
    plan = api.get(f"{NAMESPACE}/p/segments?after=0,9999").json["partitions"]
    assert [len(partition["ledgers"]) for partition in plan] == [1, 0, 1]


def test_the_plan_tells_what_was_trimmed(api: AdminApi) -> None:
    for i in range(5):
        api.publish("t", b"%d" % i)
    (before,) = api.get(f"{NAMESPACE}/t/segments").json["partitions"]
    assert before["trimmed"] == {"ledgerId": -1, "entryId": -1}
    first, second, *_ = ledgers(api)
    api.run(api.topic("t").ledger.trim(Position(second, 0)))
    (after,) = api.get(f"{NAMESPACE}/t/segments").json["partitions"]
    assert after["trimmed"] == {"ledgerId": first, "entryId": 1}


def test_the_plan_tells_what_compaction_left(api: AdminApi) -> None:
    for number in range(5):
        api.store("t", entry_of(b"x", number, partition_key="ab"[number % 2]))
    asked = f"{NAMESPACE}/t/segments?compacted=true"
    assert "compacted" not in api.get(asked).json["partitions"][0]
    assert api.run(api.topic("t").compactor.run()) == 3
    (plan,) = api.get(asked).json["partitions"]
    assert plan["compacted"]["horizon"] == plan["last"]
    assert plan["compacted"]["entries"] == 2
    assert plan["compacted"]["size"] > 32
    many = {"topics": {"persistent://public/default/t": []}, "compacted": True}
    (answer,) = api.post("/admin/v2/spark-plans", many).json["topics"]
    assert answer["partitions"] == [plan]
    assert "compacted" not in api.get(f"{NAMESPACE}/t/segments").json["partitions"][0]
    ledger_id = plan["compacted"]["ledgerId"]
    places = f"after={ledger_id}:-1&through={ledger_id}:1&limit=9"
    counted = api.get(f"{NAMESPACE}/t/messageCount?{places}&compacted=true").json
    assert counted["messages"] == 2
    gone = f"after={ledger_id + 1}:-1&through={ledger_id + 1}:1&limit=9&compacted=true"
    assert api.get(f"{NAMESPACE}/t/messageCount?{gone}").status == 409
    first = api.get(f"{NAMESPACE}/t/messageid/0?compacted=true").json
    assert (first["ledgerId"], first["entryId"]) != (plan["first"]["ledgerId"], 0)


@pytest.mark.parametrize("cached", [True, False])
def test_messages_are_counted_across_ledgers_and_batches(api: AdminApi, cached: bool) -> None:
    api.publish("t", bytes(99), batch=3)
    api.publish("t", b"d")
    api.publish("t", bytes(99), batch=5)
    first, second = ledgers(api)[:2]
    if not cached:
        api.topic("t")._cache.clear()
    end = f"{second}:0"
    assert count(api, "-1:-1", end) == (9, (second, 0, -1))
    assert count(api, f"{first}:0", end) == (6, (second, 0, -1))
    assert count(api, f"{first}:-1", f"{first}:1") == (4, (first, 1, -1))
    assert count(api, "-1:-1", end, 2) == (2, (first, 0, 1))
    assert count(api, f"{first}:0:1", end, 2) == (2, (first, 1, -1))
    assert count(api, f"{first}:0:1", end, 1) == (1, (first, 0, -1))
    assert count(api, f"{first}:1", end, 4) == (4, (second, 0, 3))
    assert count(api, f"{second}:0:3", end, 4) == (1, (second, 0, -1))
    assert count(api, f"{second}:0", f"{second}:9") == (0, (second, 9, -1))


def test_one_request_counts_a_bounded_number_of_entries(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.dispatch.message_count.COUNTED_ENTRIES_MAX", 2)
    monkeypatch.setattr("pulsark.dispatch.message_count._CHUNK_ENTRIES", 1)
    assert COUNTED_ENTRIES_MAX > 2
    for i in range(5):
        api.publish("t", b"%d" % i)
    first, second, third = ledgers(api)[:3]
    assert count(api, "-1:-1", f"{third}:0") == (2, (first, 1, -1))
    assert count(api, f"{first}:1", f"{third}:0") == (2, (second, 1, -1))
    assert count(api, f"{second}:1", f"{third}:0") == (1, (third, 0, -1))


def test_bad_questions(api: AdminApi) -> None:
    api.publish("t", b"a")
    api.put(f"{NAMESPACE}/p/partitions", 2)
    good = "after=1:2&through=3:4&limit=5"
    assert api.get(f"{NAMESPACE}/p/messageCount?{good}").status == 405
    assert api.get(f"{NAMESPACE}/none/messageCount?{good}").status == 404
    for bad in ("", "after=1&through=3:4&limit=5", "after=1:2&through=3:4&limit=0"):
        assert api.get(f"{NAMESPACE}/t/messageCount?{bad}").status == 404


# -- claims --------------------------------------------------------------------------------------


def claim(api: AdminApi, query: str, *topics: str, subscription: str = "s") -> Any:
    body = {"client": f"{query}-host:1", "subscription": subscription, "topics": list(topics)}
    return api.put(f"{QUERIES}/{query}", body)


def test_a_subscription_is_claimed_by_one_query(api: AdminApi) -> None:
    assert claim(api, "a", "t", "u").status == 204
    assert claim(api, "a", "t", "v").status == 204
    refused = claim(api, "b", "w", "u")
    assert refused.status == 409
    assert refused.reason == "Subscription s of u is in use by another Spark query, at a-host:1"
    assert claim(api, "b", "w").status == 204  # nothing of what was refused was taken
    assert claim(api, "c", "u", subscription="other").status == 204
    listed = {query["query"]: query for query in api.get(QUERIES).json}
    assert listed["a"]["topics"] == ["t", "u", "v"]
    assert listed["c"]["subscription"] == "other"
    assert api.delete(f"{QUERIES}/a").status == 204
    assert api.delete(f"{QUERIES}/a").status == 404
    assert claim(api, "b", "u").status == 204


def test_a_silent_query_loses_its_claims(api: AdminApi) -> None:
    claim(api, "a", "t")
    claim(api, "b", "u")
    api.clock.ms += int(QUERY_CLAIM_SECONDS * 1000)
    assert api.post(f"{QUERIES}/a").status == 204
    api.clock.ms += 1
    assert api.post(f"{QUERIES}/b").status == 404
    assert claim(api, "c", "u").status == 204
    assert claim(api, "c", "t").status == 409


def test_bad_claims(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.put(f"{QUERIES}/a", {"client": 1, "subscription": "s"}).status == 400
    assert api.put(f"{QUERIES}/a", {"client": "c", "subscription": "s", "topics": 1}).status == 400
    assert api.put(f"{QUERIES}/a", {"client": "c" * 300, "subscription": "s"}).status == 412
    monkeypatch.setattr("pulsark.dispatch.query_claims.QUERY_TOPICS_MAX", 1)
    assert claim(api, "a", "t", "u").status == 429
    assert api.get(QUERIES).json == []
