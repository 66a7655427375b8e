"""Policies of namespaces and topics over HTTP: what is stored, refused, and holds at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pulsark.admin.pulsar.policy_table import BY_CLUSTER, NAMESPACE_POLICIES, TOPIC_POLICIES
from pulsark.dispatch.policies.policies import BYTE_RATE, MESSAGE_RATE, PUBLISH_RATE
from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_PROPERTIES_BYTES_MAX
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import NAMESPACE, AdminApi

NS = "/admin/v2/namespaces/public/default"
TOPIC = f"{NAMESPACE}/t"

QUOTA = {"limitSize": 1024, "limitTime": -1, "policy": "producer_exception"}
SHOWN_QUOTA = {**QUOTA, "limit": 1024}
PERSISTENCE = {
    "bookkeeperEnsemble": 2,
    "bookkeeperWriteQuorum": 2,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.5,
}
DELAYED = {"active": False, "tickTime": 500, "maxDeliveryDelayInMillis": 9}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 5,
    "deleteWhileInactive": True,
}
AUTO_TOPICS = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}

DISPATCH = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": True,
    "ratePeriodInSecond": 2,
}
NO_DISPATCH_RATE = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}

VALUES: dict[str, Any] = {
    "storageQuota": {"limitBytes": 12, "policy": "producer_exception"},
    "dispatchRate": DISPATCH,
    "subscriptionDispatchRate": DISPATCH,
    "replicatorDispatchRate": DISPATCH,
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 7},
    "messageTTL": 5,
    "retention": RETENTION,
    "tableRetention": RETENTION,
    "persistence": PERSISTENCE,
    "deduplication": False,
    "subscriptionAuthMode": "Prefix",
    "deduplicationEnabled": False,
    "deduplicationSnapshotInterval": 7,
    "autoTopicCreation": AUTO_TOPICS,
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "delayedDelivery": DELAYED,
    "inactiveTopicPolicies": INACTIVE,
    "schemaCompatibilityStrategy": "FORWARD",
    "schemaValidationEnforced": True,
    "isAllowAutoUpdateSchema": False,
    "encryptionRequired": True,
    "subscriptionTypesEnabled": ["Exclusive", "Key_Shared"],
    "publishRate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1},
    "sealing": {"enabled": False, "targetFileSizeInMB": 7, "freshnessInSeconds": 3},
    "properties": {"team": "a"},
    "offloadPolicies": {
        "managedLedgerOffloadDriver": "aws-s3",
        "maxBlockSize": 7,
        "managedLedgerExtraConfigurations": {"further": "settings"},
        "s3ManagedLedgerOffloadRole": None,
    },
    "dispatcherPauseOnAckStatePersistent": True,
    "persistence/bookieAffinity": {"bookkeeperAffinityGroupPrimary": "rack-1"},
}
OWN = "/admin/v2/namespaces/public/own"


def _built(table: dict[str, Any]) -> list[str]:
    """Those that are like all others."""
    return [name for name, (row, place) in table.items() if row.key and not place.plain]


def _not_built(table: dict[str, Any]) -> list[str]:
    return [name for name, (row, _) in table.items() if not row.key]


@pytest.fixture(autouse=True)
def no_policies(api: AdminApi) -> None:
    """Not even those with which the default namespace is made."""
    namespaces = api.broker.resources.namespaces
    api.run(namespaces.update("public/default", lambda old: replace(old, policies={})))
    api.run(api.broker.policy_updates.refresh_namespace("public/default"))


@pytest.mark.feature("F27", "F80")
@pytest.mark.parametrize("policy", _built(NAMESPACE_POLICIES))
def test_a_namespace_policy_is_set_shown_and_removed(api: AdminApi, policy: str) -> None:
    row, place = NAMESPACE_POLICIES[policy]
    api.put(OWN)
    path, wanted = f"{OWN}/{policy}", VALUES.get(policy, 12)
    unset = api.get(path)
    assert unset.status in (200, 204)
    assert api.call(place.write, path, wanted).status == 204
    assert api.get(path).json == wanted
    if row.key in BY_CLUSTER:
        assert api.get(OWN).json[BY_CLUSTER[row.key]] == {"standalone": wanted}
    else:
        assert api.get(OWN).json[row.key] == wanted
    wrong = "PUT" if place.write == "POST" else "POST"
    assert api.call(wrong, path, wanted).status == 405
    assert api.delete(path).status == (204 if place.removable else 405)
    if place.removable:
        assert api.get(path).body == unset.body
        key, document = BY_CLUSTER.get(row.key, row.key), api.get(OWN).json
        assert key not in document or document[key] in ([], {})


@pytest.mark.feature("F80")
@pytest.mark.parametrize("policy", _built(TOPIC_POLICIES))
def test_a_topic_policy_is_set_shown_and_removed(api: AdminApi, policy: str) -> None:
    api.put(f"{TOPIC}/partitions", 2)
    _, place = TOPIC_POLICIES[policy]
    path, wanted = f"{TOPIC}/{policy}", VALUES.get(policy, 12)
    unset, default = api.get(path), api.get(f"{path}?applied=true")
    assert {unset.status, default.status} <= {200, 204}
    query = f"?{policy}={wanted}" if place.in_query else ""
    assert api.call(place.write, path + query, None if query else wanted).status == 204
    assert api.get(path).json == api.get(f"{path}?applied=true").json == wanted
    for partition in (1, 7):
        of_partition = f"{NAMESPACE}/t-partition-{partition}/{policy}"
        for answer in (api.get(of_partition), api.delete(of_partition)):
            assert (answer.status, answer.reason[:11]) == (412, "Not allowed")
        assert api.call(place.write, of_partition + query, wanted).status == 412
    assert api.delete(path).status == (204 if place.removable else 405)
    if place.removable:
        assert api.get(path).body == unset.body
        assert api.get(f"{path}?applied=true").body == default.body


def test_a_publish_rate_has_two_parts_and_what_is_missing_is_no_limit(api: AdminApi) -> None:
    api.put(TOPIC)
    path, off = f"{TOPIC}/publishRate", {MESSAGE_RATE: 0, BYTE_RATE: 0}
    assert (api.get(path).status, api.get(f"{path}?applied=true").json) == (204, off)
    assert api.post(f"{NS}/publishRate", {MESSAGE_RATE: 5}).status == 204
    assert api.get(f"{path}?applied=true").json == {MESSAGE_RATE: 5, BYTE_RATE: -1}
    for wrong, status in [
        ([], 400),
        ("fast", 400),
        ({MESSAGE_RATE: "x"}, 400),
        ({BYTE_RATE: 1.5}, 400),
        ({BYTE_RATE: 1 << 63}, 400),
        ({MESSAGE_RATE: 1 << 31}, 412),
    ]:
        assert api.post(path, wrong).status == status


def test_a_namespace_is_created_with_a_publish_rate_and_shows_it(api: AdminApi) -> None:
    given = {MESSAGE_RATE: 10, BYTE_RATE: 1 << 40}
    body = {"publishMaxMessageRate": {"standalone": given, "elsewhere": {MESSAGE_RATE: 1}}}
    assert api.put(OWN, body).status == 204
    assert api.get(f"{OWN}/publishRate").json == given
    shown = api.get(OWN).json
    assert shown["publishMaxMessageRate"] == {"standalone": given}
    assert PUBLISH_RATE not in shown
    for wrong in ([1], {"standalone": 5}, {"standalone": {BYTE_RATE: "x"}}):
        assert api.put(f"{OWN}-2", {"publishMaxMessageRate": wrong}).status == 400


@pytest.mark.parametrize("policy", _not_built(NAMESPACE_POLICIES))
def test_what_nothing_would_follow_is_refused(api: AdminApi, policy: str) -> None:
    _, place = NAMESPACE_POLICIES[policy]
    unset = api.get(f"{NS}/{policy}")
    assert unset.status in (200, 204)
    assert api.call(place.write, f"{NS}/{policy}", {"a": 1}).status == 501
    assert api.get(f"{NS}/{policy}").body == unset.body
    if place.removable:
        assert api.delete(f"{NS}/{policy}").status == 204


@pytest.mark.parametrize("policy", _not_built(TOPIC_POLICIES))
def test_what_nothing_would_follow_is_refused_at_topics(api: AdminApi, policy: str) -> None:
    api.put(TOPIC)
    _, place = TOPIC_POLICIES[policy]
    assert api.get(f"{TOPIC}/{policy}").status in (200, 204)
    assert api.call(place.write, f"{TOPIC}/{policy}", {"a": 1}).status == 501


@pytest.mark.parametrize(
    ("policy", "unset", "applied"),
    [
        ("messageTTL", b"", 0),
        ("retention", b"", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("maxProducers", b"", 0),
        ("maxUnackedMessagesOnConsumer", b"", 50_000),
        ("maxUnackedMessagesOnSubscription", b"", 200_000),
        ("deduplicationEnabled", b"", False),
        (
            "delayedDelivery",
            b"",
            {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0},
        ),
        ("schemaCompatibilityStrategy", b"", "FULL"),
        ("compactionThreshold", b"", 0),
        ("subscriptionTypesEnabled", b"", None),
        ("dispatchRate", b"", NO_DISPATCH_RATE),
        ("subscribeRate", b"", {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30}),
        ("replication", b"", ["standalone"]),
        ("entryFilters", b"", {"entryFilterNames": ""}),
    ],
)
def test_what_holds_where_nothing_is_set(
    api: AdminApi, policy: str, unset: bytes, applied: object
) -> None:
    api.put(TOPIC)
    assert api.get(f"{TOPIC}/{policy}").body == unset
    found = api.get(f"{TOPIC}/{policy}?applied=true")
    if applied is None:
        assert (found.status, found.body) == (204, b"")
    else:
        assert found.json == applied


def test_a_topic_falls_back_to_its_namespace(api: AdminApi) -> None:
    api.put(TOPIC)
    api.post(f"{NS}/messageTTL", 9)
    assert api.get(f"{TOPIC}/messageTTL").body == b""
    assert api.get(f"{TOPIC}/messageTTL?applied=true").json == 9
    api.post(f"{TOPIC}/messageTTL?messageTTL=4")
    assert api.get(f"{TOPIC}/messageTTL?applied=true").json == 4
    assert api.delete(f"{TOPIC}/policies").status == 204
    assert api.get(f"{TOPIC}/messageTTL?applied=true").json == 9


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/messageTTL", -1, 412),
        ("POST", "/messageTTL", "5 s", 400),
        ("POST", "/messageTTL", "", 400),
        ("POST", "/messageTTL", "9" * 30, 400),
        ("POST", "/messageTTL", True, 400),
        ("POST", "/messageTTL", None, 400),
        ("POST", "/messageTTL", 2**31, 412),
        ("POST", "/storageQuota", {"limitBytes": -2}, 412),
        ("POST", "/storageQuota", {"policy": "producer_exception"}, 400),
        ("POST", "/storageQuota", {"limitBytes": 5, "policy": "producer_request_hold"}, 400),
        ("POST", "/dispatchRate", [], 400),
        ("POST", "/dispatchRate", {"dispatchThrottlingRateInMsg": -2}, 412),
        ("POST", "/dispatchRate", {"dispatchThrottlingRateInMsg": 2**31}, 412),
        ("POST", "/dispatchRate", {"dispatchThrottlingRateInByte": "many"}, 400),
        ("POST", "/dispatchRate", {"ratePeriodInSecond": 0}, 412),
        ("POST", "/subscriptionDispatchRate", {"relativeToPublishRate": 7}, 400),
        ("POST", "/subscribeRate", {"ratePeriodInSecond": 2**31}, 412),
        ("POST", "/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0}, 400),
        ("POST", "/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": -1}, 400),
        ("POST", "/retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 400),
        ("POST", "/retention", {"retentionTimeInMinutes": 1.5, "retentionSizeInMB": 5}, 400),
        ("POST", "/retention", [], 400),
        ("POST", "/backlogQuota", {"limitSize": 5}, 400),
        ("POST", "/backlogQuota", {"limitSize": 5, "policy": "drop"}, 400),
        ("POST", "/backlogQuota", {"limitSize": -5, "policy": "producer_exception"}, 412),
        ("POST", "/backlogQuota?backlogQuotaType=count", QUOTA, 404),
        ("POST", "/persistence", {**PERSISTENCE, "bookkeeperEnsemble": 1}, 400),
        ("POST", "/persistence", {**PERSISTENCE, "bookkeeperEnsemble": 6}, 400),
        ("POST", "/persistence", {**PERSISTENCE, "bookkeeperAckQuorum": 0}, 400),
        ("POST", "/persistence", {**PERSISTENCE, "bookkeeperAckQuorum": 2}, 412),
        ("POST", "/persistence", {**PERSISTENCE, "managedLedgerMaxMarkDeleteRate": -1}, 400),
        ("POST", "/maxProducersPerTopic", -1, 412),
        ("POST", "/deduplication", "yes", 400),
        ("POST", "/autoTopicCreation", {**AUTO_TOPICS, "defaultNumPartitions": 0}, 412),
        ("POST", "/autoTopicCreation", {**AUTO_TOPICS, "topicType": "both"}, 400),
        ("POST", "/autoTopicCreation", {**AUTO_TOPICS, "defaultNumPartitions": None}, 412),
        ("POST", "/autoTopicCreation", {**AUTO_TOPICS, "topicType": "non-partitioned"}, 412),
        ("POST", "/delayedDelivery", {**DELAYED, "tickTime": -1}, 412),
        ("POST", "/offloadPolicies", [1], 400),
        ("POST", "/offloadPolicies", {"a": {"b": {"c": 1}}}, 400),
        ("POST", "/offloadPolicies", {str(n): {} for n in range(65)}, 412),
        ("POST", "/offloadPolicies", {str(n): n for n in range(65)}, 412),
        ("PUT", "/offloadThreshold", "much", 400),
        ("POST", "/inactiveTopicPolicies", {**INACTIVE, "inactiveTopicDeleteMode": "x"}, 400),
        ("POST", "/subscriptionTypesEnabled", ["Shared", "Other"], 400),
        ("PUT", "/schemaCompatibilityStrategy", "SOME", 400),
        ("PUT", "/compactionThreshold", -1, 412),
        ("PUT", "/properties", {"a": [1]}, 400),
        ("POST", "/sealing", {}, 400),
        ("POST", "/sealing", True, 400),
        ("POST", "/sealing", {"enabled": 1}, 400),
        ("POST", "/sealing", {"targetFileSizeInMB": 0}, 412),
        ("POST", "/sealing", {"freshnessInSeconds": -1}, 412),
        ("POST", "/replication", [], 412),
        ("POST", "/replication", ["elsewhere"], 403),
    ],
)
def test_what_is_refused(api: AdminApi, method: str, path: str, body: object, status: int) -> None:
    before = api.get(NS).json
    answer = api.call(method, NS + path, body)
    assert answer.status == status
    assert answer.reason
    assert api.get(NS).json == before
    nowhere = path.partition("?")[0]
    assert api.call(method, f"/admin/v2/namespaces/public/none{nowhere}", body).status == 404


def test_a_quota_is_below_the_retention(api: AdminApi) -> None:
    limited = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
    by_age = {"limitTime": 60, "policy": "producer_exception"}
    assert api.post(f"{NS}/retention", limited).status == 204
    assert api.post(f"{NS}/backlogQuota", {**QUOTA, "limitSize": 1 << 20}).status == 412
    assert api.post(f"{NS}/backlogQuota?backlogQuotaType=message_age", by_age).status == 412
    assert api.post(f"{NS}/backlogQuota", {**QUOTA, "limitSize": (1 << 20) - 1}).status == 204
    api.delete(f"{NS}/retention")
    assert api.post(f"{NS}/backlogQuota", {**QUOTA, "limitSize": 1 << 20}).status == 204
    assert api.post(f"{NS}/retention", limited).status == 412


def test_backlog_quotas_of_both_kinds(api: AdminApi) -> None:
    assert api.get(f"{NS}/backlogQuotaMap").json == {}
    old_name = {"limit": 1024, "policy": "producer_exception"}
    assert api.post(f"{NS}/backlogQuota", old_name).status == 204
    by_age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
    assert api.post(f"{NS}/backlogQuota?backlogQuotaType=message_age", by_age).status == 204
    shown_age = {**by_age, "limitSize": -1, "limit": -1}
    both = {"destination_storage": SHOWN_QUOTA, "message_age": shown_age}
    assert api.get(f"{NS}/backlogQuotaMap").json == both
    assert api.get(NS).json["backlog_quota_map"] == both
    api.put(TOPIC)
    own = {**QUOTA, "limitSize": 5}
    assert api.post(f"{TOPIC}/backlogQuota", own).status == 204
    assert api.get(f"{TOPIC}/backlogQuotaMap").json == {"destination_storage": {**own, "limit": 5}}
    applied = api.get(f"{TOPIC}/backlogQuotaMap?applied=true").json
    assert applied == {"destination_storage": {**own, "limit": 5}, "message_age": shown_age}
    assert api.delete(f"{TOPIC}/backlogQuota").status == 204
    assert api.delete(f"{NS}/backlogQuota").status == 204
    assert api.get(f"{NS}/backlogQuotaMap").json == {"message_age": shown_age}
    assert api.delete(f"{NS}/backlogQuota?backlogQuotaType=message_age").status == 204
    none = {"limitSize": -1, "limit": -1, "limitTime": -1, "policy": "producer_request_hold"}
    assert api.get(f"{TOPIC}/backlogQuotaMap?applied=true").json == {
        "destination_storage": none,
        "message_age": none,
    }


def test_the_members_of_sealing_hold_one_by_one(api: AdminApi) -> None:
    topic = api.topic("t")
    api.post(f"{NS}/sealing", {"enabled": True, "freshnessInSeconds": 9})
    api.post(f"{TOPIC}/sealing", {"freshnessInSeconds": 2})
    assert api.get(f"{TOPIC}/sealing").json == {"freshnessInSeconds": 2}
    assert api.get(f"{TOPIC}/sealing?applied=true").json == {
        "enabled": True,
        "targetFileSizeInMB": 128,
        "freshnessInSeconds": 2,
    }
    sealing = topic.policies.sealing
    assert (sealing.enabled, sealing.freshness_seconds) == (True, 2)
    api.post(f"{NS}/sealing", {"enabled": False})
    assert not topic.policies.sealing.enabled
    api.delete(f"{TOPIC}/sealing")
    assert topic.policies.sealing.freshness_seconds == 20


def test_policies_hold_at_once_for_loaded_topics(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    one, part, other = api.topic("t"), api.topic("p-partition-1"), api.topic("other")
    api.post(f"{NS}/messageTTL", 9)
    api.post(f"{TOPIC}/messageTTL?messageTTL=4")
    api.post(f"{NAMESPACE}/p/maxConsumers", 3)
    assert [t.policies.message_ttl_seconds for t in (one, part, other)] == [4, 9, 9]
    assert [t.policies.max_consumers for t in (one, part, other)] == [0, 3, 0]
    api.delete(f"{NS}/messageTTL")
    assert [t.policies.message_ttl_seconds for t in (one, part, other)] == [4, 0, 0]
    api.put(f"{NAMESPACE}/p-partition-0/unload")
    assert api.topic("p-partition-0").policies.max_consumers == 3


def test_a_topic_created_again_has_no_policies(api: AdminApi) -> None:
    for create, delete in ((TOPIC, TOPIC), (f"{TOPIC}/partitions", f"{TOPIC}/partitions")):
        api.put(create, 2 if create != TOPIC else None)
        api.post(f"{TOPIC}/maxProducers", 3)
        assert api.delete(delete).status == 204
        assert api.get(f"{TOPIC}/maxProducers").status == 404
        api.put(create, 2 if create != TOPIC else None)
        assert api.get(f"{TOPIC}/maxProducers").body == b""
        api.delete(delete)


def test_policies_of_topics_can_be_disabled() -> None:
    api = AdminApi(topicLevelPoliciesEnabled=False)
    api.put(TOPIC)
    assert api.get(f"{TOPIC}/maxProducers").status == 405
    assert api.post(f"{TOPIC}/maxProducers", 1).status == 405
    api.close()


def test_an_empty_body_removes_the_snapshot_interval(api: AdminApi) -> None:
    path = f"{NS}/deduplicationSnapshotInterval"
    api.post(path, 5)
    assert api.post(path).status == 204
    assert api.get(path).body == b""


def test_go_says_true_as_a_text(api: AdminApi) -> None:
    assert api.post(f"{NS}/encryptionRequired", "true").status == 204
    assert api.get(f"{NS}/encryptionRequired").json is True


def test_a_namespace_is_created_with_policies(api: AdminApi) -> None:
    empty = api.get(NS).json
    given = {
        **empty,
        "unknown": 1,
        "max_topics_per_namespace": None,
        "retention_policies": RETENTION,
        "backlog_quota_map": {"destination_storage": QUOTA},
        "deduplicationEnabled": True,
    }
    path = "/admin/v2/namespaces/public/n"
    assert api.put(path, given).status == 204
    assert api.get(path).json == {
        **empty,
        "retention_policies": RETENTION,
        "backlog_quota_map": {"destination_storage": SHOWN_QUOTA},
        "deduplicationEnabled": True,
    }
    assert api.get(f"{path}/retention").json == RETENTION


def test_a_namespace_is_created_with_what_roles_may_do(api: AdminApi) -> None:
    granted = {
        "namespace_auth": {"app": ["produce", "consume"]},
        "destination_auth": {"persistent://public/n/t": {"other": ["consume"]}},
        "subscription_auth_roles": {"s": ["app"]},
    }
    path = "/admin/v2/namespaces/public/n"
    offload = {"offload_threshold": 5, "offload_policies": {"a": "b"}}
    assert api.put(path, {"auth_policies": granted, **offload}).status == 204
    shown = {**granted, "namespace_auth": {"app": ["consume", "produce"]}}
    found = api.get(path).json
    assert found["auth_policies"] == shown
    assert {key: found[key] for key in offload} == offload
    assert api.get(f"{path}/permissions").json == shown["namespace_auth"]
    for wrong in (
        {"namespace_auth": {"app": ["fly"]}},
        {"namespace_auth": {"": ["consume"]}},
        {"namespace_auth": []},
        {"destination_auth": {"t/": {"app": ["consume"]}}},
        {"subscription_auth_roles": {"s": 1}},
        7,
    ):
        answer = api.put("/admin/v2/namespaces/public/m", {"auth_policies": wrong})
        assert answer.status in (400, 412)
        assert answer.reason
    assert api.get("/admin/v2/namespaces/public/m").status == 404


def test_properties_are_added_to_those_that_there_are(api: AdminApi) -> None:
    for given in ({"a": "b"}, {"c": "d", "n": 1, "yes": True}, {}):
        assert api.put(f"{NS}/properties", given).status == 204
    assert api.get(f"{NS}/properties").json == {"a": "b", "c": "d", "n": "1", "yes": "true"}


def test_numbers_and_flags_may_come_as_texts(api: AdminApi) -> None:
    quota = {"limit": "10240", "limitTime": "-1", "policy": "producer_request_hold"}
    for path, given in (
        ("backlogQuota", quota),
        ("messageTTL", "5"),
        (
            "persistence",
            {**PERSISTENCE, "bookkeeperEnsemble": "2", "managedLedgerMaxMarkDeleteRate": "0.5"},
        ),
        ("deduplication", "true"),
    ):
        assert api.post(f"{NS}/{path}", given).status == 204
    assert api.get(f"{NS}/messageTTL").json == 5
    assert api.get(f"{NS}/persistence").json == PERSISTENCE
    assert api.get(f"{NS}/backlogQuotaMap").json["destination_storage"]["limitSize"] == 10240
    assert api.put(f"{NAMESPACE}/p/partitions", "2").status == 204
    assert api.get(f"{NAMESPACE}/p/partitions").json["partitions"] == 2


def test_what_clients_are_told_in_pulsars_words(api: AdminApi) -> None:
    for path, given, reason in (
        ("maxTopicsPerNamespace", -1, "maxTopicsPerNamespace must be 0 or more"),
        ("maxProducersPerTopic", -1, "maxProducersPerTopic must be 0 or more"),
        ("messageTTL", -1, "Invalid value for message TTL"),
        ("subscriptionExpirationTime", -1, "Invalid value for subscription expiration time"),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned"},
            "Invalid configuration for autoTopicCreationOverride. the detail is "
            "[defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
    ):
        answer = api.post(f"{NS}/{path}", given)
        assert (answer.status, answer.reason) == (412, reason)


def test_topics_without_partitions_have_no_number_of_them(api: AdminApi) -> None:
    plain = {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
    assert api.post(f"{NS}/autoTopicCreation", plain).status == 204
    assert api.get(f"{NS}/autoTopicCreation").json == plain
    ask = f"{NAMESPACE}/new/partitions?checkAllowAutoCreation=true"
    assert api.get(ask).json["partitions"] == 0


def test_a_client_may_leave_the_tick_of_delayed_delivery_at_0(api: AdminApi) -> None:
    off = {"active": False, "tickTime": 0, "maxDeliveryDelayInMillis": 0}
    api.put(TOPIC)
    for path in (NS, TOPIC):
        assert api.post(f"{path}/delayedDelivery", off).status == 204
        assert api.get(f"{path}/delayedDelivery").json == off


def test_what_the_default_namespace_keeps_is_its_default() -> None:
    api = AdminApi()
    for policy in ("retention", "tableRetention"):
        before = api.get(f"{NS}/{policy}").json
        assert before == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert api.post(f"{NS}/{policy}", RETENTION).status == 204
        assert api.delete(f"{NS}/{policy}").status == 204
        assert api.get(f"{NS}/{policy}").json == before
    api.close()


def test_offload_policies_go_by_both_names(api: AdminApi) -> None:
    assert api.post(f"{NS}/offloadPolicies", {"a": "b"}).status == 204
    assert api.delete(f"{NS}/removeOffloadPolicies").status == 204
    assert api.get(f"{NS}/offloadPolicies").body == b""


def test_replication(api: AdminApi) -> None:
    answer = api.post(f"{NS}/replication", ["standalone"])
    assert (answer.status, answer.body) == (200, b"")
    assert api.get(f"{NS}/replication").json == ["standalone"]


def test_automatic_creation_of_topics_is_a_policy(api: AdminApi) -> None:
    ask = f"{NAMESPACE}/new/partitions?checkAllowAutoCreation=true"
    api.post(f"{NS}/autoTopicCreation", {**AUTO_TOPICS, "allowAutoTopicCreation": False})
    assert api.get(ask).status == 404
    api.post(f"{NS}/autoTopicCreation", AUTO_TOPICS)
    assert api.get(ask).json["partitions"] == 3


@pytest.mark.parametrize("more", [{}, {"topicType": ""}, {"topicType": "partitioned"}])
def test_without_automatic_creation_the_type_of_topics_does_not_matter(
    api: AdminApi, more: dict[str, Any]
) -> None:
    sent = {"allowAutoTopicCreation": False, **more}
    assert api.post(f"{NS}/autoTopicCreation", sent).status == 204
    found = api.get(f"{NS}/autoTopicCreation").json
    assert found == {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}


def test_dispatch_that_pauses_is_switched_on_without_a_body(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    for path in (NS, f"{NAMESPACE}/t"):
        policy = f"{path}/dispatcherPauseOnAckStatePersistent"
        assert api.get(policy).json is False
        assert api.post(policy).status == 204
        assert api.get(policy).json is True
        assert api.delete(policy).status == 204
        assert api.get(policy).json is False


def test_properties_of_a_namespace_have_a_limit_of_bytes(api: AdminApi) -> None:
    whole = {"k": "x" * (TOPIC_PROPERTIES_BYTES_MAX - 2), "l": ""}
    assert api.put(f"{NS}/properties", {**whole, "m": ""}).status == 412
    assert api.put(f"{NS}/properties", whole).status == 204
    for refused in [api.put(f"{NS}/property/l/1"), api.put(f"{NS}/properties", {"m": ""})]:
        assert refused.status == 412
        assert f"may have {TOPIC_PROPERTIES_BYTES_MAX}" in refused.json["reason"]
    assert api.get(f"{NS}/properties").json == whole


def test_properties_one_by_one(api: AdminApi) -> None:
    assert api.put(f"{NS}/property/a%2Fb/c%20d+").status == 204
    assert api.put(f"{NS}/property/e/f").status == 204
    assert api.get(f"{NS}/properties").json == {"a/b": "c d+", "e": "f"}
    assert api.get(f"{NS}/property/a%2Fb").body == b"c d+"
    removed = api.delete(f"{NS}/property/a%2Fb")
    assert (removed.status, removed.body) == (200, b"c d+")
    assert api.delete(f"{NS}/property/e").body == b"f"
    gone = api.get(f"{NS}/property/e")
    assert (gone.status, gone.body) == (200, b"")
    assert api.delete(f"{NS}/property/e").status == 200
    assert api.get(f"{NS}/properties").json == {}
    assert api.put("/admin/v2/namespaces/public/none/property/a/b").status == 404


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_namespace_has_no_more_topics_than_it_may(api: AdminApi, domain: str) -> None:
    topics = f"/admin/v2/{domain}/public/default"
    assert api.post(f"{NS}/maxTopicsPerNamespace", 3).status == 204
    assert api.put(f"{topics}/p/partitions", 2).status == 204
    assert api.put(f"{topics}/q/partitions", 2).status == 412
    assert api.put(f"{topics}/p-partition-1").status in (204, 409), "it counts already"
    assert api.put(f"{topics}/t").status == 204
    assert "maximum number of topics" in api.put(f"{topics}/u").reason
    assert api.put(f"{topics}/u").status == 412
    assert api.post(f"{topics}/p/partitions", 3).status == 412
    for hidden in ("__system", "__change_events", "__transaction_buffer_snapshot"):
        assert api.put(f"{topics}/{hidden}").status == 412, "a prefix is no privilege"
    name = TopicName.parse(f"{domain}://public/default/u")
    with pytest.raises(ClientError) as refused:
        api.run(api.broker.creation.topic_for_clients(name))
    assert refused.value.code is ServerError.NotAllowedError
    assert api.delete(f"{topics}/t").status == 204
    assert api.put(f"{topics}/u").status == 204
    assert api.delete(f"{NS}/maxTopicsPerNamespace").status == 204
    assert api.get(f"{NS}/maxTopicsPerNamespace").json == 0
    assert api.put(f"{topics}/__v").status == 204
    assert f"{domain}://public/default/__v" in api.get(f"{topics}").json


def test_a_topic_takes_no_larger_messages_than_its_broker(api: AdminApi) -> None:
    api.put(TOPIC)
    assert api.post(f"{TOPIC}/maxMessageSize", 5_242_881).status == 412
    assert api.post(f"{TOPIC}/maxMessageSize", -1).status == 412
    assert api.post(f"{TOPIC}/maxMessageSize", 5_242_880).status == 204


def test_a_namespace_says_whether_lookups_and_subscriptions_find_missing_topics(
    api: AdminApi,
) -> None:
    lookup = "/lookup/v2/topic/persistent/public/default/t"
    assert api.get(lookup).status == 200
    off = {"allowAutoTopicCreation": False}
    assert api.post(f"{NS}/autoTopicCreation", off).status == 204
    assert api.get(lookup).status == 404
    assert api.put(f"{TOPIC}/subscription/s").status == 412
    api.put(TOPIC)
    assert api.get(lookup).status == 200
    assert api.put(f"{TOPIC}/subscription/s").status == 204


# -- rates -------------------------------------------------------------------------------------


def test_a_rate_says_all_of_what_holds(api: AdminApi) -> None:
    api.post(f"{NS}/dispatchRate", {"dispatchThrottlingRateInByte": 5})
    unlimited = {**NO_DISPATCH_RATE, "dispatchThrottlingRateInMsg": -1}
    assert api.get(f"{NS}/dispatchRate").json == {**unlimited, "dispatchThrottlingRateInByte": 5}
    document = api.get(NS).json
    assert document["clusterDispatchRate"] == document["topicDispatchRate"]
    api.post(f"{NS}/subscribeRate", {"subscribeThrottlingRatePerConsumer": 5})
    assert api.get(f"{NS}/subscribeRate").json["ratePeriodInSecond"] == 30


def test_a_namespace_is_made_with_rates(api: AdminApi) -> None:
    rates = {name: {"standalone": VALUES[key]} for key, name in BY_CLUSTER.items()}
    assert api.put(OWN, {**rates, "clusterDispatchRate": {"elsewhere": DISPATCH}}).status == 204
    document = api.get(OWN).json
    assert {name: document[name] for name in rates} == rates
    assert api.get(f"{OWN}/dispatchRate").json == DISPATCH
    again = {k: v for k, v in document.items() if k not in ("replication_clusters", "bundles")}
    assert api.put(f"{OWN}2", again).status == 204
    assert api.get(f"{OWN}2/subscribeRate").json == VALUES["subscribeRate"]
    former = {"clusterDispatchRate": {"standalone": DISPATCH}}
    assert api.put(f"{OWN}3", former).status == 204
    assert api.get(f"{OWN}3/dispatchRate").json == DISPATCH
    for wrong in ({"topicDispatchRate": 7}, {"clusterSubscribeRate": {"standalone": 7}}):
        assert api.put(f"{OWN}4", wrong).status == 400


def test_the_rate_of_one_subscription(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(TOPIC)
    path = f"{TOPIC}/s%252Fu/dispatchRate"
    assert (api.get(path).status, api.get(path).body) == (200, b"")
    assert api.get(f"{path}?applied=true").json == NO_DISPATCH_RATE
    assert api.post(path, DISPATCH).status == 204
    assert api.get(path).json == api.get(f"{path}?applied=true").json == DISPATCH
    assert api.get(f"{TOPIC}/s/dispatchRate").body == b""
    policies = api.topic("t").policies
    assert policies.dispatch_rate_of("s/u").messages == 10
    assert not policies.dispatch_rate_of("s").limits
    assert api.post(path, {"ratePeriodInSecond": -1}).status == 412
    assert api.post(path).status == 400
    monkeypatch.setattr("pulsark.admin.pulsar.policies.SUBSCRIPTION_RATES_MAX", 1)
    assert api.post(f"{TOPIC}/s/dispatchRate", DISPATCH).status == 412
    assert api.post(path, {**DISPATCH, "ratePeriodInSecond": 9}).status == 204
    assert api.delete(path).status == 204
    assert api.get(path).body == b""
    assert not api.topic("t").policies.own_dispatch_rates
    api.post(f"{NS}/subscriptionDispatchRate", DISPATCH)
    assert api.get(f"{path}?applied=true").json == DISPATCH
    assert api.get(f"{NAMESPACE}/none/s/dispatchRate").status == 404
