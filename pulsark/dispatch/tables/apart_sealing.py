"""Work on tables of topics that made trouble, beside the rounds.

A round goes from table to table, so none of them may keep it for long. Topics that are sealed apart
(``storage.table.process.apart``) wait here for each other, and nobody else waits for them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.dispatch.tables.rounds import TableFailures
    from pulsark.storage.table.process.apart import ApartTopics
    from pulsark.wire.topic_name import TopicName

    Work = Callable[[], Awaitable[None]]


class ApartSealing:
    """Does one piece of work at a time, until there is no more."""

    def __init__(self, topics: ApartTopics, failures: TableFailures) -> None:
        self.topics = topics
        self._failures = failures
        self._works: dict[tuple[TopicName, str], Work] = {}
        self._task: asyncio.Task[None] | None = None

    def offer(self, base: TopicName, what: str, work: Work) -> None:
        """Do something with a table that is apart, unless it has to wait or waits here already.

        A later round offers it again.
        """
        if self.topics.seconds_to_wait(base) > 0:
            return
        self._works.setdefault((base, what), work)
        if self._task is None or self._task.done():
            self._task = unattended(self._run(), "sealing of topics apart from others")

    async def _run(self) -> None:
        while self._works:
            key = next(iter(self._works))
            work = self._works[key]
            try:
                await self._failures.attempt(key[0], work())
            finally:
                del self._works[key]

    async def close(self) -> None:
        """Break off what is under way."""
        self._works.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
