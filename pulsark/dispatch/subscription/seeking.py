"""Moves of a subscription's cursor: seek, rollback, and the return to an earlier state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX, READER_GRACE_SECONDS
from pulsark.runtime import Done, new_done
from pulsark.security.effects import Changed, report
from pulsark.storage.cursor.owners import CursorOwner, check_owner

if TYPE_CHECKING:
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.subscription.dispatcher import Dispatcher
    from pulsark.dispatch.subscription.pending import PendingEntries
    from pulsark.dispatch.subscription.stored_topic import StoredTopic
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.storage.cursor.state import AckedSet
    from pulsark.wire.position import Position

_Change = Callable[[Done], object]


@dataclass(frozen=True, slots=True, eq=False)
class Seeking:
    """Moves the cursor of one subscription. What was pending is delivered again from there on."""

    topic: StoredTopic
    cursor: Cursor
    members: Members
    dispatcher: Dispatcher
    pending: PendingEntries
    drop_if_abandoned: Callable[[], None]

    async def to(self, position: Position, ack_set: list[int] | None = None) -> None:
        """Move the cursor so that ``position`` is delivered next. Consumers are closed first.

        A position without an entry stands for the next one that has or will have one. Clients
        subscribe again by themselves; they wait on ``changing`` until it is done.
        """
        await self._without_consumers(self._reset(position, ack_set))

    async def to_time(self, published_ms: int) -> None:
        """Move it to the first message published at or after a time."""
        await self.to(await self.topic.ledger.find_by_publish_time(published_ms))

    async def restore(self, acked: AckedSet) -> None:
        """Give the cursor a state that it had at another time.

        What was trimmed since then does not come back.
        """
        await self._without_consumers(partial(self.cursor.restore, acked))

    async def rollback(self, published_ms: int) -> None:
        """Move the cursor to a time while consumers stay connected."""
        check_owner(self.cursor.name, CursorOwner.CLIENTS)
        position = await self.topic.ledger.find_by_publish_time(published_ms)
        with self.dispatcher.hold():
            await self._apply(self._reset(position))

    def _reset(self, position: Position, ack_set: list[int] | None = None) -> _Change:
        def change(done: Done) -> None:
            target = self.topic.ledger.valid_position_at_or_after(position)
            self.cursor.reset(target, ack_set if target == position else None, done)

        return change

    async def _without_consumers(self, change: _Change) -> None:
        check_owner(self.cursor.name, CursorOwner.CLIENTS)
        members = self.members
        try:
            async with members.changing:
                with self.dispatcher.hold():
                    single = members.type.active
                    closing = [single] if single is not None else members.type.consumers
                    async for consumer in in_turns(closing, CONSUMERS_LEAVING_AT_ONCE_MAX):
                        consumer.connection.close_consumer(consumer)
                    await self._apply(change)
        finally:
            if not self.cursor.durable:
                # The reader is expected to reconnect; if it does not, its cursor goes away.
                loop = asyncio.get_running_loop()
                loop.call_later(READER_GRACE_SECONDS, self.drop_if_abandoned)

    async def _apply(self, change: _Change) -> None:
        durable, done = new_done()
        change(done)
        if self.cursor.durable:  # where a reader stands is its own affair
            report(Changed.CURSOR_MOVED, self.topic.name, self.cursor.name)
        # Before anything is awaited: the task may be cancelled, and the cursor has moved.
        self.pending.clear()
        self.dispatcher.forget_redeliveries()
        self.dispatcher.rewind()
        await durable
