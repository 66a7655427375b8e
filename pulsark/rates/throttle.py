"""The queue of connections that published too much under one rate.

The rate is a topic's, a group's or the broker's. First come, first served. No connection waits
longer than `PUBLISH_HOLD_SECONDS_MAX`, because its other requests and pings, behind the publishes,
must be read some time. A released connection takes tokens only when it publishes, a moment later.
So the queue is released in steps: first one connection, then, while tokens last, twice as many at
each step.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from pulsark.rates.holding import Holding
from pulsark.rates.limits import (
    NEW_PUBLISHERS_WAIT_FROM_SECONDS,
    PUBLISH_HOLD_SECONDS_MAX,
    THROTTLED_AT_ONCE_MAX,
)
from pulsark.rates.publish_limit import PublishLimit, PublishRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock

_STEP_SECONDS = 0.001
"""The pause between two steps, in which released connections are read and publish."""


class HeldPublisher(Protocol):
    """A connection in the queue."""

    def let_go(self, throttle: Throttle) -> None:
        """This throttle lets the connection go on. It has left the queue."""

    def waited_enough(self) -> None:
        """The connection goes on in spite of the debt. It has left the queue."""


class Throttle:
    """One rate, its debt, and the connections that wait for it."""

    __slots__ = (
        "_at_once",
        "_clock",
        "_holding",
        "_limit",
        "_rate",
        "_timer",
        "_waiting",
        "times",
        "told",
    )

    def __init__(self, rate: PublishRate, clock: Clock) -> None:
        self.times = 0
        """How often a connection began to wait."""
        self.told: Callable[[float], None] | None = None
        """Called with how long connections have been held back, if that is long."""
        self._holding = Holding()
        self._clock = clock
        self._rate = rate
        self._limit = PublishLimit(rate, clock.monotonic())
        self._waiting: OrderedDict[HeldPublisher, float] = OrderedDict()
        """Each with its latest time of release, in the order of arrival."""
        self._at_once = 1
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_overdrawn(self) -> bool:
        """Whether the publishes exceed the rate."""
        return self._limit.is_overdrawn(self._clock.monotonic())

    @property
    def owes_much(self) -> bool:
        """Whether the debt is so large that even new producers wait."""
        return self._limit.wait(self._clock.monotonic()) > NEW_PUBLISHERS_WAIT_FROM_SECONDS

    def take(self, messages: int, size: int) -> bool:
        """Count a publish. Returns whether the rate is overdrawn."""
        return self._limit.take(messages, size, self._clock.monotonic())

    def change(self, rate: PublishRate) -> None:
        """Change the rate. Waiting connections follow it; without a limit all go on."""
        if rate == self._rate:
            return
        self._rate = rate
        self._limit.change(rate, self._clock.monotonic())
        self._disarm()
        self._arm()

    def wait_in(self, waiting: HeldPublisher) -> None:
        """Join the end of the queue."""
        self.times += 1
        now = self._clock.monotonic()
        if not self._waiting:
            self._at_once = 1
            self._holding.begin(now)
        self._waiting[waiting] = now + PUBLISH_HOLD_SECONDS_MAX
        self._arm()
        self._tell(now)

    def leave(self, waiting: HeldPublisher) -> None:
        """Leave the queue."""
        waited = self._waiting.pop(waiting, None) is not None
        if waited and not self._waiting:
            self._disarm()
            self._holding.end(self._clock.monotonic())

    def _tell(self, now: float) -> None:
        if self.told is not None and (seconds := self._holding.lasting(now)) is not None:
            self.told(seconds)

    def _step(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        self._tell(now)
        free = 0
        if self._limit.wait(now) > 0:
            self._at_once = 1
        else:
            free = self._at_once
            self._at_once = min(2 * free, THROTTLED_AT_ONCE_MAX)
        try:
            for waiting, until in list(islice(self._waiting.items(), THROTTLED_AT_ONCE_MAX)):
                if free <= 0 and now < until:
                    break
                if self._waiting.pop(waiting, None) is None:
                    continue  # it left when another connection was released
                if free > 0:
                    free -= 1
                    waiting.let_go(self)
                else:
                    waiting.waited_enough()
        finally:
            self._arm()
            if not self._waiting:
                self._holding.end(now)

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            now = self._clock.monotonic()
            until = next(iter(self._waiting.values()))
            wait = max(_STEP_SECONDS, min(self._limit.wait(now), until - now))
            self._timer = asyncio.get_running_loop().call_later(wait, self._step)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
