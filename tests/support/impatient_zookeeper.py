"""A ZooKeeper in memory at which nobody may try the same again and again."""

from __future__ import annotations

from collections.abc import Sequence

from pulsark.metadata.zookeeper.nodes import Operation, Result
from tests.support.memory_zookeeper import MemoryZooKeeper


class ImpatientZooKeeper(MemoryZooKeeper):
    """It takes fewer than ``multis_max``; ``multis`` may be set to 0 again."""

    address = "memory"
    session_id = 7
    multis = 0
    multis_max = 20

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        self.multis += 1
        assert self.multis < self.multis_max, "the same is tried again and again"
        return await super().multi(operations)
