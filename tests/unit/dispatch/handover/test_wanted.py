"""Which broker a client wants, by its first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.handover.wanted import missing, split_address, wanted
from pulsark.limits import HANDSHAKE_FRAME_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command


def connect(url: str = "", version: str = "test") -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = version
    if url:
        command.connect.proxy_to_broker_url = url
    return encode_command(command)


def test_a_connect_is_waited_for_whole() -> None:
    data = connect("localhost:6660")
    assert missing(b"") == 4
    assert missing(data[:3]) == 4
    assert {missing(data[:size]) for size in range(4, len(data))} == {len(data)}
    assert missing(data) == 0
    assert wanted(data) == "localhost:6660"
    assert wanted(data + b"what came behind it") == "localhost:6660"


def test_who_names_no_broker_wants_none() -> None:
    ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
    assert wanted(connect()) == ""
    assert wanted(encode_command(ping)) == ""


def test_a_frame_that_is_too_large_for_a_connect_is_not_waited_for() -> None:
    data = connect("localhost:6660", version="x" * HANDSHAKE_FRAME_BYTES_MAX)
    assert missing(data[:100]) == 0
    assert wanted(data[:100]) == ""


@given(st.binary(max_size=200))
def test_other_bytes_want_nobody_and_are_never_waited_for_without_end(data: bytes) -> None:
    assert missing(data) <= HANDSHAKE_FRAME_BYTES_MAX
    if not missing(data):
        assert isinstance(wanted(data), str)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost:6660", ("localhost", 6660)),
        ("pulsar://broker.example:6650", ("broker.example", 6650)),
        ("pulsar://[::1]:6650/", ("[::1]", 6650)),
        ("localhost", None),
        ("localhost:0", None),
        ("localhost:../../x", None),
        ("localhost:66600000", None),
        ("pulsar+ssl://localhost:6651", ("pulsar+ssl://localhost", 6651)),
        (" :1", None),
        ("localhost:٣", None),
    ],
)
def test_addresses(url: str, address: tuple[str, int] | None) -> None:
    assert split_address(url) == address
