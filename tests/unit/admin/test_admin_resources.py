"""Clusters, tenants, namespaces and brokers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import NAMESPACE, AdminApi

V2 = "/admin/v2"


def test_clusters(api: AdminApi) -> None:
    assert api.get(f"{V2}/clusters").json == ["standalone"]
    data = {"serviceUrl": "http://other:8080", "brokerServiceUrl": "pulsar://other:6650"}
    created = api.put(f"{V2}/clusters/c2", data)
    assert (created.status, created.body) == (200, b"")
    assert api.put(f"{V2}/clusters/c2", data).status == 409
    found = api.get(f"{V2}/clusters/c2").json
    assert found["serviceUrl"] == "http://other:8080"
    assert found["brokerClientTlsEnabled"] is False
    assert api.post(f"{V2}/clusters/c2", {"serviceUrl": "http://third:1"}).status == 200
    assert "brokerServiceUrl" not in api.get(f"{V2}/clusters/c2").json
    assert api.delete(f"{V2}/clusters/c2").status == 204
    assert api.get(f"{V2}/clusters/c2").status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/clusters/c2", None, 400),
        ("PUT", "/clusters/c2", {"serviceUrl": "ftp://x"}, 400),
        ("PUT", "/clusters/c2", {"serviceUrl": 5}, 400),
        ("PUT", "/clusters/c%2F2", {"serviceUrl": "http://x"}, 412),
        ("POST", "/clusters/c2", {"serviceUrl": "http://x"}, 404),
        ("DELETE", "/clusters/c2", None, 404),
        ("DELETE", "/clusters/standalone", None, 412),
        ("GET", "/tenants/none", None, 404),
        ("PUT", "/tenants/public", {"allowedClusters": ["standalone"]}, 409),
        ("PUT", "/tenants/t", None, 412),
        ("PUT", "/tenants/t", {"allowedClusters": []}, 412),
        ("PUT", "/tenants/t", {"allowedClusters": ["nowhere"]}, 412),
        ("PUT", "/tenants/t", {"allowedClusters": "standalone"}, 400),
        ("PUT", "/tenants/t%00", {"allowedClusters": ["standalone"]}, 412),
        ("PUT", "/tenants/..", {"allowedClusters": ["standalone"]}, 412),
        ("POST", "/tenants/t", {"allowedClusters": ["standalone"]}, 404),
        ("DELETE", "/tenants/t", None, 404),
        ("DELETE", "/tenants/public", None, 409),
        ("DELETE", "/tenants/public?force=true", None, 405),
        ("GET", "/namespaces/none", None, 404),
        ("GET", "/namespaces/public/none", None, 404),
        ("PUT", "/namespaces/public/default", None, 409),
        ("PUT", "/namespaces/none/n", None, 404),
        ("PUT", "/namespaces/public/a%20b", None, 412),
        ("PUT", "/namespaces/public/n", {"replication_clusters": ["c9"]}, 403),
        ("PUT", "/namespaces/public/n", {"bundles": {"numBundles": 5000}}, 412),
        ("PUT", "/namespaces/public/n", {"bundles": {"boundaries": ["0x1", "0x2"]}}, 412),
        ("PUT", "/namespaces/public/n", {"bundles": 3}, 400),
        ("PUT", "/namespaces/public/n", {"entryFilters": {"entryFilterNames": "a"}}, 501),
        ("DELETE", "/namespaces/public/none", None, 404),
        ("DELETE", "/namespaces/public/default?force=TRUE", None, 405),
        ("GET", "/namespaces/public/none/topics", None, 404),
        ("GET", "/namespaces/public/default/topics?mode=SOME", None, 404),
        ("GET", "/namespaces/public/none/bundles", None, 404),
        ("PUT", "/namespaces/public/default/0x00000000_0x00000001/unload", None, 412),
        ("GET", "/brokers/elsewhere", None, 404),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/tenants", None, 405),
        ("GET", "/functions/public/default", None, 409),
        ("POST", "/worker/leader", None, 409),
    ],
)
def test_what_is_refused(api: AdminApi, method: str, path: str, body: object, status: int) -> None:
    answer = api.call(method, V2 + path, body)
    assert answer.status == status
    assert answer.reason
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.feature("F79")
def test_tenants(api: AdminApi) -> None:
    assert api.get(f"{V2}/tenants").json == ["public", "pulsar"]
    info = {"adminRoles": ["b", "a"], "allowedClusters": ["standalone"], "unknown": 1}
    assert api.put(f"{V2}/tenants/t", info).status == 204
    assert api.get(f"{V2}/tenants/t").json == {
        "adminRoles": ["a", "b"],
        "allowedClusters": ["standalone"],
    }
    assert api.post(f"{V2}/tenants/t", {"allowedClusters": ["standalone"]}).status == 204
    assert api.get(f"{V2}/tenants/t").json["adminRoles"] == []
    assert api.delete(f"{V2}/tenants/t").status == 204


@pytest.mark.feature("F27", "F80")
def test_namespaces(api: AdminApi) -> None:
    assert api.put(f"{V2}/namespaces/public/n", {"bundles": {"numBundles": 2}}).status == 204
    assert api.get(f"{V2}/namespaces/public").json == ["public/default", "public/n"]
    assert api.get(f"{V2}/namespaces/public/n/bundles").json == {
        "boundaries": ["0x00000000", "0x80000000", "0xffffffff"],
        "numBundles": 2,
    }
    policies = api.get(f"{V2}/namespaces/public/n").json
    assert policies["replication_clusters"] == ["standalone"]
    assert policies["offload_threshold"] == -1
    assert "retention_policies" not in policies
    assert api.delete(f"{V2}/namespaces/public/n").status == 204
    assert api.get(f"{V2}/namespaces/public/n").status == 404


def test_a_namespace_without_a_body_has_the_default_bundles(api: AdminApi) -> None:
    for body in (b"", b"null", b"{}"):
        made = api.call(
            "PUT",
            f"{V2}/namespaces/public/n",
            raw=body,
            headers={"content-type": "application/json; charset=utf-8"},
        )
        assert made.status == 204
        assert api.get(f"{V2}/namespaces/public/n/bundles").json["numBundles"] == 4
        assert api.delete(f"{V2}/namespaces/public/n").status == 204


def test_a_namespace_with_topics_stays(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    assert api.delete(f"{V2}/namespaces/public/default").status == 409
    assert api.get(f"{V2}/namespaces/public/default").status == 200
    api.delete(f"{NAMESPACE}/t")
    assert api.delete(f"{V2}/namespaces/public/default").status == 204


def test_a_topic_that_appears_while_its_namespace_is_deleted(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = api.broker.resources.namespaces.begin_delete

    async def begin_late(name: str, *, emptied: bool) -> None:
        await api.broker.topics.load(TopicName.parse("late"), create=True)
        await begin(name, emptied=emptied)

    monkeypatch.setattr(api.broker.resources.namespaces, "begin_delete", begin_late)
    assert api.delete(f"{V2}/namespaces/public/default").status == 409
    assert api.get(NAMESPACE).json == ["persistent://public/default/late"]


def test_force_deletes_what_is_inside_if_it_is_allowed() -> None:
    api = AdminApi(forceDeleteNamespaceAllowed=True, forceDeleteTenantAllowed=True)
    api.put(f"{NAMESPACE}/t")
    api.put(f"{NAMESPACE}/p/partitions", 2)
    api.publish("p-partition-1", b"x")
    assert api.delete(f"{V2}/namespaces/public/default?force=true").status == 204
    assert api.put(f"{V2}/namespaces/public/default").status == 204
    assert api.get(NAMESPACE).json == []
    api.put(f"{NAMESPACE}/t")
    assert api.delete(f"{V2}/tenants/public?force=true").status == 204
    assert api.get(f"{V2}/tenants").json == ["pulsar"]
    api.close()


def test_force_says_what_to_do_if_brokers_make_topics_meanwhile() -> None:
    """Such as have not heard of the deletion yet."""
    api = AdminApi(forceDeleteNamespaceAllowed=True)
    broker, topic = api.broker, TopicName.parse("t")
    delete = broker.deletion.delete_topic

    async def delete_and_make(name: TopicName, *, force: bool = False) -> None:
        await delete(name, force=force)
        await broker.topics.open(topic, create=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.deletion, "delete_topic", delete_and_make)
        api.put(f"{NAMESPACE}/t")
        answer = api.delete(f"{V2}/namespaces/public/default?force=true")
        assert answer.status == 409
        assert "autoTopicCreation" in answer.reason
    assert api.delete(f"{V2}/namespaces/public/default?force=true").status == 204
    api.close()


def test_topics_of_a_namespace(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    api.put(f"{NAMESPACE}/p/partitions", 2)
    every = [f"persistent://public/default/{n}" for n in ("p-partition-0", "p-partition-1", "t")]
    path = f"{V2}/namespaces/public/default/topics"
    assert api.get(path).json == every
    assert api.get(f"{path}?mode=ALL").json == every
    assert api.get(f"{path}?mode=NON_PERSISTENT").json == []


def test_brokers(api: AdminApi) -> None:
    assert api.get(f"{V2}/brokers").json == ["broker:8080"]
    assert api.get(f"{V2}/brokers/standalone").json == ["broker:8080"]
    assert api.get(f"{V2}/brokers/health").body == b"ok"
    assert api.get(f"{V2}/brokers/ready").body == b"ok"
    assert api.get(f"{V2}/brokers/version").body.startswith(b"4.0.7")
    assert api.get(f"{V2}/brokers/leaderBroker").json == {
        "serviceUrl": "http://broker:8080",
        "brokerId": "broker:8080",
    }
    runtime = api.get(f"{V2}/brokers/configuration/runtime").json
    assert runtime["brokerServicePort"] == "6650"
    assert runtime["allowAutoTopicCreation"] == "true"
    assert all(isinstance(setting, str) for setting in runtime.values())


def test_every_response_is_dated_and_head_answers_like_get(api: AdminApi) -> None:
    answer = api.call("HEAD", f"{V2}/clusters")
    assert answer.status == 200
    assert answer.headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"


def test_a_trailing_slash_is_fine_and_an_empty_segment_is_not(api: AdminApi) -> None:
    assert api.get(f"{V2}/clusters/").status == 200
    assert api.get(f"{V2}//clusters").status == 404


def test_the_quota_of_a_tenant_stays_until_it_is_named(api: AdminApi) -> None:
    path, info = f"{V2}/tenants/t", {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert api.put(path, {**info, "storageQuotaBytes": 7}).status == 204
    assert api.get(path).json == {**info, "storageQuotaBytes": 7}
    assert api.post(path, {**info, "adminRoles": ["a"]}).status == 204
    assert api.get(path).json == {**info, "adminRoles": ["a"], "storageQuotaBytes": 7}
    for none in (-1, None):
        assert api.post(path, {**info, "storageQuotaBytes": 0}).status == 204
        assert api.get(path).json["storageQuotaBytes"] == 0
        assert api.post(path, {**info, "storageQuotaBytes": none}).status == 204
        assert api.get(path).json == info
    for wrong, status in ((-2, 412), ("many", 400), (2**63, 400)):
        assert api.post(path, {**info, "storageQuotaBytes": wrong}).status == status


# -- limits ------------------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[AdminApi]:
    found = AdminApi(maxTenants=3, maxNamespacesPerTenant=2, maxConcurrentLookupRequest=1)
    yield found
    found.close()


def test_there_are_so_many_tenants(limited: AdminApi) -> None:
    info = {"allowedClusters": ["standalone"]}
    assert limited.put(f"{V2}/tenants/t", info).status == 204
    answer = limited.put(f"{V2}/tenants/u", info)
    assert (answer.status, answer.reason) == (412, "Exceed the maximum number of tenants")
    limited.delete(f"{V2}/tenants/t")
    assert limited.put(f"{V2}/tenants/u", info).status == 204


def test_a_tenant_has_so_many_namespaces(limited: AdminApi) -> None:
    assert limited.put(f"{V2}/namespaces/public/n").status == 204
    answer = limited.put(f"{V2}/namespaces/public/m")
    reason = "Exceed the maximum number of namespaces in tenant public"
    assert (answer.status, answer.reason) == (412, reason)
    assert limited.put(f"{V2}/namespaces/pulsar/m").status == 204
    limited.delete(f"{V2}/namespaces/public/n")
    assert limited.put(f"{V2}/namespaces/public/m").status == 204


def test_lookups_over_http_count_with_the_others(limited: AdminApi) -> None:
    path = "/lookup/v2/topic/persistent/public/default/t"
    assert limited.get(path).status == 200
    limited.broker.lookups.begin()
    assert limited.get(path).status == 429
    limited.broker.lookups.end()
    assert limited.get(path).status == 200
    assert limited.broker.lookups.pending == 0


def test_requests_have_a_rate_and_those_that_are_refused_do_not_count() -> None:
    api = AdminApi(httpRequestsLimitEnabled=True, httpRequestsMaxPerSecond=2.0)
    path = f"{V2}/tenants"
    assert [api.get(path).status for _ in range(4)] == [200, 200, 429, 429]
    assert api.get(path).reason == "Too many requests; httpRequestsMaxPerSecond is exceeded"
    api.clock.ms += 500
    assert [api.get(path).status for _ in range(2)] == [200, 429]
    api.close()


def test_a_broker_is_taken_out_of_a_load_balancer_by_a_file(tmp_path: Path) -> None:
    status = tmp_path / "status"
    api = AdminApi(statusFilePath=str(status))
    assert api.get("/status.html").status == 404
    status.touch()
    assert api.get("/status.html").body == b"OK"
    status.unlink()
    assert api.get("/status.html").status == 404
    api.close()
