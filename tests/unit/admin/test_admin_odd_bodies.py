"""Every route, with bodies, types and queries that nobody should send: an answer with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.admin.pulsar.policy_table import NAMESPACE_POLICIES, TOPIC_POLICIES
from tests.support.admin_api import AdminApi, Answer

ODD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "no type": (b"{}", ""),
    "null": (b"null", "application/json"),
    "a number": (b"7", "application/json"),
    "a fraction": (b"-1.5", "application/json"),
    "a huge number": (b"1" + b"0" * 400, "application/json"),
    "an infinite number": (
        b'{"limit": 1e999, "retentionTimeInMinutes": 1e999}',
        "application/json",
    ),
    "a text": (b'"\\ud800 7"', "application/json"),
    "a number as a text": (b'"10240"', "application/json"),
    "a flag as a text": (b'"true"', "application/json"),
    "a list": (b'[null, {"a": []}, 7]', "application/json"),
    "a list of texts": (b'["a", "b"]', "application/json"),
    "an object": (b'{"a": {"b": null}}', "application/json"),
    "texts in an object": (b'{"a": "1", "": ""}', "application/json; charset=utf-8"),
    "no JSON": (b"{]", "application/json"),
    "no UTF-8": (b"\xff\xfe", "application/json"),
    "deep": (b"[" * 5000, "application/json"),
    "a form": (b"a=1&b=2", "application/x-www-form-urlencoded"),
    "a file": (b"--x\r\n\r\n", "multipart/form-data; boundary=x"),
    "no media type": (b"{}", ";;"),
}
FIELDS = (
    *("type", "schema", "properties", "ledgerId", "entryId", "batchIndex", "isExcluded", "rows"),
    *("limitSize", "limitTime", "policy", "do", "ids", "topics", "subscription", "position"),
    *("partitions", "serviceUrl", "adminRoles", "allowedClusters", "bundles", "boundaries"),
    *("replication_clusters", "auth_policies", "backlog_quota_map", "retention_policies"),
    *("enabled", "active", "tickTime", "bookkeeperEnsemble", "topicType", "offload_policies"),
    *("allowAutoTopicCreation", "defaultNumPartitions", "ledgers", "vacuumHours", "files"),
    *("inactiveTopicDeleteMode", "managedLedgerMaxMarkDeleteRate", "retentionTimeInMinutes"),
)
JSON = {"content-type": "application/json"}
VALUES: list[Any] = [None, -1, 2**64, 0.5, "x", "-7", True, [], [[1]], {}, {"a": {"a": 1}}]


def routes() -> list[tuple[str, str]]:
    api = AdminApi()
    paths = api.get("/admin/openapi.json").json["paths"]
    api.close()
    found = []
    for path, methods in paths.items():
        of_topics = "{topic}" in path
        policies = TOPIC_POLICIES if of_topics else NAMESPACE_POLICIES
        for name in policies if path.endswith("/{policy}") else [""]:
            found += [(verb.upper(), path.replace("{policy}", name)) for verb in methods]
    return found


ALL = routes()
SLOTS = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "policy": "messageTTL",
}


def path_of(template: str, slots: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: slots.get(found[1], "1"), template)


def check(answer: Answer, what: str) -> None:
    assert answer.status != 500, (what, answer.body)
    if answer.status >= 400:
        assert answer.reason, what
        assert "Internal" not in answer.reason, what
        assert "Traceback" not in answer.reason, what


@pytest.fixture(scope="module")
def there() -> Iterator[AdminApi]:
    """A broker with a topic, a subscription, and a message to be odd about."""
    api = AdminApi()
    yield api
    api.close()


def prepare(api: AdminApi) -> None:
    api.put("/admin/v2/tenants/public", {"allowedClusters": ["standalone"]})
    api.put("/admin/v2/namespaces/public/default")
    api.put("/admin/v2/persistent/public/default/t")
    api.put("/admin/v2/persistent/public/default/t/subscription/s")


def test_all_routes_are_walked() -> None:
    assert len(ALL) > 300


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize("odd", ODD)
def test_no_odd_body_is_a_defect(there: AdminApi, method: str, odd: str) -> None:
    content, media = ODD[odd]
    prepare(there)
    for verb, template in ALL:
        if verb != method:
            continue
        headers = {"content-type": media} if media else {}
        path = path_of(template, SLOTS)
        check(there.call(method, path, raw=content, headers=headers), f"{method} {path}: {odd}")


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_no_odd_member_is_a_defect(there: AdminApi, value: Any) -> None:
    prepare(there)
    body = json.dumps(dict.fromkeys(FIELDS, value)).encode()
    for method, template in ALL:
        if method in ("PUT", "POST"):
            path = path_of(template, SLOTS)
            answer = there.call(
                method, path, raw=body, headers={"content-type": "application/json"}
            )
            check(answer, f"{method} {path}: {value!r}")


@pytest.mark.parametrize(
    "slot", ["", "%00", "..", "-", "%ff", "%2F", "1e9", "9" * 400, "x" * 300, "\u00e9"]
)
def test_no_odd_name_is_a_defect(there: AdminApi, slot: str) -> None:
    prepare(there)
    for method, template in ALL:
        for name in re.findall(r"\{(\w+)", template):
            path = path_of(template, {**SLOTS, name: slot})
            check(there.call(method, path), f"{method} {path}")


@pytest.mark.parametrize(
    "query",
    [
        "a=1",
        "&=&",
        "messageTTL=x&limit=x&after=x&through=x&compacted=x&maxRows=x&initialPosition=x",
        "limit=-1&after=-1:-1&through=9:9&messagePosition=-1&timestamp=9999999999999999999",
        "%ff=%ff&mode=%00&backlogQuotaType=&applied=2&force=maybe&key=",
    ],
)
def test_no_odd_query_is_a_defect(there: AdminApi, query: str) -> None:
    prepare(there)
    for method, template in ALL:
        if method != "DELETE":
            path = f"{path_of(template, SLOTS)}?{query}"
            check(there.call(method, path), f"{method} {path}")
