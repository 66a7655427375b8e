"""Bookies of Apache BookKeeper on this machine, each a Java process with its directories.

They listen on loopback only and have no access control, so they are for trials and tests. A new
cluster needs ``storage.bookkeeper.cluster.new_cluster`` before its first bookie starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsark.errors import ConfigError
from pulsark.processes.java_process import HOST, JavaProcess, free_port, java

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK: Final = Path(__file__).with_name("bookkeeper-server-4.17.3.lock")
"""The jars. Earlier releases can lose a confirmed entry when a ledger is fenced (BookKeeper #4701).
"""
START_SECONDS: Final = 60.0
SHELL_SECONDS: Final = 60.0
FRAME_BYTES_MAX: Final = 5 * (1 << 20) + (10 << 10)
"""Largest frame, as Pulsar sets it: the largest message and what comes with it."""

_LOOK_SECONDS: Final = 0.05
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dio.netty.leakDetectionLevel=disabled",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
)
_LOGGING: Final = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = {pattern}
logger.zookeeper.name = org.apache.zookeeper
logger.zookeeper.level = warn
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
"""
_MIB: Final = 1 << 20
_HEAP_MIB: Final = 128
_WRITE_CACHE_MIB: Final = 16
_FRAMES: Final = 16
"""How many larger frames a bookie gets memory for."""
_BOOKIE: Final = "org.apache.bookkeeper.server.Main"
_AUTO_RECOVERY: Final = "org.apache.bookkeeper.replication.AutoRecoveryMain"
_SHELL: Final = "org.apache.bookkeeper.bookie.BookieShell"


def room_for(frame_bytes_max: int) -> tuple[dict[str, object], str]:
    """A bookie's settings and memory for frames of so many bytes.

    Half of its write cache must hold an entry: else it never answers, and tells nobody.
    """
    mib, usual = (-(-size // _MIB) for size in (frame_bytes_max, FRAME_BYTES_MAX))
    settings: dict[str, object] = {
        "nettyMaxFrameSizeBytes": frame_bytes_max,
        "dbStorage_writeCacheMaxSizeMb": max(_WRITE_CACHE_MIB, 2 * (mib + 1)),
    }
    return settings, f"{_HEAP_MIB + _FRAMES * max(mib - usual, 0)}m"


class BookKeeperProcess:
    """What a bookie, auto-recovery and the shell have in common: a directory with the settings."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        class_path: str,
        *,
        heap: str = f"{_HEAP_MIB}m",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """``zookeeper`` is ``host:port/root`` of the cluster; ``settings`` are BookKeeper's."""
        self.directory = directory
        self._class_path = class_path
        self._heap = heap
        self._settings: dict[str, object] = {
            "metadataServiceUri": f"zk+hierarchical://{zookeeper}",
            "zkTimeout": 4000,
            "allowLoopback": "true",
            "nettyMaxFrameSizeBytes": FRAME_BYTES_MAX,
            **(settings or {}),
        }

    def command(self, main: str, *arguments: str, shell: bool = False) -> list[str]:
        """Write the settings, and return the command that runs a class with them.

        ``ConfigError`` if Java is missing.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "bookie.conf"
        configuration.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
        logging = self.directory / ("shell.properties" if shell else "log4j2.properties")
        pattern, level = ("%m%n", "info") if shell else ("%d %p %c{1} %m%n%ex", "warn")
        logging.write_text(_LOGGING.format(pattern=pattern, level=level))
        return [
            java(), f"-Xmx{self._heap}", f"-XX:MaxDirectMemorySize={self._heap}", *_JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={logging}", f"-Dlog4j.configurationFile={logging}",
            "-cp", self._class_path, main, "-conf" if shell else "--conf", str(configuration),
            *arguments,
        ]  # fmt: skip


class BookieServer(BookKeeperProcess):
    """One bookie. It can be started again after its end, with what it had."""

    def __init__(
        self,
        bookie_id: str,
        directory: Path,
        zookeeper: str,
        class_path: str,
        *,
        port: int = 0,
        heap: str = f"{_HEAP_MIB}m",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """With ``port`` 0, a free port is chosen. Nothing runs before ``start``."""
        self.bookie_id = bookie_id
        self.port = port or free_port()
        self.process = JavaProcess()
        own = {
            "bookieId": bookie_id,
            "bookiePort": self.port,
            "advertisedAddress": HOST,
            "listeningInterface": "lo",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": _WRITE_CACHE_MIB,
            "dbStorage_readAheadCacheMaxSizeMb": 8,
            "dbStorage_rocksDB_blockCacheSize": 8 << 20,
            "journalMaxGroupWaitMSec": 1,
            "journalPreAllocSizeMB": 4,
            "entryLogFilePreallocationEnabled": "false",
            "diskUsageThreshold": 0.98,
            "diskUsageWarnThreshold": 0.97,
            "httpServerEnabled": "false",
            **(settings or {}),
        }
        super().__init__(directory, zookeeper, class_path, heap=heap, settings=own)

    def start(self) -> None:
        """Start the process; ``ready`` waits for it."""
        self.process.start(self.command(_BOOKIE), self.directory / "output.log")

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Return once it takes connections. ``ConfigError`` if it ends or takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.process.is_running:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(HOST, self.port)
                        writer.close()
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        raise ConfigError(
            f"bookie {self.bookie_id} does not start: see {self.directory / 'output.log'}"
        )


class AutoRecovery(BookKeeperProcess):
    """BookKeeper's auditor and replication worker, in a process of their own."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        class_path: str,
        *,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(directory, zookeeper, class_path, settings=settings)
        self.process = JavaProcess()

    def start(self) -> None:
        """Start the process."""
        self.process.start(self.command(_AUTO_RECOVERY), self.directory / "output.log")


class Shell(BookKeeperProcess):
    """BookKeeper's own command line."""

    async def run(self, *arguments: str) -> str:
        """Run a command and return what it prints. ``ConfigError`` if it fails."""
        process = await asyncio.create_subprocess_exec(
            *self.command(_SHELL, *arguments, shell=True),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SHELL_SECONDS):
                output, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        text = output.decode(errors="replace")
        if process.returncode:
            raise ConfigError(f"bookkeeper shell {' '.join(arguments)} failed:\n{text[-2000:]}")
        return text
