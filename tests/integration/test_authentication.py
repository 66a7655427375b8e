"""The official Python client logs in, and stays when its token expires."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from passlib.hash import apr_md5_crypt

from tests.support.standalone import Standalone

SECRET = bytes(range(32))
TOPIC = "persistent://public/default/logins"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    home = tmp_path_factory.mktemp("authentication")
    (home / "secret.key").write_bytes(SECRET)
    (home / "users").write_text(f"admin:{apr_md5_crypt.hash('123456')}\n")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token,basic",
        "tokenSecretKey": f"file://{home / 'secret.key'}",
        "basicAuthConf": str(home / "users"),
        "authenticationRefreshCheckSeconds": "30",
        "logLevel": "DEBUG",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    found = Standalone(home / "data", *words).start()
    yield found
    found.stop()


def token(role: str, seconds: float | None = None) -> str:
    claims: dict[str, Any] = {"sub": role}
    if seconds is not None:
        claims["exp"] = time.time() + seconds
    return jwt.encode(claims, SECRET, "HS256")


def client(url: str, authentication: Any, seconds: int = 10) -> pulsar.Client:
    return pulsar.Client(
        url,
        authentication=authentication,
        operation_timeout_seconds=seconds,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def produce(url: str, authentication: Any, seconds: int = 10) -> None:
    connected = client(url, authentication, seconds)
    try:
        connected.create_producer(TOPIC).send(b"x")
    finally:
        connected.close()


@pytest.mark.feature("F81")
@pytest.mark.parametrize("scheme", ["pulsar", "http"])
def test_tokens_and_passwords_let_clients_in(standalone: Standalone, scheme: str) -> None:
    url = standalone.service_url if scheme == "pulsar" else standalone.web_url
    produce(url, pulsar.AuthenticationToken(token("orders")))
    produce(url, pulsar.AuthenticationToken(lambda: token("orders", 60)))
    produce(url, pulsar.AuthenticationBasic("admin", "123456"))


def test_others_stay_outside(standalone: Standalone) -> None:
    for authentication in (
        None,
        pulsar.AuthenticationToken("x.y.z"),
        pulsar.AuthenticationToken(token("orders", -1)),
        pulsar.AuthenticationBasic("admin", "wrong"),
        pulsar.AuthenticationBasic("nobody", "123456"),
    ):
        for url in (standalone.service_url, standalone.web_url):
            with pytest.raises(pulsar.PulsarException):
                produce(url, authentication, 1)


def test_http_asks_for_credentials(standalone: Standalone) -> None:
    def answer(path: str, authorization: str = "") -> tuple[int, Any]:
        headers = {"Authorization": authorization} if authorization else {}
        request = urllib.request.Request(standalone.web_url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return found.status, None
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    assert answer("/admin/v2/tenants", f"Bearer {token('orders')}") == (200, None)
    for authorization in ("", "Bearer x", f"Bearer {token('orders', -1)}"):
        assert answer("/admin/v2/tenants", authorization) == (
            401,
            {"reason": "Authentication required"},
        )
    assert answer("/metrics") == (200, None)


@pytest.mark.slow
def test_a_token_that_expires_while_a_client_publishes_costs_nothing(
    standalone: Standalone,
) -> None:
    made = []

    def supply() -> str:
        made.append(token("orders", 5.0))
        return made[-1]

    connected = client(standalone.service_url, pulsar.AuthenticationToken(supply))
    topic = f"{TOPIC}-expiring"
    consumer = connected.subscribe(topic, "s")
    producer = connected.create_producer(topic)
    # A token ends every five seconds: two of them, whatever the speed of this machine.
    sent = 0
    end = time.monotonic() + 60
    while len(made) < 3 and time.monotonic() < end:
        producer.send(b"%d" % sent)
        sent += 1
        time.sleep(0.01)
    assert len(made) >= 3
    received = [consumer.receive(60_000) for _ in range(sent)]
    assert [message.data() for message in received] == [b"%d" % number for number in range(sent)]
    # It was asked and has answered: it never had to connect again.
    assert [message.redelivery_count() for message in received] == [0] * sent
    connected.close()
    assert "expired, closing" not in log_of(standalone)


def test_no_log_has_credentials(standalone: Standalone) -> None:
    with pytest.raises(pulsar.PulsarException):
        produce(standalone.service_url, pulsar.AuthenticationToken("CANARY.CANARY.CANARY"), 1)
    with pytest.raises(pulsar.PulsarException):
        produce(standalone.service_url, pulsar.AuthenticationBasic("admin", "CANARY"), 1)
    log = log_of(standalone)
    assert "login by 'token' failed" in log
    assert "login by 'basic' failed" in log
    assert "CANARY" not in log


def log_of(standalone: Standalone) -> str:
    return Path(standalone.log_path).read_text()
