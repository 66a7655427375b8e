"""The broker's own compaction pass over one topic; ``compacted_view`` reads the result.

A subscription named ``__compaction`` keeps what was not compacted yet: before it, messages may be
trimmed, because the compacted ledger has what remains of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.model.interfaces import CompactionStats
from pulsark.dispatch.topic.compacted_view import CompactedView, Stored
from pulsark.errors import StorageError, trace_of
from pulsark.limits import COMPACTIONS_MAX
from pulsark.runtime import Runtime, run_in_worker
from pulsark.storage.cursor.owners import COMPACTION_CURSOR, CursorOwner
from pulsark.storage.managed_ledger.compacted_ledger import CompactedTo
from pulsark.storage.managed_ledger.compaction import Compaction
from pulsark.storage.managed_ledger.erasure import ErasedIds, without
from pulsark.wire.entry import parse_entry
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.dispatch.topic.topic import Topic

log = logging.getLogger(__name__)

READ_ENTRIES = 1000
READ_BYTES = 4 << 20


class CompactionTurns:
    """Lets few topics of a broker be compacted at a time: each run may hold a million keys.

    The topics of one tenant take turns, so that tenants do not wait for each other's topics.
    """

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(COMPACTIONS_MAX)
        self._tenants: dict[str, asyncio.Lock] = {}
        self._runs: Counter[str] = Counter()
        """Those that run or wait, by tenant."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """While this context is open, a topic of a tenant may be compacted."""
        lock = self._tenants.setdefault(tenant, asyncio.Lock())
        self._runs[tenant] += 1
        try:
            async with lock, self._all:
                yield
        finally:
            self._runs[tenant] -= 1
            if not self._runs[tenant]:
                del self._runs[tenant], self._tenants[tenant]


class Compactor:
    """Compacts one topic, one run at a time."""

    def __init__(self, topic: Topic, runtime: Runtime, turns: CompactionTurns) -> None:
        self._topic = topic
        self._turns = turns
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._is_waiting = False
        """Whether the run has not had its turn."""
        self._blocked = 0
        self._unblocked = asyncio.Event()
        self.status = "NOT_RUN"
        """NOT_RUN, RUNNING, SUCCESS or ERROR, as the admin API says."""
        self.last_error = ""
        self.stats = CompactionStats()

    def start(self, *, any_number: bool = False) -> bool:
        """Begin a run; ``False`` if one is under way. ``any_number``: of keys, in many passes."""
        if self._task is not None or self._blocked:
            return False
        self.status, self.last_error = "RUNNING", ""
        self._is_waiting = True
        self._task = asyncio.get_running_loop().create_task(self._run(any_number))
        return True

    async def run(self) -> int:
        """Compact a topic with any number of keys; returns the number of messages removed."""
        while not self.start(any_number=True):
            running = self._task
            await (asyncio.wait([running]) if running is not None else asyncio.sleep(1))
        assert self._task is not None
        await asyncio.wait([self._task])
        if self.status != "SUCCESS":
            raise StorageError(f"{self._topic.name} is not compacted: {self.last_error}")
        return self.stats.removed_events

    async def close(self) -> None:
        """Stop a run that is under way; what was compacted before stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, any_number: bool) -> None:
        started = self._runtime.clock.now_ms()
        try:
            removed = await self._compact_in_turn(any_number)
        except Exception as error:
            log.warning(
                "%s: compaction failed: %s", self._topic.name, error, exc_info=trace_of(error)
            )
            self.status, self.last_error = "ERROR", str(error) or type(error).__name__
            self.stats = replace(self.stats, failed_ms=self._runtime.clock.now_ms())
        else:
            now = self._runtime.clock.now_ms()
            self.status = "SUCCESS"
            self.stats = replace(
                self.stats, removed_events=removed, succeeded_ms=now, duration_ms=now - started
            )
        finally:
            self._task = None

    async def _compact_in_turn(self, any_number: bool) -> int:
        while True:
            self._is_waiting = True
            async with self._turns.turn(self._topic.name.tenant):
                if not self._blocked:
                    self._is_waiting = False
                    return await self._compact(any_number)
            await self._unblocked.wait()

    async def _compact(self, any_number: bool) -> int:
        """One run; the number of messages that it removed."""
        topic, ledger = self._topic, self._topic.ledger
        subscription = await topic.registry.create(
            COMPACTION_CURSOR, EARLIEST, {}, durable=True, by=CursorOwner.COMPACTION
        )
        horizon = ledger.last_confirmed
        if horizon.ledger_id < 0 or (
            ledger.compacted.to is not None and ledger.compacted.to.horizon >= horizon
        ):
            return 0
        worker = self._runtime.new_worker("compaction")
        compaction = Compaction(
            retain_null_key=topic.settings.topicCompactionRetainNullKey, any_number=any_number
        )
        try:
            another = True
            while another:
                async for stored in self._entries(horizon):
                    await run_in_worker(worker, partial(_note, compaction, stored))
                another = await run_in_worker(worker, compaction.another_pass)
            async with ledger.compacted.write() as writer:
                async for stored in self._entries(horizon):
                    kept = await run_in_worker(worker, partial(_remains, compaction, stored))
                    await writer.append(kept)
                await writer.close()
                await ledger.compacted.set(CompactedTo(writer.ledger_id, horizon))
        finally:
            worker.end()
        topic.entries.show_compacted()
        subscription.cursor.ack_cumulative(horizon, None, None)
        return compaction.removed

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """While this context is open no run is under way, and none begins."""
        while self._task is not None and not self._is_waiting:
            await asyncio.wait([self._task])
        self._blocked += 1
        self._unblocked.clear()
        try:
            yield
        finally:
            self._blocked -= 1
            if not self._blocked:
                self._unblocked.set()

    async def erase(self, ids: ErasedIds) -> set[Position]:
        """Take messages out of what compaction left, durably; while no run is under way.

        Returns the entries that had some of them.
        """
        ledger = self._topic.ledger
        compacted_to, compacted = ledger.compacted.to, ledger.compacted.open()
        if compacted_to is None or compacted is None:
            return set()
        # Ledgers that are in it may have been trimmed: they need not be listed any more.
        if not any(ledger_id <= compacted_to.horizon.ledger_id for ledger_id in ids):
            return set()
        changed: set[Position] = set()
        async with ledger.compacted.write() as writer:
            position = Position(-1, 0)
            while stored := await compacted.read(position, READ_ENTRIES, READ_BYTES):
                left = [(place, _without(place, data, ids)) for place, data in stored]
                changed.update(
                    place
                    for (place, data), (_, before) in zip(left, stored, strict=True)
                    if data != before
                )
                await writer.append([(p, d) for p, d in left if not parse_entry(d).marker])
                last = stored[-1][0]
                position = Position(last.ledger_id, last.entry_id + 1)
            if not changed:
                return changed
            await writer.close()
            compacted_to = CompactedTo(writer.ledger_id, compacted_to.horizon)
            await ledger.compacted.set(compacted_to, at_once=True)
        self._topic.entries.show_compacted()
        return changed

    def start_if_due(self) -> None:
        """Begin a run if more was published since the last one than the policy allows."""
        threshold = self._topic.policies.compaction_threshold_bytes
        if threshold > 0 and self._uncompacted_bytes() >= threshold:
            self.start()

    def _uncompacted_bytes(self) -> int:
        """Bytes behind the horizon, a ledger that it is in counted by its part."""
        compacted_to = self._topic.ledger.compacted.to
        return self._topic.ledger.bytes_after(
            EARLIEST if compacted_to is None else compacted_to.horizon
        )

    async def _entries(self, horizon: Position) -> AsyncIterator[Stored]:
        """What a reader of the compacted topic gets, up to the horizon."""
        view = CompactedView(self._topic.entries)
        position = Position(-1, 0)
        while position <= horizon:
            stored = await view.stored(position, READ_ENTRIES, READ_BYTES)
            if not stored:
                return
            yield [(place, data) for place, data in stored if place <= horizon]
            last = stored[-1][0]
            position = Position(last.ledger_id, last.entry_id + 1)


def _without(place: Position, data: bytes, ids: ErasedIds) -> bytes:
    wanted = ids.get(place.ledger_id, {})
    return without(data, wanted[place.entry_id]) if place.entry_id in wanted else data


def _note(compaction: Compaction, stored: Stored) -> None:
    for position, data in stored:
        compaction.note(position, data)


def _remains(compaction: Compaction, stored: Stored) -> Stored:
    kept = ((position, compaction.remains(position, data)) for position, data in stored)
    return [(position, data) for position, data in kept if data is not None]
