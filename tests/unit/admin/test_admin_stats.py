"""Statistics: every field is there, and of the type that strict clients decode."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pulsark.cli.admin.topics import _print_groups
from pulsark.dispatch.scalable.group_members import Member
from pulsark.dispatch.scalable.groups import GroupKey
from pulsark.dispatch.stats.stats import merge
from pulsark.wire.position import EARLIEST
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path

DOUBLE, LONG, BOOL, TEXT, LIST, MAP = float, int, bool, str, list, dict


def fields(kind: type, names: str) -> dict[str, type]:
    return dict.fromkeys(names.split(), kind)


TOPIC = (
    fields(DOUBLE, "msgRateIn msgThroughputIn msgRateOut msgThroughputOut averageMsgSize")
    | fields(
        LONG,
        "bytesInCounter msgInCounter bytesOutCounter msgOutCounter systemTopicBytesInCounter "
        "bytesOutInternalCounter storageSize backlogSize offloadedStorageSize "
        "publishRateLimitedTimes backlogQuotaLimitSize backlogQuotaLimitTime "
        "oldestBacklogMessageAgeSeconds earliestMsgPublishTimeInBacklogs lastOffloadLedgerId "
        "lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp ongoingTxnCount "
        "abortedTxnCount committedTxnCount waitingPublishers nonContiguousDeletedMessagesRanges "
        "nonContiguousDeletedMessagesRangesSerializedSize delayedMessageIndexSizeInBytes",
    )
    | fields(BOOL, "msgChunkPublished")
    | fields(TEXT, "ownerBroker deduplicationStatus")
    | fields(LIST, "publishers")
    | fields(MAP, "subscriptions replication compaction")
)
PUBLISHER = (
    fields(DOUBLE, "msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate")
    | fields(LONG, "producerId")
    | fields(BOOL, "supportsPartialProducer")
    | fields(TEXT, "accessMode producerName address connectedSince clientVersion")
    | fields(MAP, "metadata")
)
SUBSCRIPTION = (
    fields(
        DOUBLE,
        "msgRateOut msgThroughputOut msgRateRedeliver messageAckRate chunkedMessageRate "
        "msgRateExpired",
    )
    | fields(
        LONG,
        "bytesOutCounter msgOutCounter totalMsgExpired backlogSize msgBacklog "
        "msgBacklogNoDelayed msgDelayed msgInReplay unackedMessages "
        "earliestMsgPublishTimeInBacklog lastExpireTimestamp lastConsumedFlowTimestamp "
        "lastConsumedTimestamp lastAckedTimestamp lastMarkDeleteAdvancedTimestamp "
        "drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages "
        "nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize "
        "delayedMessageIndexSizeInBytes filterProcessedMsgCount filterAcceptedMsgCount "
        "filterRejectedMsgCount filterRescheduledMsgCount "
        "dispatchThrottledMsgEventsBySubscriptionLimit dispatchThrottledMsgEventsByTopicLimit "
        "dispatchThrottledMsgEventsByBrokerLimit dispatchThrottledBytesEventsBySubscriptionLimit "
        "dispatchThrottledBytesEventsByTopicLimit dispatchThrottledBytesEventsByBrokerLimit",
    )
    | fields(
        BOOL,
        "blockedSubscriptionOnUnackedMsgs allowOutOfOrderDelivery isDurable durable "
        "isReplicated replicated",
    )
    | fields(TEXT, "type")
    | fields(LIST, "consumers")
    | fields(MAP, "subscriptionProperties consumersAfterMarkDeletePosition")
)
CONSUMER = (
    fields(DOUBLE, "msgRateOut msgThroughputOut msgRateRedeliver messageAckRate chunkedMessageRate")
    | fields(
        LONG,
        "bytesOutCounter msgOutCounter availablePermits unackedMessages avgMessagesPerEntry "
        "lastAckedTimestamp lastConsumedTimestamp lastConsumedFlowTimestamp "
        "drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages",
    )
    | fields(BOOL, "blockedConsumerOnUnackedMsgs")
    | fields(
        TEXT, "consumerName address connectedSince clientVersion lastAckedTime lastConsumedTime"
    )
    | fields(MAP, "metadata")
)
INTERNAL = (
    fields(
        LONG,
        "entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize "
        "waitingCursorsCount pendingAddEntriesCount",
    )
    | fields(TEXT, "lastLedgerCreatedTimestamp lastConfirmedEntry state")
    | fields(LIST, "ledgers schemaLedgers")
    | fields(MAP, "cursors compactedLedger")
)
CURSOR = (
    fields(
        TEXT,
        "markDeletePosition readPosition individuallyDeletedMessages lastLedgerSwitchTimestamp "
        "state",
    )
    | fields(
        LONG,
        "pendingReadOps messagesConsumedCounter cursorLedger cursorLedgerLastEntry "
        "numberOfEntriesSinceFirstNotAckedMessage totalNonContiguousDeletedMessagesRange",
    )
    | fields(
        BOOL,
        "waitingReadOp active subscriptionHavePendingRead subscriptionHavePendingReplayRead",
    )
    | fields(MAP, "properties")
)


def check(found: dict[str, Any], expected: dict[str, type], *optional: str) -> None:
    types = {key: type(item) for key, item in found.items() if key not in optional}
    assert types == expected


@pytest.fixture
def busy(api: AdminApi) -> AdminApi:
    """Topic ``t`` with a producer, and a subscription that has 3 of 4 entries delivered."""
    producer = api.connect_producer("t")
    consumer = api.connect_consumer("t", "s", sub_type=1)
    api.publish("t", b"a" * 100, b"b" * 100)
    api.publish("t", b"c" * 100, b"d" * 100, batch=5)
    producer.messages_in, producer.bytes_in = 12, 400
    subscription = consumer.subscription
    subscription.flow(consumer, 3, api.clock.now_ms())
    subscription.dispatcher.pump()
    return api


@pytest.mark.feature("F92")
def test_types_of_all_fields(busy: AdminApi) -> None:
    stats = busy.get(f"{NAMESPACE}/t/stats").json
    check(stats, TOPIC)
    check(stats["publishers"][0], PUBLISHER)
    check(stats["subscriptions"]["s"], SUBSCRIPTION)
    check(stats["subscriptions"]["s"]["consumers"][0], CONSUMER)
    internal = busy.get(f"{NAMESPACE}/t/internalStats").json
    check(internal, INTERNAL)
    check(internal["cursors"]["s"], CURSOR)


def test_types_of_a_topic_that_nothing_happened_to(api: AdminApi) -> None:
    api.put(subscription_path("t", "s"))
    stats = api.get(f"{NAMESPACE}/t/stats").json
    check(stats, TOPIC)
    check(stats["subscriptions"]["s"], SUBSCRIPTION)
    assert stats["subscriptions"]["s"]["type"] == "None"
    internal = api.get(f"{NAMESPACE}/t/internalStats").json
    check(internal, INTERNAL)
    check(internal["cursors"]["s"], CURSOR)


def test_what_they_say(busy: AdminApi) -> None:
    stats = busy.get(f"{NAMESPACE}/t/stats").json
    assert stats["msgInCounter"] == 12
    assert stats["storageSize"] == stats["bytesInCounter"] > 400
    assert stats["ownerBroker"] == "broker:8080"
    publisher = stats["publishers"][0]
    assert publisher["producerName"] == "producer-1"
    assert publisher["address"] == "/10.0.0.1:5000"
    assert publisher["connectedSince"] == "2023-11-14T22:13:20.000Z"
    assert publisher["metadata"] == {"app": "test"}
    subscription = stats["subscriptions"]["s"]
    assert subscription["type"] == "Shared"
    assert subscription["msgBacklog"] == 4
    assert subscription["backlogSize"] == stats["storageSize"] == stats["backlogSize"]
    assert subscription["msgOutCounter"] == 7
    assert subscription["unackedMessages"] == 7
    assert "activeConsumerName" not in subscription
    consumer = subscription["consumers"][0]
    assert consumer["consumerName"] == "consumer-1"
    assert consumer["availablePermits"] == -4
    assert consumer["avgMessagesPerEntry"] == 2
    assert consumer["lastAckedTime"] == "1970-01-01T00:00:00.000Z"
    internal = busy.get(f"{NAMESPACE}/t/internalStats").json
    assert internal["numberOfEntries"] == internal["currentLedgerEntries"] == 4
    assert internal["ledgers"][0]["entries"] == 0
    assert internal["cursors"]["s"]["active"] is True


def test_the_active_consumer(api: AdminApi) -> None:
    api.connect_consumer("t", "s", sub_type=2)
    stats = api.get(f"{NAMESPACE}/t/stats").json
    assert stats["subscriptions"]["s"]["activeConsumerName"] == "consumer-1"


def test_acknowledged_ranges(busy: AdminApi) -> None:
    subscription = busy.topic("t").subscriptions["s"]
    ledger = busy.topic("t").ledger.last_confirmed.ledger_id
    last = busy.topic("t").ledger.last_confirmed

    async def acknowledge() -> None:
        acks = [(last._replace(entry_id=entry_id), None, None) for entry_id in (1, 3)]
        subscription.cursor.ack(acks)

    busy.run(acknowledge())
    cursor = busy.get(f"{NAMESPACE}/t/internalStats").json["cursors"]["s"]
    assert cursor["individuallyDeletedMessages"] == (
        f"[({ledger}:0..{ledger}:1],({ledger}:2..{ledger}:3]]"
    )
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 2
    stats = busy.get(f"{NAMESPACE}/t/stats").json
    assert stats["subscriptions"]["s"]["nonContiguousDeletedMessagesRanges"] == 2
    assert stats["subscriptions"]["s"]["msgBacklog"] == 2
    for shown in (stats, stats["subscriptions"]["s"]):
        assert shown["nonContiguousDeletedMessagesRangesSerializedSize"] == 4


def test_which_cursors_wait_for_messages(busy: AdminApi) -> None:
    subscription = busy.topic("t").subscriptions["s"]
    (consumer,) = subscription.type.consumers

    def internal() -> Any:
        return busy.get(f"{NAMESPACE}/t/internalStats").json

    assert internal()["waitingCursorsCount"] == 0, "its consumer has no permits"
    subscription.flow(consumer, 100, busy.clock.now_ms())
    subscription.dispatcher.pump()
    assert internal()["waitingCursorsCount"] == 1
    cursor = internal()["cursors"]["s"]
    assert cursor["waitingReadOp"] is cursor["subscriptionHavePendingRead"] is True
    assert cursor["pendingReadOps"] == 0


def test_leaving_out_clients(busy: AdminApi) -> None:
    stats = busy.get(f"{NAMESPACE}/t/stats?excludePublishers=true&excludeConsumers=true").json
    assert stats["publishers"] == []
    assert stats["subscriptions"]["s"]["consumers"] == []


# -- rates ---------------------------------------------------------------------------------------


def test_a_young_topic_is_averaged_over_its_life(busy: AdminApi) -> None:
    busy.clock.ms += 4_000
    stats = busy.get(f"{NAMESPACE}/t/stats").json
    assert stats["msgRateIn"] == 3.0
    assert stats["msgRateOut"] == stats["subscriptions"]["s"]["msgRateOut"] == 1.75
    assert stats["publishers"][0]["msgRateIn"] == 3.0
    assert stats["subscriptions"]["s"]["consumers"][0]["msgRateOut"] == 1.75
    assert stats["averageMsgSize"] == pytest.approx(stats["storageSize"] / 12)


def test_rates_forget_what_is_two_periods_old(busy: AdminApi) -> None:
    rates = busy.stats.rates
    for _ in range(2):
        busy.clock.ms += 60_000
        rates.note()
    assert busy.get(f"{NAMESPACE}/t/stats").json["msgRateIn"] == 0.0
    busy.publish("t", *[b"x"] * 30)
    busy.clock.ms += 30_000
    # The older note is 90 s old now.
    assert busy.get(f"{NAMESPACE}/t/stats").json["msgRateIn"] == pytest.approx(30 / 90)
    busy.clock.ms += 30_000
    rates.note()
    assert busy.get(f"{NAMESPACE}/t/stats").json["msgRateIn"] == pytest.approx(30 / 60)


def test_a_topic_that_was_loaded_again_does_not_run_backwards(busy: AdminApi) -> None:
    busy.stats.rates.note()
    busy.stats.rates.note()
    busy.clock.ms += 10_000
    busy.put(f"{NAMESPACE}/t/unload")
    busy.publish("t", b"x")
    assert busy.get(f"{NAMESPACE}/t/stats").json["msgRateIn"] == 1.0


# -- Key_Shared ----------------------------------------------------------------------------------


@pytest.mark.feature("F33")
def test_key_shared_shows_slots_and_what_drains(api: AdminApi) -> None:
    first = api.connect_consumer("t", "s", sub_type=3)
    api.publish("t", b"a")
    first.subscription.flow(first, 9, api.clock.now_ms())
    shown = api.get(f"{NAMESPACE}/t/stats").json["subscriptions"]["s"]
    check(shown, SUBSCRIPTION | {"keySharedMode": str})
    assert shown["keySharedMode"] == "AUTO_SPLIT"
    (consumer,) = shown["consumers"]
    check(consumer, CONSUMER | {"keyHashRangeArrays": list, "drainingHashes": list})
    assert consumer["keyHashRangeArrays"] == [[1, 65535]]

    type_ = first.subscription.type
    others = []
    while not type_.draining():  # until one takes a slot of what is pending
        others.append(api.connect_consumer("t", "s", sub_type=3))
    (slot, _), *_ = type_.draining()[first]
    shown = api.get(f"{NAMESPACE}/t/stats").json["subscriptions"]["s"]
    consumer = shown["consumers"][0]
    assert consumer["drainingHashes"][0] == {"hash": slot, "unackMsgs": 1, "blockedAttempts": 0}
    for number in ("drainingHashesCount", "drainingHashesUnackedMessages"):
        assert shown[number] == consumer[number] == 1
    everything = sorted(r for c in shown["consumers"] for r in c["keyHashRangeArrays"])
    assert everything[0][0] == 1
    assert everything[-1][1] == 65535
    assert all(low == high + 1 for (_, high), (low, _) in pairwise(everything))
    api.ack(first, *((position, None, None) for position in list(first.pending)))
    shown = api.get(f"{NAMESPACE}/t/stats").json["subscriptions"]["s"]
    assert shown["drainingHashesCount"] == 0
    assert shown["drainingHashesClearedTotal"] == 1


def test_key_shared_of_several_partitions_is_summed_up(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    for number in range(2):
        api.connect_consumer(f"p-partition-{number}", "s", sub_type=3)
    shown = api.get(f"{NAMESPACE}/p/partitioned-stats").json["subscriptions"]["s"]
    assert shown["keySharedMode"] == "AUTO_SPLIT"
    assert "keyHashRangeArrays" not in shown["consumers"][0]


# -- partitioned ---------------------------------------------------------------------------------


def test_statistics_of_all_partitions(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    api.put(subscription_path("p", "s"))
    for name, count in (("p-partition-0", 1), ("p-partition-1", 3)):
        api.connect_producer(name)
        api.connect_consumer(name, "s", sub_type=1)
        api.publish(name, *[b"x"] * count)
    stats = api.get(f"{NAMESPACE}/p/partitioned-stats").json
    assert stats["metadata"] == {"partitions": 2, "deleted": False}
    assert set(stats["partitions"]) == {
        f"persistent://public/default/p-partition-{i}" for i in (0, 1)
    }
    for part in stats["partitions"].values():
        check(part, TOPIC)
    assert stats["msgInCounter"] == 4
    assert stats["msgRateIn"] == 4.0
    assert stats["subscriptions"]["s"]["msgBacklog"] == 4
    assert stats["backlogQuotaLimitSize"] == -1
    assert "ownerBroker" not in stats
    (publisher,) = stats["publishers"]
    assert "producerName" not in publisher
    (consumer,) = stats["subscriptions"]["s"]["consumers"]
    assert "address" not in consumer
    total = {k: v for k, v in stats.items() if k not in ("metadata", "partitions")}
    check(total, {k: v for k, v in TOPIC.items() if k != "ownerBroker"})
    check(total["subscriptions"]["s"], SUBSCRIPTION)
    without = api.get(f"{NAMESPACE}/p/partitioned-stats?perPartition=false").json
    assert without["partitions"] == {}
    inner = api.get(f"{NAMESPACE}/p/partitioned-internalStats").json
    assert inner["metadata"]["partitions"] == 2
    assert len(inner["partitions"]) == 2


def test_clients_of_several_partitions_keep_their_names_and_the_average_of_their_messages() -> None:
    def part(rate: float, *consumers: str) -> dict[str, Any]:
        sizes = {"msgRateIn": rate, "msgThroughputIn": 23.0 * rate, "averageMsgSize": 23.0}
        return {
            "publishers": [{**sizes, "producerId": 4, "producerName": "p"}],
            "consumers": [{"consumerName": name, "msgOutCounter": 1} for name in consumers],
        }

    total = merge([part(2.0, "a", "b"), part(1.0, "b", "b", "c")])
    assert total["publishers"] == [
        {"msgRateIn": 3.0, "msgThroughputIn": 69.0, "averageMsgSize": 23.0, "producerId": 4}
    ]
    assert total["consumers"] == [
        {"consumerName": "a", "msgOutCounter": 1},
        {"consumerName": "b", "msgOutCounter": 2},
        {"consumerName": "b", "msgOutCounter": 1},
        {"consumerName": "c", "msgOutCounter": 1},
    ]


def test_what_a_reader_has_not_read_is_no_backlog(api: AdminApi) -> None:
    api.publish("t", *[b"x"] * 5)
    topic = api.topic("t")
    api.run(topic.registry.create("r", EARLIEST, {}, durable=False))
    stats = api.get(f"{NAMESPACE}/t/stats").json
    assert stats["subscriptions"]["r"]["backlogSize"] > 0
    assert stats["backlogSize"] == 0
    api.put(subscription_path("t", "s"), {"ledgerId": -1, "entryId": -1})
    assert api.get(f"{NAMESPACE}/t/stats").json["backlogSize"] > 0


def test_sums_keep_the_latest_time_and_any_flag() -> None:
    parts = [
        {"n": 1, "lastAckedTimestamp": 5, "blocked": False, "name": "a", "limit": -1},
        {"n": 2, "lastAckedTimestamp": 3, "blocked": True, "name": "b", "limit": 7},
    ]
    assert merge(parts) == {
        "n": 3,
        "lastAckedTimestamp": 5,
        "blocked": True,
        "name": "a",
        "limit": 7,
    }
    assert merge([]) == {}


# -- the broker's own statistics and metrics -------------------------------------------------------


def test_statistics_of_the_broker(busy: AdminApi) -> None:
    tree = busy.get("/admin/v2/broker-stats/topics").json
    (bundle,) = tree["public/default"]
    found = tree["public/default"][bundle]["persistent"]["persistent://public/default/t"]
    assert found["producerCount"] == 1
    assert found["msgInCount"] == 12
    assert found["subscriptions"]["s"]["msgBacklog"] == 4
    assert "numberOfEntriesSinceFirstNotAckedMessage" in found["subscriptions"]["s"]
    report = busy.get("/admin/v2/broker-stats/load-report").json
    assert (report["numTopics"], report["numProducers"], report["numConsumers"]) == (1, 1, 1)


def test_metrics(busy: AdminApi) -> None:
    answer = busy.get("/metrics/")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.body.decode().splitlines()
    where = 'cluster="standalone",namespace="public/default"'
    topic = f'{where},topic="persistent://public/default/t"'
    for line in (
        "# TYPE pulsar_rate_in gauge",
        f"pulsar_in_messages_total{{{topic}}} 12",
        f"pulsar_msg_backlog{{{topic}}} 4",
        f"pulsar_producers_count{{{topic}}} 1",
        f"pulsar_topics_count{{{where}}} 1",
        f'pulsar_subscription_back_log{{{topic},subscription="s"}} 4',
        f'pulsar_subscription_blocked_on_unacked_messages{{{topic},subscription="s"}} 0',
        f'pulsar_out_messages_total{{{topic},subscription="s"}} 7',
        'pulsar_broker_topics_count{cluster="standalone"} 1',
        'pulsar_broker_msg_backlog{cluster="standalone"} 4',
        f"pulsar_publish_rate_limit_times{{{topic}}} 0",
        'pulsar_broker_throttled_connections{cluster="standalone"} 0',
        'pulsar_broker_throttled_connections_global_limit{cluster="standalone"} 0',
        'pulsark_pending_publish_bytes{cluster="standalone"} 0',
        'pulsark_unread_output_bytes{cluster="standalone"} 0',
        'pulsark_bundles_owned{cluster="standalone"} 1',
        'pulsark_bundle_claims_total{cluster="standalone"} 1',
        'pulsark_bundle_releases_total{cluster="standalone",reason="move"} 0',
        'pulsar_lb_unload_bundle_total{cluster="standalone"} 0',
        'pulsar_lb_bundles_split_total{cluster="standalone"} 0',
        'pulsark_brokers{cluster="standalone"} 1',
        'pulsark_broker_leads{cluster="standalone"} 1',
        'pulsark_bundle_move_seconds_bucket{cluster="standalone",le="+Inf"} 0',
    ):
        assert line in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert any(line.startswith("pulsar_version_info{") for line in lines)
    assert not any("consumer_name" in line for line in lines)
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert busy.get("/metrics").status == 200


@pytest.mark.feature("F92")
def test_metrics_parse() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    api = AdminApi(
        exposeConsumerLevelMetricsInPrometheus=True,
        exposeProducerLevelMetricsInPrometheus=True,
        splitTopicAndPartitionLabelInPrometheus=True,
    )
    api.put(f"{NAMESPACE}/p/partitions", 1)
    api.connect_producer("p-partition-0")
    api.connect_consumer("p-partition-0", 'a "quoted"\\ name')
    families = {
        family.name: family
        for family in text_string_to_metric_families(api.get("/metrics").body.decode())
    }
    labels = families["pulsar_rate_in"].samples[0].labels
    assert labels["topic"] == "persistent://public/default/p"
    assert labels["partition"] == "0"
    consumer = families["pulsar_consumer_available_permits"].samples[0].labels
    assert consumer["subscription"] == 'a "quoted"\\ name'
    assert consumer["consumer_name"] == "consumer-1"
    assert families["pulsar_producer_msg_rate_in"].samples[0].labels["producer_id"] == "7"
    api.close()


def test_metrics_without_topics() -> None:
    api = AdminApi(exposeTopicLevelMetricsInPrometheus=False)
    api.publish("t", b"x")
    api.publish("u", b"x")
    lines = api.get("/metrics").body.decode().splitlines()
    where = 'cluster="standalone",namespace="public/default"'
    assert f"pulsar_in_messages_total{{{where}}} 2" in lines
    assert f'pulsar_msg_backlog{{{where},remote_cluster="local"}} 0' in lines
    assert not any("topic=" in line for line in lines)
    api.close()


class V5:
    """A client of scalable topics that does what it is told."""

    async def probe(self) -> bool:
        return True

    def tell(self, member: Any) -> None:
        due = member.to_tell()
        if due is not None:
            member.told, member.request_id = (due[0].epoch, due[1]), None

    def layout_changed(self) -> None: ...


def test_clients_of_scalable_topics_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    api = AdminApi()
    for partitions, path in ((2, f"{NAMESPACE}/p/partitions"), (None, f"{NAMESPACE}/t")):
        api.put(path, partitions)
    assert "scalable" not in api.get(f"{NAMESPACE}/p/partitioned-stats").json
    assert "pulsark_scalable_sessions" not in api.get("/metrics").body.decode()
    p, t = (TopicName.parse(f"persistent://public/default/{name}") for name in "pt")
    scalable = api.broker.scalable_topics()
    for name in (p, t):
        api.run(scalable.followed.follow(name, V5(), create=False))

    async def join(name: str, *, exclusive: bool = True) -> Member:
        key = GroupKey(str(p), "s", exclusive)
        return await scalable.groups.join(key, p, name, V5(), 1, 2)

    async def begin() -> None:
        await join("one")
        (await join("two")).lose()
        await join("three", exclusive=False)

    api.run(begin())
    shown = api.get(f"{NAMESPACE}/p/partitioned-stats").json["scalable"]
    consumer = {"connected": True, "segments": [0, 1]}
    assert shown == {
        "sessions": 1,
        "layoutEpoch": 2,
        "segments": 2,
        "groups": [
            {
                "subscription": "s",
                "type": "STREAM",
                "segmentsHandedOver": 1,
                "consumers": [
                    {"consumerName": "one", **consumer},
                    {"consumerName": "two", "connected": False, "segments": []},
                ],
            },
            {
                "subscription": "s",
                "type": "CHECKPOINT",
                "segmentsHandedOver": 0,
                "consumers": [{"consumerName": "three", **consumer}],
            },
        ],
    }
    assert api.get(f"{NAMESPACE}/t/stats").json["scalable"]["groups"] == []
    assert "scalable" not in api.get(f"{NAMESPACE}/p-partition-0/stats").json
    metrics = api.get("/metrics").body.decode()
    numbers = {"topics": 2, "sessions": 2, "groups": 2, "consumers": 3, "segments_handed_over": 1}
    for name, number in numbers.items():
        assert f'pulsark_scalable_{name}{{cluster="standalone"}} {number}\n' in metrics
    _print_groups(shown["groups"])
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["s", "STREAM", "one", "yes", "0", "1"] in words
    assert ["s", "STREAM", "two", "no", "-"] in words
    api.close()
