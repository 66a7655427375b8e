"""Every token that is not taken, at the ports, and when a client shows its credentials again.

Flight asks as HTTP does, by the same function and headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pulsark.security import request_login
from pulsark.wire import pulsar_pb2 as pb
from tests.support.admin_api import AdminApi
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.logging_in import NOW_MS, SECRET, inline, token
from tests.unit.dispatch.connection.test_login import connect, new_client, refused, response
from tests.unit.security.test_tokens import FORGED, WRONG_CLAIMS

Command = pb.BaseCommand
ON = {
    "authenticationEnabled": True,
    "authenticationProviders": ("token",),
    "tokenSecretKey": inline(SECRET),
}
BAD = [
    *(each for each in FORGED if each == each.strip()),
    *(
        token(claims)
        for claims, _ in WRONG_CLAIMS
        if str(NOW_MS // 1000)[:5].encode() not in claims
    ),
]
"""Without those that are only too early or too late by another clock."""


@pytest.fixture
def api() -> Iterator[AdminApi]:
    found = AdminApi(**ON)
    yield found
    found.close()


def small_enough(tokens: list[bytes]) -> list[bytes]:
    """Those that fit into a frame before the login; others end the connection unread."""
    return [each for each in tokens if len(each) < 60_000]


@scenario(**ON)
async def test_in_connect(broker: BrokerInMemory) -> None:
    for data in small_enough(BAD):
        client = new_client(broker, connect(data=data))
        await asyncio.sleep(1.1)
        await refused(client)


@scenario(**ON)
async def test_white_space_around_a_token_is_no_part_of_it(broker: BrokerInMemory) -> None:
    """Every token file ends in a line break, and clients send what it has."""
    for data in (token() + b"\n", b" " + token() + b"\r\n"):
        client = new_client(broker, connect(data=data))
        await client.take(Command.CONNECTED)
        client.send(response(data))
        await asyncio.sleep(1.1)
        assert not client.transport.closed
    for broken in (token()[:9] + b"\n" + token()[9:], b"\n"):
        client = new_client(broker, connect(data=broken))
        await asyncio.sleep(1.1)
        await refused(client)


@scenario(**ON)
async def test_in_auth_response(broker: BrokerInMemory) -> None:
    for data in BAD:
        client = new_client(broker, connect(data=token()))
        await client.take(Command.CONNECTED)
        client.send(response(data))
        await asyncio.sleep(1.1)
        await refused(client)


def test_over_http(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_login, "FAILED_LOGINS_DELAYED_MAX", 0)
    for data in BAD:
        answer = api.get("/admin/v2/tenants", authorization="Bearer " + data.decode("latin-1"))
        assert (answer.status, answer.reason) == (401, "Authentication required"), data[:100]


def test_white_space_around_a_token_over_http(api: AdminApi) -> None:
    authorization = f"Bearer  {token().decode()} "
    assert api.get("/admin/v2/tenants", authorization=authorization).status == 200
