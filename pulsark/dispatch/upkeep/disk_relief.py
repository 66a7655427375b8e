"""What a broker does about full disks: consumed messages go first, and at once.

The usual chores trim a topic every few minutes, and an open ledger is closed by an append, when it
is large or old. On a full disk no append comes, so a consumed ledger would stay for ever.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock
    from pulsark.storage.bookie.disk_watch import DiskWatch
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""Time between two rounds while a disk is full."""

UNLOADED_LOOK_SECONDS: Final = 5.0
"""Time until a walk over unloaded topics begins on a disk that has become full."""

TOPICS_A_ROUND: Final = 256
"""Topics that one round trims: those with the most consumed bytes."""

WALK_SHARE: Final = 10
"""The inverse of the share of time that walks over loaded topics take."""

UNLOADED_SECONDS: Final = 60.0
"""Time between two walks over unloaded topics while a disk is full."""


class DiskRelief:
    """Frees consumed messages while a disk is full. ``look`` and ``look_at_unloaded`` are chores.

    ``tidy_soon`` lets the table of a trimmed topic give its files back; ``trim_unloaded`` trims the
    topics that nobody has loaded.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ledgers: LedgerManager,
        topics: Topics,
        disks: DiskWatch,
        tidy_soon: Callable[[TopicName], None],
        trim_unloaded: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._ledgers = ledgers
        self._topics = topics
        self._disks = disks
        self._tidy_soon = tidy_soon
        self._trim_unloaded = trim_unloaded
        self._watch_at = -math.inf
        self._walk_at = -math.inf
        self._unloaded_at = -math.inf
        self._said = False

    @property
    def is_needed(self) -> bool:
        """Whether a disk is full, or bookies say that theirs are."""
        return self._disks.is_full or self._ledgers.is_full(
            self._settings.managedLedgerDefaultAckQuorum
        )

    async def look(self) -> None:
        """Look at the disks, and free what can be freed if one is full."""
        now = self._clock.monotonic()
        was_needed = self.is_needed
        if was_needed or now >= self._watch_at:
            self._watch_at = now + self._settings.diskCheckIntervalMillis / 1000
            await self._disks.look()
        if not self.is_needed:
            self._said = False
            if was_needed:
                self._ledgers.try_full()
            return
        if now < self._walk_at:
            return
        freed = await self._free(await self._candidates())
        if freed:
            self._ledgers.try_full()
        self._walk_at = now + WALK_SHARE * (self._clock.monotonic() - now)

    async def look_at_unloaded(self) -> None:
        """Have unloaded topics trimmed now and then while a disk is full."""
        if self.is_needed and self._clock.monotonic() >= self._unloaded_at:
            await self._trim_unloaded()
            self._ledgers.try_full()
            self._unloaded_at = self._clock.monotonic() + UNLOADED_SECONDS

    async def _candidates(self) -> list[Topic]:
        found: list[tuple[int, int, Topic]] = []
        async for topic in in_turns(self._topics.loaded()):
            size = topic.retention.freeable_bytes
            if size > 0:
                found.append((size, len(found), topic))
        found.sort(reverse=True, key=lambda each: each[:2])
        return [topic for _, _, topic in found[:TOPICS_A_ROUND]]

    async def _free(self, topics: list[Topic]) -> int:
        """Trim topics; returns how many bytes of messages are gone."""
        freed = 0
        for topic in topics:
            before = topic.total_size
            try:
                await topic.retention.relieve()
            except PulsarkError as error:
                if not topic.closed:
                    self._ledgers.troubles.tell(
                        str(topic.name), f"cannot free consumed messages yet: {error}"
                    )
                continue
            if topic.total_size < before:
                freed += before - topic.total_size
                if topic.policies.sealing.enabled:
                    self._tidy_soon(topic.name.base)
        if freed and not self._said:
            self._said = True
            log.warning("a disk is full: freeing consumed messages, %d MiB so far", freed >> 20)
        return freed
