"""Expiring, trimming and truncating over HTTP, and what statistics say of a backlog."""

from __future__ import annotations

import pytest

from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path

TOPIC = f"{NAMESPACE}/t"
PART = "persistent://public/default/p-partition-0"
HOUR = 3_600_000


def backlog(api: AdminApi, name: str = "s", query: str = "") -> dict[str, int]:
    found: dict[str, int] = api.get(f"{TOPIC}/stats{query}").json["subscriptions"][name]
    return found


def publish_of_two_times(api: AdminApi) -> None:
    """130 messages that are an hour old, and 3 that are new."""
    api.publish("t", *[b"x" * 10] * 130, publish_time=api.clock.ms)
    api.clock.ms += HOUR
    api.publish("t", *[b"x" * 10] * 3, publish_time=api.clock.ms)


def subscribed(api: AdminApi, *names: str) -> None:
    for name in names:
        assert api.put(subscription_path("t", name)).status == 204


@pytest.mark.feature("F53")
def test_expire_by_age(api: AdminApi) -> None:
    subscribed(api, "s", "other")
    publish_of_two_times(api)
    path = subscription_path("t", "s")
    assert api.post(f"{path}/expireMessages/3601").status == 204  # nothing is so old
    assert backlog(api)["msgBacklog"] == 133
    assert api.post(f"{path}/expireMessages/600").status == 204
    assert backlog(api)["msgBacklog"] == 3
    assert backlog(api)["totalMsgExpired"] == 130
    assert backlog(api)["lastExpireTimestamp"] == api.clock.ms
    assert backlog(api)["msgRateExpired"] > 0
    assert backlog(api, "other")["msgBacklog"] == 133
    assert api.post(f"{path}/expireMessages/600").status == 204
    assert api.post(f"{path}/skip_all").status == 204
    assert api.post(f"{path}/expireMessages/600").status == 409
    assert api.post(f"{subscription_path('t', 'none')}/expireMessages/600").status == 404
    assert api.post(f"{path}/expireMessages/soon").status == 404


def test_expire_for_all_subscriptions(api: AdminApi) -> None:
    subscribed(api, "a", "b")
    publish_of_two_times(api)
    path = f"{TOPIC}/all_subscription/expireMessages"
    assert api.post(f"{path}/3601").status == 204
    assert api.post(f"{path}/600").status == 204
    assert [backlog(api, name)["msgBacklog"] for name in "ab"] == [3, 3]
    assert api.post(f"{subscription_path('t', 'a')}/skip_all").status == 204
    assert api.post(f"{path}/600").status == 409
    assert api.post(f"{NAMESPACE}/none/all_subscription/expireMessages/600").status == 404


@pytest.mark.parametrize(("excluded", "left"), [(False, 1), (True, 2)])
def test_expire_up_to_a_message(api: AdminApi, excluded: bool, left: int) -> None:
    subscribed(api, "s")
    api.publish("t", *[b"x"] * 5)
    ledger = api.topic("t").ledger.last_confirmed.ledger_id
    path = f"{subscription_path('t', 's')}/expireMessages"
    body = {"ledgerId": ledger, "entryId": 3, "excluded": excluded}
    assert api.post(path, body).status == 204
    assert backlog(api)["msgBacklog"] == left
    assert api.post(path, {"ledgerId": ledger, "entryId": 99}).status == 204
    assert backlog(api)["msgBacklog"] == 0
    api.put(f"{NAMESPACE}/p/partitions", 2)
    api.put(subscription_path("p", "s"))
    assert api.post(f"{subscription_path('p', 's')}/expireMessages", body).status == 405


@pytest.mark.feature("F52")
def test_trim_and_truncate() -> None:
    api = AdminApi(
        managedLedgerMaxEntriesPerLedger=2,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        defaultRetentionTimeInMinutes=10,
        defaultRetentionSizeInMB=-1,
    )
    kept = {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
    api.post("/admin/v2/namespaces/public/default/retention", kept)
    subscribed(api, "s")
    api.publish("t", *[b"x"] * 9)
    trimmed = api.post(f"{TOPIC}/trim")
    assert (trimmed.status, trimmed.body) == (200, b"")
    assert api.topic("t").ledger.entries == 9
    first = api.topic("t").ledger.ledgers()[0].entries
    api.post(f"{subscription_path('t', 's')}/skip/{first + 1}")
    api.clock.ms += 11 * 60_000
    api.post(f"{TOPIC}/trim")
    assert api.topic("t").ledger.entries == 9 - first
    assert backlog(api)["msgBacklog"] == 8 - first
    assert api.delete(f"{TOPIC}/truncate").status == 204
    assert all(info.open for info in api.topic("t").ledger.ledgers())
    assert api.topic("t").ledger.entries == 0
    api.publish("t", b"in an open ledger")
    assert api.topic("t").ledger.entries == 1
    assert api.delete(f"{TOPIC}/truncate").status == 204
    assert api.topic("t").ledger.entries == 0
    assert backlog(api)["msgBacklog"] == 0
    assert api.delete(f"{NAMESPACE}/none/truncate").status == 404
    api.close()


def test_what_statistics_say_of_a_backlog(api: AdminApi) -> None:
    subscribed(api, "s", "fast")
    start = api.clock.ms
    publish_of_two_times(api)
    api.post(f"{subscription_path('t', 'fast')}/skip/130")
    stats = api.get(f"{TOPIC}/stats").json
    assert stats["subscriptions"]["s"]["backlogSize"] == stats["backlogSize"]
    assert stats["backlogSize"] == stats["storageSize"]
    fast = stats["subscriptions"]["fast"]["backlogSize"]
    assert fast == pytest.approx(stats["storageSize"] * 3 / 133, abs=1)
    assert stats["earliestMsgPublishTimeInBacklogs"] == 0
    assert backlog(api, query="?subscriptionBacklogSize=false")["backlogSize"] == -1
    assert backlog(api, query="?getPreciseBacklog=true")["msgBacklog"] == 133
    found = api.get(f"{TOPIC}/stats?getEarliestTimeInBacklog=true").json
    assert found["earliestMsgPublishTimeInBacklogs"] == start
    assert found["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == start
    assert found["subscriptions"]["fast"]["earliestMsgPublishTimeInBacklog"] == start + HOUR


def test_statistics_of_quotas_and_of_the_oldest_message(api: AdminApi) -> None:
    for part, age_ms in ((0, 5000), (1, 9000)):
        api.put(f"{NAMESPACE}/p/partitions", 2)
        name = f"p-partition-{part}"
        api.put(subscription_path(name, f"s{part}"))
        api.publish(name, b"x", publish_time=api.clock.ms - age_ms)
        api.run(api.topic(name).backlog.enforce())
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    api.post(f"{NAMESPACE}/p/backlogQuota", quota)
    found = api.get(f"{NAMESPACE}/p-partition-0/stats").json
    assert found["backlogQuotaLimitSize"] == 1000
    assert found["backlogQuotaLimitTime"] == -1
    assert found["oldestBacklogMessageAgeSeconds"] == 5
    assert found["oldestBacklogMessageSubscriptionName"] == "s0"
    lines = api.get("/metrics/").body.decode().splitlines()
    where = f'{{cluster="standalone",namespace="public/default",topic="{PART}"}}'
    assert f"pulsar_storage_backlog_quota_limit{where} 1000" in lines
    assert f"pulsar_storage_backlog_age_seconds{where} 5" in lines
    whole = api.get(f"{NAMESPACE}/p/partitioned-stats?getEarliestTimeInBacklog=true").json
    assert whole["backlogQuotaLimitSize"] == 1000
    assert whole["oldestBacklogMessageAgeSeconds"] == 9
    assert whole["oldestBacklogMessageSubscriptionName"] == "s1"
    assert whole["earliestMsgPublishTimeInBacklogs"] == api.clock.ms - 9000
