"""Tables and plans of a topic whose partitions two brokers own, as the admin API has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.dispatch.model.entry import stored_entry
from pulsark.errors import StorageError
from pulsark.jobs.sealing_tasks import tasks_of
from pulsark.storage.table.staging.staged_ledger import STAGING
from pulsark.wire.entry import parse_entry
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


def worked(both: TwoBrokers, node: Node, body: dict[str, Any], ident: str = "w") -> dict[str, Any]:
    """What came of a work that is begun at a broker, and asked for at both."""
    path = f"{TOPIC}/table/work/{ident}"
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


def test_a_job_is_told_which_broker_serves_what_it_seals() -> None:
    both = TwoBrokers(sealEnabled=True, sealByJobs=True)
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    owners = {part: both.run(both.owner(part)) for part in parts}
    for number, node in enumerate(both.nodes):
        body = {"everything": True, "runner": "r"} | ({"topics": [BASE]} if number else {})
        plan = both.call(node, "POST", "/admin/v2/sealing/plan", body).json
        (table,) = plan["tables"]
        assert (table["topic"], plan["more"]) == (BASE, False)
        found = {each["name"]: each["flightUrl"] for each in table["ranges"]}
        assert found == {
            part: owner.broker.urls.flight for part, owner in owners.items() if owner is not None
        }
        assert len(set(found.values())) == 2
        assert {task.flight_url for task in tasks_of(plan)} == set(found.values())
    other = both.call(both.a, "POST", "/admin/v2/sealing/plan", {"everything": True, "runner": "s"})
    assert other.json["tables"] == []
    both.close()


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


def test_a_query_makes_no_more_subscriptions_than_a_topic_may_have(both: TwoBrokers) -> None:
    both.partitioned(BASE, PARTITIONS)
    assert both.call(both.a, "POST", f"{TOPIC}/maxSubscriptionsPerTopic", 1).status == 204
    assert both.call(both.a, "PUT", f"{TOPIC}/subscription/first").status == 204
    query = "/admin/v2/spark-queries/q"
    body = {"client": "here", "subscription": "second", "topics": [BASE]}
    assert both.call(both.b, "PUT", query, body).status == 204
    for number in range(PARTITIONS):  # whichever broker serves it
        place = {f"{BASE}-partition-{number}": {"ledgerId": 0, "entryId": 0}}
        for node in (both.a, both.b):
            made = both.call(node, "PUT", f"{query}/subscriptions", {"positions": place})
            assert made.status == 405
            assert "maximum number of subscriptions" in made.reason


def places(both: TwoBrokers) -> list[list[Any]]:
    """The first entry of each partition, as it is erased."""
    plan = both.call(both.a, "GET", f"{TOPIC}/segments").json["partitions"]
    return [[part["ledgers"][0]["ledgerId"], [[0, None]]] for part in plan]


def test_messages_of_the_partitions_of_both_are_erased(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    wanted = places(both)
    for number, node in enumerate(both.nodes):
        again = worked(both, node, {"do": "erase", "ids": wanted}, f"erase-{number}")
        assert (again["status"], again["error"]) == ("SUCCESS", "")
        assert again["result"] == {
            "ids": PARTITIONS,
            "entries": PARTITIONS,
            "files": PARTITIONS,
            "missing": 0,
        }
    for part in parts:
        owner = both.run(both.owner(part))
        assert owner is not None
        topic = both.topic(part, owner)
        read = both.run(topic.ledger.read(EARLIEST, 100, 1 << 20))
        assert [parse_entry(data).marker for _, data in read] == [True] + [False] * 4
        assert topic.compactor._blocked == 0, "it may run again"
    left = worked(both, both.b, {"do": "finishErasure", "vacuumHours": 0}, "finish")["result"]
    assert (left["oldFiles"], left["rootsAway"], left["bookiesAway"]) == (0, [], [])
    assert left["deletedFiles"] == 2 * PARTITIONS
    missing = worked(both, both.a, {"do": "erase", "ids": [[999, [[0, None]]]]}, "missing")
    assert missing["result"]["missing"] == 1


def test_consumers_of_both_are_told_what_was_erased(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    for part in parts:
        path = f"/admin/v2/persistent/public/default/{part.rpartition('/')[2]}/subscription/s"
        assert both.call(both.a, "PUT", path, {"ledgerId": 0, "entryId": 0}).status == 204
    assert worked(both, both.a, {"do": "erase", "ids": places(both)})["status"] == "SUCCESS"
    for part in parts:
        owner = both.run(both.owner(part))
        assert owner is not None
        assert both.topic(part, owner).subscriptions["s"].backlog == 4


def test_a_table_with_partitions_of_both_is_repaired(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, PARTITIONS)
    published(both, parts)
    assert both.call(both.a, "POST", f"{TOPIC}/seal").status == 204
    published(both, parts, 3)
    (table,) = both.disk.list("/table/public/default")
    for name in both.disk.list(f"/table/public/default/{table}/_delta_log"):
        both.disk.remove(f"/table/public/default/{table}/_delta_log/{name}")
    lost = places(both)[3][0]
    for entry_id in (5, 6):
        both.bookie.lose(lost, entry_id)
    done = worked(both, both.b, {"do": "repair"})["result"]
    assert (done["filesLost"], done["entriesLost"], done["entriesGivenUp"]) == (0, 2, 0)
    done = worked(both, both.a, {"do": "repair", "giveUp": True}, "again")["result"]
    assert (done["entriesLost"], done["entriesGivenUp"]) == (0, 2)
    assert both.call(both.b, "POST", f"{TOPIC}/seal").status == 204
    assert both.call(both.a, "GET", f"{TOPIC}/table").json["files"] == 2 * PARTITIONS + 1
    owner = both.run(both.owner(parts[3]))
    assert owner is not None
    read = both.run(both.topic(parts[3], owner).ledger.read(EARLIEST, 100, 1 << 20))
    assert [parse_entry(data).marker for _, data in read] == [False] * 5 + [True] * 2 + [False]
