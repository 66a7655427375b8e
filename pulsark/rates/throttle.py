"""The queue of connections that published too much under one rate.

The rate is a topic's, a group's or the broker's. First come, first served. No connection waits
longer than `PUBLISH_HOLD_SECONDS_MAX`, because the requests and pings that a client sent behind its
publishes must be read at some time. A released connection takes tokens only when it publishes, a
moment later. So the queue is released step by step: one connection, and while the tokens last,
twice as many each time.
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
"""Between two steps of the line: the loop polls its sockets, and who went on publishes."""


class HeldPublisher(Protocol):
    """Who is in the line."""

    def let_go(self, throttle: Throttle) -> None:
        """Go on, as far as this throttle is concerned. It has left the line."""

    def waited_enough(self) -> None:
        """Go on, whatever is owed. It has left this line."""


class Throttle:
    """One rate, what is owed of it, and who waits."""

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
        """Called with the seconds for which connections are held back, if that lasts."""
        self._holding = Holding()
        self._clock = clock
        self._rate = rate
        self._limit = PublishLimit(rate, clock.monotonic())
        self._waiting: OrderedDict[HeldPublisher, float] = OrderedDict()
        """Until when at most; the first is the first to go."""
        self._at_once = 1
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_overdrawn(self) -> bool:
        """Whether the publishes exceed the rate."""
        return self._limit.is_overdrawn(self._clock.monotonic())

    @property
    def owes_much(self) -> bool:
        """Whether the debt is so large that new producers wait, too."""
        return self._limit.wait(self._clock.monotonic()) > NEW_PUBLISHERS_WAIT_FROM_SECONDS

    def take(self, messages: int, size: int) -> bool:
        """Count a publish. Returns whether the rate is overdrawn."""
        return self._limit.take(messages, size, self._clock.monotonic())

    def change(self, rate: PublishRate) -> None:
        """Set another rate, also for connections that wait; with none, all go on."""
        if rate == self._rate:
            return
        self._rate = rate
        self._limit.change(rate, self._clock.monotonic())
        self._disarm()
        self._arm()

    def wait_in(self, waiting: HeldPublisher) -> None:
        """Join the line, at its end."""
        self.times += 1
        now = self._clock.monotonic()
        if not self._waiting:
            self._at_once = 1
            self._holding.begin(now)
        self._waiting[waiting] = now + PUBLISH_HOLD_SECONDS_MAX
        self._arm()
        self._tell(now)

    def leave(self, waiting: HeldPublisher) -> None:
        """Be in the line no longer."""
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
                    continue  # it left because another one went on
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
