"""Watches of a session with ZooKeeper: how many kazoo keeps of one listener."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.serialization import Exists, GetChildren

from pulsark.metadata.zookeeper.address import parse_zookeeper
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate


def test_who_looks_again_and_again_has_one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What seldom changes, such as the list of read-only bookies, is looked at beside the rest."""

    async def main(sim: Simulation) -> None:
        clock = sim.runtime(SimDisk()).clock
        client = ZooKeeperClient(parse_zookeeper("zk:localhost:2181/x"), clock, 30.0, 30.0, ())
        kept: set[Any] = set()  # as kazoo keeps those of one node

        async def read(request: Exists | GetChildren, path: str) -> None:
            kept.add(request.watcher)

        monkeypatch.setattr(client._calls, "read", read)
        told: list[str] = []

        class Listener:
            def changed(self) -> None:
                told.append("changed")

            def other(self) -> None:
                told.append("other")

        listener = Listener()
        for _ in range(100):
            await client.exists("/a", listener.changed)
            await client.children("/a", listener.changed)
        assert len(kept) == 1
        await client.exists("/a", listener.other)
        for watcher in kept:
            watcher(SimpleNamespace(type="CHANGED"))
        assert sorted(told) == ["changed", "other"]

    simulate(main)
