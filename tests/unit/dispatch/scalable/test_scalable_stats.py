"""Clients of scalable topics are counted, and others have their turns meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from pulsark.dispatch.scalable.scalable_stats import COUNTED_PER_TURN, ScalableTotals, counted


class Looked:
    """A topic or a group that notes that it was looked at."""

    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    @property
    def users(self) -> list[int]:
        self._seen.append(self)
        return [1, 2]

    @property
    def shares(self) -> Any:
        self._seen.append(self)
        return SimpleNamespace(members=[1, 2, 3], handed_over=1)


def test_however_many_there_are_the_loop_has_its_turns() -> None:
    seen: list[Any] = []
    topics: Any = [Looked(seen) for _ in range(3 * COUNTED_PER_TURN + 1)]
    groups: Any = [Looked(seen) for _ in range(2 * COUNTED_PER_TURN)]

    async def run() -> tuple[ScalableTotals, int]:
        counting = asyncio.create_task(counted(iter(topics), iter(groups)))
        counts = [0]
        while not counting.done():
            await asyncio.sleep(0)
            counts.append(len(seen))
        return await counting, max(after - before for before, after in pairwise(counts))

    found, most = asyncio.run(run())
    assert found[:4] == (len(topics), 2 * len(topics) - len(groups), len(groups), 6000)
    assert found.segments_handed_over == 2000
    assert most <= 2 * COUNTED_PER_TURN + 2  # a group is looked at twice
