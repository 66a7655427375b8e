"""Topics, partitions and subscriptions over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.limits import TOPIC_PROPERTIES_BYTES_MAX
from pulsark.wire.position import Position
from tests.support.admin_api import NAMESPACE, AdminApi, Answer, subscription_path

PARTITIONED = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
JSON = {"content-type": "application/json"}
LARGEST = 2**63 - 1


def full(name: str) -> str:
    return f"persistent://public/default/{name}"


# -- topics -----------------------------------------------------


def test_a_topic_comes_and_goes(api: AdminApi) -> None:
    assert api.get(f"{NAMESPACE}/t/stats").status == 404
    assert api.put(f"{NAMESPACE}/t").status == 204
    assert api.put(f"{NAMESPACE}/t").status == 409
    assert api.put(f"{NAMESPACE}/t/partitions", 2).status == 409
    assert api.get(NAMESPACE).json == [full("t")]
    assert api.get(f"{NAMESPACE}/t/partitions").json == {"partitions": 0, "deleted": False}
    assert api.get(f"{NAMESPACE}/t/stats").status == 200
    assert api.delete(f"{NAMESPACE}/t").status == 204
    assert api.delete(f"{NAMESPACE}/t").status == 404
    assert api.get(NAMESPACE).json == []


@pytest.mark.parametrize("raw", [b"", b"null", b"{}", b'{"k":"v"}'])
def test_bodies_of_create(api: AdminApi, raw: bytes) -> None:
    made = api.call("PUT", f"{NAMESPACE}/t", raw=raw, headers={"content-type": "application/json"})
    assert made.status == 204
    found = api.get(f"{NAMESPACE}/t/properties").json
    assert found == ({"k": "v"} if b"v" in raw else {})


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        ("a+b%25c%2Bd%3A%C3%A9", "a b%c+d:é"),  # as Java's client writes it
        ("a%20b%25c%2Bd:%C3%A9", "a b%c+d:é"),
        ("%E2%82%AC", "€"),
        ("x-partition-abc", "x-partition-abc"),
    ],
)
def test_encoded_names(api: AdminApi, segment: str, name: str) -> None:
    assert api.put(f"{NAMESPACE}/{segment}").status == 204
    assert api.get(NAMESPACE).json == [full(name)]
    assert api.get(f"{NAMESPACE}/{segment}/stats").status == 200
    assert api.delete(f"{NAMESPACE}/{segment}").status == 204


def test_clients_in_the_way(api: AdminApi) -> None:
    producer = api.connect_producer("t")
    assert api.delete(f"{NAMESPACE}/t").status == 412
    assert api.delete(f"{NAMESPACE}/t?force=true").status == 204
    assert producer.closed


def test_an_idle_subscription_is_not_in_the_way(api: AdminApi) -> None:
    assert api.put(subscription_path("t", "s")).status == 204
    assert api.delete(f"{NAMESPACE}/t").status == 204


def test_properties(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t", {"a": "1"})
    assert api.put(f"{NAMESPACE}/t/properties", {"b": "2"}).status == 204
    assert api.get(f"{NAMESPACE}/t/properties").json == {"a": "1", "b": "2"}
    assert api.delete(f"{NAMESPACE}/t/properties?key=a").status == 204
    assert api.get(f"{NAMESPACE}/t/properties").json == {"b": "2"}
    assert api.put(f"{NAMESPACE}/none/properties", {"b": "2"}).status == 404
    assert api.put(f"{NAMESPACE}/t/properties", {"b": [2]}).status == 400


def test_a_terminated_topic_has_properties_too(api: AdminApi) -> None:
    api.publish("t", b"a")
    assert api.post(f"{NAMESPACE}/t/terminate").status == 200
    assert api.put(f"{NAMESPACE}/t/properties", {"b": "2"}).status == 204
    assert api.get(f"{NAMESPACE}/t/properties").json == {"b": "2"}
    assert api.delete(f"{NAMESPACE}/t/properties?key=b").status == 204


@pytest.mark.parametrize("partitions", [0, 2])
def test_properties_have_a_limit_of_bytes(api: AdminApi, partitions: int) -> None:
    most = TOPIC_PROPERTIES_BYTES_MAX
    path = f"{NAMESPACE}/t" + ("/partitions" if partitions else "")

    def create(properties: dict[str, str]) -> Answer:
        body = {"partitions": partitions, "properties": properties} if partitions else properties
        raw = json.dumps(body).encode()
        return api.call("PUT", path, raw=raw, headers=PARTITIONED if partitions else JSON)

    refused = create({"k": "\N{GRINNING FACE}" * (most // 4)})
    assert refused.status == 412
    assert f"properties would have {most + 1} bytes, and may have {most}" in refused.json["reason"]
    assert create({"k": "x"}).status == 204
    whole = {"k": "x" * (most - 1)}
    assert api.put(f"{NAMESPACE}/t/properties", whole).status == 204
    assert api.put(f"{NAMESPACE}/t/properties", {"l": ""}).status == 412
    assert api.get(f"{NAMESPACE}/t/properties").json == whole
    assert api.put(f"{NAMESPACE}/t/properties", {"k": "shorter"}).status == 204


def test_last_message_and_message_by_time(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    empty = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert api.get(f"{NAMESPACE}/t/lastMessageId").json == empty
    api.publish("t", b"a", publish_time=1000)
    api.publish("t", b"b", publish_time=2000)
    last = api.get(f"{NAMESPACE}/t/lastMessageId").json
    assert (last["entryId"], last["batchIndex"]) == (1, -1)
    assert api.get(f"{NAMESPACE}/t/messageid/1500").json["entryId"] == 1
    assert api.get(f"{NAMESPACE}/t/messageid/5000").json["entryId"] == 2
    assert api.get(f"{NAMESPACE}/none/lastMessageId").status == 404


def test_unload_and_load_again(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    api.publish("t", b"a")
    consumer = api.connect_consumer("t", "s")
    assert api.put(f"{NAMESPACE}/t/unload").status == 204
    assert consumer.closed
    stats = api.get(f"{NAMESPACE}/t/stats").json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 1
    assert api.put(f"{NAMESPACE}/none/unload").status == 404


def test_unload_a_namespace_and_its_bundles(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    namespace = "/admin/v2/namespaces/public/default"
    bundle = api.get("/lookup/v2/topic/persistent/public/default/t/bundle").body.decode()
    assert api.put(f"{namespace}/{bundle}/unload").status == 204
    assert api.broker.topics.loaded() == []
    api.topic("t")
    assert api.put(f"{namespace}/unload").status == 204
    assert api.broker.topics.loaded() == []


def test_terminate(api: AdminApi) -> None:
    api.publish("t", b"a", b"b")
    assert api.post(f"{NAMESPACE}/t/terminate").json["entryId"] == 1
    assert api.get(f"{NAMESPACE}/t/internalStats").json["state"] == "Terminated"
    info = api.get(f"{NAMESPACE}/t/internal-info").json
    assert info["terminatedPosition"]["entryId"] == 1
    api.put(f"{NAMESPACE}/p/partitions", 2)
    assert api.post(f"{NAMESPACE}/p/terminate").status == 405
    assert set(api.post(f"{NAMESPACE}/p/terminate/partitions").json) == {"0", "1"}
    assert api.post(f"{NAMESPACE}/t/terminate/partitions").status == 405


# -- partitions -------------------------------------------------


@pytest.mark.feature("F38")
def test_a_partitioned_topic_comes_grows_and_goes(api: AdminApi) -> None:
    path = f"{NAMESPACE}/p/partitions"
    assert api.get(path).status == 404
    assert api.put(path, 2).status == 204
    assert api.put(path, 2).status == 409
    assert api.put(f"{NAMESPACE}/p").status == 409
    assert api.get(path).json == {"partitions": 2, "deleted": False}
    assert api.get(f"{NAMESPACE}/partitioned").json == [full("p")]
    assert api.get(NAMESPACE).json == [full("p-partition-0"), full("p-partition-1")]
    assert api.get(f"{NAMESPACE}/p-partition-1/partitions").json["partitions"] == 0
    assert api.post(path, 2).status == 204  # as many as there are: it may be asked for again
    assert api.post(path, 1).status == 422
    assert api.post(path, 3).status == 204
    assert api.get(path).json["partitions"] == 3
    assert api.delete(f"{NAMESPACE}/p").status == 409
    assert api.get(f"{NAMESPACE}/p/stats").status == 404
    assert api.get(f"{NAMESPACE}/p/internalStats").status == 404
    assert api.get(f"{NAMESPACE}/p/lastMessageId").status == 404
    api.publish("p-partition-2", b"x")
    assert api.delete(path).status == 204
    assert api.delete(path).status == 404
    assert api.get(NAMESPACE).json == []


@pytest.mark.feature("F38")
def test_new_partitions_have_the_subscriptions_of_the_old(api: AdminApi) -> None:
    path = f"{NAMESPACE}/p/partitions"
    api.put(path, 1)
    start = {"ledgerId": LARGEST, "entryId": LARGEST, "properties": {"a": "1"}}
    assert api.put(subscription_path("p", "s") + "?replicated=true", start).status == 204
    assert api.post(path, 3).status == 204
    api.publish("p-partition-2", b"before any consumer knows of this partition")
    for partition, backlog_there in [("p-partition-1", 0), ("p-partition-2", 1)]:
        made = api.get(f"{NAMESPACE}/{partition}/stats").json["subscriptions"]["s"]
        assert made["msgBacklog"] == backlog_there
        assert made["subscriptionProperties"] == {"a": "1"}
        assert made["isReplicated"]


def test_partitions_with_properties(api: AdminApi) -> None:
    raw = b'{"partitions": 2, "properties": {"k": "v"}}'
    path = f"{NAMESPACE}/p/partitions"
    assert api.call("PUT", path, raw=raw, headers=PARTITIONED).status == 204
    assert api.get(path).json["properties"] == {"k": "v"}
    assert api.put(f"{NAMESPACE}/p/properties", {"l": "w"}).status == 204
    assert api.get(f"{NAMESPACE}/p/properties").json == {"k": "v", "l": "w"}
    other = f"{NAMESPACE}/q/partitions"
    assert api.call("PUT", other, raw=b"4", headers=PARTITIONED).status == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/p/partitions", 0, 406),
        ("PUT", "/p/partitions", -1, 406),
        ("PUT", "/p/partitions", 20_000, 406),
        ("PUT", "/p/partitions", {"partitions": 2}, 400),
        ("PUT", "/p/partitions", 2.0, 400),
        ("PUT", "/p/partitions", True, 400),
        ("PUT", "/p/partitions", None, 400),
        ("PUT", "/x-partition-1/partitions", 2, 412),
        ("PUT", "/x-partition-1", None, 412),
        ("POST", "/single/partitions", 2, 409),
        ("POST", "/none/partitions", 2, 409),
        ("DELETE", "/single/partitions", None, 409),
        ("DELETE", "/none/partitions", None, 404),
        ("GET", "/single/partitioned-stats", None, 404),
        ("POST", "/single/createMissedPartitions", None, 404),
    ],
)
def test_what_is_refused(api: AdminApi, method: str, path: str, body: Any, status: int) -> None:
    api.put(f"{NAMESPACE}/single")
    assert api.call(method, NAMESPACE + path, body).status == status


def test_a_limit_of_partitions() -> None:
    api = AdminApi(maxNumPartitionsPerPartitionedTopic=3)
    assert api.put(f"{NAMESPACE}/p/partitions", 4).status == 406
    assert api.put(f"{NAMESPACE}/p/partitions", 3).status == 204
    api.close()


def test_partitions_in_a_namespace_that_is_not_there(api: AdminApi) -> None:
    for suffix in ("", "/t", "/t/partitions", "/partitioned"):
        path = f"/admin/v2/persistent/public/none{suffix}"
        body = 2 if suffix == "/t/partitions" else None
        method = "GET" if suffix in ("", "/partitioned") else "PUT"
        assert api.call(method, path, body).status == 404


def test_a_client_in_the_way_of_a_partitioned_topic(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    api.connect_producer("p-partition-1")
    assert api.delete(f"{NAMESPACE}/p/partitions").status == 412
    assert api.delete(f"{NAMESPACE}/p/partitions?force=true").status == 204


def test_partitions_with_automatic_creation() -> None:
    api = AdminApi(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
    path = f"{NAMESPACE}/p/partitions"
    assert api.get(path).status == 404
    assert api.get(f"{path}?checkAllowAutoCreation=true").json["partitions"] == 3
    assert api.get(path).json["partitions"] == 3
    api.close()


@pytest.mark.feature("F26")
def test_without_automatic_creation() -> None:
    api = AdminApi(allowAutoTopicCreation=False)
    assert api.get(f"{NAMESPACE}/t/partitions?checkAllowAutoCreation=true").status == 404
    assert api.get("/lookup/v2/topic/persistent/public/default/t").status == 404
    assert api.put(subscription_path("t", "s")).status == 412
    api.close()


def test_automatic_creation_is_asked_for_before_it_happens(api: AdminApi) -> None:
    answer = api.get(f"{NAMESPACE}/t/partitions?checkAllowAutoCreation=true")
    assert answer.json == {"partitions": 0, "deleted": False}
    assert api.get(NAMESPACE).json == []


# -- subscriptions ----------------------------------------------


def test_a_subscription_comes_and_goes(api: AdminApi) -> None:
    api.publish("t", b"a", b"b")
    assert api.put(subscription_path("t", "s")).status == 204
    assert api.put(subscription_path("t", "s")).status == 409
    assert api.get(f"{NAMESPACE}/t/subscriptions").json == ["s"]
    assert backlog(api, "t", "s") == 0
    assert api.delete(subscription_path("t", "s")).status == 204
    assert api.delete(subscription_path("t", "s")).status == 404
    assert api.get(f"{NAMESPACE}/t/subscriptions").json == []


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (None, 0),
        ({"ledgerId": -1, "entryId": -1}, 3),
        ({"ledgerId": LARGEST, "entryId": LARGEST}, 0),
        ({"ledgerId": 0, "entryId": 1, "partitionIndex": 0}, 2),
        ({"ledgerId": 0, "entryId": 1, "properties": {"k": "v"}}, 2),
        ({"ledgerId": 99, "entryId": 1}, 0),
    ],
)
def test_where_a_subscription_starts(api: AdminApi, body: Any, left: int) -> None:
    api.publish("t", b"a", b"b", b"c")
    assert api.put(subscription_path("t", "s"), body).status == 204
    assert backlog(api, "t", "s") == left
    properties = api.get(subscription_path("t", "s") + "/properties").json
    assert properties == (body or {}).get("properties", {})


@pytest.mark.parametrize("name", ["a/b", "a b", "ü", "100%", "a+b", "%2F", "x-y_z.1"])
def test_names_of_subscriptions_are_encoded_twice(api: AdminApi, name: str) -> None:
    assert api.put(subscription_path("t", name)).status == 204
    assert api.get(f"{NAMESPACE}/t/subscriptions").json == [name]
    assert api.delete(subscription_path("t", name)).status == 204


def test_a_subscription_makes_its_topic(api: AdminApi) -> None:
    assert api.put(subscription_path("new", "s")).status == 204
    assert api.get(NAMESPACE).json == [full("new")]


def test_a_subscription_of_all_partitions(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    assert api.put(subscription_path("p", "s")).status == 204
    assert api.put(subscription_path("p", "s")).status == 409
    assert api.get(f"{NAMESPACE}/p/subscriptions").json == ["s"]
    assert api.get(f"{NAMESPACE}/p-partition-1/subscriptions").json == ["s"]
    api.publish("p-partition-0", b"a")
    api.publish("p-partition-1", b"a", b"b")
    assert api.post(subscription_path("p", "s") + "/skip_all").status == 204
    assert backlog(api, "p-partition-0", "s") == backlog(api, "p-partition-1", "s") == 0
    assert api.delete(subscription_path("p-partition-0", "s")).status == 204
    assert api.put(subscription_path("p", "s")).status == 204  # completes it
    assert api.delete(subscription_path("p", "s")).status == 204
    assert api.get(f"{NAMESPACE}/p/subscriptions").json == []


def test_a_connected_consumer_protects_its_subscription(api: AdminApi) -> None:
    consumer = api.connect_consumer("t", "s")
    assert api.delete(subscription_path("t", "s")).status == 412
    assert api.delete(subscription_path("t", "s") + "?force=true").status == 204
    assert consumer.closed


def test_skip(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    api.publish("t", b"a", b"b", b"c", b"d")
    path = subscription_path("t", "s")
    for skipped, left in [("0", 4), ("1", 3), ("2", 1), ("9", 0)]:
        assert api.post(f"{path}/skip/{skipped}").status == 204
        assert backlog(api, "t", "s") == left
    assert api.post(subscription_path("t", "none") + "/skip/1").status == 404
    api.put(f"{NAMESPACE}/p/partitions", 1)
    assert api.post(subscription_path("p", "s") + "/skip/1").status == 405


def test_reset_to_a_message(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    api.publish("t", b"a", b"b", b"c")
    path = subscription_path("t", "s")
    ledger = ledger_of(api, "t")
    for body, left in [
        ({"ledgerId": LARGEST, "entryId": LARGEST}, 0),
        ({"ledgerId": ledger, "entryId": 1}, 2),
        ({"ledgerId": ledger, "entryId": 1, "excluded": True}, 1),
        ({"ledgerId": -1, "entryId": -1}, 3),
        ({"ledgerId": ledger, "entryId": 70}, 0),
    ]:
        assert api.post(f"{path}/resetcursor", body).status == 204, body
        assert backlog(api, "t", "s") == left, body
    assert api.post(f"{path}/resetcursor").status == 400
    assert api.post(f"{path}/resetcursor", {"ledgerId": "none"}).status == 400
    none = subscription_path("t", "none")
    assert api.post(f"{none}/resetcursor", {"ledgerId": 0, "entryId": 1}).status == 404


def test_reset_to_a_time(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    for ms in (1000, 2000, 3000):
        api.publish("t", b"a", publish_time=ms)
    path = subscription_path("t", "s")
    for ms, left in [(5000, 0), (2000, 2), (0, 3), (2001, 1)]:
        assert api.post(f"{path}/resetcursor/{ms}").status == 204
        assert backlog(api, "t", "s") == left


def test_acknowledge_for_spark(api: AdminApi) -> None:
    earliest = {"ledgerId": -1, "entryId": -1}
    api.put(subscription_path("t", "s"), earliest)
    api.publish("t", b"a", b"b", b"c")
    path = subscription_path("t", "s") + "/acknowledge"
    ledger = ledger_of(api, "t")
    assert api.post(path, {"ledgerId": ledger, "entryId": 1}).status == 204
    assert backlog(api, "t", "s") == 1
    assert api.post(path, {"ledgerId": ledger, "entryId": 0}).status == 204  # already done
    assert api.post(path, earliest).status == 204
    assert backlog(api, "t", "s") == 1
    assert api.post(path, {"ledgerId": 50, "entryId": 0}).status == 204
    assert backlog(api, "t", "s") == 0
    assert api.topic("t").subscriptions["s"].cursor.mark_delete == Position(ledger, 2)
    assert api.post(subscription_path("t", "none") + "/acknowledge", earliest).status == 404
    api.connect_consumer("t", "s")
    assert api.post(path, {"ledgerId": 0, "entryId": 1}).status == 412


def test_properties_of_a_subscription(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    path = subscription_path("t", "s") + "/properties"
    assert api.put(path, {"k": "v"}).status == 204
    assert api.get(path).json == {"k": "v"}
    assert api.put(path, {}).status == 204
    assert api.get(path).json == {}


def ledger_of(api: AdminApi, topic: str) -> int:
    """The ledger that a topic's messages are in."""
    return int(api.get(f"{NAMESPACE}/{topic}/lastMessageId").json["ledgerId"])


def backlog(api: AdminApi, topic: str, subscription: str) -> int:
    stats = api.get(f"{NAMESPACE}/{topic}/stats").json
    return int(stats["subscriptions"][subscription]["msgBacklog"])


# -- lookup and segments ----------------------------------------


@pytest.mark.feature("F61", "F83")
@pytest.mark.parametrize("kind", ["topic", "destination"])
def test_lookup(api: AdminApi, kind: str) -> None:
    cluster = "/standalone" if kind == "destination" else ""
    path = f"/lookup/v2/{kind}/persistent/public{cluster}/default/t"
    found = api.get(f"{path}?authoritative=false").json
    assert found["brokerUrl"] == found["nativeUrl"] == "pulsar://broker:6650"
    assert found["httpUrl"] == "http://broker:8080"
    assert found["brokerUrlSsl"] == ""
    assert api.get(f"{path}/bundle").body.startswith(b"0x")
    assert api.get(NAMESPACE).json == []


def test_lookup_in_a_namespace_that_is_not_there(api: AdminApi) -> None:
    assert api.get("/lookup/v2/topic/persistent/public/none/t").status == 404


def test_lookup_through_a_listener_that_the_broker_does_not_have(api: AdminApi) -> None:
    path = "/lookup/v2/topic/persistent/public/default/t"
    assert api.get(f"{path}?listenerName=").status == 200
    found = api.get(f"{path}?listenerName=outside")
    assert found.status == 503
    assert "'outside'" in found.json["reason"]


def test_segments_of_a_topic(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    plan = api.get(f"{NAMESPACE}/t/segments").json
    assert plan["partitions"][0]["last"] == {"ledgerId": -1, "entryId": -1}
    api.publish("t", b"a", b"b")
    plan = api.get(f"{NAMESPACE}/t/segments").json
    (part,) = plan["partitions"]
    assert plan["topicId"] == part["topicId"]
    assert plan["flightUrl"] == "grpc://broker:8815"
    assert (part["partition"], part["name"]) == (-1, full("t"))
    assert part["first"] == {"ledgerId": 0, "entryId": 0}
    assert part["last"] == {"ledgerId": 0, "entryId": 1}
    (ledger,) = part["ledgers"]
    assert (ledger["ledgerId"], ledger["entries"], ledger["open"]) == (0, 2, True)
    assert ledger["size"] > 0


def test_segments_of_a_partitioned_topic(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    plan = api.get(f"{NAMESPACE}/p/segments").json
    assert [part["partition"] for part in plan["partitions"]] == [0, 1]
    assert len({part["topicId"] for part in plan["partitions"]} | {plan["topicId"]}) == 3
    assert api.get(f"{NAMESPACE}/none/segments").status == 404
