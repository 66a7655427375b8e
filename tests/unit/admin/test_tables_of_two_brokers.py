"""Tables and plans of a topic whose partitions two brokers own, as the admin API has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.admin.spark.one_owner import all_here
from pulsark.dispatch.model.entry import stored_entry
from pulsark.errors import ClientError, StorageError
from pulsark.storage.table.staging.staged_ledger import STAGING
from pulsark.wire.position import EARLIEST
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import NAMESPACE
from tests.support.staged import stage
from tests.support.tables import attached_files, entry
from tests.support.two_brokers import Node, TwoBrokers

BASE = "persistent://public/default/p"
TOPIC = f"{NAMESPACE}/p"
PARTITIONS = 6


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


def published(both: TwoBrokers, parts: list[str], count: int = 5) -> None:
    """Some entries in each partition, at its owner."""

    async def publish(part: str) -> None:
        node = await both.owner(part)
        assert node is not None
        topic = await node.broker.topics.load(TopicName.parse(part), create=True)
        for number in range(count):
            data = entry(number)
            topic.ledger.append(data, stored_entry(EARLIEST, data))

    for part in parts:
        both.run(publish(part))


def entries_in_table(both: TwoBrokers) -> dict[int, int]:
    """By partition, as the log says."""
    (table,) = both.disk.list("/table/public/default")
    found: dict[int, int] = {}
    for file in attached_files(both.disk, f"/table/public/default/{table}")[1]:
        count = file.last_entry_id - file.first_entry_id + 1
        found[file.partition] = found.get(file.partition, 0) + count
    return found


def test_a_topic_is_sealed_by_all_owners_of_its_partitions(both: TwoBrokers) -> None:
    published(both, both.partitioned(BASE, PARTITIONS))
    for number, node in enumerate(both.nodes):
        assert both.call(node, "POST", f"{TOPIC}/seal").status == 204
        if not number:
            assert entries_in_table(both) == dict.fromkeys(range(PARTITIONS), 5)
    tables = [both.call(node, "GET", f"{TOPIC}/table").json for node in both.nodes]
    assert tables[0] == tables[1]
    assert (tables[0]["rows"], tables[0]["files"]) == (5 * PARTITIONS, PARTITIONS)
    files = [both.call(node, "GET", f"{TOPIC}/tableFiles").json for node in both.nodes]
    assert files[0] == files[1]
    assert [p["name"] for p in files[0]["partitions"]] == [
        f"{BASE}-partition-{number}" for number in range(PARTITIONS)
    ]
    assert all(ledger["files"] for p in files[0]["partitions"] for ledger in p["ledgers"])


def test_a_plan_says_which_broker_has_each_partition(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    owners = [both.run(both.owner(part)) for part in parts]
    assert len(set(owners)) == 2
    asked = {"topics": {BASE: []}}
    for node in both.nodes:
        plan = both.call(node, "GET", f"{TOPIC}/segments").json
        urls = [part.get("flightUrl", plan["flightUrl"]) for part in plan["partitions"]]
        assert urls == [owner.broker.urls.flight for owner in owners if owner is not None]
        assert len(set(urls)) == 2
        assert [sum(of["entries"] for of in p["ledgers"]) for p in plan["partitions"]] == [5] * 6
        (same,) = both.call(node, "POST", "/admin/v2/spark-plans", asked).json["topics"]
        assert same == plan
        after = [part["ledgers"][0]["ledgerId"] + 1 for part in plan["partitions"]]
        later = f"{TOPIC}/segments?after={','.join(map(str, after))}"
        assert not any(p["ledgers"] for p in both.call(node, "GET", later).json["partitions"])


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("attach", {"tableId": "x", "files": [], "claims": {}}),
        ("table/reserved", {"tableId": "x", "ledgers": [1]}),
        ("table/part/w", {"do": "compact", "partitions": []}),
        ("bulkPublish/reserved", {"do": "decide", "token": "x", "exist": False}),
    ],
)
def test_what_brokers_ask_each_other_is_no_clients(
    both: TwoBrokers, target: str, body: dict[str, Any]
) -> None:
    both.partitioned(BASE, PARTITIONS)
    for node in both.nodes:
        answer = both.call(node, "POST", f"{TOPIC}/{target}", body)
        assert (answer.status, "brokers of a cluster" in answer.reason) == (403, True)


ALL_AT_ONE = {
    "erase": ("PUT", "table/work/w", {"do": "erase", "ids": [[1, [[0, None]]]]}),
    "finish": ("PUT", "table/work/w", {"do": "finishErasure"}),
    "repair": ("PUT", "table/work/w", {"do": "repair"}),
    "job": ("POST", "attach", {"tableId": "x", "files": []}),
}


@pytest.mark.parametrize("what", ALL_AT_ONE)
def test_what_needs_all_partitions_is_refused_and_says_why(both: TwoBrokers, what: str) -> None:
    method, target, body = ALL_AT_ONE[what]
    published(both, both.partitioned(BASE, PARTITIONS))
    assert both.call(both.a, "POST", f"{TOPIC}/seal").status == 204
    before = both.call(both.a, "GET", f"{TOPIC}/table").json
    for node in both.nodes:
        answer = both.call(node, method, f"{TOPIC}/{target}", body)
        assert answer.status == 405
        assert "needs all partitions" in answer.reason
        assert "--brokers 1" in answer.reason
    assert both.call(both.b, "GET", f"{TOPIC}/table").json == before


def test_it_is_done_where_one_broker_has_all(both: TwoBrokers) -> None:
    both.give(BASE, both.a)
    both.run(both.a.broker.creation.create_partitioned_topic(TopicName.parse(BASE), 3, {}))
    parts = TopicName.parse(BASE).partition_names(3)
    for part in parts:
        both.give(part, both.a)
    published(both, parts)
    assert both.call(both.b, "POST", f"{TOPIC}/seal").status == 204
    repair = {"do": "repair"}
    assert both.call(both.b, "PUT", f"{TOPIC}/table/work/w", repair).json["status"] == "RUNNING"
    assert both.call(both.b, "GET", f"{TOPIC}/bulkPublish").json["partitions"] == 3


def test_a_bulk_publish_goes_through_any_broker_to_the_partitions_of_both(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts, 2)
    for number, node in enumerate(both.nodes):
        staging = both.call(node, "GET", f"{TOPIC}/bulkPublish").json
        roots = [directory.removesuffix(f"/{STAGING}") for directory in staging["directories"]]
        ledgers = [
            stage(both.disk, roots, n, [entry(9 + n), entry(20 + n)], f"q{number}p{n}").to_json()
            for n in range(PARTITIONS)
        ]
        body = {"topicId": staging["topicId"], "partitions": PARTITIONS, "ledgers": ledgers}
        path = f"{TOPIC}/bulkPublish/q/{number}"
        assert both.call(node, "GET", path).json == {"published": False}
        assert both.call(node, "PUT", path, body).json == {"published": True}
        for other in both.nodes:
            assert both.call(other, "PUT", path, body).json == {"published": False}
            assert both.call(other, "GET", path).json == {"published": True}
        plan = both.call(node, "GET", f"{TOPIC}/segments").json["partitions"]
        entries = [sum(ledger["entries"] for ledger in part["ledgers"]) for part in plan]
        assert entries == [2 + 2 * (number + 1)] * PARTITIONS
    assert both.call(both.b, "GET", f"{TOPIC}/table").json["rows"] == 2 * 2 * PARTITIONS


def test_a_bulk_publish_is_refused_for_the_reason_of_the_partitions_owner(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    both.call(both.a, "POST", f"{NAMESPACE}/p-partition-{PARTITIONS - 1}/terminate")
    for node in both.nodes:
        answer = both.call(node, "GET", f"{TOPIC}/bulkPublish")
        assert answer.status == 405
        assert f"p-partition-{PARTITIONS - 1} is terminated" in answer.reason


def worked(both: TwoBrokers, node: Node, body: dict[str, Any]) -> dict[str, Any]:
    """What came of a work that is begun at a broker, and asked for at both."""
    path = f"{TOPIC}/table/work/w"
    assert both.call(node, "PUT", path, body).status == 200
    for _ in range(200):
        found = [both.call(each, "GET", path).json for each in both.nodes]
        if all(each["status"] != "RUNNING" for each in found):
            assert found[0] == found[1]
            return found[0]
        both.run(asyncio.sleep(0.05))
    raise AssertionError(found)


def test_a_job_compacts_the_partitions_of_both(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    found = worked(both, both.b, {"do": "compact"})
    assert found["result"] == {"partitions": PARTITIONS, "removed": 0}
    for part in parts:
        owner = both.run(both.owner(part))
        assert owner is not None
        assert both.topic(part, owner).ledger.record.compacted is not None


def test_a_job_says_which_broker_could_not_compact(both: TwoBrokers) -> None:
    both.partitioned(BASE, PARTITIONS)

    async def fail(_topics: Any) -> None:
        raise StorageError("no disk")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulsark.admin.spark.tables._compacted", fail)
        found = worked(both, both.a, {"do": "compact"})
    assert (found["status"], "no disk" in found["error"]) == ("ERROR", True)


def test_retention_is_applied_to_the_partitions_of_both(both: TwoBrokers) -> None:
    published(both, both.partitioned(BASE, PARTITIONS))
    for node in both.nodes:
        assert both.call(node, "POST", f"{TOPIC}/seal").status == 204
    policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    for name in ("retention", "tableRetention"):
        path = f"/admin/v2/namespaces/public/default/{name}"
        assert both.call(both.a, "POST", path, policy).status == 204
    assert both.call(both.a, "PUT", f"{TOPIC}/unload").status == 204  # no ledger is open then
    for node in both.nodes:
        would = both.call(node, "POST", f"{TOPIC}/table/retention?dryRun=true").json
        assert (would["ledgers"], would["rows"]) == (PARTITIONS, 5 * PARTITIONS)
    assert both.call(both.b, "POST", f"{TOPIC}/table/retention").json == would
    assert entries_in_table(both) == {}
    again = both.call(both.a, "POST", f"{TOPIC}/table/retention").json
    assert (again["ledgers"], again["rows"]) == (0, 0)


def test_jobs_seal_nothing_beside_several_brokers(both: TwoBrokers) -> None:
    answer = both.call(both.a, "POST", "/admin/v2/sealing/plan", {})
    assert (answer.status, "by themselves" in answer.reason) == (405, True)


def test_an_older_version_of_a_table_is_the_same_at_each_broker(both: TwoBrokers) -> None:
    published(both, both.partitioned(BASE, PARTITIONS))
    assert both.call(both.a, "POST", f"{TOPIC}/seal").status == 204
    now = both.clock.now_ms()
    found = [
        both.call(node, "GET", f"{TOPIC}/table/past?timestamp={now}").json for node in both.nodes
    ]
    assert found[0] == found[1]
    assert len(found[0]["partitions"]) == PARTITIONS


def test_a_query_moves_its_subscription_in_partitions_of_both_brokers(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    query = "/admin/v2/spark-queries/q"
    body = {"client": "here", "subscription": "s/1", "topics": [BASE]}
    assert both.call(both.b, "PUT", query, body).status == 204
    plan = both.call(both.a, "GET", f"{TOPIC}/segments").json["partitions"]
    places = {p["name"]: {"ledgerId": p["last"]["ledgerId"], "entryId": 0} for p in plan}
    assert len(places) == PARTITIONS
    made = both.call(both.a, "PUT", f"{query}/subscriptions", {"positions": places})
    assert made.json == {"missing": []}
    again = both.call(both.b, "PUT", f"{query}/subscriptions", {"positions": places})
    assert again.json == {"missing": []}
    read = {name: {**place, "entryId": 2} for name, place in places.items()}
    moved = both.call(both.b, "POST", f"{query}/acknowledge", {"positions": read})
    assert moved.json == {"missing": []}

    async def backlog(part: str) -> int:
        node = await both.owner(part)
        assert node is not None
        topic = await node.broker.topics.load(TopicName.parse(part))
        mark = topic.subscriptions["s/1"].cursor.mark_delete
        return topic.ledger.entries_between(mark, topic.ledger.last_confirmed)

    assert [both.run(backlog(part)) for part in parts] == [2] * PARTITIONS
    assert both.call(both.a, "DELETE", f"{TOPIC}/subscription/s%252F1").status == 204
    lost = both.call(both.a, "POST", f"{query}/acknowledge", {"positions": read})
    assert sorted(lost.json["missing"]) == sorted(parts)


def test_work_ends_with_an_error_if_a_partition_moves_meanwhile(both: TwoBrokers) -> None:
    both.give(BASE, both.a)
    topic = TopicName.parse(BASE)
    both.run(both.a.broker.creation.create_partitioned_topic(topic, 3, {}))
    bundle = both.run(both.a.broker.ownership.bundle_named(topic.with_partition(1)))

    async def work() -> None:
        async with all_here(both.a.broker, topic, "This"):
            assert await both.a.broker.bundle_release.release(bundle)
            await both.b.broker.ownership.claim(bundle)

    with pytest.raises(StorageError, match="try again"):
        both.run(work())
    with pytest.raises(ClientError, match="needs all partitions"):
        both.run(work())
