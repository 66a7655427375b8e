"""Removing the ledgers of a topic that subscriptions are done with and retention does not keep."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import PulsarkError
from pulsark.storage.position import Position
from pulsark.storage.retention import trim_point

if TYPE_CHECKING:
    from pulsark.dispatch.topic import Topic

log = logging.getLogger(__name__)


class TopicRetention:
    """Trims one topic, once at a time."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    def trim_soon(self) -> None:
        """Trim in a task of its own, unless one does so already."""
        if self._task is None and self._point(frozenset()) is not None:
            self._task = asyncio.get_running_loop().create_task(self._trim_aside())

    async def _trim_aside(self) -> None:
        try:
            await self.trim()
        except PulsarkError as error:
            if not self._topic.closed:
                log.warning("%s is not trimmed yet: %s", self._topic.name, error)
        finally:
            self._task = None

    async def trim(self) -> None:
        """Remove what may go now; it is gone when this returns. ``StorageError``."""
        point = await self.point()
        if point is None:
            return
        await self._topic.ledger.trim(point)
        self._topic.trimmed()

    async def point(self) -> Position | None:
        """The position before which ledgers may go now; ``None`` if none may."""
        ledger = self._topic.ledger
        if self._topic.policies.sealing.enabled and ledger.has_table:
            return self._point(None)
        # What the table has may be from a time when sealing was on: it is asked for those only
        # that would go without it.
        point = self._point(frozenset())
        if point is None:
            return None
        going = [info.ledger_id for info in ledger.ledgers() if info.ledger_id <= point.ledger_id]
        return self._point({i for i in going if await ledger.sealed_through(i) >= 0})

    def _point(self, in_table: set[int] | frozenset[int] | None) -> Position | None:
        topic = self._topic
        if topic.closed:
            return None
        policies = topic.policies
        return trim_point(
            topic.ledger.ledgers(),
            self._consumed(),
            policies.retention,
            topic.clock.now_ms(),
            policies.table_retention,
            in_table,
        )

    def _consumed(self) -> Position:
        """Entries up to here are acknowledged by all, durably. Readers do not count."""
        return min(
            (cursor.trim_position for cursor in self._topic.durable_cursors()),
            default=self._topic.ledger.last_confirmed,
        )
