"""What is no TLS, or TLS that no client speaks, on all three ports."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import NamedTuple

import pytest
import trustme

from pulsark.security.limits import TLS_HANDSHAKES_PER_ADDRESS_MAX
from pulsark.wire.frames import encode_command
from tests.hostile.conftest import ATTACKER
from tests.hostile.test_frames import hello
from tests.support.secured import Secured, token
from tests.support.wire_client import WireClient

CLOSE_SECONDS = 30.0
PORTS = {
    "binary": ("brokerServiceUrl", "brokerServiceUrlTls"),
    "HTTP": ("webServiceUrl", "webServiceUrlTls"),
    "Flight": ("flightUrl", "flightUrlTls"),
}
FIRST = {"Flight": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])}
"""What a client says first where a byte would end the connection: the preface, and no settings."""
SERVED = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


class Port(NamedTuple):
    """One port without TLS and with it, and what a client may say there first."""

    plain: int
    tls: int
    first: bytes

    @classmethod
    def of(cls, broker: Secured, name: str) -> Port:
        plain, tls = (port_of(broker, url) for url in PORTS[name])
        return cls(plain, tls, FIRST.get(name, b"\0"))


@pytest.fixture(params=PORTS)
def port(broker: Secured, request: pytest.FixtureRequest) -> Port:
    return Port.of(broker, request.param)


def port_of(broker: Secured, url: str) -> int:
    return int(broker.info[url].rpartition(":")[2])


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=CLOSE_SECONDS)


def ends(connection: socket.socket) -> bytes:
    """What comes before the broker hangs up; it does so in time."""
    came = b""
    with connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while piece := connection.recv(1 << 16):
            came += piece
    return came


def client_hello(context: ssl.SSLContext, name: str = "localhost") -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def any_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def works(broker: Secured) -> None:
    """Clients over TLS are served on the binary port and over HTTP."""
    connection = broker.over_tls("brokerServiceUrlTls")
    with WireClient(broker.broker_port, token=token(ATTACKER), connection=connection):
        pass
    request = http.client.HTTPConnection("localhost", timeout=CLOSE_SECONDS)
    request.sock = broker.over_tls("webServiceUrlTls")
    request.request("GET", "/metrics")
    assert request.getresponse().status == 200
    request.close()


def works_soon(broker: Secured) -> None:
    """Handshakes that others do not finish have a second, if there are many of them."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while True:
        try:
            return works(broker)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


NOT_TLS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "a command": encode_command(hello()),
    "zeros": bytes(4096),
    "a record of an old version": b"\x16\x02\x00\x00\x05" + bytes(5),
    "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "a record without a handshake": b"\x17\x03\x03\x00\x10" + bytes(16),
    "a record that is too long": b"\x16\x03\x01\xff\xff" + bytes(0xFFFF),
    "empty records": b"\x16\x03\x01\x00\x00" * 1000,
    "only alerts": b"\x15\x03\x01\x00\x02\x01\x5a" * 1000,
    "a hello of 16 MiB": b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(16380),
}


@pytest.mark.parametrize("sent", NOT_TLS.values(), ids=NOT_TLS.keys())
def test_bytes_that_are_no_tls_on_a_port_for_it(port: Port, sent: bytes) -> None:
    connection = opened(port.tls)
    with contextlib.suppress(OSError):  # it may have hung up
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
    assert ends(connection)[:1] in (b"", b"\x15"), "neither an end nor an alert"


def test_tls_on_a_port_without_it(port: Port) -> None:
    connection = opened(port.plain)
    connection.sendall(client_hello(any_context()))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    assert ends(connection)[:2] != b"\x16\x03", "the answer to a handshake"


def old_hello(version: int) -> bytes:
    """The hello of a client that knows nothing above this version."""
    suites = bytes.fromhex("c014c00a0039003500ff")
    body = bytes([3, version]) + bytes(32) + b"\0" + len(suites).to_bytes(2, "big") + suites
    body += b"\x01\x00"
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


@pytest.mark.parametrize("version", [0, 1, 2], ids=["SSL 3", "TLS 1.0", "TLS 1.1"])
def test_old_versions(port: Port, version: int) -> None:
    connection = opened(port.tls)
    connection.sendall(old_hello(version))
    came = ends(connection)
    assert came[:1] in (b"", b"\x15"), "they are spoken"


@pytest.mark.parametrize("version", SERVED)
def test_no_session_outlives_a_certificate(broker: Secured, version: ssl.TLSVersion) -> None:
    """There are no tickets, with which a client would come back under its former certificate."""
    context = broker.context()
    context.minimum_version = context.maximum_version = version
    with opened(port_of(broker, "brokerServiceUrlTls")) as plain:
        client = context.wrap_socket(plain, server_hostname="localhost")
        client.sendall(encode_command(hello()))
        assert client.recv(1000)
        assert client.session is None or not client.session.has_ticket


NAMES = {
    "another host": b"broker.example",
    "NUL": b"local\0ost",
    "no UTF-8": b"\xff\xfe\xfd\xfc",
    "an address": b"127.0.0.1",
    "a path": b"../../etc/passwd",
    "long": b"x" * 20_000,
    "empty": b"",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_the_name_of_another_server(port: Port, name: bytes) -> None:
    """No name chooses anything: it is answered, or refused by an alert, as the library likes."""
    connection = opened(port.tls)
    connection.sendall(renamed(client_hello(any_context(), "localhost"), name))
    answer = connection.recv(1)
    connection.close()
    assert answer in (b"", b"\x15", b"\x16")


def renamed(sent: bytes, name: bytes) -> bytes:
    """A hello with another name in its SNI: all lengths around that are right."""
    old = b"localhost"
    at = sent.index(old)
    grown = len(name) - len(old)
    whole = bytearray(sent[:at] + name + sent[at + len(old) :])
    session_end = 44 + whole[43]
    suites_end = session_end + 2 + int.from_bytes(whole[session_end : session_end + 2], "big")
    extensions = suites_end + 1 + whole[suites_end]
    lengths = [(3, 2), (6, 3), (extensions, 2), (at - 7, 2), (at - 5, 2), (at - 2, 2)]
    for place, size in lengths:
        length = int.from_bytes(whole[place : place + size], "big") + grown
        whole[place : place + size] = length.to_bytes(size, "big")
    return b"".join(records(bytes(whole)))


def records(one: bytes) -> Iterator[bytes]:
    """A handshake in records of the size that is allowed."""
    content = one[5:]
    for at in range(0, len(content), 1 << 14):
        piece = content[at : at + (1 << 14)]
        yield one[:3] + len(piece).to_bytes(2, "big") + piece


def test_half_handshakes_keep_nobody_out_for_long(broker: Secured) -> None:
    half = client_hello(any_context())[:100]
    waiting = []
    for url in ("brokerServiceUrlTls", "webServiceUrlTls"):
        for _ in range(3 * TLS_HANDSHAKES_PER_ADDRESS_MAX):
            connection = opened(port_of(broker, url))
            with contextlib.suppress(OSError):
                connection.sendall(half)
            waiting.append(connection)
    works_soon(broker)
    for connection in waiting:
        connection.close()


def test_handshakes_that_are_left_at_each_byte(broker: Secured) -> None:
    sent = client_hello(any_context())
    for length in range(0, len(sent), 7):
        with opened(port_of(broker, "brokerServiceUrlTls")) as connection:
            connection.sendall(sent[:length])
    works_soon(broker)


def test_a_chain_of_very_many_certificates(broker: Secured, port: Port, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("client@example.org", common_name=ATTACKER)
    chain, key = tmp_path / "chain.pem", tmp_path / "client.key"
    chain.write_bytes(issued.cert_chain_pems[0].bytes() + authority.cert_pem.bytes() * 500)
    issued.private_key_pem.write_to_path(str(key))
    context = broker.context()
    context.load_cert_chain(chain, key)
    assert not is_let_in(port, context)


def is_let_in(port: Port, context: ssl.SSLContext) -> bool:
    """With TLS 1.3 a client notices at its first read that its certificate is refused."""
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with opened(port.tls) as plain:
            client = context.wrap_socket(plain, server_hostname="localhost")
            client.settimeout(1)
            client.sendall(port.first)
            return bool(client.recv(100))
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.skipif(which("openssl") is None, reason="needs the program openssl")
def test_a_handshake_is_not_renegotiated(broker: Secured) -> None:
    where = f"localhost:{port_of(broker, 'brokerServiceUrlTls')}"
    command = ["openssl", "s_client", "-connect", where, "-tls1_2"]
    asked = subprocess.run(command, input=b"R\n", capture_output=True, timeout=60, check=False)
    said = asked.stdout + asked.stderr
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said or b"no_renegotiation" in said or b"alert" in said, said
    works(broker)
