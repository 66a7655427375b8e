"""What Spark's planner asks: ledgers not read yet, numbers of messages, claims of queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from pulsark.limits import COUNTED_ENTRIES_MAX, QUERY_CLAIM_SECONDS
from pulsark.rates.shares import SharedBudget
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from pulsark.wire.position import Position
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


@pytest.fixture
def secured() -> Iterator[AdminApi]:
    """Two roles may consume the topics of ``public/default``."""
    found = AdminApi(rules=Rules({"root"}, (), True))
    found.principal = Principal("root")
    for role in ("greedy", "other"):
        granted = found.post(f"/admin/v2/namespaces/public/default/permissions/{role}", ["consume"])
        assert granted.status < 300
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


def test_the_end_of_a_deleted_topic_is_remembered(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topic_ids(name: str) -> list[str]:
        partitions = api.get(f"{NAMESPACE}/{name}/segments").json["partitions"]
        return [each["topicId"] for each in partitions]

    def ended(name: str, topic_id: str) -> Any:
        answer = api.get(f"{NAMESPACE}/{name}/deleted/{topic_id}")
        return answer.json["last"] if answer.status == 200 else answer.status

    monkeypatch.setattr(api.broker.deletion.ended, "_most", 3)
    api.publish("t", b"a", b"b")
    (last,) = [each["last"] for each in api.get(f"{NAMESPACE}/t/segments").json["partitions"]]
    (first_id,) = topic_ids("t")
    assert ended("t", first_id) == 404
    api.delete(f"{NAMESPACE}/t?force=true")
    assert ended("t", first_id) == last
    api.topic("t")
    (second_id,) = topic_ids("t")
    api.delete(f"{NAMESPACE}/t?force=true")
    assert ended("t", first_id) == last
    assert ended("t", second_id) == {"ledgerId": -1, "entryId": -1}
    assert ended("u", first_id) == 404
    api.put(f"{NAMESPACE}/p/partitions", 2)
    ids = topic_ids("p")
    api.delete(f"{NAMESPACE}/p/partitions?force=true")
    for number, topic_id in enumerate(ids):
        assert ended(f"p-partition-{number}", topic_id) == {"ledgerId": -1, "entryId": -1}
    assert ended("t", first_id) == 404  # room for three


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
        api.topic("t").entries.cache.clear()
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
    monkeypatch.setattr("pulsark.dispatch.topic.message_count.COUNTED_ENTRIES_MAX", 2)
    monkeypatch.setattr("pulsark.dispatch.topic.message_count._CHUNK_ENTRIES", 1)
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


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def claim(
    api: AdminApi, query: str, *topics: str, subscription: str | None = "s", make: bool = True
) -> Any:
    for topic in topics:
        if make and api.get(f"{NAMESPACE}/{topic}/partitions").status == 404:
            api.put(f"{NAMESPACE}/{topic}")
    body = {"client": f"{query}-host:1", "subscription": subscription, "topics": list(topics)}
    return api.put(f"{QUERIES}/{query}", body)


def test_a_subscription_is_claimed_by_one_query(api: AdminApi) -> None:
    assert claim(api, "a", "t", "u").status == 204
    assert claim(api, "a", full("t"), "v").status == 204
    refused = claim(api, "b", "w", "u")
    assert refused.status == 409
    assert refused.reason == (
        f"Subscription s of {full('u')} is in use by another Spark query, at a-host:1"
    )
    assert claim(api, "b", "w").status == 204  # nothing of what was refused was taken
    assert claim(api, "c", "u", subscription="other").status == 204
    assert claim(api, "d", "u", subscription=None).status == 204
    listed = {query["query"]: query for query in api.get(QUERIES).json}
    assert listed["a"]["topics"] == [full("t"), full("u"), full("v")]
    assert listed["c"]["subscription"] == "other"
    assert listed["d"]["subscription"] is None
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
    assert claim(api, "a", "no/topic").status == 412
    monkeypatch.setattr(api.app.state.queries, "_budget", SharedBudget(2))
    assert claim(api, "a", "t", "u").status == 429
    assert api.get(QUERIES).json == []
    assert claim(api, "a", "t").status == 204
    assert claim(api, "a", "t").status == 204
    assert api.post(f"{QUERIES}/a", places(api, "t")).status == 429
    assert api.delete(f"{QUERIES}/a").status == 204
    assert claim(api, "a", "u").status == 204


def test_topics_that_do_not_exist_are_not_claimed(api: AdminApi) -> None:
    assert claim(api, "a", "t").status == 204
    assert claim(api, "a", *(f"none{number}" for number in range(500)), make=False).status == 204
    assert api.get(QUERIES).json[0]["topics"] == [full("t")]
    assert claim(api, "b", "none1").status == 204


def test_one_role_does_not_take_the_claims_of_all(
    secured: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = secured
    monkeypatch.setattr(api.app.state.queries, "_budget", SharedBudget(20))
    names = [f"t{number}" for number in range(20)]
    for name in names:
        claim(api, "root", name)
    api.delete(f"{QUERIES}/root")
    api.principal = Principal("greedy")
    taken = [claim(api, f"g{name}", name, make=False).status for name in names]
    assert taken == [204] * 5 + [429] * 15
    api.principal = Principal("other")
    assert claim(api, "o", *names[:3], subscription="o", make=False).status == 204


def test_names_are_checked_one_by_one_before_they_are_looked_up(secured: AdminApi) -> None:
    secured.principal = Principal("nobody")
    read = secured.broker.catalog.require_topic = Mock()  # type: ignore[method-assign]
    assert claim(secured, "a", *(f"t{n}" for n in range(1000)), make=False).status == 401
    assert read.call_count == 0


# -- how far queries are -------------------------------------------------------------------------


def places(api: AdminApi, *partitions: str, entry_id: int = 0) -> Any:
    """The entry of each partition's first ledger, as the body of a request."""
    found = {}
    for name in partitions:
        infos = api.topic(name).ledger.ledgers() if api.get(f"{NAMESPACE}/{name}/stats") else []
        found[full(name)] = {"ledgerId": infos[0].ledger_id if infos else 0, "entryId": entry_id}
    return {"positions": found}


def queries(api: AdminApi, query: str = "?getEarliestTimeInBacklog=true") -> dict[str, Any]:
    return {found["query"]: found for found in api.get(f"{QUERIES}{query}").json}


def test_how_far_behind_a_query_is(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    published = []
    for number in range(5):
        published.append(api.clock.ms)
        api.publish(f"p-partition-{number % 2}", b"x", publish_time=published[-1])
        api.clock.ms += 100
    names = ("p-partition-0", "p-partition-1")
    claim(api, "follows", "p")
    claim(api, "reads", "p", subscription=None)
    created = api.put(f"{QUERIES}/follows/subscriptions", places(api, *names))
    assert created.json == {"missing": []}
    assert queries(api)["follows"]["msgBacklog"] == 5
    assert queries(api)["reads"]["msgBacklog"] == 0  # nothing is known of it yet
    moved = api.post(f"{QUERIES}/follows/acknowledge", places(api, *names))
    assert moved.json == {"missing": []}
    api.post(f"{QUERIES}/reads", places(api, *names))
    for name, found in queries(api).items():
        assert found["msgBacklog"] == 3, name
        assert found["backlogSize"] > 0
        assert found["earliestMsgPublishTimeInBacklog"] == published[2]
    assert "earliestMsgPublishTimeInBacklog" not in queries(api, "")["reads"]
    stats = api.get(f"{NAMESPACE}/p/partitioned-stats").json["sparkQueries"]
    assert [(found["query"], found["msgBacklog"]) for found in stats] == [
        ("follows", 3),
        ("reads", 3),
    ]
    stats = api.get(f"{NAMESPACE}/p-partition-1/stats").json["sparkQueries"]
    assert [found["msgBacklog"] for found in stats] == [1, 1]
    api.delete(f"{QUERIES}/follows")
    api.delete(f"{QUERIES}/reads")
    assert "sparkQueries" not in api.get(f"{NAMESPACE}/p/partitioned-stats").json


def test_what_spark_says_of_a_query(api: AdminApi) -> None:
    claim(api, "a", "t")
    said = {"name": "orders", "id": "1", "runId": "2", "batchId": 7, "inputRowsPerSecond": 1.5}
    assert "batchId" not in queries(api)["a"]
    assert api.put(f"{QUERIES}/a/progress", said).status == 204
    found = queries(api)["a"]
    assert {key: found[key] for key in said} == said
    assert found["processedRowsPerSecond"] == 0.0
    assert api.put(f"{QUERIES}/a/progress", {**said, "name": 1}).status == 400
    assert api.put(f"{QUERIES}/a/progress", {**said, "batchId": "x"}).status == 400
    assert api.put(f"{QUERIES}/b/progress", said).status == 404


def test_a_subscription_of_many_topics_is_made_and_moved_at_once(api: AdminApi) -> None:
    names = [f"t{number}" for number in range(120)]
    for name in names:
        api.publish(name, b"a")
        api.publish(name, b"b")
    claim(api, "a", *names, "gone", make=False)
    body = places(api, *names)
    body["positions"][full("gone")] = {"ledgerId": 1, "entryId": 0}
    assert api.put(f"{QUERIES}/a/subscriptions", body).json == {"missing": [full("gone")]}
    assert api.put(f"{QUERIES}/a/subscriptions", body).json == {"missing": [full("gone")]}
    assert queries(api)["a"]["msgBacklog"] == 240
    api.delete(f"{NAMESPACE}/t7/subscription/s")
    assert api.post(f"{QUERIES}/a/acknowledge", body).json == {
        "missing": [full("t7"), full("gone")]
    }
    assert queries(api)["a"]["msgBacklog"] == 119
    assert api.get(f"{NAMESPACE}/gone/stats").status == 404  # it was not made


def test_bad_places(api: AdminApi) -> None:
    api.publish("t", b"a")
    claim(api, "a", "t")
    claim(api, "b", "t", subscription=None)
    for path in ("subscriptions", "acknowledge"):
        do = api.put if path == "subscriptions" else api.post
        assert do(f"{QUERIES}/b/{path}", places(api, "t")).status == 412
        assert do(f"{QUERIES}/c/{path}", places(api, "t")).status == 404
        gone = {"positions": {full("gone"): {"ledgerId": 1, "entryId": 0}}}
        assert do(f"{QUERIES}/a/{path}", gone).json == {"missing": [full("gone")]}
        claim(api, "d", "u")
        other = {"positions": {full("u"): {"ledgerId": 1, "entryId": 0}}}
        assert do(f"{QUERIES}/a/{path}", other).status == 412
        assert do(f"{QUERIES}/a/{path}", {"positions": [1]}).status == 412
        assert do(f"{QUERIES}/a/{path}", {"positions": {full("t"): 5}}).status == 400


def test_a_query_that_claims_more_without_its_subscription_takes_it_from_nobody(
    api: AdminApi,
) -> None:
    queries = "/admin/v2/spark-queries"
    for topic in ("t", "u"):
        api.topic(topic)
    claim = {"client": "c", "subscription": "s", "topics": ["t"]}
    assert api.put(f"{queries}/first", claim).status == 204
    assert api.put(f"{queries}/second", {**claim, "topics": ["u"]}).status == 204
    assert api.put(f"{queries}/second", {"client": "c", "topics": ["t"]}).status == 409
    assert api.delete(f"{queries}/second").status == 204
    assert api.delete(f"{queries}/first").status == 204
