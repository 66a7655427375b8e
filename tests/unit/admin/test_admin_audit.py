"""What the audit hears of HTTP: every change, every denial, and nothing of what only reads."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from passlib.hash import apr_md5_crypt

from pulsark.security.audit.audit import Audit
from pulsark.security.audit.definition import TOPIC
from pulsark.security.peer import TlsPeer
from tests.support.admin_api import NAMESPACE, AdminApi, Answer
from tests.support.logging_in import SECRET, inline, token

CANARY = "CANARY"
ON: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProviders": ("token", "basic"),
    "tokenSecretKey": inline(SECRET),
    "basicAuthConf": inline(b"admin:" + apr_md5_crypt.hash("123456").encode()),
}
PLAN = {"topics": {"persistent://public/default/t": []}}
SHOP = "/admin/v2/namespaces/cafe/shop"
RETENTION = "/admin/v2/namespaces/public/default/retention"


class Audited(AdminApi):
    """With an audit, whose events a test takes before they are written."""

    def as_role(self, role: str, method: str, target: str, body: Any = None) -> Answer:
        bearer = f"Bearer {token({'sub': role, 'jti': 'id-1'}).decode()}"
        return self.call(method, target, body, headers={"authorization": bearer})

    def events(self) -> list[dict[str, Any]]:
        return [each.event for each in audit_of(self).waiting.take(1000)]


def audit_of(api: AdminApi) -> Audit:
    assert api.broker.audit is not None
    return api.broker.audit


def serving(**settings: Any) -> Iterator[Audited]:
    found = Audited(**{**ON, **settings})
    writer = found.broker._audit_writer
    assert writer is not None
    assert writer._task is not None
    writer._task.cancel()
    found.events()
    yield found
    found.close()


@pytest.fixture
def locked() -> Iterator[Audited]:
    yield from serving(authorizationEnabled=True, superUserRoles=("root",))


@pytest.fixture
def unauthorized() -> Iterator[Audited]:
    yield from serving()


def test_a_change_is_noted_with_its_route_and_its_end(locked: Audited) -> None:
    body = {"adminRoles": ["chef"], "allowedClusters": ["standalone"]}
    answer = locked.as_role("root", "PUT", "/admin/v2/tenants/cafe", body)
    assert answer.status == 204
    [event] = locked.events()
    assert event["operation"] == "PUT /admin/v2/tenants/{tenant}"
    assert event["http"] == {
        "method": "PUT",
        "route": "/admin/v2/tenants/{tenant}",
        "status": 204,
    }
    assert event["resource"] == {"type": "tenant", "tenant": "cafe", "name": "cafe"}
    assert event["authz"] == {
        "operation": "tenant CREATE_TENANT",
        "rule": "superuser",
        "granted": True,
    }
    assert event["actor"] == {"role": "root", "method": "token", "token_id": "id-1"}
    assert event["src_endpoint"] == {"ip": "127.0.0.1", "port": 1}
    assert event["request_id"] == answer.headers["x-request-id"]
    assert json.loads(event["after"]) == body
    assert (event["via"], event["status_id"], event["activity_id"]) == ("rest", 1, 1)


def test_changes_of_permissions_say_whose_and_which(locked: Audited) -> None:
    locked.as_role("root", "PUT", "/admin/v2/tenants/cafe", {"allowedClusters": ["standalone"]})
    locked.as_role("root", "PUT", SHOP)
    locked.events()
    grant = f"{SHOP}/permissions/kitchen"
    assert locked.as_role("root", "POST", grant, ["produce"]).status < 300
    assert locked.as_role("root", "DELETE", grant).status < 300
    granted, revoked = locked.events()
    assert granted["parameters"] == revoked["parameters"] == {"role": "kitchen"}
    assert json.loads(granted["after"])["auth_policies"]["namespace_auth"] == {
        "kitchen": ["produce"]
    }
    assert granted["before"] == "{}"
    assert json.loads(revoked["before"])["auth_policies"]["namespace_auth"] == {
        "kitchen": ["produce"]
    }
    assert revoked["after"] == "{}"
    assert granted["authz"]["operation"] == "namespace GRANT_PERMISSION"
    assert granted["resource"]["name"] == "cafe/shop"
    assert revoked["activity_id"] == 4


def test_a_changed_policy_says_what_it_was(locked: Audited) -> None:
    """Only what is another now; of what is not there any more, all of it."""
    first, second = (
        {"retentionTimeInMinutes": minutes, "retentionSizeInMB": 100} for minutes in (10, 20)
    )
    for body in (first, second):
        assert locked.as_role("root", "POST", RETENTION, body).status == 204
    assert locked.as_role("root", "DELETE", RETENTION).status == 204
    _, changed, removed = locked.events()
    assert json.loads(changed["before"]) == {"retention_policies": {"retentionTimeInMinutes": 10}}
    assert json.loads(changed["after"]) == {"retention_policies": {"retentionTimeInMinutes": 20}}
    assert json.loads(removed["before"]) == {"retention_policies": second}
    assert json.loads(removed["after"])["retention_policies"]["retentionTimeInMinutes"] == -1


def test_a_changed_policy_of_a_topic_says_what_it_was(locked: Audited) -> None:
    locked.topic("persistent://public/default/t")
    path = f"{NAMESPACE}/t/messageTTL"
    for seconds in (30, 60):
        assert locked.as_role("root", "POST", f"{path}?messageTTL={seconds}").status == 204
    first, second = locked.events()
    assert (first["before"], json.loads(first["after"])) == ("{}", {"message_ttl_in_seconds": 30})
    assert json.loads(second["before"]) == {"message_ttl_in_seconds": 30}


def test_changed_tenants_and_removed_namespaces_say_what_they_were(locked: Audited) -> None:
    tenant = {"adminRoles": ["chef"], "allowedClusters": ["standalone"]}
    locked.as_role("root", "PUT", "/admin/v2/tenants/cafe", tenant)
    locked.as_role("root", "PUT", SHOP)
    locked.as_role("root", "POST", f"{SHOP}/messageTTL", 30)
    locked.events()
    heir = {**tenant, "adminRoles": ["heir"]}
    assert locked.as_role("root", "POST", "/admin/v2/tenants/cafe", heir).status == 204
    assert locked.as_role("root", "DELETE", SHOP).status == 204
    assert locked.as_role("root", "DELETE", "/admin/v2/tenants/cafe").status == 204
    changed, namespace, removed = locked.events()
    assert json.loads(changed["before"]) == {"adminRoles": ["chef"]}
    assert json.loads(changed["after"]) == {"adminRoles": ["heir"]}
    assert json.loads(namespace["before"])["message_ttl_in_seconds"] == 30
    assert json.loads(removed["before"]) == heir
    assert "after" not in removed


def test_of_properties_only_the_names_are_noted(locked: Audited) -> None:
    path = "/admin/v2/namespaces/public/default/property/key"
    assert locked.as_role("root", "PUT", f"{path}/{CANARY}").status == 204
    assert locked.as_role("root", "DELETE", path).status == 200
    made, removed = locked.events()
    assert json.loads(made["after"]) == json.loads(removed["before"])
    assert json.loads(made["after"]) == {"properties": {"key": "..."}}
    assert CANARY not in json.dumps([made, removed])


def test_without_success_nothing_is_said_of_values(locked: Audited) -> None:
    tenant = {"adminRoles": ["chef"], "allowedClusters": ["nowhere"]}
    assert locked.as_role("root", "POST", "/admin/v2/tenants/public", tenant).status == 412
    [event] = locked.events()
    assert not {"before", "after"} & set(event)


def test_an_event_says_how_its_connection_is_secured(locked: Audited) -> None:
    peer = TlsPeer("TLSv1.3", "TLS_AES_256_GCM_SHA384", "CN=kitchen", "CN=ca", "1F")
    locked.tls = peer
    assert locked.as_role("kitchen", "GET", "/admin/v2/tenants").status == 401
    locked.get("/admin/v2/tenants", authorization="Bearer forged")
    locked.tls = TlsPeer("TLSv1.2", "ECDHE")
    locked.as_role("cook", "GET", "/admin/v2/tenants")
    denied, login, other = locked.events()
    assert denied["tls"] == login["tls"]
    assert denied["tls"] == {
        "version": "TLSv1.3",
        "cipher": "TLS_AES_256_GCM_SHA384",
        "certificate": {"subject": "CN=kitchen", "issuer": "CN=ca", "serial_number": "1F"},
    }
    assert other["tls"] == {"version": "TLSv1.2", "cipher": "ECDHE"}


def test_a_denial_is_noted_of_reads_too(locked: Audited) -> None:
    assert locked.as_role("kitchen", "GET", "/admin/v2/tenants").status == 401
    assert locked.as_role("kitchen", "DELETE", SHOP).status == 404
    assert locked.as_role("kitchen", "DELETE", "/admin/v2/namespaces/public/default").status == 401
    listed, absent, deleted = locked.events()
    assert (listed["operation"], listed["status_id"]) == ("GET /admin/v2/tenants", 2)
    assert listed["authz"]["granted"] is False
    assert absent["authz"]["rule"] == "no_tenant"
    assert deleted["resource"]["name"] == "public/default"


def test_what_only_reads_is_not_noted(locked: Audited) -> None:
    for target in ("/admin/v2/tenants", f"{NAMESPACE}", "/admin/v2/nothing", "/metrics"):
        locked.as_role("root", "GET", target)
        locked.as_role("root", "HEAD", target)
    locked.as_role("root", "PUT", "/admin/v2/nothing")
    locked.as_role("root", "POST", "/admin/v2/spark-plans", {"topics": []})
    assert locked.events() == []


def test_a_change_that_fails_is_noted(locked: Audited) -> None:
    assert locked.as_role("root", "DELETE", "/admin/v2/tenants/nobody").status == 404
    assert locked.as_role("root", "POST", RETENTION, ["wrong"]).status == 400
    absent, invalid = locked.events()
    assert (absent["status_id"], absent["http"]["status"]) == (2, 404)
    assert (invalid["http"]["status"], "after" in invalid) == (400, False)
    assert invalid["authz"]["operation"] == "namespace policy RETENTION WRITE"


def test_without_authorization_changes_are_noted(unauthorized: Audited) -> None:
    """Also those whose names are in the body."""
    path = "/admin/v2/namespaces/grantPermissionsOnTopics"
    topics = [{"topic": "persistent://public/default/t", "role": "r", "actions": ["produce"]}]
    assert unauthorized.as_role("anybody", "PUT", f"{NAMESPACE}/t").status == 204
    assert unauthorized.as_role("anybody", "POST", path, topics).status < 300
    made, granted = unauthorized.events()
    assert granted["authz"] == {
        "operation": "general ADMINISTER_TENANT",
        "rule": "open",
        "granted": True,
    }
    [grants] = json.loads(granted["after"])["auth_policies"]["destination_auth"].values()
    assert grants == {"r": ["produce"]}
    assert granted["before"] == "{}"
    assert made["authz"]["operation"] == "namespace CREATE_TOPIC"


def test_an_erasure_is_noted(locked: Audited) -> None:
    locked.publish("persistent://public/default/t", b"x")
    target = f"{NAMESPACE}/t/table/work/job-1"
    body = {"do": "erase", "ids": [[0, [[0, None]]]]}
    assert locked.as_role("root", "PUT", target, body).status == 200
    while locked.as_role("root", "GET", target).json["status"] == "RUNNING":
        pass
    event, ended = sorted(locked.events(), key=lambda event: event["via"] == "broker")
    assert (ended["operation"], ended["status_detail"][:7]) == ("work", "job-1: ")
    assert event["operation"].endswith("/{topic}/table/work/{ident}")
    assert event["resource"]["name"] == "persistent://public/default/t"
    assert event["parameters"]["ident"] == "job-1"
    assert json.loads(event["after"]) == body


def test_what_was_shown_is_nowhere(locked: Audited, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in events, nor in answers, metrics or the log."""
    caplog.set_level(logging.DEBUG)
    basic = base64.b64encode(f"admin:{CANARY}".encode()).decode()
    forged = token({"sub": CANARY}, key=bytes(32)).decode()
    for header in (
        f"Basic {basic}",
        f"Bearer {forged}",
        f"Bearer {CANARY}",
        CANARY,
        f"Basic {CANARY}",
    ):
        answer = locked.get("/admin/v2/tenants", authorization=header)
        assert answer.status == 401
        assert CANARY not in f"{answer.headers} {answer.body!r}"
    assert locked.get("/admin/v2/tenants").status == 401
    found = locked.events()
    assert {event["operation"] for event in found} == {"login"}
    reasons = {event["status_detail"] for event in found}
    assert {"password", "signature", "malformed", "method"} <= reasons
    metrics = locked.as_role("root", "GET", "/metrics").body.decode()
    assert 'pulsark_audit_waiting{cluster="standalone"}' in metrics
    text = json.dumps(found) + metrics + caplog.text
    for secret in (CANARY, basic, forged, forged.rpartition(".")[2]):
        assert secret not in text


def test_only_super_users_have_to_do_with_the_topic(locked: Audited) -> None:
    system = "/admin/v2/persistent/pulsar/system"
    audit = f"{system}/audit"
    tenant = {"adminRoles": ["chief"], "allowedClusters": ["standalone"]}
    assert locked.as_role("root", "POST", "/admin/v2/tenants/pulsar", tenant).status == 204
    grant = "/admin/v2/namespaces/pulsar/system/permissions/kitchen"
    assert locked.as_role("root", "POST", grant, ["produce", "consume"]).status == 204
    for role in ("chief", "kitchen"):
        for method, path in (
            ("GET", f"{audit}/stats"),
            ("GET", system),
            ("DELETE", audit),
            ("PUT", f"{audit}/unload"),
            ("DELETE", f"{audit}/truncate"),
            ("POST", f"{audit}/retention"),
            ("PUT", f"{audit}/subscription/s"),
            ("GET", f"{audit}/subscription/s/position/1"),
            ("DELETE", "/admin/v2/namespaces/pulsar/system"),
            ("POST", "/admin/v2/namespaces/pulsar/system/retention"),
        ):
            assert locked.as_role(role, method, path).status in (401, 403), (role, path)
    assert locked.as_role("root", "POST", f"{audit}/terminate").status == 401


def test_nobody_ends_the_topic_without_authorization_either(unauthorized: Audited) -> None:
    unauthorized.topic(str(TOPIC))
    audit = "/admin/v2/persistent/pulsar/system/audit"
    for path in (f"{audit}/terminate", f"{audit}/terminate/partitions"):
        assert unauthorized.as_role("anybody", "POST", path).status == 403
    unauthorized.topic(str(TOPIC)).check_writable()


def test_the_topic_is_there_with_its_policies() -> None:
    api = AdminApi(auditEnabled=True)
    try:
        api.topic(str(TOPIC))
        got = api.get("/admin/v2/persistent/pulsar/system/audit/retention").json
        assert got == {"retentionTimeInMinutes": 43200, "retentionSizeInMB": -1}
    finally:
        api.close()


# -- who had which data --------------------------------------------------------------------------


@pytest.fixture
def watching() -> Iterator[Audited]:
    yield from serving(auditDataAccess=True)


def test_reads_over_http_are_noted_once_a_day(watching: Audited) -> None:
    watching.publish("persistent://public/default/t", b"x")
    for _ in range(2):
        assert watching.as_role("reader", "POST", "/admin/v2/spark-plans", PLAN).status == 200
    peek = f"{NAMESPACE}/t/examinemessage?initialPosition=earliest&messagePosition=1"
    assert watching.as_role("other", "GET", peek).status == 200
    first, second = watching.events()
    assert [e["actor"]["role"] for e in (first, second)] == ["reader", "other"]
    assert {e["operation"] for e in (first, second)} == {"consume"}


# -- while the topic takes no events -------------------------------------------------------------


@pytest.fixture
def failing() -> Iterator[Audited]:
    locked = {"authorizationEnabled": True, "superUserRoles": ("root",)}
    for api in serving(**locked, auditFailClosed=True):
        audit_of(api).failing = True
        yield api


def test_changes_wait_for_the_audit(failing: Audited) -> None:
    answer = failing.as_role("root", "POST", RETENTION, {})
    assert answer.status == 503
    assert "auditFailClosed" in answer.reason
    assert failing.as_role("root", "PUT", "/admin/v2/tenants/cafe", {}).status == 503
    many = "/admin/v2/namespaces/grantPermissionsOnTopics"
    topics = [{"topic": "persistent://public/default/t", "role": "r", "actions": ["produce"]}]
    assert failing.as_role("root", "POST", many, topics).status == 503
    policies = failing.run(failing.broker.resources.namespaces.get("public/default"))
    assert policies is not None
    assert "auth_policies" not in policies.policies
    audit_of(failing).failing = False
    body = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
    assert failing.as_role("root", "POST", RETENTION, body).status == 204


def test_refused_changes_are_noted_and_counted(failing: Audited) -> None:
    for _ in range(100):
        failing.as_role("root", "POST", RETENTION, {})
    [event] = failing.events()
    assert (event["http"]["status"], event["status_id"]) == (503, 2)
    audit_of(failing).end_sums(at_once=True)
    [counted] = failing.events()
    assert counted["suppressed"] == 99


def test_reads_and_data_never_wait_for_the_audit(failing: Audited) -> None:
    failing.publish("persistent://public/default/t", b"x")
    assert failing.as_role("root", "GET", RETENTION).status == 200
    assert failing.as_role("root", "GET", f"{NAMESPACE}/t/stats").status == 200
    assert failing.as_role("root", "POST", "/admin/v2/spark-plans", PLAN).status == 200
    subscription = f"{NAMESPACE}/t/subscription/s"
    assert failing.as_role("root", "PUT", subscription).status == 204
    assert failing.as_role("root", "POST", f"{subscription}/skip/1").status == 204
    assert failing.as_role("root", "DELETE", subscription).status == 204


def test_denials_stay_denials_and_the_audit_itself_can_be_mended(failing: Audited) -> None:
    assert failing.as_role("kitchen", "POST", RETENTION, {}).status == 403
    assert failing.as_role("root", "PUT", "/admin/v2/persistent/pulsar/system/x").status == 204


def test_without_the_setting_changes_do_not_wait(locked: Audited) -> None:
    audit_of(locked).failing = True
    body = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
    assert locked.as_role("root", "POST", RETENTION, body).status == 204


# -- changes that no administrative right is needed for ------------------------------------------

ORDERS = "persistent://public/default/orders"


def changes(api: Audited) -> list[tuple[str, str, str | None, str]]:
    """Of each event: the role, what happened, the subscription and the topic's own name."""
    return [
        (
            event["actor"]["role"],
            event.get("parameters", {}).get("changed", ""),
            event["resource"].get("subscription"),
            event["resource"]["name"].rpartition("/")[2],
        )
        for event in api.events()
    ]


@pytest.fixture
def cook(locked: Audited) -> Audited:
    """The role ``cook`` may consume and ``chef`` may produce; there is a topic with messages."""
    grant = "/admin/v2/namespaces/public/default/permissions"
    assert locked.as_role("root", "POST", f"{grant}/cook", ["consume"]).status < 300
    assert locked.as_role("root", "POST", f"{grant}/chef", ["produce"]).status < 300
    locked.publish(ORDERS, b"1", b"2")
    locked.events()
    return locked


def test_cursors_that_spark_queries_move_are_noted(cook: Audited) -> None:
    query = "/admin/v2/spark-queries/q"
    claim = {"client": "c", "subscription": "s", "topics": [ORDERS]}
    place = {"positions": {ORDERS: {"ledgerId": 2**62, "entryId": 0}}}
    assert cook.as_role("cook", "PUT", query, claim).status == 204
    assert cook.as_role("cook", "POST", query, {}).status == 204
    assert cook.events() == []
    assert cook.as_role("cook", "PUT", f"{query}/subscriptions", place).status == 200
    assert cook.as_role("cook", "PUT", f"{query}/subscriptions", place).status == 200
    assert changes(cook) == [("cook", "subscription created", "s", "orders")]
    assert cook.as_role("cook", "POST", f"{query}/acknowledge", place).status == 200
    [event] = cook.events()
    assert event["operation"] == "POST /admin/v2/spark-queries/{query}/acknowledge"
    assert event["parameters"] == {"query": "q", "changed": "cursor moved"}
    assert event["resource"]["subscription"] == "s"
    assert event["status_id"] == 1
    for _ in range(100):  # a query does it with every batch
        assert cook.as_role("cook", "POST", f"{query}/acknowledge", place).status == 200
    assert cook.events() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "changed"),
    [
        ("PUT", "", {"ledgerId": -1, "entryId": -1}, "subscription created"),
        ("POST", "/skip_all", None, "cursor moved"),
        ("POST", "/skip/1", None, "cursor moved"),
        ("POST", "/resetcursor/0", None, "cursor moved"),
        ("POST", "/resetcursor", {"ledgerId": 0, "entryId": 0}, "cursor moved"),
        ("POST", "/expireMessages", {"ledgerId": 0, "entryId": 0}, "cursor moved"),
        ("POST", "/acknowledge", {"ledgerId": 0, "entryId": 0}, "cursor moved"),
        ("POST", "/acknowledge", [{"ledgerId": 0, "entryId": 0}], "cursor moved"),
        ("PUT", "/properties", {"a": "b"}, "subscription properties changed"),
        ("DELETE", "", None, "subscription deleted"),
    ],
)
def test_what_a_consumer_does_to_a_subscription_is_noted(
    cook: Audited, method: str, path: str, body: Any, changed: str
) -> None:
    own = f"{NAMESPACE}/orders/subscription/own"
    if changed != "subscription created":
        start = {"ledgerId": -1, "entryId": -1}
        assert cook.as_role("root", "PUT", own, start).status == 204
        cook.events()
    answer = cook.as_role("cook", method, own + path, body)
    assert answer.status < 300, answer
    assert changes(cook) == [("cook", changed, "own", "orders")]


def test_a_topic_and_a_schema_that_a_producer_makes_are_noted(cook: Audited) -> None:
    metadata = f"{NAMESPACE}/new/partitions?checkAllowAutoCreation=true"
    cook.as_role(
        "root",
        "POST",
        "/admin/v2/namespaces/public/default/autoTopicCreation",
        {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 2,
        },
    )
    cook.events()
    assert cook.as_role("chef", "GET", metadata).json["partitions"] == 2
    assert changes(cook) == [("chef", "topic created", None, "new")]
    assert cook.as_role("chef", "GET", metadata).status == 200
    assert cook.events() == []
    schema = {"type": "STRING", "schema": "", "properties": {}}
    path = "/admin/v2/schemas/public/default/orders/schema"
    assert cook.as_role("chef", "POST", path, schema).status == 200
    assert changes(cook) == [("chef", "schema added", None, "orders")]


def test_a_request_for_very_many_topics_names_some_and_says_that_there_were_more(
    cook: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.security.audit.effects.AUDIT_EFFECTS_MAX", 2)
    topics = [f"{ORDERS}{n}" for n in range(4)]
    for topic in topics:
        cook.topic(topic)
    cook.events()
    query = "/admin/v2/spark-queries/q"
    claim = {"client": "c", "subscription": "s", "topics": topics}
    place = {"positions": {topic: {"ledgerId": 0, "entryId": 0} for topic in topics}}
    assert cook.as_role("cook", "PUT", query, claim).status == 204
    assert cook.as_role("cook", "PUT", f"{query}/subscriptions", place).status == 200
    first, second, more = cook.events()
    assert {first["resource"]["name"], second["resource"]["name"]} < set(topics)
    assert more["parameters"]["changed"] == "subscription created, of more topics"
    assert "resource" not in more


def test_clients_move_cursors_while_the_audit_is_stuck(failing: Audited) -> None:
    failing.topic(ORDERS)
    own = f"{NAMESPACE}/orders/subscription/own"
    assert failing.as_role("root", "PUT", own).status == 204
    assert failing.as_role("root", "POST", f"{own}/skip_all").status == 204
