"""Rounds of sealing: each looks at all loaded topics, and seals what is due."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.tables.sealing_due import (
    SMALL_BYTES,
    Due,
    in_order,
    may_wait,
)
from pulsark.errors import DamagedLogError, PulsarkError, RootsAwayError
from pulsark.wire.position import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.loop.load import LoopLoad
    from pulsark.dispatch.tables.apart_sealing import ApartSealing
    from pulsark.dispatch.tables.progress import SealingProgress
    from pulsark.dispatch.tables.table_waits import CrowdedTables, Leases, TidyQueue
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

    DoWith = Callable[[TopicName, list[Topic]], Awaitable[None]]
    """Does something with a table, by its topic and loaded partitions of it."""

log = logging.getLogger(__name__)

TOPICS_A_TURN = 512
"""Topics that are looked at before the event loop does other work."""

LOOK_UP_SECONDS = 1.0
"""Time of a round after which topics that were loaded lately wait for the next one."""

SMALL_SECONDS = 1.0
"""Time of a round after which tables with little in them wait for the next one."""


TIDY_ROUND_SECONDS = 4.0
"""Time of a round after which tables that are to be tidied wait for the next one."""

LOOK_SHARE = 50
"""The inverse of the share of time that looks take while clients keep the broker busy."""

LOOK_SECONDS_MAX = 60.0
"""The longest time between two looks of a busy broker."""


class TableFailures:
    """What failed of which table: said once, until it changes.

    That storage roots are away is said of the first table only.
    """

    def __init__(self) -> None:
        self._said: dict[TopicName, str] = {}
        self._away: set[TopicName] = set()
        """Those whose storage roots are away."""
        self._lines: set[TopicName] = set()
        """Those whose failure has a line in the log: its end gets one, too."""
        self.damaged: dict[TopicName, str] = {}
        """Tables that are not sealed because their logs are damaged, with the reason."""

    async def attempt(self, base: TopicName, work: Awaitable[None]) -> bool:
        """Do something with a table that is tried again if it fails; whether it went well."""
        try:
            await work
        except PulsarkError as error:
            is_first = not self._away
            if isinstance(error, DamagedLogError):
                self.damaged[base] = str(error)
            if isinstance(error, RootsAwayError):
                self._away.add(base)
            if self._said.get(base) != str(error):
                self._said[base] = str(error)
                if base in self._away and not is_first:
                    return False
                self._lines.add(base)
                log.warning("%s: cannot seal now, its entries stay in the journal: %s", base, error)
        except Exception:
            log.exception("%s is not sealed", base)
        else:
            if base in self._lines:
                log.warning("%s: sealing works again", base)
            self.drop(base)
            return True
        return False

    def drop(self, base: TopicName) -> None:
        """It goes well again, or the table is gone."""
        self._said.pop(base, None)
        self._lines.discard(base)
        self.damaged.pop(base, None)
        self._away.discard(base)


class SealingRounds:
    """``seal`` and ``tidy`` do what is found to be due, one table after the other."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        topics: Topics,
        progress: SealingProgress,
        leases: Leases,
        crowded: CrowdedTables,
        queue: TidyQueue,
        failures: TableFailures,
        seals_by_jobs: Callable[[], bool],
        seal: DoWith,
        tidy: DoWith,
        apart: ApartSealing,
        is_busy: Callable[[TopicName], bool],
    ) -> None:
        """``is_busy`` tells whether others work on a table: a round does not wait for them."""
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._progress = progress
        self._leases = leases
        self._crowded = crowded
        self._queue = queue
        self._failures = failures
        self._seals_by_jobs = seals_by_jobs
        self._seal = seal
        self._tidy = tidy
        self.is_short: Callable[[], bool] = lambda: False
        """Whether a disk is full: then tables give back what they need no more before others
        are sealed."""
        self._apart = apart
        self._is_busy_table = is_busy
        self.load: LoopLoad | None = None
        """While it says that clients keep the broker busy, sealing waits."""
        self._next_look = 0.0
        """Of a busy broker: all of its topics were looked at not long ago."""

    async def run(self) -> None:
        """One round."""
        started = self._clock.monotonic()
        if self.is_short():
            self._queue.hurry()
            await self._tidy_due(started)
        small_seconds = 0.0
        is_busy = self._is_busy()
        found = await self._look_now_and_then(started) if is_busy else await self.look(started)
        due = [work for work in found if work.base not in self._crowded]
        for work in () if self._seals_by_jobs() else in_order(due):
            is_small = work.size < SMALL_BYTES
            if is_small and small_seconds > SMALL_SECONDS:
                continue
            if (is_busy and may_wait(work, started)) or self._is_busy_table(work.base):
                continue
            if work.base in self._apart.topics:
                self._apart.offer(work.base, "seal", partial(self._seal, work.base, work.topics))
                continue
            begun = self._clock.monotonic()
            await self._failures.attempt(work.base, self._seal(work.base, work.topics))
            if is_small:
                small_seconds += self._clock.monotonic() - begun
            is_busy = self._is_busy()
        await self._tidy_due(started)

    async def _tidy_due(self, now: float) -> None:
        bases = self._queue.take(now)
        partitions = await self._progress.partitions_of(bases)
        begun = self._clock.monotonic()
        for base in bases:
            if self._clock.monotonic() - begun > TIDY_ROUND_SECONDS:
                self._queue.within(base, 0.0)
                continue
            topic = partitions.get(base)
            topics = [] if topic is None or topic.closed else [topic]
            if self._is_busy_table(base):
                self._queue.soon(base)
                continue
            if base in self._apart.topics:
                self._queue.later(base)
                self._apart.offer(base, "tidy", partial(self._tidy, base, topics))
                continue
            if not await self._failures.attempt(base, self._tidy(base, topics)):
                self._queue.later(base)  # maybe nobody writes any more, who would ask for it

    def _is_busy(self) -> bool:
        return self.load is not None and self.load.is_busy()

    async def _look_now_and_then(self, now: float) -> list[Due[Topic]]:
        """What is due for a broker that has clients to serve: next to nothing can not wait."""
        if now < self._next_look:
            return []
        found = await self.look(now)
        took = self._clock.monotonic() - now
        self._next_look = now + min(LOOK_SHARE * took, LOOK_SECONDS_MAX)
        return found

    async def look(self, now: float) -> list[Due[Topic]]:
        """What is due of all loaded topics, but for those that a job has."""
        self._leases.drop_old(now)
        loaded = self._topics.loaded()
        self._progress.keep_only(loaded)
        tables: dict[TopicName, Due[Topic]] = {}
        for number, topic in enumerate(loaded, 1):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            base = topic.name.base
            if topic.closed or not topic.policies.sealing.enabled or self._leases.is_lent(base):
                continue
            if self._progress.is_settled(topic):
                continue
            if topic not in self._progress:
                has_rows = topic.ledger.entries or topic.ledger.record.trimmed != EARLIEST
                if not has_rows or self._clock.monotonic() - now > LOOK_UP_SECONDS:
                    continue
                await self._progress.look_up(topic)
            due = self._progress.due(topic, now)
            if due:
                work = tables.setdefault(base, Due(base, [], 0, now))
                work.topics.append(topic)
                work.size += sum(wanted.size for wanted in due)
                work.since = min(work.since, self._progress.waits_since(topic) or now)
        return list(tables.values())
