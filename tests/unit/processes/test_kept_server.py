"""A server of another make is started again whenever it ends, and who keeps it hears of it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsark.errors import ConfigError
from pulsark.processes import kept_server
from pulsark.processes.java_process import JavaProcess
from pulsark.processes.kept_server import KeptServer


class Sleeping:
    """A process that does nothing."""

    def __init__(self, directory: Path) -> None:
        self.process = JavaProcess()
        self.late = False
        """Whether the next process takes too long until it serves."""
        self.serves: asyncio.Event | None = None
        self._output = directory / "output"

    def start(self) -> None:
        self.process.start(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"], self._output
        )

    async def ready(self) -> None:
        if self.serves is not None:
            await self.serves.wait()
        if self.late:
            self.late = False
            raise ConfigError("it takes too long")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_server, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(kept_server, "PAUSE_SECONDS", 0.01)


def test_each_new_process_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        told: asyncio.Queue[int] = asyncio.Queue()
        server = Sleeping(tmp_path)
        kept = KeptServer("it", server, lambda: told.put_nowait(server.process.pid))
        await kept.start()
        pids = set()
        for _ in range(3):
            async with asyncio.timeout(30):
                pid = await told.get()
            assert pid == kept.pid
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
            server.late = True
        await kept.stop()
        assert len(pids) == 3

    asyncio.run(main())


def test_it_is_kept_although_its_address_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        told: asyncio.Queue[int] = asyncio.Queue()
        server = Sleeping(tmp_path)

        def ready() -> None:
            told.put_nowait(server.process.pid)
            raise OSError(28, "No space left on device")

        kept = KeptServer("it", server, ready)
        await kept.start()
        for _ in range(3):
            async with asyncio.timeout(30):
                os.kill(await told.get(), signal.SIGKILL)
        await kept.stop()
        assert not server.process.is_running

    asyncio.run(main())


def test_one_that_is_stopped_while_it_starts_is_not_started_again(tmp_path: Path) -> None:
    """Of several that start at once another one has failed."""

    async def main() -> None:
        server, told = Sleeping(tmp_path), list[int]()
        server.serves = asyncio.Event()
        kept = KeptServer("it", server, lambda: told.append(server.process.pid))
        starting = asyncio.create_task(kept.start())
        await asyncio.sleep(0)
        assert kept.pid
        await kept.stop()
        server.serves.set()
        with pytest.raises(ConfigError, match="it was stopped"):
            await starting
        assert not told
        assert kept._task is None

    asyncio.run(main())


KEEPER = """
import asyncio, sys
from pathlib import Path
from pulsark.processes.kept_server import KeptServer
from tests.unit.processes.test_kept_server import Sleeping

async def main():
    server = Sleeping(Path(sys.argv[1]))
    await KeptServer("it", server, lambda: print(server.process.pid, flush=True)).start()
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others cannot tell a process to die")
def test_a_server_does_not_outlive_a_keeper_that_is_killed(tmp_path: Path) -> None:
    """Two of them would write to the same files once the keeper is started again."""
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    watched = os.pidfd_open(int(keeper.stdout.readline()))
    ended: list[int] = []
    try:
        keeper.kill()
        ended, _, _ = select.select([watched], [], [], 30)
        assert ended, "it lives on"
    finally:
        if not ended:
            signal.pidfd_send_signal(watched, signal.SIGKILL)
        os.close(watched)
        keeper.stdout.close()
        keeper.wait()
