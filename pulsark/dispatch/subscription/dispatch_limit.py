"""The dispatch rate of a subscription, of a topic or of the broker, and who waits for it.

What was delivered takes its tokens afterwards, so a message larger than the rate goes out, too. Who
finds none left waits here. However many wait, there is one timer, and they go on one after the
other, the first one first, each for as long as there are tokens: none of them looks in vain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.subscription_stats import ExcessKind
from pulsark.rates.bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.dispatch.model.subscription_stats import Level
    from pulsark.dispatch.policies.policies import DispatchRate
    from pulsark.runtime import Clock

    Published = Callable[[], tuple[int, int]]
    """Messages and bytes that were published to a topic since it was loaded."""

WORTH_WAKING_SECONDS = 0.05
"""Whoever waits is woken when the tokens of this time are there: not for each of them."""
SHORTEST_WAIT_SECONDS = 0.001
MEASURED_SECONDS = 1.0
"""Rates relative to what is published follow that as often."""
WORTH_A_CHANGE = 0.05


class Waiter(Protocol):
    """Who waits for tokens."""

    def go_on(self) -> None:
        """There are some: use them now, or leave them to the next one."""


class _Turn:
    """One who waits in a coroutine."""

    def __init__(self) -> None:
        self.come: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on(self) -> None:
        if not self.come.done():
            self.come.set_result(None)


class Metered(Protocol):
    """The topic, as far as it matters here."""

    clock: Clock
    run_queue: RunQueue
    messages_in: int
    bytes_in: int


def limit_of(
    topic: Metered, rate: DispatchRate, level: Level, known: DispatchLimit | None
) -> DispatchLimit | None:
    """What keeps to a rate from now on, if it is one: ``known``, or a new one.

    Who waits for a rate that is gone goes on, also if it is no subscription that is told so.
    """
    if not rate.limits:
        if known is not None:
            known.set_rate(rate)
        return None
    if known is None:
        return DispatchLimit(
            level,
            rate,
            topic.clock,
            topic.run_queue,
            lambda: (topic.messages_in, topic.bytes_in),
        )
    known.set_rate(rate)
    return known


class DispatchLimit:
    """One rate. A period's worth may go out at once after a pause."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_measured",
        "_messages",
        "_published",
        "_queued",
        "_rate",
        "_run_queue",
        "_timer",
        "_waiting",
        "level",
    )

    def __init__(
        self,
        level: Level,
        rate: DispatchRate,
        clock: Clock,
        run_queue: RunQueue,
        published: Published | None = None,
    ) -> None:
        """``published`` is for rates that are relative to it."""
        self.level = level
        self._clock = clock
        self._run_queue = run_queue
        self._published = published
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waiting: dict[Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._queued = False
        self._rate = rate
        self._measured = (clock.monotonic(), *self._counts())
        self._set_buckets(rate.messages, rate.bytes)

    # -- the rate ---

    def set_rate(self, rate: DispatchRate) -> None:
        """Keep to another rate from now on; those who wait wait no longer than it asks for."""
        if rate == self._rate:
            return
        self._rate = rate
        self._set_buckets(rate.messages, rate.bytes)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm()

    def _set_buckets(self, messages: float, size: float) -> None:
        self._messages = self._bucket(self._messages, messages)
        self._bytes = self._bucket(self._bytes, size)

    def _bucket(self, bucket: TokenBucket | None, limit: float) -> TokenBucket | None:
        if limit <= 0:
            return None
        now, period = self._clock.monotonic(), self._rate.period_seconds
        if bucket is None:
            return TokenBucket(limit, now, period=period)
        bucket.change(limit, now, period=period)
        return bucket

    def _counts(self) -> tuple[int, int]:
        return (0, 0) if self._published is None else self._published()

    def _follow_published(self, now: float) -> None:
        """What is published at this time comes on top of the rate."""
        at, *before = self._measured
        passed = now - at
        if passed < MEASURED_SECONDS:
            return
        counts = self._counts()
        self._measured = (now, *counts)
        periods = self._rate.period_seconds / passed
        published = [(new - old) * periods for new, old in zip(counts, before, strict=True)]
        for bucket, own, extra in (
            (self._messages, self._rate.messages, published[0]),
            (self._bytes, self._rate.bytes, published[1]),
        ):
            # A small change is not worth it: a change forgives debts above one period's tokens.
            if bucket is not None and abs(own + extra - bucket.limit) > WORTH_A_CHANGE * own:
                bucket.change(own + extra, now, period=self._rate.period_seconds)

    # -- tokens ---

    def take(self, messages: int, size: int, now: float) -> ExcessKind | None:
        """Count a delivery. Returns what there is too much of, if anything."""
        if self._rate.relative:
            self._follow_published(now)
        short = None
        if self._bytes is not None and self._bytes.take(size, now) <= 0:
            short = ExcessKind.BYTES
        if self._messages is not None and self._messages.take(messages, now) < 1:
            short = ExcessKind.MESSAGES
        return short

    def is_short(self) -> bool:
        """Whether nothing may be delivered now."""
        now = self._clock.monotonic()
        return (self._messages is not None and self._messages.tokens(now) < 1) or (
            self._bytes is not None and self._bytes.tokens(now) <= 0
        )

    # -- who waits ---

    def wait(self, waiter: Waiter) -> None:
        """Be told when there are tokens, unless it leaves before."""
        self._waiting[waiter] = None
        self._arm()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer. Nothing is left of who does not wait."""
        self._waiting.pop(waiter, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def turn(self, most: int) -> int:
        """Wait like the others for bytes to be read past the subscriptions: how many, of ``most``.

        They are to be taken once they are known. Without a rate of bytes nobody waits.
        """
        if self._bytes is None:
            return most
        if self.is_short():
            turn = _Turn()
            self.wait(turn)
            try:
                await turn.come
            finally:
                self.leave(turn)
        return most if self._bytes is None else max(1, min(most, int(self._bytes.limit)))

    def _wait_seconds(self) -> float:
        """Until it is worth going on; 0: now."""
        now = self._clock.monotonic()
        if self._rate.relative:
            self._follow_published(now)
        longest = 0.0
        for bucket in (self._messages, self._bytes):
            if bucket is not None:
                worth = bucket.limit * WORTH_WAKING_SECONDS / self._rate.period_seconds
                longest = max(longest, bucket.wait(now, until=max(worth, 1.0)))
        if self._rate.relative:
            longest = min(longest, MEASURED_SECONDS)
        return longest

    def _arm(self) -> None:
        if not self._waiting or self._queued or self._timer is not None:
            return
        seconds = self._wait_seconds()
        if seconds <= 0:
            self._queued = True
            self._run_queue.call(self._serve)
        else:
            seconds = max(seconds, SHORTEST_WAIT_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._arm()

    def _serve(self) -> None:
        """The first one goes on, and comes last if it has more to deliver than there is now."""
        self._queued = False
        if self._waiting and self._wait_seconds() <= 0:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            try:
                waiter.go_on()
            finally:
                self._arm()
        else:
            self._arm()
