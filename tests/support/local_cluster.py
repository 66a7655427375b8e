"""``pulsark cluster`` as a process: ZooKeeper, bookies and brokers below it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.maven import CACHE
from tests.support.standalone import Standalone


class LocalCluster(Standalone):
    """Its processes are those of a cluster on several machines."""

    COMMAND = "cluster"

    def __init__(self, data_dir: Path, *args: str, **kwargs: Any) -> None:
        super().__init__(data_dir, "--jars", str(CACHE), *args, **kwargs)

    def start(self, timeout: float = 180.0) -> LocalCluster:
        """Also fetches the bookies' jars, the first time."""
        super().start(timeout)
        return self

    def processes(self) -> dict[str, int]:
        """The children by role, as they are now."""
        info: dict[str, Any] = json.loads((self.data_dir / "cluster.json").read_text())
        brokers = {f"broker-{n}": int(each["pid"]) for n, each in enumerate(info["brokers"])}
        return {**{name: int(pid) for name, pid in info["servers"].items()}, **brokers}

    def broker_at(self, url: str) -> int:
        """The process of the broker with this service URL."""
        urls = [each["brokerServiceUrl"] for each in self.info["brokers"]]
        return self.processes()[f"broker-{urls.index(url)}"]
