"""A real standalone process for tests: start, kill, restart."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


def ports_to_keep() -> tuple[int, int, int]:
    """Ports for all brokers to share, with room above them for each broker's own.

    A restart needs the same ports again. Those that the kernel gives may be another process's by
    then, or lie so that two of the brokers' own are one. These are below what it gives anybody.
    """
    # Other workers of this run keep to other blocks: they must not take those of one that restarts.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")) % 8
    while True:
        first = random.randrange(10_000 + 100 * worker, 32_000, 800)
        try:
            for port in range(first, first + 100):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first, first + 1, first + 2


@contextmanager
def silent_clients(port: int, request: bytes, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that have sent a request and read none of its answer."""
    with ExitStack() as open_sockets:
        clients = []
        for _ in range(count):
            client = open_sockets.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(request)
            client.settimeout(30)
            clients.append(client)
        yield clients


class Standalone:
    """One ``pulsark standalone`` over a data directory, on free ports unless some are given.

    ``kill`` is SIGKILL, ``stop`` is SIGTERM; ``start`` after either serves the same data on the
    same ports.
    """

    COMMAND = "standalone"

    def __init__(
        self,
        data_dir: Path,
        *args: str,
        env: dict[str, str] | None = None,
        ports: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.data_dir = Path(data_dir)
        self._args = args
        self._env = env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = ports
        self.info: dict[str, Any] = {}

    @property
    def service_url(self) -> str:
        return self.info["brokerServiceUrl"]

    @property
    def web_url(self) -> str:
        return self.info["webServiceUrl"]

    @property
    def flight_url(self) -> str:
        return self.info["flightUrl"]

    @property
    def broker_port(self) -> int:
        return self._ports[0]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_suffix(".log")

    def start(self, timeout: float = 60.0) -> Standalone:
        """Start and wait until it is ready."""
        ready = self.data_dir / f"{self.COMMAND}.json"
        ready.unlink(missing_ok=True)
        if self._ports == (0, 0, 0):
            self._ports = ports_to_keep()
        broker, web, flight = self._ports
        environment = {**os.environ, **self._env}
        command = [
            sys.executable,
            *environment.get("PULSARK_TEST_MAIN", "-m pulsark").split(),
            self.COMMAND,
            "--data-dir",
            str(self.data_dir),
        ]
        command += ["--broker-port", str(broker), "--web-port", str(web)]
        command += ["--flight-port", str(flight), *self._args]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + timeout
        while not ready.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.COMMAND} ended:\n{self.log_path.read_text()[-4000:]}")
            if time.monotonic() > deadline:
                self.kill()
                said = self.log_path.read_text()[-4000:]
                raise RuntimeError(f"{self.COMMAND} not ready:\n{said}")
            time.sleep(0.02)
        self.info = json.loads(ready.read_text())
        self._ports = tuple(
            int(self.info[key].rsplit(":", 1)[1])
            for key in ("brokerServiceUrl", "webServiceUrl", "flightUrl")
        )
        return self

    def processes(self) -> dict[str, int]:
        """The children of one with several brokers, by role, as they are now."""
        info: dict[str, Any] = json.loads((self.data_dir / f"{self.COMMAND}.json").read_text())
        servers = {name: int(pid) for name, pid in info.get("servers", {}).items()}
        if "bookiePid" in info:
            servers["bookie"] = int(info["bookiePid"])
        return {**servers, **{f"broker-{n}": int(b["pid"]) for n, b in enumerate(info["brokers"])}}

    def kill(self) -> None:
        """SIGKILL: nothing gets a chance to be written."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM and wait; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait_for_log(self, text: str, seconds: float = 60.0) -> None:
        """Return once a line of the log has the text."""
        deadline = time.monotonic() + seconds
        while text not in (said := self.log_path.read_text()):
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{said[-4000:]}"
            time.sleep(0.02)

    def wait(self, timeout: float) -> int:
        """The exit code of a process that ends by itself."""
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def __enter__(self) -> Standalone:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
