"""Official clients log in at a locked broker: by token, certificate, password and OpenID Connect.

Each publishes, consumes and asks the admin API where it has one; without rights, and with wrong
credentials, it is told so. Tokens that expire while a client publishes cost nothing.
"""

from __future__ import annotations

import functools
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from benchmarks.load import compile_java
from benchmarks.maven import CACHE, class_path, java
from tests.clients.locked import (
    BRIEF,
    COOK,
    PATIENCE_SECONDS,
    PUBLISHING_SECONDS,
    STRANGER,
    Locked,
    locked,
)
from tests.support.client_programs import built_with_go, run_program

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


@pytest.mark.client("python")
@pytest.mark.feature("F81")
@pytest.mark.parametrize("url", ["service_url", "web_url"])
@pytest.mark.parametrize("way", WAYS)
def test_python_comes_in(broker: Locked, way: str, url: str) -> None:
    topic = f"{broker.values['namespace']}/python-{way}-{url}"
    with connected(broker, WAYS[way](broker, COOK), url) as client:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"one")
        assert consumer.receive(WAIT_MS).data() == b"one"


@pytest.mark.client("python")
@pytest.mark.parametrize("way", WAYS)
def test_python_without_rights(broker: Locked, way: str) -> None:
    with (
        connected(broker, WAYS[way](broker, STRANGER)) as client,
        pytest.raises(pulsar.AuthorizationError),
    ):
        client.create_producer(f"{broker.values['namespace']}/python-{way}")


@pytest.mark.client("python")
def test_python_with_a_wrong_secret_at_the_issuer(broker: Locked) -> None:
    with (
        connected(broker, oidc(broker, "wrong")) as client,
        pytest.raises(pulsar.AuthenticationError),
    ):
        client.create_producer(f"{broker.values['namespace']}/python")


def brief(broker: Locked, purpose: str) -> str:
    """A token that a service hands out, good for a few seconds."""
    with urllib.request.urlopen(broker.values["brief_tokens"] + purpose, timeout=10) as answer:
        return str(answer.read().decode())


def supplied(broker: Locked, purpose: str) -> pulsar.Authentication:
    return pulsar.AuthenticationToken(lambda: brief(broker, purpose))


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    return [consumer.receive(WAIT_MS).data() for _ in range(count)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class OverTime:
    """What takes as long as tokens live: all of it at the same time."""

    def __init__(self, broker: Locked) -> None:
        self._broker = broker

    def supplied(self) -> None:
        self._publish(supplied(self._broker, "python-supplied"), "python-supplied")

    def oidc(self) -> None:
        self._publish(oidc(self._broker, BRIEF, "python-oidc"), "python-oidc")

    def _publish(self, authentication: pulsar.Authentication, purpose: str) -> None:
        broker = self._broker
        topic = f"{broker.values['namespace']}/{purpose}"
        with connected(broker, authentication) as client:
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
            assert received(consumer, sent) == numbered(sent)
            assert broker.connections(topic) == before
        assert broker.issuer.issued[purpose] >= 3

    def static(self) -> None:
        """A token that nobody renews: the client is told so, and what was confirmed is there."""
        broker = self._broker
        topic = f"{broker.values['namespace']}/python-static"
        token = functools.cache(lambda: brief(broker, "python-static"))
        with (
            connected(broker, WAYS["token"](broker, COOK)) as reading,
            connected(broker, pulsar.AuthenticationToken(token)) as client,
        ):
            consumer = reading.subscribe(topic, "s")
            producer = client.create_producer(topic, send_timeout_millis=2000)
            sent, told, end = 0, None, time.monotonic() + PATIENCE_SECONDS
            while told is None and time.monotonic() < end:
                try:
                    producer.send(b"%d" % sent)
                    sent += 1
                except pulsar.PulsarException as error:
                    told = error
            assert told is not None
            assert sent
            assert received(consumer, sent) == numbered(sent)


@pytest.fixture(scope="module")
def over_time(broker: Locked) -> dict[str, Future[None]]:
    of_python = OverTime(broker)
    all_of_it = {
        "supplied": of_python.supplied,
        "oidc": of_python.oidc,
        "static": of_python.static,
    }
    with ThreadPoolExecutor(len(all_of_it)) as threads:
        return {name: threads.submit(work) for name, work in all_of_it.items()}


@pytest.mark.client("python")
@pytest.mark.parametrize("way", ["supplied", "oidc"])
def test_python_publishes_while_its_tokens_expire(
    over_time: dict[str, Future[None]], way: str
) -> None:
    over_time[way].result()


@pytest.mark.client("python")
def test_python_is_told_that_its_token_has_expired(over_time: dict[str, Future[None]]) -> None:
    over_time["static"].result()


# -- programs in other languages ----------------------------------------------------------------

SCENARIOS = (
    *(f"{way}_{what}" for way in WAYS for what in ("comes_in", "has_no_rights", "is_refused")),
    "nothing_is_refused",
    "token_expires_and_is_renewed",
    "oidc_expires_and_is_renewed",
    "token_expires",
)


@pytest.fixture(scope="module")
def java_says(broker: Locked) -> dict[str, str]:
    folder = Path(__file__).parent / "java"
    jars = class_path(folder / "pulsar-client-admin-4.0.7.lock")
    path = compile_java(folder / "Logins.java", jars, CACHE / "classes" / "logins")
    return of_program(broker, java(), "-Xmx512m", "-cp", path, "Logins")


@pytest.fixture(scope="module")
def go_says(broker: Locked) -> dict[str, str]:
    return of_program(broker, built_with_go("./logins", "logins"))


def of_program(broker: Locked, *command: str) -> dict[str, str]:
    """What a program says of each scenario; which all run at the same time."""
    return run_program([*command, str(broker.file)], SCENARIOS, 10 * PATIENCE_SECONDS)


@pytest.mark.client("java-admin")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java(broker: Locked, java_says: dict[str, str], scenario: str) -> None:
    assert java_says[scenario] == ""
    if scenario.endswith("renewed"):
        assert broker.issuer.issued[f"java-{scenario}"] >= 3


@pytest.mark.client("go")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_go(broker: Locked, go_says: dict[str, str], scenario: str) -> None:
    assert go_says[scenario] == ""
    if scenario.endswith("renewed"):
        assert broker.issuer.issued[f"go-{scenario}"] >= 3
