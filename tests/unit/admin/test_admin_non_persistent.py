"""The admin API and non-persistent topics."""

from __future__ import annotations

import pytest

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.producer import Producer
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import AdminApi
from tests.support.fake_client import FakeClient
from tests.support.wire_frames import entry_of

MEMORY = "/admin/v2/non-persistent/public/default"
TOPIC = "non-persistent://public/default/t"
NAME = TopicName.parse(TOPIC)


def connect_producer(api: AdminApi, name: str = TOPIC) -> Producer:
    topic = api.run(api.broker.topics.open(TopicName.parse(name), create=True))
    producer = Producer(
        topic,
        FakeClient(),
        7,
        "producer-1",
        epoch=0,
        user_provided_name=True,
        metadata={},
        schema_version=b"",
        connected_since_ms=api.clock.now_ms(),
    )
    api.run(topic.add_producer(producer))
    return producer


def publish(producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.topic.publish(Entry(entry_of(b"x"), 1, False, False, producer))
    producer.topic.flush()


# -- creation, lists, deletion ----------------------------------------------------------------


def test_create_list_delete(api: AdminApi) -> None:
    assert api.get(MEMORY).json == []
    assert api.get(f"{MEMORY}/t/stats").status == 404
    assert api.put(f"{MEMORY}/t").status == 204
    assert api.put(f"{MEMORY}/t").status == 409
    assert api.get(MEMORY).json == [TOPIC]
    assert api.get("/admin/v2/persistent/public/default").json == []
    assert api.get(f"{MEMORY}/t/partitions").json["partitions"] == 0
    assert api.delete(f"{MEMORY}/t").status == 204
    assert api.delete(f"{MEMORY}/t").status == 404
    assert api.get(MEMORY).json == []
    assert api.get("/admin/v2/non-persistent/public/none").status == 404
    assert api.put("/admin/v2/non-persistent/public/none/t").status == 404


def test_topics_by_bundle(api: AdminApi) -> None:
    api.put(f"{MEMORY}/t")
    bundle = api.get("/lookup/v2/topic/non-persistent/public/default/t/bundle").body.decode()
    assert api.get(f"{MEMORY}?bundle={bundle}").json == [TOPIC]
    assert api.get(f"{MEMORY}?bundle=0x00000000_0x00000001").json == []


def test_a_topic_in_use_is_deleted_by_force_only(api: AdminApi) -> None:
    producer = connect_producer(api)
    assert api.delete(f"{MEMORY}/t").status == 412
    assert api.delete(f"{MEMORY}/t?force=true").status == 204
    assert producer.connection.closed == [producer]


def test_partitions(api: AdminApi) -> None:
    assert api.put(f"{MEMORY}/p/partitions", 2).status == 204
    assert api.put(f"{MEMORY}/p/partitions", 2).status == 409
    assert api.put(f"{MEMORY}/p").status == 409
    assert api.get(f"{MEMORY}/p/partitions").json["partitions"] == 2
    assert api.get(f"{MEMORY}/partitioned").json == ["non-persistent://public/default/p"]
    parts = [f"non-persistent://public/default/p-partition-{i}" for i in range(2)]
    assert api.get(MEMORY).json == parts
    publish(connect_producer(api, parts[1]), 3)
    stats = api.get(f"{MEMORY}/p/partitioned-stats").json
    assert (stats["msgInCounter"], list(stats["partitions"])) == (3, parts)
    assert stats["msgDropRate"] == 0
    assert api.get(f"{MEMORY}/p/partitioned-internalStats").json["partitions"].keys() == set(parts)
    assert api.post(f"{MEMORY}/p/partitions", 3).status == 204
    assert len(api.get(MEMORY).json) == 3
    assert api.delete(f"{MEMORY}/p").status == 409
    assert api.delete(f"{MEMORY}/p/partitions").status == 412
    assert api.delete(f"{MEMORY}/p/partitions?force=true").status == 204
    assert api.get(MEMORY).json == []


def test_lists_of_a_namespace_by_mode(api: AdminApi) -> None:
    api.put(f"{MEMORY}/t")
    api.put("/admin/v2/persistent/public/default/s")
    path = "/admin/v2/namespaces/public/default/topics"
    stored = ["persistent://public/default/s"]
    assert api.get(path).json == stored
    assert api.get(f"{path}?mode=NON_PERSISTENT").json == [TOPIC]
    assert sorted(api.get(f"{path}?mode=ALL").json) == [TOPIC, *stored]


@pytest.mark.parametrize("made", ["/t", "/t/partitions"])
def test_a_namespace_with_topics_stays(api: AdminApi, made: str) -> None:
    api.put("/admin/v2/namespaces/public/n")
    path = f"/admin/v2/non-persistent/public/n{made}"
    assert api.put(path, 1 if made.endswith("partitions") else None).status == 204
    assert api.delete("/admin/v2/namespaces/public/n").status == 409
    assert api.delete(path).status == 204
    assert api.delete("/admin/v2/namespaces/public/n").status == 204


def test_a_namespace_is_deleted_with_its_topics(api_forcing: AdminApi) -> None:
    api = api_forcing
    api.put("/admin/v2/namespaces/public/n")
    producer = connect_producer(api, "non-persistent://public/n/t")
    api.put("/admin/v2/non-persistent/public/n/p/partitions", 2)
    assert api.delete("/admin/v2/namespaces/public/n?force=true").status == 204
    assert producer.connection.closed == [producer]
    assert api.broker.non_persistent.all() == []


@pytest.fixture
def api_forcing() -> object:
    api = AdminApi(forceDeleteNamespaceAllowed=True)
    yield api
    api.close()


def test_unload(api: AdminApi) -> None:
    for path in (f"{MEMORY}/t/unload", "/admin/v2/namespaces/public/default/unload"):
        producer = connect_producer(api)
        assert api.put(path).status == 204
        assert producer.connection.closed == [producer]
    assert api.put(f"{MEMORY}/t/unload").status == 404


def test_lookup(api: AdminApi) -> None:
    found = api.get("/lookup/v2/topic/non-persistent/public/default/t").json
    assert found["brokerUrl"] == "pulsar://broker:6650"
    assert api.get(MEMORY).json == []


# -- statistics -------------------------------------------------------------------------------


@pytest.mark.feature("F46", "F47", "F92")
def test_statistics_with_drop_rates(api: AdminApi) -> None:
    consumer = api.connect_consumer(TOPIC, "s", pb.CommandSubscribe.Exclusive)
    consumer.connection.flush = lambda: None
    producer = connect_producer(api)
    api.stats.rates.note()
    api.stats.rates.note()
    api.clock.ms += 10_000
    consumer.subscription.flow(consumer, 15, api.clock.now_ms())
    publish(producer, 25)
    producer.messages_dropped += 30
    stats = api.get(f"{MEMORY}/t/stats").json
    assert (stats["msgInCounter"], stats["msgOutCounter"], stats["storageSize"]) == (25, 15, 0)
    assert stats["msgDropRate"] == pytest.approx(3.0)
    (publisher,) = stats["publishers"]
    assert publisher["msgDropRate"] == pytest.approx(3.0)
    subscription = stats["subscriptions"]["s"]
    assert subscription["msgDropRate"] == pytest.approx(1.0)
    assert "msgDropRate" not in subscription["consumers"][0]
    assert (subscription["type"], subscription["msgBacklog"]) == ("Exclusive", 0)
    assert (subscription["isDurable"], subscription["durable"]) == (False, False)
    assert not {"activeConsumerName", "keySharedMode"} & subscription.keys()
    assert "deduplicationStatus" not in stats
    properties = f"{MEMORY}/t/subscription/s/properties"
    assert api.get(properties).json == {}
    assert api.get(properties.replace("/s/", "/none/")).status == 404
    persistent = api.topic("persistent://public/default/s")
    assert "msgDropRate" not in api.run(api.stats.topic(persistent))


def test_internal_statistics_are_zeros(api: AdminApi) -> None:
    publish(connect_producer(api), 2)
    found = api.get(f"{MEMORY}/t/internalStats").json
    assert (found["entriesAddedCounter"], found["numberOfEntries"], found["cursors"]) == (2, 0, {})
    api.connect_consumer(TOPIC, "s", pb.CommandSubscribe.Exclusive)
    assert list(api.get(f"{MEMORY}/t/internalStats").json["cursors"]) == ["s"]


def test_broker_statistics(api: AdminApi) -> None:
    api.connect_consumer(TOPIC, "s")
    (bundle,) = api.get("/admin/v2/broker-stats/topics").json["public/default"].values()
    found = bundle["non-persistent"][TOPIC]
    assert found["subscriptions"]["s"]["totalNonContiguousDeletedMessagesRange"] == 0
    assert api.get("/admin/v2/broker-stats/load-report").json["numTopics"] == 1


def test_metrics(api: AdminApi) -> None:
    consumer = api.connect_consumer(TOPIC, "s")
    api.clock.ms += 10_000
    publish(connect_producer(api), 20)
    labels = f'{{cluster="standalone",namespace="public/default",topic="{TOPIC}"'
    text = api.get("/metrics").body.decode()
    assert f"pulsar_in_messages_total{labels}}} 20" in text
    assert f'pulsar_subscription_msg_drop_rate{labels},subscription="s"}} 2.0' in text
    assert consumer.messages_dropped == 20


# -- subscriptions ----------------------------------------------------------------------------


def test_subscriptions(api: AdminApi) -> None:
    consumer = api.connect_consumer(TOPIC, "s")
    assert api.get(f"{MEMORY}/t/subscriptions").json == ["s"]
    assert api.put(f"{MEMORY}/t/subscription/other").status == 400
    assert api.delete(f"{MEMORY}/t/subscription/other").status == 404
    assert api.delete(f"{MEMORY}/t/subscription/s").status == 412
    assert api.delete(f"{MEMORY}/t/subscription/s?force=true").status == 204
    assert consumer.connection.closed == [consumer]
    assert api.get(f"{MEMORY}/t/subscriptions").json == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "subscription/s/skip_all", 405),
        ("POST", "subscription/s/skip/1", 405),
        ("POST", "subscription/s/resetcursor/5", 405),
        ("GET", "lastMessageId", 405),
        ("GET", "messageid/5", 405),
        ("POST", "terminate", 406),
        ("GET", "internal-info", 405),
        ("GET", "segments", 405),
    ],
)
def test_what_needs_stored_messages_is_refused(
    api: AdminApi, method: str, path: str, status: int
) -> None:
    api.connect_consumer(TOPIC, "s")
    answer = api.call(method, f"{MEMORY}/t/{path}")
    assert answer.status == status
    assert "non-persistent" in answer.reason


def test_a_kind_that_is_switched_off() -> None:
    api = AdminApi(enableNonPersistentTopics=False)
    assert api.put(f"{MEMORY}/t").status == 405
    assert api.put("/admin/v2/persistent/public/default/t").status == 204
    api.close()
    api = AdminApi(enablePersistentTopics=False)
    assert api.put("/admin/v2/persistent/public/default/t").status == 405
    assert api.put(f"{MEMORY}/t").status == 204
    api.close()
