"""The subscriptions of one topic: created, deleted, and dropped when they have no consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.model.interfaces import check_room
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.dispatch.subscription.subscription_properties import PropertyRoom, cursor_properties
from pulsark.security.effects import Changed, report
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.owners import (
    CursorOwner,
    check_new_name,
    check_owner,
    is_system_cursor,
)
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from pulsark.dispatch.topic.topic import Topic


class TopicSubscriptions:
    """Keeps ``by_name`` and the topic's durable cursors in step."""

    def __init__(self, topic: Topic) -> None:
        self.by_name: dict[str, Subscription] = {}
        self._topic = topic
        self._property_room = PropertyRoom(topic.name, topic.settings)

    async def create(
        self,
        name: str,
        position: Position,
        properties: dict[str, str],
        *,
        durable: bool,
        compacted: bool = False,
        replicated: bool = False,
        by: CursorOwner = CursorOwner.CLIENTS,
    ) -> Subscription:
        """The subscription of that name, or a new one whose first message is ``position``.

        A durable one exists once this returns, over any restart. ``compacted``: it reads what
        compaction left, which may begin before the oldest ledger. ``ClientError`` for a name that
        ``by`` may not use, and for one subscription too many.
        """
        check_owner(name, by)
        topic = self._topic
        async with topic.cursors.creating:
            topic.check_open()
            known = self.by_name.get(name)
            if known is not None:
                return known
            if by is CursorOwner.CLIENTS:
                check_new_name(name)
                check_room(topic, sum(not is_system_cursor(one) for one in self.by_name))
            view = topic.entries.compacted
            if compacted and view is not None and position <= view.horizon:
                mark_delete = max(EARLIEST, Position(position.ledger_id, position.entry_id - 1))
            else:
                mark_delete = topic.entries.mark_delete_before(position)
            if durable:
                kept = cursor_properties(properties, replicated=replicated)
                if by is CursorOwner.CLIENTS:
                    self._property_room.check(name, kept, {})
                try:
                    cursor = await topic.cursors.create(name, mark_delete, kept, by)
                except asyncio.CancelledError:  # the log goes on without its caller
                    report(Changed.SUBSCRIPTION_CREATED, topic.name, name)
                    raise
                if by is CursorOwner.CLIENTS:
                    report(Changed.SUBSCRIPTION_CREATED, topic.name, name)
            else:
                cursor = Cursor.non_durable(name, mark_delete, topic.ledger, topic.clock)
            return self.add(cursor)

    def add(self, cursor: Cursor) -> Subscription:
        """A cursor is a subscription's from now on."""
        subscription = Subscription(self._topic, cursor.name, cursor, self._property_room)
        self.by_name[cursor.name] = subscription
        self._property_room.change({}, cursor.properties)
        subscription.idle_since = self._topic.clock.monotonic()
        return subscription

    async def delete(self, subscription: Subscription) -> None:
        """Delete a subscription, durably. The caller holds ``members.changing``."""
        check_owner(subscription.name, CursorOwner.CLIENTS)
        self._topic.touch()
        self._drop(subscription)
        if subscription.cursor.durable:
            await self._topic.cursors.delete(subscription.name, CursorOwner.CLIENTS)

    def idle(self, subscription: Subscription) -> None:
        """The last consumer left: what a reader leaves behind goes away."""
        self._topic.touch()
        subscription.idle_since = self._topic.last_used
        if not subscription.cursor.durable and not subscription.members.changing.locked():
            self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
            self._property_room.change(subscription.cursor.properties, {})
        subscription.close()
