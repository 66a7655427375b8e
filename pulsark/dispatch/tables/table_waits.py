"""Tables that wait, or are treated otherwise for a while: in memory, by the names of topics."""

from __future__ import annotations

from collections import OrderedDict
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, TIDY_SECONDS

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.policies import SealingPolicy
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

READ_SECONDS = 3600.0
"""Time for which a table counts as read after a reader asked where it is."""

READ_TABLES_MAX = 10_000
"""Tables that can count as read at a time."""


HURRIED_TABLES = 64
"""Tables that are tidied before their time in one round, because a disk is full."""


class TidyQueue:
    """Tables that may have something to be tidied, and when they are looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: dict[TopicName, float] = {}

    def later(self, base: TopicName) -> None:
        """In its time."""
        self._at.setdefault(base, self._clock.monotonic() + TIDY_SECONDS)

    def soon(self, base: TopicName) -> None:
        """In the next round."""
        self._at[base] = 0.0

    def within(self, base: TopicName, seconds: float) -> None:
        """Have a table tidied within so many seconds."""
        at = self._clock.monotonic() + seconds
        self._at[base] = min(at, self._at.get(base, at))

    def hurry(self) -> None:
        """Let tables that wait have their turn in the next round, those first that wait longest."""
        for base in nsmallest(HURRIED_TABLES, self._at, key=self._at.__getitem__):
            self._at[base] = 0.0

    def take(self, now: float) -> list[TopicName]:
        """Remove and return the tables that are due, those first that have waited longest."""
        due = sorted((base for base, at in self._at.items() if at <= now), key=self._at.__getitem__)
        for base in due:
            del self._at[base]
        return due

    def drop(self, base: TopicName) -> None:
        """The table is gone."""
        self._at.pop(base, None)


class _Crowded(NamedTuple):
    until: float
    pause: float


class CrowdedTables:
    """Tables whose documents had no room for what was to be sealed.

    They are not tried again by themselves for a while: each time, files are written in vain.
    """

    def __init__(self, clock: Clock, tidy: TidyQueue) -> None:
        self._clock = clock
        self._tidy = tidy
        self._crowded: dict[TopicName, _Crowded] = {}

    def add(self, base: TopicName) -> None:
        """Make room now; where that does not help, again after pauses that grow."""
        now = self._clock.monotonic()
        before = self._crowded.get(base)
        if before is None:
            self._tidy.soon(base)
            self._crowded[base] = _Crowded(now + CHECK_SECONDS, CHECK_SECONDS)
        elif before.until <= now:
            self._tidy.soon(base)
            pause = min(2 * before.pause, TIDY_SECONDS)
            self._crowded[base] = _Crowded(now + pause, pause)

    def __contains__(self, base: TopicName) -> bool:
        crowded = self._crowded.get(base)
        return crowded is not None and self._clock.monotonic() < crowded.until

    def drop(self, base: TopicName) -> None:
        """There was room, or the table is gone."""
        self._crowded.pop(base, None)


class _Lease(NamedTuple):
    runner: str
    until: float


class Leases:
    """Tables that a job has to itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[TopicName, _Lease] = {}

    def lend(self, base: TopicName, runner: str, seconds: float) -> None:
        """Leave a table to a job for a while; 0: no longer."""
        self._leases.pop(base, None)
        if seconds > 0:
            self._leases[base] = _Lease(runner, self._clock.monotonic() + seconds)

    def is_lent(self, base: TopicName) -> bool:
        """Whether a job has a table to itself."""
        lease = self._leases.get(base)
        return lease is not None and lease.until > self._clock.monotonic()

    def drop_old(self, now: float) -> None:
        """Forget what is over."""
        self._leases = {base: lease for base, lease in self._leases.items() if lease.until > now}

    def drop_those_of(self, runner: str) -> None:
        """A job begins anew."""
        self._leases = {
            base: lease for base, lease in self._leases.items() if lease.runner != runner
        }


class ReadTables:
    """Tables that are read: for an hour after a reader asked for one, its rows are fresher."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._until: OrderedDict[TopicName, float] = OrderedDict()

    def is_read(self, base: TopicName) -> None:
        """A reader asks where the table is."""
        self._until[base] = self._clock.monotonic() + READ_SECONDS
        self._until.move_to_end(base)
        while len(self._until) > READ_TABLES_MAX:
            self._until.popitem(last=False)

    def policy(self, topic: Topic, now: float) -> SealingPolicy:
        """How a topic is sealed now."""
        policy = topic.policies.sealing
        if self._until.get(topic.name.base, 0.0) <= now:
            return policy
        return policy.when_read(self._settings.sealFreshnessWhenReadSeconds)
