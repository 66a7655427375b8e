"""Calls over Flight bring credentials, where authentication is on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow.flight as fl
import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.spark.flight_listener import FlightListener
from pulsark.security.logins import Logins
from tests.support.logging_in import SECRET, SetClock, inline, runtime_of, token
from tests.unit.dispatch.spark.test_flight import TOPIC, small, ticket

T = TypeVar("T")
DESCRIPTOR = fl.FlightDescriptor.for_path(TOPIC)


def serve(use: Callable[[fl.FlightClient], T], **settings: Any) -> T:
    async def run() -> T:
        logins = Logins(
            Settings(authenticationProviders=("token",), tokenSecretKey=inline(SECRET), **settings),
            runtime_of(SetClock()),
        )
        listener = FlightListener(small(), logins=logins)
        port = await listener.listen(["127.0.0.1"], 0)

        def with_client() -> T:
            with fl.connect(f"grpc://127.0.0.1:{port}") as client:
                return use(client)

        try:
            return await asyncio.to_thread(with_client)
        finally:
            await listener.close()

    return asyncio.run(run())


def options(*values: bytes) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", value) for value in values])


def test_a_token_lets_each_call_in() -> None:
    def use(client: fl.FlightClient) -> int:
        shown = options(b"Bearer " + token())
        assert client.get_flight_info(DESCRIPTOR, shown).schema is not None
        return int(client.do_get(ticket((5, 0), (5, 9)), shown).read_all().num_rows)

    assert serve(use) == 10


@pytest.mark.parametrize("values", [(), (b"Bearer x",), (b"Bearer " + token(),) * 2, (b"Basic x",)])
def test_other_calls_are_refused(values: tuple[bytes, ...]) -> None:
    def use(client: fl.FlightClient) -> None:
        for call in (
            lambda: client.get_flight_info(DESCRIPTOR, options(*values)),
            lambda: client.do_get(ticket((5, 0), (5, 9)), options(*values)).read_all(),
        ):
            with pytest.raises(fl.FlightUnauthenticatedError, match="Authentication required"):
                call()

    serve(use)


def test_a_call_without_credentials_may_be_anonymous() -> None:
    def use(client: fl.FlightClient) -> int:
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.get_flight_info(DESCRIPTOR, options(b"Bearer x"))
        return int(client.do_get(ticket((5, 0), (5, 9))).read_all().num_rows)

    assert serve(use, anonymousUserRole="nobody") == 10
