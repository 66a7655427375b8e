"""A ``pulsark standalone`` or ``pulsark cluster`` as a child process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from pulsark.errors import PulsarkError
from pulsark.runtime import SystemClock

START_SECONDS = {"standalone": 30.0, "cluster": 600.0}
"""By the command: the first cluster of a machine fetches BookKeeper."""
STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.02


class StandaloneProcess:
    """Starts a standalone, or a cluster, over a directory and stops it again.

    It has a session of its own: Ctrl-C reaches it through ``stop`` only, and it survives the
    terminal if it is kept.
    """

    def __init__(
        self,
        data_dir: Path,
        ports: tuple[int, int, int] = (0, 0, 0),
        brokers: int = 1,
        *,
        cluster: bool = False,
    ) -> None:
        self._command = "cluster" if cluster else "standalone"
        self._data_dir = data_dir
        self._ports = ports
        self._brokers = brokers
        self._process: subprocess.Popen[bytes] | None = None
        self.info: dict[str, str] = {}

    @property
    def service_url(self) -> str:
        """``pulsar://host:port``."""
        return self.info["brokerServiceUrl"]

    @property
    def admin_url(self) -> str:
        """``http://host:port``."""
        return self.info["webServiceUrl"]

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self.info["pid"])

    def start(self) -> None:
        """Start and wait until it serves; ``PulsarkError`` with its last words if it ends."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        ready = self._data_dir / f"{self._command}.json"
        log = self._data_dir / f"{self._command}.log"
        ready.unlink(missing_ok=True)
        broker, web, flight = map(str, self._ports)
        command = [
            *(sys.executable, "-m", "pulsark", self._command, "--data-dir", str(self._data_dir)),
            *("--broker-port", broker, "--web-port", web, "--flight-port", flight),
            *("--brokers", str(self._brokers)),
        ]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        patience = START_SECONDS[self._command]
        deadline = SystemClock.monotonic() + patience
        while not ready.exists():
            ended = _ends(self._process, _LOOK_SECONDS)
            if ended or SystemClock.monotonic() > deadline:
                self.stop()
                what = "ended at once" if ended else f"did not start within {patience:g} s"
                said = log.read_text()[-2000:].strip()
                raise PulsarkError(f"pulsark {self._command} {what}:\n{said}")
        self.info = json.loads(ready.read_text())

    def stop(self) -> None:
        """Stop it, if it runs; harsh if it does not listen."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        if not _ends(process, STOP_SECONDS):
            process.kill()
            process.wait()

    def keep(self) -> None:
        """Let it run on after this process."""
        self._process = None

    def __enter__(self) -> StandaloneProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Whether a process has ended, or does so within some seconds."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def free(ports: tuple[int, ...]) -> bool:
    """Whether nobody listens on any of these ports of this machine."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
