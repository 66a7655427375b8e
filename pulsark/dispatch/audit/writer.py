"""The task that writes the events of the audit, in order, however long storage refuses them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.dispatch.audit.left_over import LeftOver
from pulsark.errors import PulsarkError
from pulsark.security.audit.chain import NOTHING, AuditRecord, record
from pulsark.security.audit.events import START, STOP
from pulsark.security.audit.limits import (
    AUDIT_CLOSE_SECONDS,
    AUDIT_EVENTS_AT_ONCE,
    AUDIT_EVENTS_MAX,
    AUDIT_KEEP_SECONDS,
    AUDIT_LOGGED_SECONDS,
    AUDIT_RETRY_SECONDS,
    AUDIT_RETRY_SECONDS_MAX,
)
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from pulsark.dispatch.audit.left_over import AuditLeftOver
    from pulsark.runtime import Clock
    from pulsark.security.audit.audit import Audit
    from pulsark.security.audit.chain import Head
    from pulsark.security.audit.events import Event

    class Publisher(Protocol):
        """Where records go (``publisher.AuditPublisher``)."""

        @property
        def is_open(self) -> bool:
            """Whether records can be published."""

        async def open(self) -> Head:
            """Be able to publish; says which record is the last."""

        async def publish(self, records: Sequence[AuditRecord], times_ms: Sequence[int]) -> None:
            """Return once they are durable."""

        def close(self) -> None:
            """Publish no more."""


log = logging.getLogger(__name__)


class AuditWriter:
    """Makes records of events and publishes them, some at a time."""

    def __init__(
        self, audit: Audit, publisher: Publisher, clock: Clock, left: AuditLeftOver
    ) -> None:
        """``left``: what the process before could not write."""
        self._audit = audit
        self._left = left
        self._took_up = False
        """Whether some of that is not durable yet."""
        self._publisher = publisher
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._head: Head | None = None
        """The head of the last record; ``None`` until the topic was read."""
        self._made: list[tuple[AuditRecord, int]] = []
        """Records that are not durable yet, as far as is known, with the times of their events."""
        self._failures = 0
        self._logged = clock.monotonic()

    def start(self) -> None:
        """The broker has started: that is the first event."""
        self._audit.wake = self._woken.set
        self._audit.broker("start", __version__, START)
        self._task = unattended(self._run(), "writing the audit")

    async def close(self) -> None:
        """The broker stops: write what there is, unless that takes too long."""
        task = self._task
        if task is None:
            return
        self._audit.broker("stop", __version__, STOP)
        self._closing = True
        self._woken.set()
        await asyncio.wait([task], timeout=AUDIT_CLOSE_SECONDS)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if self._made or len(self._audit.waiting):
            await self._keep()
        self._log_head()
        self._publisher.close()

    async def _keep(self) -> None:
        """Leave what could not be written to the next process of this broker."""
        left = LeftOver(tuple(self._made), self._audit.waiting.take(AUDIT_EVENTS_MAX))
        number, kept = len(left.records) + len(left.events), 0
        try:
            async with asyncio.timeout(AUDIT_KEEP_SECONDS):
                if self._head is None:  # what the process before left comes first
                    before = await self._left.found()
                    left = LeftOver(before.records, [*before.events, *left.events])
                    number = len(left.records) + len(left.events)
                kept = await self._left.keep(left)
        except (PulsarkError, TimeoutError) as error:
            log.warning("audit: cannot keep what is left: %r", error)
        if kept:
            log.warning("audit: %d events are written when the broker starts again", kept)
        if kept < number:
            lost = number - kept
            log.error("audit: %d events could not be written before the broker stopped", lost)

    async def _run(self) -> None:
        while True:
            self._audit.end_sums(at_once=self._closing)
            if self._made or len(self._audit.waiting):
                if not await self._write() and not await self._may_retry():
                    return
            elif self._closing:
                return
            else:
                await self._wait(self._audit.due_in_s)

    async def _wait(self, seconds: float | None) -> None:
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _write(self) -> bool:
        """Write some; says whether that went well."""
        try:
            if not self._publisher.is_open:
                await self._opened(await self._publisher.open())
            if not self._made:
                self._make()
            if not self._made:
                return True
            records, times = zip(*self._made, strict=True)
            if self._audit.given_at is None:
                self._audit.given_at = self._clock.monotonic()
            await self._publisher.publish(records, times)
            if self._took_up:
                await self._left.drop()
                self._took_up = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the broker goes on
            self._publisher.close()
            self._failures += 1
            self._audit.failing, self._audit.given_at = True, None
            if self._failures == 1:
                log.warning("audit: the topic accepts no events, which wait in memory: %r", error)
            return False
        if self._failures:
            log.warning("audit: the topic accepts events again")
            self._failures = 0
        self._audit.failing, self._audit.given_at = False, None
        self._audit.written += len(self._made)
        self._made.clear()
        if self._clock.monotonic() >= self._logged + AUDIT_LOGGED_SECONDS:
            self._log_head()
        return True

    async def _opened(self, last: Head) -> None:
        """The topic is read: what is in it already is not published again."""
        if self._head is None:
            await self._take_up(last)
        known = [record.head for record, _ in self._made]
        if last in known:
            stored = known.index(last) + 1
            self._audit.written += stored
            del self._made[:stored]

    async def _take_up(self, last: Head) -> None:
        """Begin with what the process before could not write, as far as it is not there."""
        found = await self._left.found()
        self._took_up = found != LeftOver()
        made = [(record, time) for record, time in found.records if record.head.seq > last.seq]
        self._made, self._head = made, made[-1][0].head if made else last
        for event, lost in found.events:
            self._add_after(event, lost)
        if found.events:  # as records, which are known again
            await self._left.keep(LeftOver(tuple(self._made)))

    def _make(self) -> None:
        """Records of the oldest events."""
        for event, lost in self._audit.waiting.take(AUDIT_EVENTS_AT_ONCE):
            self._add_after(event, lost)

    def _add_after(self, event: Event, lost: int) -> None:
        if lost:
            log.warning("audit: too many events were waiting, and %d are lost", lost)
            self._add(self._audit.loss(lost), lost)
        self._add(event)

    def _add(self, event: Event, lost: int = 0) -> None:
        made = record(event, self._head or NOTHING, lost)
        self._head = made.head
        self._made.append((made, event["time"]))

    async def _may_retry(self) -> bool:
        if self._closing:
            return False
        seconds = AUDIT_RETRY_SECONDS * 2 ** min(self._failures - 1, 10)
        await self._wait_out(min(seconds, AUDIT_RETRY_SECONDS_MAX))
        return True

    async def _wait_out(self, seconds: float) -> None:
        """Not shorter for new events; only the end of the broker ends it."""
        until = self._clock.monotonic() + seconds
        while not self._closing and (left := until - self._clock.monotonic()) > 0:
            await self._wait(left)

    def _log_head(self) -> None:
        """Log the digest, so that a forged chain can be told from this one."""
        self._logged = self._clock.monotonic()
        if self._head is not None and self._head != NOTHING:
            log.info("audit: record %d has the digest %s", *self._head)
