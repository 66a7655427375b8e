"""``pulsark cluster`` as a process: ZooKeeper, bookies and brokers below it."""

from __future__ import annotations

import json
import urllib.request
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

    def bookies(self) -> dict[str, str]:
        """The state of each bookie by its name, as a broker sees it."""
        with urllib.request.urlopen(f"{self.web_url}/admin/v2/bookies/all", timeout=20) as answer:
            return {one["bookieId"]: one["state"] for one in json.load(answer)["bookies"]}

    def bookies_are_available(self) -> bool:
        """Whether the brokers have all of them."""
        return set(self.bookies().values()) == {"available"}

    def broker_at(self, url: str) -> int:
        """The process of the broker with this service URL."""
        urls = [each["brokerServiceUrl"] for each in self.info["brokers"]]
        return self.processes()[f"broker-{urls.index(url)}"]
