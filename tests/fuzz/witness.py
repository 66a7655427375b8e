"""An innocent client beside the others: how long it waits for the answer to a PING.

Run as a process of its own, so that it never waits for the processor of who measures: ``python -m
tests.fuzz.witness PORT`` until its standard input ends; then it prints JSON with ``count`` and
``p50``, ``p99`` and ``max`` in milliseconds.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from types import TracebackType

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command

Command = pb.BaseCommand
PAUSE_SECONDS = 0.005
_TOKEN = "PULSARK_TEST_TOKEN"


class Witness:
    """The process, for as long as the block lasts; ``found`` is there after it."""

    def __init__(self, port: int, token: str = "") -> None:
        self.found: dict[str, float] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.witness", str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, _TOKEN: token},
        )  # fmt: skip

    def __enter__(self) -> Witness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        printed, _ = self._process.communicate(timeout=60)
        if kind is None:
            self.found = json.loads(printed)


def _main(port: int) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    connect = Command(type=Command.CONNECT)
    connect.connect.client_version = "witness"
    if token := os.environ.get(_TOKEN):
        connect.connect.auth_method_name = "token"
        connect.connect.auth_data = token.encode()
    ping = Command(type=Command.PING)
    ping.ping.SetInParent()
    pong = Command(type=Command.PONG)
    pong.pong.SetInParent()
    waits: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(encode_command(connect))
        _next(connection)
        while not ended.wait(PAUSE_SECONDS):
            begun = time.monotonic()
            connection.sendall(encode_command(ping))
            while _next(connection).type != Command.PONG:
                connection.sendall(encode_command(pong))  # the broker asked, too
            waits.append((time.monotonic() - begun) * 1000)
    waits.sort()
    found = {"count": len(waits), "p50": waits[len(waits) // 2], "max": waits[-1]}
    print(json.dumps({**found, "p99": waits[len(waits) * 99 // 100]}))


def _next(connection: socket.socket) -> Command:
    head = _exactly(connection, 8)
    body = _exactly(connection, struct.unpack(">II", head)[0] - 4)
    return Command.FromString(body)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed an innocent connection")
        data += piece
    return data


if __name__ == "__main__":
    _main(int(sys.argv[1]))
