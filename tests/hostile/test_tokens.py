"""Tokens that are none, of nobody, or of somebody else, on all three ports and in a refresh."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from pulsark.errors import ServerError
from pulsark.security.limits import TLS_HANDSHAKES_PER_ADDRESS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.hostile.conftest import ATTACKED, ATTACKER, Connect
from tests.hostile.test_flight import options, ticket
from tests.hostile.test_frames import hello
from tests.hostile.test_http import open_socket, sent  # noqa: F401 - a fixture
from tests.hostile.test_http_bytes import CLOSE, Open, statuses
from tests.support.secured import Secured, token
from tests.support.wire_client import WireClient
from tests.unit.security.test_tokens_at_ports import BAD, small_enough

Command = pb.BaseCommand
AT_ONCE = TLS_HANDSHAKES_PER_ADDRESS_MAX // 2
"""Refusals come late."""
LONG = 8000
"""Heads that are longer are refused as such by some ports."""
PATH = f"/admin/v2/persistent/{ATTACKED}"


def refusal(client: WireClient) -> tuple[int, str]:
    """What it is told before the broker hangs up."""
    answer = client.take(Command.ERROR).error
    assert client.closed_within(30)
    return answer.error, answer.message


def connect_command(data: bytes) -> bytes:
    command = hello()
    command.connect.auth_method_name, command.connect.auth_data = "token", data
    return encode_command(command)


def refresh_command(data: bytes) -> bytes:
    command = Command(type=Command.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = "token"
    command.authResponse.response.auth_data = data
    return encode_command(command)


@pytest.mark.parametrize("again", [False, True], ids=["in the login", "in a refresh"])
def test_tokens_that_are_none_on_the_binary_port(connect: Connect, again: bool) -> None:
    def refused(data: bytes) -> tuple[int, str]:
        client = connect(timeout=60.0)
        frames = connect_command(data)
        if again:
            frames = connect_command(token(ATTACKER).encode()) + refresh_command(data)
        client.send_bytes(frames)
        return refusal(client)

    bad = small_enough(BAD)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for data, found in zip(bad, pool.map(refused, bad), strict=True):
            expected = ServerError.AuthenticationError, "Failed to authenticate"
            assert found == expected, data[:100]


def test_tokens_that_are_none_over_http(open_socket: Open) -> None:  # noqa: F811
    def refused(data: bytes) -> list[int]:
        head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n{CLOSE}".encode()
        return statuses(sent(open_socket(), head + b"Authorization: Bearer " + data + b"\r\n\r\n"))

    bad = [data for data in BAD if b"\n" not in data]  # with which the header ends
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for data, found in zip(bad, pool.map(refused, bad), strict=True):
            assert found == [401] or (len(data) > LONG and found == [431]), data[:100]
    assert statuses(sent(open_socket(), _two_headers())) in ([400], [401])


def _two_headers() -> bytes:
    lines = [f"Authorization: Bearer {found}\r\n" for found in ("x.y.z", token(ATTACKER))]
    head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n{CLOSE}{''.join(lines)}\r\n"
    return head.encode()


def test_tokens_that_are_none_over_flight(broker: Secured) -> None:
    def refused(data: bytes) -> str:
        given = fl.FlightCallOptions(timeout=60, headers=[(b"authorization", b"Bearer " + data)])
        with fl.connect(broker.flight_url) as client, pytest.raises(pa.ArrowException) as error:
            client.do_get(fl.Ticket(ticket()), given).read_all()
        return type(error.value).__name__

    bad = [data for data in BAD if data.isascii() and data.decode().isprintable()]
    with ThreadPoolExecutor(8) as pool:
        for data, found in zip(bad, pool.map(refused, bad), strict=True):
            assert found == "FlightUnauthenticatedError" or len(data) > LONG, (data[:100], found)
    with fl.connect(broker.flight_url) as client, pytest.raises(fl.FlightUnauthorizedError):
        client.do_get(fl.Ticket(ticket()), options("stranger")).read_all()
