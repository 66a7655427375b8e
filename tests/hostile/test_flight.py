"""Calls and bytes on the Flight ports that no Spark task sends."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from pulsark.limits import FLIGHT_LOGIN_SURE_SECONDS
from tests.hostile.conftest import ATTACKED, ATTACKER, CANARY
from tests.support.secured import Secured, token
from tests.support.wire_client import WireClient

TOPIC = f"persistent://{ATTACKED}/over-flight"
MESSAGES = 3
MIB = 1 << 20
Refusals = (pa.ArrowException, KeyError, OSError)


@pytest.fixture(scope="module", autouse=True)
def filled(broker: Secured) -> None:
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        client.producer(TOPIC)
        for number in range(MESSAGES):
            client.publish(bytes(MIB), sequence_id=number)
        client.subscribe(TOPIC, "keeps-it")  # a topic that nobody uses is deleted after a minute


@pytest.fixture(params=["plain", "tls"])
def new_client(
    broker: Secured, request: pytest.FixtureRequest
) -> Iterator[Callable[[], fl.FlightClient]]:
    opened = []

    def connect() -> fl.FlightClient:
        if request.param == "tls":
            arguments: Any = broker.credentials(ATTACKER).for_flight()
            opened.append(fl.connect(broker.info["flightUrlTls"], **arguments))
        else:
            opened.append(fl.connect(broker.flight_url))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def options(role: str | None = ATTACKER, **headers: str) -> fl.FlightCallOptions:
    if role is not None:
        headers["authorization"] = f"Bearer {token(role)}"
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return fl.FlightCallOptions(timeout=60, headers=pairs)


def ticket(**changed: Any) -> bytes:
    whole = {"topic": TOPIC, "topicId": "", "first": [0, 0], "last": [2**62, 0]}
    return json.dumps({**whole, **changed}).encode()


TICKETS = {
    "nothing": b"",
    "no JSON": b"\xff\xfe\0",
    "1e5 deep": b"[" * 16_000,
    "a list": b"[]",
    "null": b"null",
    "NaN": ticket(first=[0, float("nan")]),
    "positions as text": ticket(first="0:0"),
    "a position of three": ticket(first=[0, 0, 0]),
    "a position below all": ticket(first=[-2, 0]),
    "a position above all": ticket(last=[2**63, 0]),
    "a fraction": ticket(first=[0.5, 0]),
    "true": ticket(first=[True, True]),
    "no topic": ticket(topic=""),
    "a topic that is none": ticket(topic="persistent://../../etc/passwd"),
    "a topic with a NUL": ticket(topic=f"{TOPIC}\0"),
    "the topic of somebody else": ticket(topic="persistent://public/default/others"),
    "another topic's id": ticket(topicId=CANARY),
    "compacted as text": ticket(compacted="yes"),
    "16 KiB": ticket(topicId="x" * 16_384),
}


@pytest.mark.parametrize("asked", TICKETS.values(), ids=TICKETS.keys())
def test_tickets_that_are_none(new_client: Callable[[], fl.FlightClient], asked: bytes) -> None:
    client = new_client()
    with pytest.raises(Refusals) as refused:
        client.do_get(fl.Ticket(asked), options()).read_all()
    assert not isinstance(refused.value, fl.FlightInternalError), refused.value
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("role", [None, ATTACKER])
def test_a_ticket_of_a_hundred_megabytes(
    new_client: Callable[[], fl.FlightClient], role: str | None
) -> None:
    client = new_client()
    with pytest.raises(Refusals):
        client.do_get(fl.Ticket(b" " * (100 * MIB)), options(role)).read_all()


@pytest.mark.parametrize("role", [None, ATTACKER])
def test_a_ticket_that_is_small_only_when_it_is_compressed(
    new_client: Callable[[], fl.FlightClient], role: str | None
) -> None:
    client = new_client()
    asked = options(role, grpc_internal_encoding_request="gzip")
    with pytest.raises(Refusals):
        client.do_get(fl.Ticket(b" " * (100 * MIB)), asked).read_all()


def test_no_call_without_a_login(new_client: Callable[[], fl.FlightClient]) -> None:
    client = new_client()
    for given in (
        options(None),
        options(None, authorization=f"Bearer {CANARY}"),
        options(None, authorization="Basic cm9vdDpyb290"),
        options(None, x_original_principal="root"),
    ):
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.do_get(fl.Ticket(ticket()), given).read_all()
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.get_flight_info(fl.FlightDescriptor.for_path(TOPIC), given)


def test_methods_that_are_not_there(new_client: Callable[[], fl.FlightClient]) -> None:
    schema = pa.schema([("a", pa.int64())])
    descriptor = fl.FlightDescriptor.for_path(TOPIC)

    def put(client: fl.FlightClient) -> None:
        writer, _ = client.do_put(descriptor, schema, options())
        with writer:
            writer.write_batch(pa.record_batch([pa.array([1])], schema=schema))

    for call in (
        lambda client: list(client.list_flights(options=options())),
        lambda client: list(client.list_actions(options())),
        lambda client: list(client.do_action(fl.Action("shutdown", b""), options())),
        lambda client: client.get_schema(descriptor, options()),
        put,
    ):
        with pytest.raises(Refusals):
            call(new_client())


DESCRIPTORS = {
    "a path of 100 MB": fl.FlightDescriptor.for_path("x" * (100 * MIB)),
    "a command of 100 MB": fl.FlightDescriptor.for_command(b"x" * (100 * MIB)),
    "1e5 parts": fl.FlightDescriptor.for_path(*["x"] * 100_000),
    "no parts": fl.FlightDescriptor.for_path(),
    "a command": fl.FlightDescriptor.for_command(b"SELECT 1"),
    "no topic": fl.FlightDescriptor.for_path("../../etc/passwd"),
    "a NUL": fl.FlightDescriptor.for_path(f"{TOPIC}\0"),
    "the topic of somebody else": fl.FlightDescriptor.for_path(
        "persistent://public/default/others"
    ),
}


@pytest.mark.parametrize("asked", DESCRIPTORS.values(), ids=DESCRIPTORS.keys())
def test_descriptors_that_are_none(
    new_client: Callable[[], fl.FlightClient], asked: fl.FlightDescriptor
) -> None:
    with pytest.raises(Refusals) as refused:
        new_client().get_flight_info(asked, options())
    assert not isinstance(refused.value, fl.FlightInternalError), refused.value


def test_a_descriptor_that_is_not_utf8(new_client: Callable[[], fl.FlightClient]) -> None:
    """gRPC itself refuses it, with no more than that."""
    with pytest.raises(Refusals):
        new_client().get_flight_info(fl.FlightDescriptor.for_path(b"\xff\xfe"), options())


def test_very_many_calls_at_once(
    broker: Secured, target: str, new_client: Callable[[], fl.FlightClient]
) -> None:
    """More than a connection may have end it; those that were answered had all that they asked."""
    with WireClient(broker.broker_port, token=token(ATTACKER)) as writer:
        writer.producer(target)
        for number in range(MESSAGES):
            writer.publish(b"x", sequence_id=number)
    client = new_client()

    def read(number: int) -> int:
        try:
            asked = fl.Ticket(ticket(topic=target))
            return int(client.do_get(asked, options()).read_all().num_rows)
        except Refusals:
            return MESSAGES

    with ThreadPoolExecutor(100) as pool:
        assert set(pool.map(read, range(300))) == {MESSAGES}


def test_calls_that_are_left_at_once(new_client: Callable[[], fl.FlightClient]) -> None:
    client = new_client()
    for _ in range(20):
        reader = client.do_get(fl.Ticket(ticket()), options())
        reader.cancel()


# -- below the calls -----------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


DATA, HEADERS, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_HEADERS = 4
BEGIN = PREFACE + frame(SETTINGS)
METHOD = b"\x83\x86\x44\x23" + b"/arrow.flight.protocol.FlightService"[:35]
NOT_CALLS = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000,
    "zeros": bytes(1 << 16),
    "a preface alone": PREFACE,
    "a frame of 16 MiB": BEGIN + b"\xff\xff\xff" + bytes([DATA, 0]) + bytes(1 << 20),
    "settings of a wrong size": PREFACE + frame(SETTINGS, b"x"),
    "1e5 settings": BEGIN + frame(SETTINGS, bytes.fromhex("00040000ffff")) * 100_000,
    "1e5 pings": BEGIN + frame(PING, bytes(8)) * 100_000,
    "windows that overflow": BEGIN + frame(WINDOW, b"\x7f\xff\xff\xff") * 1000,
    "streams that are reset at once": BEGIN
    + b"".join(
        frame(HEADERS, METHOD, END_HEADERS, stream) + frame(RST, bytes(4), 0, stream)
        for stream in range(1, 40_001, 2)
    ),
    "headers without end": BEGIN
    + frame(HEADERS, b"\x00", 0, 1)
    + frame(CONTINUATION, b"\x00\x01a\x01b" * 3000, 0, 1) * 2000,
    "a header of many names": BEGIN + frame(HEADERS, b"\x40\x01a\x01b" * 4000, END_HEADERS, 1),
    "a table of 1 GiB": BEGIN + frame(HEADERS, b"\x3f\xe1\xff\xff\xff\x03", END_HEADERS, 1),
    "data of no stream": BEGIN + frame(DATA, bytes(16_384), 0, 99) * 500,
}


@pytest.fixture(params=["plain", "tls"])
def raw(broker: Secured, request: pytest.FixtureRequest) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        if request.param == "tls":
            context = broker.context()
            context.set_alpn_protocols(["h2"])
            return broker.over_tls("flightUrlTls", context)
        port = int(broker.flight_url.rpartition(":")[2])
        return socket.create_connection(("127.0.0.1", port), timeout=30)

    return connect


@pytest.mark.parametrize("said", NOT_CALLS.values(), ids=NOT_CALLS.keys())
def test_bytes_that_are_no_calls(
    raw: Callable[[], socket.socket], new_client: Callable[[], fl.FlightClient], said: bytes
) -> None:
    with raw() as connection, contextlib.suppress(OSError):  # it may have hung up
        connection.settimeout(5)
        connection.sendall(said)
        connection.recv(1 << 16)
    assert new_client().do_get(fl.Ticket(ticket()), options()).read_all().num_rows == MESSAGES


def test_connections_that_say_nothing(
    raw: Callable[[], socket.socket], new_client: Callable[[], fl.FlightClient]
) -> None:
    silent = []
    for number in range(300):
        with contextlib.suppress(OSError):  # TLS has room for some at a time
            silent.append(raw())
            if number % 2:  # some are clients, as far as that
                silent[-1].sendall(BEGIN)
    time.sleep(FLIGHT_LOGIN_SURE_SECONDS)  # this client has their address
    assert new_client().do_get(fl.Ticket(ticket()), options()).read_all().num_rows == MESSAGES
    for connection in silent:
        connection.close()


def test_streams_that_nobody_reads(new_client: Callable[[], fl.FlightClient]) -> None:
    """Together they would be far more than the process may grow by."""
    clients = [new_client() for _ in range(3)]
    left = [client.do_get(fl.Ticket(ticket()), options()) for client in clients for _ in range(60)]
    time.sleep(1)
    assert new_client().do_get(fl.Ticket(ticket()), options()).read_all().num_rows == MESSAGES
    for reader in left:
        reader.cancel()
