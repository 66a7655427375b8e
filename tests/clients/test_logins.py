"""Official clients log in at a locked broker: by token, certificate, password and OpenID Connect.

Each publishes, consumes and asks the admin API where it has one; without rights, and with wrong
credentials, it is told so. Tokens that expire while a client publishes cost nothing.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pulsar
import pytest

from tests.clients.locked import (
    BRIEF,
    BRIEF_SECONDS,
    COOK,
    STRANGER,
    Locked,
    locked,
)

PUBLISHING_SECONDS = 2.5 * BRIEF_SECONDS
"""Time for two tokens to end."""

WAIT_MS = 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    with locked(tmp_path_factory.mktemp("locked")) as found:
        yield found


def oidc(broker: Locked, client: str, purpose: str = "python") -> pulsar.Authentication:
    """The client gets its tokens from the issuer."""
    words = {
        "issuer_url": broker.issuer.url,
        "private_key": broker.values[f"{client}_credentials"],
        "audience": broker.values["audience"],
        "scope": purpose,
    }
    return pulsar.AuthenticationOauth2(json.dumps(words))


WAYS: dict[str, Callable[[Locked, str], pulsar.Authentication]] = {
    "token": lambda broker, role: pulsar.AuthenticationToken(broker.values[f"{role}_token"]),
    "tls": lambda broker, role: pulsar.AuthenticationTLS(
        broker.values[f"{role}_certificate"], broker.values[f"{role}_key"]
    ),
    "basic": lambda broker, role: pulsar.AuthenticationBasic(
        role, broker.values[f"{role}_password"]
    ),
    "oidc": oidc,
}


@contextmanager
def connected(
    broker: Locked, authentication: pulsar.Authentication, url: str = "service_url"
) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        broker.values[url],
        authentication=authentication,
        tls_trust_certs_file_path=broker.values["trust"],
        tls_validate_hostname=True,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        yield client
    finally:
        client.close()


@pytest.mark.feature("F81")
@pytest.mark.parametrize("url", ["service_url", "web_url"])
@pytest.mark.parametrize("way", WAYS)
def test_python_comes_in(broker: Locked, way: str, url: str) -> None:
    topic = f"{broker.values['namespace']}/python-{way}-{url}"
    with connected(broker, WAYS[way](broker, COOK), url) as client:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"one")
        assert consumer.receive(WAIT_MS).data() == b"one"


@pytest.mark.parametrize("way", WAYS)
def test_python_without_rights(broker: Locked, way: str) -> None:
    with (
        connected(broker, WAYS[way](broker, STRANGER)) as client,
        pytest.raises(pulsar.AuthorizationError),
    ):
        client.create_producer(f"{broker.values['namespace']}/python-{way}")


def test_python_with_a_wrong_secret_at_the_issuer(broker: Locked) -> None:
    with (
        connected(broker, oidc(broker, "wrong")) as client,
        pytest.raises(pulsar.AuthenticationError),
    ):
        client.create_producer(f"{broker.values['namespace']}/python")


def supplied(broker: Locked, purpose: str) -> pulsar.Authentication:
    """A function that asks a service for each token."""

    def ask() -> str:
        url = f"{broker.issuer.url}/signed/{purpose}/{COOK}/{BRIEF_SECONDS}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    return pulsar.AuthenticationToken(ask)


@pytest.mark.parametrize("way", ["supplied", "oidc"])
def test_python_publishes_while_its_tokens_expire(broker: Locked, way: str) -> None:
    purpose = f"python-{way}"
    topic = f"{broker.values['namespace']}/{purpose}"
    found = supplied(broker, purpose) if way == "supplied" else oidc(broker, BRIEF, purpose)
    with connected(broker, found) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        before = broker.connections(topic)
        results: list[pulsar.Result] = []
        sent, end = 0, time.monotonic() + PUBLISHING_SECONDS
        while time.monotonic() < end:
            producer.send_async(b"%d" % sent, lambda result, _: results.append(result))
            sent += 1
            time.sleep(0.005)
        producer.flush()
        assert results == [pulsar.Result.Ok] * sent
        received = [consumer.receive(WAIT_MS).data() for _ in range(sent)]
        assert received == [b"%d" % number for number in range(sent)]
        assert broker.connections(topic) == before
    assert broker.issuer.issued[purpose] >= 3
