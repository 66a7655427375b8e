"""Calls over Flight bring credentials, where authentication is on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.flight as fl
import pytest
import trustme

from pulsark.config.settings import Settings
from pulsark.dispatch.spark.flight_listener import FlightListener
from pulsark.dispatch.spark.flight_server import CHUNK_BYTES, EntryFlightServer
from pulsark.security.authorization import AuthorizationProvider
from pulsark.security.decisions import Decision, Rule, Target
from pulsark.security.logins import Logins
from pulsark.security.operations import Operation, TopicOperation
from pulsark.security.principal import Principal
from pulsark.security.tls import ServerTls, TlsRules
from pulsark.security.trials import Trial
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.logging_in import NOW_MS, SECRET, SetClock, inline, runtime_of, token
from tests.unit.dispatch.spark.test_flight import TOPIC, FakeSource, small, ticket
from tests.unit.security.test_matrix import matrix

T = TypeVar("T")
DESCRIPTOR = fl.FlightDescriptor.for_path(TOPIC)


class Ports:
    """A listener with logins, and what it was made of."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.failed: list[str] = []
        """The hosts of those that failed."""

    def logins(self, **settings: Any) -> Logins:
        given: dict[str, Any] = {
            "authenticationProviders": ("token",),
            "tokenSecretKey": inline(SECRET),
        }
        found = Logins(Settings(**{**given, **settings}), runtime_of(self.clock))
        counted = found.delay_s

        def delay_s(host: str, trial: Trial | None = None, via: str = "") -> float:
            self.failed.append(host)
            return counted(host, trial, via)

        found.delay_s = delay_s  # type: ignore[method-assign]
        return found


def serve(
    use: Callable[[fl.FlightClient], T],
    authorization: AuthorizationProvider | None = None,
    source: FakeSource | None = None,
    ports: Ports | None = None,
    **settings: Any,
) -> T:
    async def run() -> T:
        logins = (ports or Ports()).logins(**settings)
        listener = FlightListener(source or small(), logins=logins, authorization=authorization)
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


@pytest.mark.feature("F81")
@pytest.mark.parametrize("what", ["right", "token"])
def test_a_stream_ends_when_its_right_or_its_credentials_do(what: str) -> None:
    ports, decides = Ports(), OnlyTopic("reader", at_once=True)

    def use(client: fl.FlightClient) -> None:
        shown = options(b"Bearer " + token({"sub": "reader", "exp": NOW_MS // 1000 + 60}))
        stream = client.do_get(ticket((1, 0), (1, 99)), shown)
        assert stream.read_chunk().data.num_rows == 1
        if what == "right":
            decides.role = "another"
        else:
            ports.clock.ms += 60_000
        error = fl.FlightUnauthorizedError if what == "right" else fl.FlightUnavailableError
        with pytest.raises(error, match=r"not authorized to consume|ask with new ones"):
            stream.read_all()

    chunks = FakeSource({Position(1, entry): bytes(CHUNK_BYTES) for entry in range(100)})
    serve(use, decides, chunks, ports)
    assert len(chunks.calls) < 50


def test_failures_count_for_the_address_that_they_come_from() -> None:
    ports = Ports()

    def use(client: fl.FlightClient) -> None:
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.get_flight_info(DESCRIPTOR, options(b"Bearer x"))

    serve(use, ports=ports)
    assert ports.failed == ["127.0.0.1"]


@pytest.mark.parametrize("shown", [(), (b"Bearer " + token(),)])
def test_other_methods_are_refused_without_a_trace_of_the_code(shown: tuple[bytes, ...]) -> None:
    def use(client: fl.FlightClient) -> None:
        for call in (
            lambda: list(client.list_flights(options=options(*shown))),
            lambda: list(client.do_action(("x", b""), options(*shown))),
            lambda: client.list_actions(options(*shown)),
            lambda: client.get_schema(DESCRIPTOR, options(*shown)),
        ):
            with pytest.raises((fl.FlightUnauthorizedError, OSError), match="serves") as caught:
                call()
            assert "Traceback" not in str(caught.value)

    serve(use)


def test_a_huge_request_costs_its_client_the_connection() -> None:
    def use(client: fl.FlightClient) -> None:
        for call in (
            lambda: client.do_get(fl.Ticket(bytes(1 << 20)), options(b"Bearer x")).read_all(),
            lambda: client.get_flight_info(
                fl.FlightDescriptor.for_command(bytes(1 << 20)), options(b"Bearer x")
            ),
        ):
            with pytest.raises(fl.FlightUnavailableError):
                call()

    serve(use)


@pytest.mark.feature("F81")
def test_a_client_certificate_is_a_login(tmp_path: Path) -> None:
    ours, others = trustme.CA(), trustme.CA()
    issued = ours.issue_cert("localhost")
    paths = [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    issued.cert_chain_pems[0].write_to_path(str(paths[0]))
    issued.private_key_pem.write_to_path(str(paths[1]))
    ours.cert_pem.write_to_path(str(paths[2]))
    tls = ServerTls(TlsRules(*map(str, paths)))

    def rows(port: int, ca: trustme.CA | None, name: str) -> int:
        mine: dict[str, Any] = {}
        if ca is not None:
            client = ca.issue_cert(f"{name}@example.org", common_name=name)
            mine = {
                "cert_chain": client.cert_chain_pems[0].bytes(),
                "private_key": client.private_key_pem.bytes(),
            }
        url = f"grpc+tls://localhost:{port}"
        with fl.connect(url, tls_root_certs=ours.cert_pem.bytes(), **mine) as connected:
            return int(connected.do_get(ticket((5, 0), (5, 9))).read_all().num_rows)

    async def run() -> None:
        logins = Ports().logins(authenticationProviders=("tls",))
        decides = OnlyTopic("reader", at_once=True)
        listener = FlightListener(small(), logins=logins, authorization=decides)
        port = listener.listen_tls(["127.0.0.1"], 0, tls.context("h2"))
        try:
            assert await asyncio.to_thread(rows, port, ours, "reader") == 10
            for ca, name, error in (
                (ours, "writer", fl.FlightUnauthorizedError),
                (None, "", fl.FlightUnauthenticatedError),
                (others, "reader", fl.FlightUnavailableError),
            ):
                with pytest.raises(error):
                    await asyncio.to_thread(rows, port, ca, name)
        finally:
            await listener.close()

    asyncio.run(run())


def test_every_method_needs_what_the_matrix_says() -> None:
    mine = {name for name in vars(EntryFlightServer) if name in dir(fl.FlightServerBase)}
    calls = {name for name in mine if name.startswith(("do_", "get_", "list_"))}
    assert dict.fromkeys(calls, "topic CONSUME") == matrix("flight")
