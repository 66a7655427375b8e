"""Removing the ledgers of a topic that subscriptions are done with and retention does not keep."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import PulsarkError
from pulsark.limits import LEDGERS_PER_TURN_MAX
from pulsark.storage.managed_ledger.retention import trim_points
from pulsark.tasks import unattended
from pulsark.wire.position import Position

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from pulsark.dispatch.topic.topic import Topic
    from pulsark.storage.cursor.cursor import Cursor

log = logging.getLogger(__name__)


class TopicRetention:
    """Trims one topic, once at a time."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._task: asyncio.Task[None] | None = None

    def trim_soon(self) -> None:
        """Trim in a task of its own, unless one does so already."""
        if self._task is None and self._may_trim(frozenset()):
            self._task = unattended(self._trim_aside(), f"{self._topic.name}: trimming")

    async def _trim_aside(self) -> None:
        try:
            await self.trim()
        except PulsarkError as error:
            if not self._topic.closed:
                log.warning(
                    "%s: cannot trim ledgers yet, trying again later: %s", self._topic.name, error
                )
        finally:
            self._task = None

    async def trim(self) -> None:
        """Remove what may go now; it is gone when this returns. ``StorageError``."""
        point = await self.point()
        if point is None:
            return
        await self._topic.ledger.trim(point)
        self.trimmed()

    def trimmed(self) -> None:
        """Ledgers are gone, and their entries for every reader."""
        topic = self._topic
        topic.entries.trimmed()
        topic.delayed.trimmed()
        for subscription in topic.subscriptions.values():
            subscription.acks.trimmed(topic.ledger.record.trimmed)

    async def truncate(self) -> None:
        """Acknowledge everything for all subscriptions, and delete all ledgers but an open one."""
        topic = self._topic
        last = topic.ledger.last_confirmed
        for subscription in topic.subscriptions.values():
            subscription.acks.pass_over(last)
        if topic.deduplication is not None:
            topic.deduplication.save(last)
        await topic.cursors.sync()  # before anything is deleted
        await topic.ledger.trim(Position(last.ledger_id, last.entry_id + 1))
        self.trimmed()

    def durable_cursors(self) -> list[Cursor]:
        """All that hold back trimming: those of subscriptions, and the broker's own."""
        cursors = [s.cursor for s in self._topic.subscriptions.values() if s.durable]
        own = self._topic.deduplication_switch.cursor
        return cursors if own is None else [*cursors, own]

    async def point(self) -> Position | None:
        """The position before which ledgers may go now; ``None`` if none may."""
        ledger = self._topic.ledger
        if self._topic.policies.sealing.enabled:
            return await self._last_point(None)
        # What the table has may be from a time when sealing was on: it is asked for those only
        # that would go without it.
        sealed: set[int] = set()
        async for point in in_turns(self._points(frozenset()), LEDGERS_PER_TURN_MAX):
            if await ledger.sealed_through(point.ledger_id) >= 0:
                sealed.add(point.ledger_id)
        return await self._last_point(sealed)

    async def _last_point(self, in_table: set[int] | None) -> Position | None:
        last = None
        async for point in in_turns(self._points(in_table), LEDGERS_PER_TURN_MAX):
            last = point
        return None if self._topic.closed else last

    def _may_trim(self, in_table: frozenset[int]) -> bool:
        return next(self._points(in_table), None) is not None

    def _points(self, in_table: set[int] | frozenset[int] | None) -> Iterator[Position]:
        topic = self._topic
        if topic.closed:
            return iter(())
        policies = topic.policies
        return trim_points(
            topic.ledger.each_ledger(),
            topic.ledger.total_size,
            self._consumed(),
            policies.retention,
            topic.sure_clock.now_ms(),
            policies.table_retention,
            in_table,
        )

    def _consumed(self) -> Position:
        """Entries up to here are acknowledged by all, durably. Readers do not count."""
        return min(
            (cursor.trim_position for cursor in self.durable_cursors()),
            default=self._topic.ledger.last_confirmed,
        )
