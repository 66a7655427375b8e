"""How programs log in: Pulsar's plugin names and parameters."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pulsar
import pytest

from pulsark.admin_client.credentials import Credentials
from pulsark.errors import ConfigError

JAVA = "org.apache.pulsar.client.impl.auth.Authentication"
SECRET = "canary-7391"
BASIC = json.dumps({"userId": "admin", "password": SECRET})


@pytest.mark.parametrize("plugin", ["token", JAVA + "Token", "AuthenticationToken"])
@pytest.mark.parametrize("params", [f"token:{SECRET}", SECRET, json.dumps({"token": SECRET})])
def test_a_token(plugin: str, params: str) -> None:
    assert Credentials.of(plugin, params).headers() == {
        "X-Pulsar-Auth-Method-Name": "token",
        "Authorization": f"Bearer {SECRET}",
    }


def test_a_token_file_is_read_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "to ken"
    file.write_text("first\n")
    found = Credentials.of("token", file.as_uri())
    assert found.headers()["Authorization"] == "Bearer first"
    file.write_text("second")
    assert found.headers()["Authorization"] == "Bearer second"
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        found.headers()
    file.unlink()
    with pytest.raises(ConfigError, match=r"to ken cannot be read: No such file"):
        found.headers()


def test_a_password() -> None:
    headers = Credentials.of(JAVA + "Basic", BASIC).headers()
    assert headers["X-Pulsar-Auth-Method-Name"] == "basic"
    assert headers["Authorization"].startswith("Basic YWRtaW46")


@pytest.mark.parametrize(
    "params",
    ["tlsCertFile:/c.pem,tlsKeyFile:/k.pem", '{"tlsCertFile":"/c.pem","tlsKeyFile":"/k.pem"}'],
)
def test_a_certificate(params: str) -> None:
    found = Credentials.of(JAVA + "Tls", params)
    assert found.headers() == {"X-Pulsar-Auth-Method-Name": "tls"}
    with pytest.raises(ConfigError, match=r"/c\.pem and /k\.pem cannot be used"):
        found.ssl_context()


@pytest.mark.parametrize("plugin", ["", "none", JAVA + "Disabled"])
def test_no_login(plugin: str) -> None:
    assert Credentials.of(plugin).headers() == {}
    assert Credentials.of(plugin).ssl_context().check_hostname


def test_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    by_file = Credentials.from_environment({"PULSARK_TOKEN_FILE": str(file)})
    by_params = Credentials.from_environment(
        {"PULSARK_AUTH_PLUGIN": "token", "PULSARK_AUTH_PARAMS": f"token:{SECRET}"}
    )
    assert by_file.headers() == by_params.headers()
    assert Credentials.from_environment({}) == Credentials()


@pytest.mark.parametrize(
    ("plugin", "params", "told"),
    [
        ("org.example.Other", "", "authPluginClassName=org.example.Other"),
        ("token", "", "authParams: write token:TOKEN"),
        ("token", "token:", "authParams: write token:TOKEN"),
        ("token", "file:", "authParams: write token:TOKEN"),
        ("token", f"token:{SECRET}ü", "ASCII"),
        ("basic", f"admin:{SECRET}", "authParams: write"),
        ("basic", json.dumps({"userId": SECRET}), "authParams: write"),
        ("basic", json.dumps([SECRET]), "authParams: write"),
        ("basic", json.dumps({"userId": SECRET, "password": 5}), "authParams: write"),
        ("tls", f"tlsCertFile:{SECRET}", "tlsKeyFile"),
    ],
)
def test_errors_name_the_cure_and_no_secret(plugin: str, params: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Credentials.of(plugin, params)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("plugin", "params"), [("token", SECRET), ("basic", BASIC)])
def test_no_secret_is_shown(plugin: str, params: str) -> None:
    found = Credentials.of(plugin, params)
    assert SECRET not in repr(found)
    assert SECRET not in str(found.for_client(pulsar))


def test_a_ca_that_is_no_file() -> None:
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath=/nowhere: No such file"):
        Credentials.of(trust_path="/nowhere").ssl_context()


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.{SECRET}"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Credentials(), "no login was sent: set it"),
        (Credentials.of("token", SECRET), "not a JSON Web Token"),
        (Credentials.of("token", "a.b.c"), "not a JSON Web Token"),
        (Credentials.of("token", jwt(exp=86400)), "the token expired at 1970-01-02 00:00:00Z"),
        (Credentials.of("token", jwt(exp=1 << 40)), "signed with another key"),
        (Credentials.of("token", jwt(exp="soon")), "signed with another key"),
        (Credentials.of("basic", BASIC), "does not accept this user name and password"),
    ],
)
def test_why_a_login_may_have_been_refused(found: Credentials, says: str) -> None:
    told = found.why_refused("set it")
    assert says in told
    assert SECRET not in told
