"""The two brokers that are compared: each one process over a data directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.credentials import Certificate
from benchmarks.maven import CACHE, class_path, java
from benchmarks.usage import with_children

ROOT = Path(__file__).parents[1]
PEER = Path(__file__).parent / "peer"
STOP_SECONDS = 30


def free_port() -> int:
    """A TCP port nobody listens on. It stays free only as long as nobody else takes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker(ABC):
    """A broker process on ports of its own, started over an empty directory."""

    name: str

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.web_port = free_port()
        self.tls_port = free_port()
        self.certificate: Certificate | None = None
        """What it shows on a port for TLS; without one it has no such port."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def tls_options(self) -> dict[str, str]:
        """How the load client comes over TLS. The certificate is its own CA."""
        if self.certificate is None:
            raise RuntimeError(f"{self.name} has no certificate")
        url = f"pulsar+ssl://127.0.0.1:{self.tls_port}"
        return {"url": url, "trust": str(self.certificate.path)}

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Of all brokers of this side."""
        return [self.pid]

    @property
    def can_stand_still(self) -> list[int]:
        """Processes that may be stopped while another side is measured."""
        return [pid for own in self.pids for pid in with_children(own)]

    @abstractmethod
    def prepare(self) -> None:
        """Fetch what the command needs; not part of any measurement."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line, after the home directory was emptied."""

    def start(self) -> None:
        """Empty the home directory and start. Returns at once; the broker is not yet ready."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.again()

    def again(self) -> None:
        """Start over what is in the home directory. Returns at once."""
        command = self._command()
        with (self.home / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.home, env=self._environment()
            )

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _tls_settings(self) -> dict[str, object]:
        """Both brokers have Pulsar's names for these."""
        if self.certificate is None:
            return {}
        return {
            "brokerServicePortTls": self.tls_port,
            "tlsCertificateFilePath": self.certificate.path,
            "tlsKeyFilePath": self.certificate.key_path,
        }

    def stop(self) -> None:
        """``end``, and the data directory is removed."""
        self.end()
        shutil.rmtree(self.home, ignore_errors=True)

    def end(self) -> None:
        """SIGTERM, then SIGKILL for one that does not end."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_end(self) -> str:
        """The end of what it said."""
        return (self.home / "broker.log").read_text(errors="replace")[-3000:]

    def check(self) -> None:
        """Raise ``RuntimeError`` with the end of its log if the process has ended."""
        if self._process is None or self._process.poll() is None:
            return
        code = self._process.returncode
        raise RuntimeError(f"{self.name} ended with {code}:\n{self.log_end()}")


class Pulsark(Broker):
    """`pulsark standalone` with some settings: of this work tree, or as it was at a commit, from
    a work tree in ``.cache``."""

    name = "Pulsark"

    def __init__(self, home: Path, commit: str = "", **settings: object) -> None:
        super().__init__(home)
        self._commit = commit
        self._checkout = CACHE / "before" / commit if commit else ROOT
        self._settings = settings
        if commit:
            self.name = "before"

    def prepare(self) -> None:
        """Check the commit out. Raises ``CalledProcessError`` for one that git does not know."""
        if not (self._checkout / "pulsark").exists():
            add = ["git", "worktree", "add", "--detach", str(self._checkout), self._commit]
            subprocess.run(add, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._checkout)}

    def _command(self) -> list[str]:
        ports = ["--broker-port", str(self.port), "--web-port", str(self.web_port)]
        data = ["--data-dir", str(self.home / "data"), "--flight-port", "0"]
        settings = {**self._settings, **self._tls_settings()}
        sets = [f"--set={key}={value}" for key, value in settings.items()]
        return [sys.executable, "-m", "pulsark", "standalone", *data, *ports, *sets]


class Pulsar(Broker):
    """Apache Pulsar 4.0.7's standalone from Maven Central, with its journal synced."""

    name = "Pulsar"
    LOCK = PEER / "pulsar-broker-4.0.7.lock"

    # The memory that its distribution's script gives it. That script also chooses ZGC and touches
    # all of the heap at the start, which is slower on few cores and makes 2.3 GB of an idle
    # broker: G1 without it is the stronger opponent in every row.
    MEMORY = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseG1GC")
    OPENS = ("java.io", "java.util.zip", "java.nio", "jdk.internal.misc", "sun.net")
    PROPERTIES = {
        "java.net.preferIPv4Stack": "true",
        "io.netty.tryReflectionSetAccessible": "true",
        "io.netty.recycler.maxCapacityPerThread": "4096",
        "log4j2.is.webapp": "false",
        "log4j.shutdownHookEnabled": "false",
        "bookkeeper.metadata.bookie.drivers": (
            "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver"
        ),
        "bookkeeper.metadata.client.drivers": (
            "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver"
        ),
    }

    def __init__(self, home: Path, **settings: object) -> None:
        super().__init__(home)
        self._settings = settings

    def prepare(self) -> None:
        class_path(self.LOCK)

    def _command(self) -> list[str]:
        conf = self.home / "standalone.conf"
        conf.write_text((PEER / "standalone.conf").read_text() + self._addresses())
        arguments = ["--config", str(conf), "--no-functions-worker", "--no-stream-storage"]
        arguments += ["--num-bookies", "1", *self._bookie_port()]
        arguments += ["--metadata-dir", str(self.home / "metadata")]
        arguments += ["--bookkeeper-dir", str(self.home / "bookkeeper")]
        return [*self._java(), "org.apache.pulsar.PulsarStandaloneStarter", *arguments]

    def _java(self) -> list[str]:
        """The command up to the main class."""
        options = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in self.OPENS]
        options += ["--add-opens=java.management/sun.management=ALL-UNNAMED"]
        options += [f"-D{key}={value}" for key, value in self.PROPERTIES.items()]
        options += [f"-Dlog4j.configurationFile={PEER / 'log4j2.xml'}", *self.MEMORY]
        jars = class_path(self.LOCK).split(os.pathsep)
        path = os.pathsep.join(jar for jar in jars if not jar.endswith("-tests.jar"))
        return [java(), *options, "-cp", path]

    def _bookie_port(self) -> list[str]:
        return ["--bookkeeper-port", str(free_port())]

    def _addresses(self) -> str:
        settings = {
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            **self._tls_settings(),
            **self._settings,
        }
        return "\n" + "".join(f"{key}={value}\n" for key, value in settings.items())


class Pulsar5(Pulsar):
    """Apache Pulsar 5's, of which there are milestones only: the same settings."""

    name = "Pulsar 5"
    LOCK = PEER / "pulsar-broker-5.0.0-M1.lock"

    def _bookie_port(self) -> list[str]:
        return []  # it chooses one by itself


@contextmanager
def alone(broker: Broker, brokers: Iterable[Broker]) -> Iterator[None]:
    """The other brokers stand still meanwhile: what they still have to do after their own runs
    (flushes, collections, sealing) costs them time of their own, not this one's.

    So do their processes for tables: one that goes on with its file takes half of a core, and the
    disk, from whom is measured.
    """
    others = [other for other in brokers if other is not broker]
    standing = [pid for other in others for pid in other.can_stand_still]
    _send_all(standing, signal.SIGSTOP)
    try:
        yield
    finally:
        _send_all(standing, signal.SIGCONT)


def _send_all(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # one for tables has ended
            os.kill(pid, signum)
