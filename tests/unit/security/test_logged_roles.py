"""Roles in lines of the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsark.security.logged_roles import logged_role
from pulsark.security.principal import Principal
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.logging_in import SECRET, inline, token
from tests.unit.dispatch.connection.test_login import connect, response


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("NONE", "anna"),
        ("REDACTED", "[REDACTED]"),
        ("SHA256", "sha256:55579b557896d0ce1764c47fed644f9b"),
        ("hash:SHA256", "sha256:55579b557896d0ce1764c47fed644f9b"),
        ("MD5", "md5:a70f9e38ff015afaa9ab0aacabee2e13"),
        ("hash:MD5", "md5:a70f9e38ff015afaa9ab0aacabee2e13"),
    ],
)
def test_a_role_is_shown_as_the_setting_says(how: str, shown: str) -> None:
    assert logged_role(Principal("anna"), how) == shown
    assert logged_role(Principal("anna", "anna"), how) == f"{shown} for {shown}"


def test_who_has_no_role() -> None:
    assert logged_role(None, "REDACTED") == "nobody"


def test_no_line_of_the_log_has_a_role_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @scenario(
        authenticationEnabled=True,
        authenticationProviders=("token",),
        tokenSecretKey=inline(SECRET),
        authenticationRoleLoggingAnonymizer="REDACTED",
        authenticationRefreshCheckSeconds=5,
        authorizationEnabled=True,
        proxyRoles=("CANARY-proxy",),
    )
    async def run(broker: BrokerInMemory) -> None:
        soon = broker.broker.clock.now_ms() / 1000 + 1
        for claims in ({"sub": "CANARY"}, {"sub": "CANARY-proxy"}, {"sub": "CANARY", "exp": soon}):
            client = Client(broker, handshake=False)
            client.send(connect(data=token(claims), refreshes=False))
            await asyncio.sleep(0.01)
            if claims == {"sub": "CANARY"}:
                client.send(response(token({"sub": "CANARY-2"})))
        await asyncio.sleep(3)

    run()
    assert "[REDACTED] shows credentials for role [REDACTED]" in caplog.text
    assert "[REDACTED]: Invalid roles." in caplog.text
    assert "credentials of role [REDACTED] have expired" in caplog.text
    assert "CANARY" not in caplog.text
