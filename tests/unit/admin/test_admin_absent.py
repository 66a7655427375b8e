"""Routes of Pulsar's admin API with little or nothing behind them: what clients are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.admin.pulsar import brokers
from tests.support.admin_api import NAMESPACE, AdminApi

V2 = "/admin/v2"
CLUSTER = "/clusters/standalone"
NS = "/namespaces/public/default"
BUNDLE = "0x00000000_0x40000000"
TOPIC = "/persistent/public/default/t"
NONE = "/persistent/public/default/none"

ANSWERS: list[tuple[str, str, int, Any]] = [
    ("GET", f"{CLUSTER}/failureDomains", 200, {}),
    ("GET", f"{CLUSTER}/failureDomains/d", 404, None),
    ("DELETE", f"{CLUSTER}/failureDomains/d", 404, None),
    ("POST", f"{CLUSTER}/failureDomains/d", 501, None),
    ("GET", "/clusters/none/failureDomains", 404, None),
    ("GET", f"{CLUSTER}/namespaceIsolationPolicies", 404, None),
    ("GET", f"{CLUSTER}/namespaceIsolationPolicies/p", 404, None),
    ("DELETE", f"{CLUSTER}/namespaceIsolationPolicies/p", 204, None),
    ("GET", f"{CLUSTER}/migrate", 404, None),
    ("POST", f"{CLUSTER}/migrate?migrated=true", 501, None),
    ("POST", "/clusters/none/migrate", 404, None),
    ("GET", "/namespaces/standalone/antiAffinity/g?tenant=public", 200, []),
    ("GET", "/namespaces/standalone/antiAffinity/g", 400, None),
    ("DELETE", f"{NS}/removeOffloadPolicies", 204, None),
    ("POST", f"{NS}/migration", 501, None),
    ("POST", "/namespaces/public/none/migration", 404, None),
    ("GET", "/scalable/public/default", 200, []),
    ("GET", "/scalable/public/none", 404, None),
    ("GET", "/scalable/public/default/t", 404, None),
    ("GET", "/scalable/public/default/t/stats", 404, None),
    ("PUT", "/scalable/public/default/t?numInitialSegments=4", 501, None),
    ("POST", "/scalable/public/default/t/split/0", 501, None),
    ("DELETE", "/scalable/public/default/t", 501, None),
    ("POST", "/brokers/configuration/maxMessageSize/a/b", 412, None),
    ("DELETE", "/brokers/configuration/maxMessageSize", 412, None),
    ("GET", "/brokers/backlog-quota-check", 204, None),
    ("GET", "/brokers/standalone/elsewhere:1/ownedNamespaces", 404, None),
    ("GET", "/brokers/none/broker:8080/ownedNamespaces", 404, None),
    ("POST", "/resource-quotas", 501, None),
    ("POST", f"/resource-quotas/public/default/{BUNDLE}", 501, None),
    ("DELETE", f"/resource-quotas/public/default/{BUNDLE}", 204, None),
    ("GET", "/resource-quotas/public/default/0x00000000_0x00000001", 412, None),
    ("GET", "/broker-stats/mbeans", 200, []),
    ("GET", "/broker-stats/bookieops", 200, {}),
    ("GET", "/broker-stats/allocator-stats/default", 200, {}),
    ("GET", "/broker-stats/broker-resource-availability/public/default", 409, None),
    ("PUT", f"{TOPIC}/offload", 501, None),
    ("GET", f"{NONE}/offload", 404, None),
    ("PUT", f"{TOPIC}/shadowTopics", 501, None),
    ("DELETE", f"{TOPIC}/shadowTopics", 204, None),
    ("GET", f"{NONE}/shadowTopics", 404, None),
    ("GET", f"{NONE}/backlog", 404, None),
    ("GET", "/schemas/public/default/t/metadata", 404, None),
]


@pytest.mark.parametrize(("method", "path", "status", "content"), ANSWERS)
def test_what_is_answered(api: AdminApi, method: str, path: str, status: int, content: Any) -> None:
    api.put(f"{NAMESPACE}/t")
    answer = api.call(method, V2 + path)
    assert answer.status == status
    if status >= 400:
        assert answer.reason
    elif content is not None:
        assert answer.json == content


def test_namespaces_of_a_cluster_are_none(api: AdminApi) -> None:
    assert api.get("/admin/namespaces/public/standalone").json == []
    assert api.get("/admin/namespaces/public/none").status == 404
    assert api.get("/admin/namespaces/none/standalone").status == 404


def test_metrics_of_namespaces_in_their_older_form(api: AdminApi) -> None:
    assert api.get(f"{V2}/broker-stats/metrics").json == []
    for topic in "tu":
        api.publish(topic, b"a")
    (found,) = api.get(f"{V2}/broker-stats/metrics").json
    assert found["dimensions"] == {"namespace": "public/default"}
    assert found["metrics"]["brk_topics_count"] == 2
    assert found["metrics"]["brk_no_of_subscriptions"] == 0


def test_a_broker_is_stopped_as_by_a_signal(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_ANSWER_SECONDS", 0)
    assert api.post(f"{V2}/brokers/shutdown").status == 204
    api.run(asyncio.sleep(0.01))
    assert api.stops == 1


def test_shadow_topics_are_an_empty_list(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    assert api.get(f"{V2}{TOPIC}/shadowTopics").json == []


def test_the_quota_of_a_bundle_is_the_default(api: AdminApi) -> None:
    default = api.get(f"{V2}/resource-quotas").json
    assert default["msgRateIn"] == 40.0
    assert api.get(f"{V2}/resource-quotas/public/default/{BUNDLE}").json == default


def test_nothing_was_offloaded(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    assert api.get(f"{NAMESPACE}/t/offload").json["status"] == "NOT_RUN"


def test_peers_of_a_cluster(api: AdminApi) -> None:
    peers = f"{V2}{CLUSTER}/peers"
    assert api.get(peers).body == b""
    assert api.put(f"{V2}/clusters/c2", {"serviceUrl": "http://c2:8080"}).status == 200
    assert api.post(peers, ["c2"]).status == 204
    assert api.get(peers).json == ["c2"]
    assert api.get(V2 + CLUSTER).json["peerClusterNames"] == ["c2"]
    assert api.post(peers, ["c3"]).status == 412
    assert api.post(peers, ["standalone"]).status == 412
    assert api.post(f"{V2}/clusters/c9/peers", []).status == 404
    assert api.post(peers, []).status == 204
    assert api.get(peers).body == b""


def test_the_bundles_of_a_broker(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    bundle = api.get("/lookup/v2/topic/persistent/public/default/t/bundle").body.decode()
    owned = api.get(f"{V2}/brokers/standalone/broker:8080/ownedNamespaces").json
    assert owned[f"public/default/{bundle}"]["is_active"] is True


def test_a_check_of_backlogs_is_one(api: AdminApi) -> None:
    quota = {"limitSize": 1, "policy": "consumer_backlog_eviction"}
    api.put(f"{NAMESPACE}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
    api.publish("t", b"a", b"b")
    assert api.post(f"{V2}{NS}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    assert api.post(f"{V2}{NS}/backlogQuota", quota).status == 204
    assert api.get(f"{V2}/brokers/backlog-quota-check").status == 204
    stats = api.get(f"{NAMESPACE}/t/stats").json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0


def test_the_backlog_of_a_topic(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
    api.publish("t", b"a", b"b")
    found = api.get(f"{NAMESPACE}/t/backlog").json
    assert (found["totalMessages"], found["messageBacklog"]) == (2, 2)
    assert found["storageSize"] == found["dataLedgerDetails"][0]["size"] > 0
    assert found["cursorDetails"]["s"]["cursorBacklog"] == 2


def test_where_the_versions_of_a_schema_are(api: AdminApi) -> None:
    path = f"{V2}/schemas/public/default/t"
    assert api.post(f"{path}/schema", {"type": "STRING", "schema": ""}).status == 200
    found = api.get(f"{path}/metadata").json
    assert found["info"]["version"] == 0
    assert len(found["index"]) == 1
