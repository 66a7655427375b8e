"""Delayed messages of one topic: the clock, the timers and the storage around the tracker.

Subscriptions of types that own what they deliver put entries here that they came across too
early, and hear when entries are due. What they hear is a hint: they look at the entry itself
before they deliver it, and put it back if it is early. So nothing here has to be right for a
message to be delivered, once, and not before its time; only for its not being late.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.subscription.delayed_tracker import (
    BUCKET_KEYS,
    NEVER_MS,
    Bucket,
    DelayedDeliveryTracker,
)
from pulsark.errors import (
    CorruptEntryError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    trace_of,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from pulsark.dispatch.subscription.subscription import SubscribedTopic
    from pulsark.storage.delayed.delayed_buckets import DelayedBuckets, StoredBucket
    from pulsark.storage.position_set import PositionSet
    from pulsark.wire.position import Position

log = logging.getLogger(__name__)

DUE_AT_ONCE = 10_000
"""Positions handed out before other work of the event loop gets its turn: some milliseconds."""
STORED_FROM = 1000
"""Fewer positions are not stored when the topic is unloaded, but read again."""
LONGEST_WAIT_MS = 60_000
"""The wall clock may be set; a timer would not notice."""
RETRY_SECONDS = 1.0


async def load_buckets(topic: str, buckets: DelayedBuckets) -> list[StoredBucket]:
    """What is stored of the delayed messages of a topic. Without it, entries are read once more."""
    try:
        return await buckets.load()
    except (StorageError, MetadataError) as error:
        log.warning(
            "%s: the index of delayed messages is lost, rebuilding it from the topic: %s",
            topic,
            error,
        )
        return []


class DelayedDelivery:
    """One a topic. Everything runs on the event loop."""

    def __init__(
        self,
        topic: SubscribedTopic,
        buckets: DelayedBuckets | None = None,
        stored: Iterable[StoredBucket] = (),
    ) -> None:
        """``stored`` is what ``buckets`` have; without those, all is in memory alone."""
        self.tracker = DelayedDeliveryTracker()
        self._topic = topic
        self._clock = topic.clock
        self._strict = topic.settings.isDelayedDeliveryDeliverAtTimeStrict
        self._buckets = buckets
        self._timer: asyncio.Handle | None = None
        self._wake_ms = NEVER_MS
        """The deliver-at time for which the timer is set."""
        self._last_tick = float("-inf")
        """When something was handed out last."""
        self._fetching: asyncio.Task[None] | None = None
        self._storing: asyncio.Task[None] | None = None
        self._finished: list[int] = []
        self._closed = False
        for found in stored:
            self.tracker.load(found.bucket_id, found.header)
        self._set_timer()

    # -- what subscriptions ask --------------------------------------------------------------

    def cutoff_ms(self) -> int:
        """Entries whose deliver-at time is above it are too early now."""
        policy = self._topic.policies.delayed_delivery
        if not policy.active:
            return NEVER_MS
        now = self._clock.now_ms()
        return now if self._strict else now + policy.tick_ms

    def add(self, deliver_at_ms: int, position: Position) -> None:
        """An entry is too early; its subscriptions hear when it is due."""
        if self.tracker.add(deliver_at_ms, position):
            self._store()
        if deliver_at_ms < self._wake_ms:
            self._wake_at(deliver_at_ms)

    def policies_changed(self) -> None:
        """Delays may be off now, or ticks longer."""
        if not self._topic.policies.delayed_delivery.active and self.tracker.positions:
            self.tracker.clear()
            for subscription in self._topic.subscriptions.values():
                subscription.dispatcher.release_all()
            self._remove_finished()
        self._set_timer()

    def trimmed(self) -> None:
        """Ledgers are gone."""
        first = self._topic.ledger.first_position()
        self.tracker.drop_ledgers_below(first.ledger_id)
        for subscription in self._topic.subscriptions.values():
            subscription.dispatcher.held_back.drop_ledgers_below(first.ledger_id)
        self._remove_finished()

    # -- time --------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        self._wake_at(self.tracker.next_ms(self.cutoff_ms()))

    def _wake_at(self, deliver_at_ms: int) -> None:
        """Wake up when an entry is due, but one tick after the last time at the earliest."""
        self._wake_ms = NEVER_MS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deliver_at_ms == NEVER_MS or self._closed:
            return
        self._wake_ms = deliver_at_ms
        tick_ms = self._topic.policies.delayed_delivery.tick_ms
        wait_ms = min(deliver_at_ms - self._clock.now_ms(), LONGEST_WAIT_MS)
        tick = self._last_tick + tick_ms / 1000 - self._clock.monotonic()
        seconds = max(wait_ms / 1000, tick, 0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._hand_out)

    def _hand_out(self) -> None:
        """Tell subscriptions what is due; a lot of it in several turns of the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cutoff_ms = self.cutoff_ms()
        positions, is_all = self.tracker.due(cutoff_ms, DUE_AT_ONCE)
        if positions:
            self._last_tick = self._clock.monotonic()
            self._release(positions)
        if not is_all:
            self._timer = asyncio.get_running_loop().call_soon(self._hand_out)
            return
        if self._fetching is None and self.tracker.missing(cutoff_ms):
            self._fetching = self._start(self._fetch())
        self._remove_finished()
        self._set_timer()

    def _release(self, positions: PositionSet) -> None:
        for subscription in self._topic.subscriptions.values():
            subscription.dispatcher.release(positions)

    # -- storage -----------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def _fetch(self) -> None:
        """Read what is due from storage, one bucket after the other."""
        try:
            while missing := self.tracker.missing(self.cutoff_ms()):
                fetched = [await self._fetch_one(bucket) for bucket in missing]
                if not all(fetched):
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._fetching = None

    async def _fetch_one(self, bucket: Bucket) -> bool:
        """The next page of a bucket; ``False`` if it cannot be had now."""
        wanted = bucket.wanted()
        if wanted is None or self._buckets is None:
            return True  # it was dropped meanwhile
        try:
            page = await self._buckets.read(bucket.bucket_id, *wanted)
            if bucket.wanted() == wanted:
                bucket.give(page)
        except (NoSuchLedgerError, NoSuchEntryError, CorruptEntryError) as error:
            log.warning(
                "%s: bucket %d of delayed messages is lost, rebuilding it: %s",
                self._topic.name,
                bucket.bucket_id,
                error,
            )
            self._release(self.tracker.lost(bucket))
        except Exception as error:
            log.warning(
                "%s: delayed messages are late, because the bookies cannot read their index: %s",
                self._topic.name,
                error,
                exc_info=trace_of(error),
            )
            return False
        self._hand_out()
        return True

    def _store(self) -> None:
        """Let storage have what only memory has."""
        if self._storing is None and self._buckets is not None and not self._closed:
            self._storing = self._start(self._store_buckets(BUCKET_KEYS))

    async def _store_buckets(self, enough: int) -> None:
        """Store buckets while at least this many positions are only in memory."""
        try:
            while self.tracker.unstored >= enough and await self._store_one():
                pass
            if self._finished and self._buckets is not None:
                finished, self._finished = self._finished, []
                await self._buckets.remove(finished)
        except Exception as error:
            log.warning(
                "%s: cannot store the index of delayed messages, keeping it in memory: %s",
                self._topic.name,
                error,
                exc_info=trace_of(error),
            )
            if not self._closed:
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._storing = None

    async def _store_one(self) -> bool:
        packed = self.tracker.pack()
        if packed is None or self._buckets is None:
            return False
        bucket, pages = packed
        self.tracker.stored(bucket, await self._buckets.write(pages))
        return True

    def _remove_finished(self) -> None:
        """Delete buckets from which everything was handed out."""
        self._finished += self.tracker.pop_finished()
        if self._finished and self._storing is None and not self._closed:
            self._storing = self._start(self._store_buckets(BUCKET_KEYS))

    # -- the end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Store what would be worth it, and stop."""
        storing = self._storing
        await self._stop()
        if storing is not None:
            await asyncio.wait([storing])
        if self.tracker.unstored >= STORED_FROM and not self._topic.ledger.is_fenced:
            await self._store_buckets(1)

    async def delete(self) -> None:
        """Stop, and delete what was stored."""
        storing = self._storing
        if storing is not None:
            storing.cancel()
        await self._stop()
        if storing is not None:
            await asyncio.wait([storing])
        if self._buckets is not None:
            await self._buckets.delete()
        self.tracker.clear()

    async def _stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
