"""The durable cursors of one topic: those of its subscriptions, and the broker's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.subscription.subscription_properties import given_properties
from pulsark.limits import SUBSCRIPTIONS_PER_TURN_MAX
from pulsark.storage.cursor.history import CursorChange, PastCursor
from pulsark.storage.cursor.owners import DEDUPLICATION_CURSOR, CursorOwner
from pulsark.storage.cursor.state import CursorState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.storage.cursor.log import CursorLog
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.position import Position


class TopicCursors:
    """What the cursor log of a bundle has of one topic."""

    def __init__(self, log: CursorLog, ledger: ManagedLedger) -> None:
        self.creating = asyncio.Lock()
        """Held while one is made: then the topic is not unloaded, nor its cursors deleted."""
        self._log = log
        self._ledger = ledger

    async def found(self) -> dict[str, Cursor]:
        """The cursors that existed when the topic was loaded, by name."""
        return await self._log.cursors(self._ledger.topic_id, self._ledger)

    async def create(
        self, name: str, mark_delete: Position, properties: dict[str, str], by: CursorOwner
    ) -> Cursor:
        """Make one, durably. The caller holds ``creating``."""
        return await self._log.create(
            self._ledger.topic_id, name, mark_delete, properties, self._ledger, by=by
        )

    async def delete(self, name: str, by: CursorOwner) -> None:
        """Delete it, durably."""
        await self._log.delete(self._ledger.topic_id, name, by=by)

    async def at(self, at_ms: int) -> dict[str, PastCursor]:
        """What durable subscriptions had acknowledged at a time, by name; ``NoHistoryError``.

        Of entries that are not there any more nothing is said.
        """
        found = await self._log.cursors_at(self._ledger.topic_id, at_ms)
        return {
            saved.identity.subscription: PastCursor(
                CursorState.of(saved.acked, self._ledger), given_properties(saved.properties)
            )
            async for saved in in_turns(found, SUBSCRIPTIONS_PER_TURN_MAX)
            if saved.identity.subscription != DEDUPLICATION_CURSOR
        }

    async def changes(self) -> AsyncIterator[CursorChange]:
        """What is known of what happened to the cursors of subscriptions, oldest first."""
        async for change in self._log.changes(self._ledger.topic_id):
            if change.subscription != DEDUPLICATION_CURSOR:
                yield change

    @property
    def known_since(self) -> int | None:
        """From when on ``at`` knows, in ms since the epoch; ``None``: not at all."""
        return self._log.known_since

    async def sync(self) -> None:
        """Return once all cursors are durable as they are; ``StorageError``."""
        await self._log.sync()

    @property
    def are_lost(self) -> bool:
        """Whether their log stopped for good."""
        return self._log.failed is not None

    async def unload(self) -> None:
        """Keep none of them in memory."""
        async with self.creating:  # one that is made after this would not be unloaded
            await self._log.unload(self._ledger.topic_id)

    async def delete_all(self) -> None:
        """Delete them, durably: the topic goes."""
        async with self.creating:
            await self._log.delete_topic(self._ledger.topic_id)
