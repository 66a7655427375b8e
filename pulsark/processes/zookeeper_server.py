"""A real ZooKeeper server on this machine, out of the jars that PySpark brings.

It listens on loopback only and has no access control, so it is for trials and tests. ``start``
starts the process, ``ready`` returns once the server serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pulsark.errors import ConfigError
from pulsark.processes.java_process import HOST, JavaProcess, free_port, is_free, java

START_SECONDS: Final = 30.0
PACKET_BYTES_MAX: Final = 4 << 20
"""Largest request. The default of ZooKeeper is below the largest value of the metadata store."""

CONFIGURATION: Final = "zoo.cfg"

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
        """With ``port`` 0 it is that of the last start in this directory, if it is free now: who
        was told of it need not be told again. Nothing runs before ``start``."""
        self.directory = directory
        self.port = port or _last_port(directory / CONFIGURATION) or free_port()
        self._heap = heap
        self.process = JavaProcess()

    @property
    def address(self) -> str:
        """The host and port for clients."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """What a server keeps. If it is removed, the next start has an empty server."""
        return self.directory / "data"

    def command(self) -> list[str]:
        """Write the configuration, and return the command that runs the server in foreground.

        ``ConfigError`` if Java or PySpark is missing.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING.format(path=self.directory / "zookeeper.log"))
        configuration = self.directory / CONFIGURATION
        configuration.write_text(
            f"tickTime=500\ndataDir={self.data}\nclientPort={self.port}\n"
            f"clientPortAddress={HOST}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\n"
            "4lw.commands.whitelist=ruok,srvr,mntr,isro\n"
        )
        return [
            java(), f"-Xmx{self._heap}", *_JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging}",
            "-cp", _class_path(), "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(configuration),
        ]  # fmt: skip

    def start(self) -> None:
        """Start the process; ``ready`` waits for it."""
        self.process.start(self.command(), self.directory / "output.log")

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Return once the server serves. ``ConfigError`` if it ends or takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.process.is_running:
                    if await is_serving(self.port):
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        raise ConfigError(f"ZooKeeper does not start: see the logs in {self.directory}")


async def is_serving(port: int, host: str = HOST, seconds: float = 1.0) -> bool:
    """Whether a server says that it serves: an open port, or ``ruok``, alone says nothing."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"isro")
                return await reader.read(2) == b"rw"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _last_port(configuration: Path) -> int:
    """The port in a server's configuration; 0 if there is none, or if it is taken.

    The file is damaged, perhaps: the start writes it anew.
    """
    with contextlib.suppress(OSError, ValueError, OverflowError):
        found = re.search(r"^clientPort=(\d+)$", configuration.read_text(), re.M)
        if found is not None and is_free(port := int(found[1])):
            return port
    return 0


def _class_path() -> str:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "ZooKeeper comes with PySpark, which is missing: pip install 'pulsark[spark]'"
        )
    jars = Path(spec.origin).parent / "jars"
    found = [next(jars.glob(f"{name}*.jar"), None) for name in _JARS]
    if missing := [name for name, jar in zip(_JARS, found, strict=True) if jar is None]:
        raise ConfigError(f"there is no {missing[0]} in {jars}, so ZooKeeper cannot start")
    return os.pathsep.join(str(jar) for jar in found)
