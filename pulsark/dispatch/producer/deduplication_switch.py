"""Deduplication of a topic, switched on and off as its policy says."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.producer.deduplication import DeduplicatedTopic, Deduplication
from pulsark.errors import PulsarkError
from pulsark.storage.cursor.owners import DEDUPLICATION_CURSOR, CursorOwner
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.wire.position import Position

log = logging.getLogger(__name__)


class DurableCursors(Protocol):
    """The durable cursors of a topic."""

    creating: asyncio.Lock

    async def create(
        self, name: str, mark_delete: Position, properties: dict[str, str], by: CursorOwner
    ) -> Cursor:
        """Make one, durably. The caller holds ``creating``."""

    async def delete(self, name: str, by: CursorOwner) -> None:
        """Delete one, durably."""


class SwitchedTopic(DeduplicatedTopic, Protocol):
    """The topic, as the switch sees it."""

    closed: bool
    deduplication: Deduplication | None
    """Set while it is on."""

    def check_open(self) -> None:
        """Raise ``ClientError`` if the topic goes away from here."""

    @property
    def cursors(self) -> DurableCursors:
        """Where that is kept."""


class DeduplicationSwitch:
    """Sets ``topic.deduplication``, and keeps the cursor that goes with it."""

    def __init__(self, topic: SwitchedTopic, cursor: Cursor | None) -> None:
        self.cursor = cursor
        """The cursor of the topic's deduplication if there is one, even while it is off."""
        self._topic = topic
        self._switching = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> str:
        """What Pulsar's statistics call it."""
        on = self._topic.deduplication is not None
        if on == self._topic.policies.deduplication:
            return "Enabled" if on else "Disabled"
        return "Removing" if on else "Recovering"

    @property
    def follows(self) -> bool:
        """Whether everything is as the policy says."""
        wanted = self._topic.policies.deduplication
        return wanted == (self._topic.deduplication is not None) == (self.cursor is not None)

    async def follow(self) -> None:
        """Do what the policy says. Raises ``StorageError`` if that cannot be done now."""
        topic = self._topic
        async with self._switching:
            while not (self.follows or topic.closed):
                if topic.policies.deduplication:
                    await self._switch_on()
                else:
                    await self._switch_off()

    def follow_soon(self) -> None:
        """Do so in a task of its own. If it fails, ``look_after`` does it again."""
        if self._task is None and not self.follows:
            self._task = unattended(self._follow_aside(), f"{self._topic.name}: deduplication")

    async def settled(self) -> None:
        """Return once that task has ended, if there is one."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _follow_aside(self) -> None:
        try:
            await self.follow()
        except PulsarkError as error:
            log.warning("%s: deduplication stays %s: %s", self._topic.name, self.status, error)
        finally:
            self._task = None

    async def _switch_on(self) -> None:
        """From now on. What was published before is not known, as in Pulsar."""
        topic = self._topic
        if self.cursor is None:
            async with topic.cursors.creating:
                topic.check_open()
                reached = topic.ledger.last_confirmed
                self.cursor = await topic.cursors.create(
                    DEDUPLICATION_CURSOR, reached, {}, CursorOwner.DEDUPLICATION
                )
        topic.deduplication = await Deduplication.open(topic, self.cursor)

    async def _switch_off(self) -> None:
        topic = self._topic
        if topic.deduplication is not None:
            topic.deduplication.switched_off()
            topic.deduplication = None
        self.cursor = None
        await topic.cursors.delete(DEDUPLICATION_CURSOR, CursorOwner.DEDUPLICATION)

    def look_after(self) -> None:
        """What is due from time to time."""
        if self._topic.deduplication is not None:
            self._topic.deduplication.look_after()
        self.follow_soon()

    def close(self) -> None:
        """The topic is unloaded, its ledger closed."""
        if self._task is not None:
            self._task.cancel()
        if self._topic.deduplication is not None:
            self._topic.deduplication.close()
