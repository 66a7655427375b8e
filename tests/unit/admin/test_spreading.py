"""What is about partitions, namespaces or all brokers is done by each broker for what it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.dispatch.peers.whereabouts import Peer
from tests.support.admin_api import NAMESPACE
from tests.support.two_brokers import TwoBrokers

BASE = "persistent://public/default/p"
V2 = "/admin/v2"
EARLIEST = {"ledgerId": -1, "entryId": -1}


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


def owners(both: TwoBrokers, parts: list[str]) -> list[int]:
    """By partition the number of the broker that has it in memory."""
    return [[both.is_loaded(part, node) for node in both.nodes].index(True) for part in parts]


def test_a_subscription_is_made_and_deleted_in_all_partitions(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, 6)
    assert both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST).status == 204
    assert set(owners(both, parts)) == {0, 1}
    for node in both.nodes:
        assert both.call(node, "GET", f"{NAMESPACE}/p/subscriptions").json == ["s"]
    assert both.call(both.b, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST).status == 409
    assert both.call(both.b, "DELETE", f"{NAMESPACE}/p/subscription/s").status == 204
    assert both.call(both.a, "GET", f"{NAMESPACE}/p/subscriptions").json == []
    missing = both.call(both.a, "DELETE", f"{NAMESPACE}/p/subscription/s")
    assert (missing.status, missing.reason) == (404, "Subscription not found")


@pytest.mark.parametrize(
    ("method", "target", "ends"),
    [
        ("GET", f"{NAMESPACE}/p/subscriptions", True),
        ("GET", f"{V2}/non-persistent/public/default", True),
        ("DELETE", f"{NAMESPACE}/p/subscription/s", False),
    ],
)
def test_what_is_read_for_a_client_ends_with_it_and_what_is_changed_is_changed(
    both: TwoBrokers, method: str, target: str, ends: bool
) -> None:
    both.partitioned(BASE, 6)
    assert both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST).status == 204
    asked, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    part, under_way = both.a.peers.part, 0

    async def slow(*args: Any, **named: Any) -> tuple[int, bytes]:
        nonlocal under_way
        under_way += 1
        asked.set()
        try:
            await goes_on.wait()
            return await part(*args, **named)
        finally:
            under_way -= 1
            if not under_way:
                ended.set()

    async def hang_up() -> None:
        host, _, port = both.a.peer.broker_id.partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        async with asyncio.timeout(20):
            await asked.wait()
            writer.close()
            if not ends:
                goes_on.set()
            await ended.wait()

    both.a.peers.part = slow  # type: ignore[method-assign]
    both.run(hang_up())
    both.a.peers.part = part  # type: ignore[method-assign]
    if not ends:
        until = time.monotonic() + 10
        while both.call(both.b, "GET", f"{NAMESPACE}/p/subscriptions").json:
            assert time.monotonic() < until


@pytest.mark.parametrize(
    ("method", "tail", "body", "status"),
    [
        ("POST", "subscription/s/skip_all", None, 204),
        ("POST", "subscription/s/resetcursor/0", None, 204),
        ("POST", "subscription/s/expireMessages/1", None, 409),
        ("POST", "all_subscription/expireMessages/1", None, 409),
        ("PUT", "subscription/s/properties", {"a": "b"}, 204),
        ("GET", "subscription/s/properties", None, 200),
        ("POST", "subscription/s/replicatedSubscriptionStatus", True, 204),
        ("GET", "subscription/s/replicatedSubscriptionStatus", None, 200),
        ("PUT", "unload", None, 204),
        ("POST", "trim", None, 200),
        ("DELETE", "truncate", None, 204),
        ("PUT", "compaction", None, 204),
        ("POST", "createMissedPartitions", None, 204),
        ("GET", "internal-info", None, 200),
        ("GET", "partitioned-internalStats", None, 200),
        ("GET", "partitioned-stats", None, 200),
        ("POST", "terminate/partitions", None, 200),
        ("GET", "views/topics", None, 200),
        ("GET", "views/schemas", None, 200),
    ],
)
def test_a_route_about_partitions_answers_as_one_broker_would(
    both: TwoBrokers, method: str, tail: str, body: Any, status: int
) -> None:
    parts = both.partitioned(BASE, 6)
    both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    answers = [both.call(node, method, f"{NAMESPACE}/p/{tail}", body) for node in both.nodes]
    assert answers[0].status == status, answers[0].body
    if method == "GET":
        assert answers[0].json == answers[1].json
        if isinstance(answers[0].json, dict) and "partitions" in answers[0].json:
            assert sorted(answers[0].json["partitions"]) == parts
    if tail == "terminate/partitions":
        assert list(answers[0].json) == [str(index) for index in range(6)]
    if tail == "views/topics":
        assert [row["partition"] for row in answers[0].json] == list(range(6))


def test_statistics_of_partitions_are_added_up(both: TwoBrokers) -> None:
    both.partitioned(BASE, 4)
    both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    found = both.call(both.a, "GET", f"{NAMESPACE}/p/partitioned-stats?perPartition=false").json
    assert found["metadata"] == {"partitions": 4, "deleted": False}
    assert found["partitions"] == {}
    assert list(found["subscriptions"]) == ["s"]


def test_the_first_partition_that_fails_is_named(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, 4)
    gone = Peer("127.0.0.1:1", "http://127.0.0.1:1")
    both.a.knows.forced[parts[2]] = [gone]
    failed = both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    assert failed.status == 503
    assert failed.reason.startswith(f"{parts[2]}: broker 127.0.0.1:1, which serves it")


def test_a_name_is_put_in_place_of_the_topic_wherever_it_comes(both: TwoBrokers) -> None:
    name = "persistent://public/default/default"
    both.partitioned(name, 4)
    path = f"{NAMESPACE}/default/subscription/default"
    assert both.call(both.a, "PUT", path, EARLIEST).status == 204
    assert both.call(both.b, "GET", f"{NAMESPACE}/default/subscriptions").json == ["default"]


def test_a_topic_that_is_made_with_its_subscription_may_have_partitions(both: TwoBrokers) -> None:
    auto = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 5}
    policy = f"{V2}/namespaces/public/default/autoTopicCreation"
    assert both.call(both.a, "POST", policy, auto).status == 204
    assert both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST).status == 204
    assert both.call(both.b, "GET", f"{NAMESPACE}/p/partitions").json["partitions"] == 5
    assert both.call(both.b, "GET", f"{NAMESPACE}/p/subscriptions").json == ["s"]


# -- topics as a whole ---


def test_a_topic_goes_with_all_its_partitions_wherever_they_are(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, 6)
    both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    assert both.call(both.b, "DELETE", f"{NAMESPACE}/p/partitions").status == 204
    for node in both.nodes:
        assert not any(both.is_loaded(part, node) for part in parts)
        assert both.call(node, "GET", f"{NAMESPACE}/p/partitions").status == 404
        assert both.call(node, "GET", f"{V2}/persistent/public/default").json == []


def test_a_topic_that_is_used_at_another_broker_stays(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, 6)
    theirs = next(part for part in parts if both.run(both.owner(part)) is both.b)
    both.connect_producer(theirs, both.b)
    base = both.run(both.owner(BASE))
    refused = both.call(base or both.a, "DELETE", f"{NAMESPACE}/p/partitions")
    assert refused.status == 412
    assert both.call(both.a, "GET", f"{NAMESPACE}/p/partitions").json["partitions"] == 6
    assert both.call(both.a, "DELETE", f"{NAMESPACE}/p/partitions?force=true").status == 204
    assert not both.is_loaded(theirs, both.b)


def test_more_partitions_have_the_subscriptions_of_the_first(both: TwoBrokers) -> None:
    both.partitioned(BASE, 4)
    body = {**EARLIEST, "properties": {"a": "b"}}
    target = f"{NAMESPACE}/p/subscription/s%252F1?replicated=true"
    assert both.call(both.a, "PUT", target, body).status == 204
    assert both.call(both.b, "POST", f"{NAMESPACE}/p/partitions", 12).status == 204
    found = both.call(both.a, "GET", f"{NAMESPACE}/p/partitioned-stats").json
    assert len(found["partitions"]) == 12
    for each in found["partitions"].values():
        assert each["subscriptions"]["s/1"]["subscriptionProperties"] == {"a": "b"}
        assert each["subscriptions"]["s/1"]["isReplicated"]


# -- namespaces ---


def test_a_namespace_is_unloaded_everywhere(both: TwoBrokers) -> None:
    parts = both.partitioned(BASE, 6)
    both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    assert set(owners(both, parts)) == {0, 1}
    assert both.call(both.a, "PUT", f"{V2}/namespaces/public/default/unload").status == 204
    assert not any(both.is_loaded(part, node) for part in parts for node in both.nodes)


@pytest.mark.parametrize(("path", "left"), [("clearBacklog/s", ["s"]), ("unsubscribe/s", [])])
def test_subscriptions_of_a_namespace_are_worked_on_by_the_owners(
    both: TwoBrokers, path: str, left: list[str]
) -> None:
    both.partitioned(BASE, 6)
    both.call(both.a, "PUT", f"{NAMESPACE}/p/subscription/s", EARLIEST)
    assert both.call(both.b, "POST", f"{V2}/namespaces/public/default/{path}").status == 204
    assert both.call(both.a, "GET", f"{NAMESPACE}/p/subscriptions").json == left


def test_topics_in_the_memory_of_any_broker_are_listed(both: TwoBrokers) -> None:
    made = [f"non-persistent://public/default/v{index}" for index in range(6)]
    for index, name in enumerate(made):
        if both.run(both.owner(name)) is None:
            both.give(name, both.nodes[index % 2])
        target = name.replace("://", "/")
        assert both.call(both.a, "PUT", f"{V2}/{target}").status == 204
    assert {both.run(both.owner(name)) for name in made} == set(both.nodes)
    for node in both.nodes:
        for target in (
            "non-persistent/public/default",
            "namespaces/public/default/topics?mode=ALL",
            "namespaces/public/default/topics?mode=NON_PERSISTENT",
        ):
            assert both.call(node, "GET", f"{V2}/{target}").json == made


def test_a_namespace_goes_with_what_other_brokers_have_in_memory() -> None:
    both = TwoBrokers(forceDeleteNamespaceAllowed=True)
    try:
        name = "non-persistent://public/default/v"
        both.give(name, both.b)
        assert both.call(both.b, "PUT", f"{V2}/{name.replace('://', '/')}").status == 204
        target = f"{V2}/namespaces/public/default"
        assert both.call(both.a, "DELETE", target).status == 409
        assert both.call(both.a, "DELETE", f"{target}?force=true").status == 204
        assert both.b.broker.non_persistent.all() == []
    finally:
        both.close()


def test_parts_are_asked_of_nobody_twice(both: TwoBrokers) -> None:
    """A part is done by its receiver: it asks no other broker for parts of it."""
    parts = both.partitioned(BASE, 4)
    before = both.b.knows.asked
    both.call(both.a, "PUT", f"{NAMESPACE}/p/unload")
    asked = both.b.knows.asked - before
    assert asked <= len([part for part in parts if both.run(both.owner(part)) is both.b])
