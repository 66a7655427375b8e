"""A cluster of one machine that is stopped while it starts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.processes import local_cluster
from pulsark.processes.local_cluster import LocalCluster


def test_who_stops_it_does_not_wait_for_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, ended = threading.Event(), threading.Event()

    async def main() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def fetch(*_: object) -> str:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(10)
            ended.set()
            return ""

        monkeypatch.setattr(local_cluster, "class_path", fetch)
        cluster = LocalCluster(Settings(dataDir=str(tmp_path)), tmp_path, lambda _: None)
        starting = asyncio.create_task(cluster.start())
        await begun.wait()
        starting.cancel()
        await asyncio.wait({starting})
        await cluster.stop()

    asyncio.run(main())
    assert not ended.is_set()
    may_end.set()
