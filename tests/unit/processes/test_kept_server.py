"""A server of another make is started again whenever it ends, and who keeps it hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pulsark.processes import kept_server
from pulsark.processes.java_process import JavaProcess
from pulsark.processes.kept_server import KeptServer


class Sleeping:
    """A process that does nothing."""

    def __init__(self, directory: Path) -> None:
        self.process = JavaProcess()
        self._output = directory / "output"

    def start(self) -> None:
        self.process.start(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"], self._output
        )

    async def ready(self) -> None:
        return


def test_each_new_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_server, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(kept_server, "PAUSE_SECONDS", 0.01)

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
        await kept.stop()
        assert len(pids) == 3

    asyncio.run(main())
