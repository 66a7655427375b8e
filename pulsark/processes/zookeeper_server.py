"""A real ZooKeeper server on this machine, out of the jars that PySpark brings.

It listens on loopback only and has no access control, so it is for trials and tests. ``start``
starts the process, ``ready`` returns once the server serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pulsark.errors import ConfigError

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
PACKET_BYTES_MAX: Final = 4 << 20
"""Largest request. The default of ZooKeeper is below the largest value of the metadata store."""

_LOOK_SECONDS: Final = 0.05
_JARS: Final = (
    "zookeeper-[0-9]", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java",
    "log4j-slf4j2-impl", "log4j-api", "log4j-core",
)  # fmt: skip
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    f"-Djute.maxbuffer={PACKET_BYTES_MAX}",
    "-Dzookeeper.admin.enableServer=false",
)
_LOGGING: Final = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}} %m%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


class ZooKeeperServer:
    """One server with its data in a directory. It can be started again after its end."""

    def __init__(self, directory: Path, port: int = 0, *, heap: str = "128m") -> None:
        """With ``port`` 0, a free port is chosen. Nothing runs before ``start``."""
        self.directory = directory
        self.port = port or _free_port()
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The host and port for clients."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """What a server keeps. If it is removed, the next start has an empty server."""
        return self.directory / "data"

    @property
    def pid(self) -> int:
        """The id of the running process, or 0."""
        return 0 if self._process is None else self._process.pid

    def command(self) -> list[str]:
        """Write the configuration, and return the command that runs the server in foreground.

        ``ConfigError`` if Java or PySpark is missing.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING.format(path=self.directory / "zookeeper.log"))
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(
            f"tickTime=500\ndataDir={self.data}\nclientPort={self.port}\n"
            f"clientPortAddress={HOST}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\n"
            "4lw.commands.whitelist=ruok,srvr,mntr,isro\n"
        )
        return [
            _java(), f"-Xmx{self._heap}", *_JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging}",
            "-cp", _class_path(), "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(configuration),
        ]  # fmt: skip

    def start(self) -> None:
        """Start the process; ``ready`` waits for it."""
        assert self._process is None
        with (self.directory_made() / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in a terminal is for those who started it
            )

    def directory_made(self) -> Path:
        """The server's directory, which is created if missing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Return once the server serves. ``ConfigError`` if it ends or takes too long."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._process.poll() is None:
                    if await is_serving(self.port):
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        raise ConfigError(f"ZooKeeper does not start: see the logs in {self.directory}")

    def pause(self) -> None:
        """Stop the process without ending it, as a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server in order, or by force if that takes too long. Blocks."""
        self._signal(signal.SIGCONT)
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a power failure does. Blocks."""
        self._end(signal.SIGKILL)

    def _end(self, signum: signal.Signals) -> None:
        self._signal(signum)
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _signal(self, signum: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signum)


async def is_serving(port: int, host: str = HOST, seconds: float = 1.0) -> bool:
    """Whether a server answers ``ruok``: an open port alone says nothing."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"ruok")
                return await reader.read(4) == b"imok"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def _class_path() -> str:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("ZooKeeper comes with PySpark, which is missing")
    jars = Path(spec.origin).parent / "jars"
    found = [next(jars.glob(f"{name}*.jar"), None) for name in _JARS]
    if missing := [name for name, jar in zip(_JARS, found, strict=True) if jar is None]:
        raise ConfigError(f"there is no {missing[0]} in {jars}, so ZooKeeper cannot start")
    return os.pathsep.join(str(jar) for jar in found)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError("Java is missing: ZooKeeper needs it on the PATH or in JAVA_HOME")
    return java
