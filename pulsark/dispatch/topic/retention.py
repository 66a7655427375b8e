"""Removing the ledgers of a topic that subscriptions are done with and retention does not keep."""

from __future__ import annotations

import logging
import sys
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

    @property
    def freeable_bytes(self) -> int:
        """Bytes of consumed messages, if something of them may go now; else 0.

        Unlike in ``trim`` the open ledger counts: ``relieve`` closes it.
        """
        topic = self._topic
        if topic.closed:
            return 0
        consumed = self._consumed_by_clients()
        if not (
            self._may_close(consumed) or next(self._points(frozenset(), consumed), None) is not None
        ):
            return 0
        return topic.ledger.total_size - topic.ledger.bytes_after(consumed)

    async def relieve(self) -> None:
        """Trim for the sake of a full disk, and close a consumed ledger so that it can go.

        Nothing may be appended there at the moment, so no append would close it. ``StorageError``.
        """
        topic = self._topic
        if topic.deduplication is not None and self._consumed() < self._consumed_by_clients():
            topic.deduplication.save(topic.ledger.last_confirmed)
        await topic.cursors.sync()  # only what is durable makes room
        if self._may_close(self._consumed()):
            await topic.ledger.close_ledger()
        await self.trim()

    def _may_close(self, consumed: Position) -> bool:
        """Return whether the open ledger is consumed, and goes once it is closed and old."""
        topic = self._topic
        info = topic.ledger.newest_ledger()
        if info is None or not info.open or not info.entries or topic.ledger.is_terminated:
            return False
        policies = topic.policies
        keeps = [policies.retention]
        if policies.sealing.enabled:
            keeps.append(policies.table_retention)
        return Position(info.ledger_id, info.entries - 1) <= consumed and all(
            retention.lets_go(sys.maxsize, 0) for retention in keeps
        )

    def trimmed(self) -> None:
        """Ledgers are gone, and their entries for every reader."""
        topic = self._topic
        topic.entries.trimmed()
        topic.delayed.trimmed()
        for subscription in topic.subscriptions.values():
            subscription.acks.trimmed(topic.ledger.record.trimmed)

    async def truncate(self) -> None:
        """Acknowledge everything for all subscriptions, and delete all ledgers.

        An open ledger is closed first: on a full disk it may be what fills it.
        """
        topic = self._topic
        last = topic.ledger.last_confirmed
        for subscription in topic.subscriptions.values():
            subscription.acks.pass_over(last)
        if topic.deduplication is not None:
            topic.deduplication.save(last)
        await topic.cursors.sync()  # before anything is deleted
        if not topic.ledger.is_terminated:
            await topic.ledger.close_ledger()
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

    def _points(
        self, in_table: set[int] | frozenset[int] | None, consumed: Position | None = None
    ) -> Iterator[Position]:
        topic = self._topic
        if topic.closed:
            return iter(())
        policies = topic.policies
        return trim_points(
            topic.ledger.each_ledger(),
            topic.ledger.total_size,
            self._consumed() if consumed is None else consumed,
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

    def _consumed_by_clients(self) -> Position:
        """As ``_consumed``, but not held back by deduplication, which can be saved at any time."""
        topic = self._topic
        return min(
            (s.cursor.trim_position for s in topic.subscriptions.values() if s.durable),
            default=topic.ledger.last_confirmed,
        )
