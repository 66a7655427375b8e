"""An operator worked with Apache's ``pulsar-admin``; some verbs failed that work on Pulsar.

The requests here are those that the tool sends. Expected: the answers of Pulsar 4.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.standalone import Standalone

Call = Callable[..., tuple[int, Any]]

OFFLOAD = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadThresholdInBytes": None,
    "managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST",
    "managedLedgerExtraConfigurations": {"region": "eu"},
    "s3ManagedLedgerOffloadBucket": "b",
}


@pytest.fixture
def call(shared_standalone: Standalone) -> Call:
    def call(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{shared_standalone.web_url}/admin{path}",
            data=None if method == "GET" else data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return call


@pytest.fixture
def namespace(call: Call) -> str:
    name = f"public/tool-{uuid.uuid4().hex[:8]}"
    assert call("PUT", f"/v2/namespaces/{name}", {})[0] in (200, 204)
    assert call("PUT", f"/v2/persistent/{name}/t")[0] == 204
    return name


def test_offload_policies_are_stored_as_the_tool_sends_them(call: Call, namespace: str) -> None:
    for path in (f"/v2/namespaces/{namespace}", f"/v2/persistent/{namespace}/t"):
        assert call("POST", f"{path}/offloadPolicies", OFFLOAD)[0] == 204
        assert call("GET", f"{path}/offloadPolicies") == (200, OFFLOAD)


def test_policies_that_the_tool_sets_without_a_body(call: Call, namespace: str) -> None:
    policy = f"/v2/namespaces/{namespace}/dispatcherPauseOnAckStatePersistent"
    assert call("POST", policy)[0] == 204
    assert call("GET", policy) == (200, True)


def test_answers_that_the_tool_can_print(call: Call, namespace: str) -> None:
    assert call("GET", f"/v2/persistent/{namespace}/t/shadowTopics") == (200, [])
    (cluster,) = call("GET", "/v2/clusters")[1]
    assert call("GET", f"/namespaces/public/{cluster}") == (200, [])
    metrics = call("GET", "/v2/broker-stats/metrics")[1]
    assert {"namespace": namespace} in [each["dimensions"] for each in metrics]


def test_expiry_of_a_backlog_that_is_not_so_old(
    call: Call, namespace: str, shared_standalone: Standalone
) -> None:
    from tests.support.python_client import connected

    subscription = f"/v2/persistent/{namespace}/t/subscription/s"
    assert call("PUT", subscription)[0] == 204
    assert call("POST", f"{subscription}/expireMessages/600")[0] == 409  # as Pulsar: no backlog
    with connected(shared_standalone) as client:
        client.create_producer(f"{namespace}/t").send(b"new")
    assert call("POST", f"{subscription}/expireMessages/600")[0] == 204


def test_the_largest_bundle_is_split(call: Call, namespace: str) -> None:
    before = call("GET", f"/v2/namespaces/{namespace}/bundles")[1]["numBundles"]

    class KeepsItsMethod(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, request: Any, *_: Any) -> Any:  # as the tool's client does
            return urllib.request.Request(_[-1], data=b"", method=request.method)

    urllib.request.install_opener(urllib.request.build_opener(KeepsItsMethod))
    try:
        path = f"/v2/namespaces/{namespace}/LARGEST/split?unload=true"
        status, _ = call("PUT", f"{path}&splitAlgorithmName=range_equally_divide")
    finally:
        urllib.request.install_opener(urllib.request.build_opener())
    assert status == 204
    assert call("GET", f"/v2/namespaces/{namespace}/bundles")[1]["numBundles"] == before + 1
