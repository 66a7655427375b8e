"""Calls over Flight bring credentials, where authentication is on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow.flight as fl
import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.spark.flight_listener import FlightListener
from pulsark.dispatch.spark.flight_server import EntryFlightServer
from pulsark.security.authorization import AuthorizationProvider
from pulsark.security.decisions import Decision, Rule, Target
from pulsark.security.logins import Logins
from pulsark.security.operations import Operation, TopicOperation
from pulsark.security.principal import Principal
from pulsark.wire.topic_name import TopicName
from tests.support.logging_in import SECRET, SetClock, inline, runtime_of, token
from tests.unit.dispatch.spark.test_flight import TOPIC, small, ticket
from tests.unit.security.test_matrix import matrix

T = TypeVar("T")
DESCRIPTOR = fl.FlightDescriptor.for_path(TOPIC)


def serve(
    use: Callable[[fl.FlightClient], T],
    authorization: AuthorizationProvider | None = None,
    **settings: Any,
) -> T:
    async def run() -> T:
        logins = Logins(
            Settings(authenticationProviders=("token",), tokenSecretKey=inline(SECRET), **settings),
            runtime_of(SetClock()),
        )
        listener = FlightListener(small(), logins=logins, authorization=authorization)
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


class OnlyTopic:
    """Lets one role consume one topic; decides at once, or not."""

    def __init__(self, role: str, at_once: bool) -> None:
        self.role = role
        self.at_once = at_once

    def start(self) -> None: ...

    def close(self) -> None: ...

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        return self._decide(principal, operation, target) if self.at_once else None

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        return self._decide(principal, operation, target)

    def _decide(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        granted = (
            principal is not None
            and principal.role == self.role
            and operation is TopicOperation.CONSUME
            and target == Target.of_topic(TopicName.parse(TOPIC))
        )
        return Decision(granted, Rule.NONE)


@pytest.mark.parametrize("at_once", [True, False])
def test_who_may_consume_a_topic_reads_it(at_once: bool) -> None:
    def use(client: fl.FlightClient) -> int:
        shown = options(b"Bearer " + token({"sub": "reader"}))
        assert client.get_flight_info(DESCRIPTOR, shown).schema is not None
        return int(client.do_get(ticket((5, 0), (5, 9)), shown).read_all().num_rows)

    assert serve(use, OnlyTopic("reader", at_once)) == 10


@pytest.mark.parametrize("at_once", [True, False])
def test_others_learn_nothing_of_it(at_once: bool) -> None:
    def use(client: fl.FlightClient) -> None:
        shown = options(b"Bearer " + token({"sub": "writer"}))
        for call in (
            lambda: client.get_flight_info(DESCRIPTOR, shown),
            lambda: client.get_flight_info(fl.FlightDescriptor.for_path("missing"), shown),
            lambda: client.do_get(ticket((5, 0), (5, 9)), shown).read_all(),
            lambda: client.do_get(ticket((5, 0), (5, 9), topic="missing"), shown).read_all(),
        ):
            with pytest.raises(fl.FlightUnauthorizedError, match="not authorized to consume"):
                call()

    serve(use, OnlyTopic("reader", at_once))


def test_every_method_needs_what_the_matrix_says() -> None:
    mine = {name for name in vars(EntryFlightServer) if name in dir(fl.FlightServerBase)}
    calls = {name for name in mine if name.startswith(("do_", "get_", "list_"))}
    assert dict.fromkeys(calls, "topic CONSUME") == matrix("flight")
