"""The ledger at the end of a managed ledger: made, rolled over, closed, and recovered.

Everything here is a step of a change, and changes come one after the other (``changes``).
``states`` says which step may follow which.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pulsark.errors import LedgerFencedError, MetadataError, PulsarkError, StorageError
from pulsark.storage.managed_ledger.deletion import delete_ledgers
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.shortage import Shortages
from pulsark.storage.managed_ledger.states import WRITTEN, Event, Life, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.ledger.writer import LedgerListener, LedgerWriter
    from pulsark.storage.managed_ledger.append_queue import AppendQueue
    from pulsark.storage.managed_ledger.config import ManagedLedgerConfig
    from pulsark.storage.managed_ledger.owned_record import OwnedRecord
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord

log = logging.getLogger(__name__)

ROLL_OVER_RETRY_SECONDS = 10.0
"""Time for which a full ledger is used on after the next one could not be made."""

RETRY_SECONDS = 1.0
"""Time for which appends fail at once after a failed attempt to store."""


class LastLedger:
    """The last ledger of one managed ledger. ``reports`` is told what ledgers confirm."""

    def __init__(
        self,
        stored: OwnedRecord,
        manager: LedgerManager,
        config: ManagedLedgerConfig,
        clock: Clock,
        appends: AppendQueue,
        reports: LedgerListener,
    ) -> None:
        self.life = Life(stored.path)
        self.config = config
        self.writer: LedgerWriter | None = None
        """The ledger that takes entries, if one does."""
        self.newest: LedgerWriter | None = None
        """The writer or the last one: it knows the end of its ledger until the record does."""
        self.refusal: PulsarkError | None = None
        """Why nothing is appended any more; set in a final state."""
        self.storage_error: StorageError | MetadataError | None = None
        """Why the last attempt to store failed."""
        self.times = 1
        """How many times as large as configured ledgers are; above 1 where there are very many."""
        self._stored = stored
        self.troubles = manager.troubles
        self._manager = manager
        self._clock = clock
        self._appends = appends
        self._reports = reports
        self._shortages = Shortages(manager, clock)
        self._created = 0.0
        """When the writer's ledger was made, by the monotonic clock."""
        self._retry_at = 0.0
        self._roll_at = 0.0

    @property
    def is_terminated(self) -> bool:
        """Whether the only reason to refuse appends is that the topic is terminated."""
        return self.life.state is State.TERMINATED

    @property
    def open_ledger(self) -> LedgerWriter | None:
        """What is known of the ledger that the record shows as open, if it was written here."""
        newest, ledgers = self.newest, self._stored.now.ledgers
        if newest is None or not ledgers or not ledgers[-1].open:
            return None
        return newest if ledgers[-1].ledger_id == newest.ledger_id else None

    @property
    def confirmed_entries(self) -> int:
        """Confirmed entries of the ledger that the record shows as open."""
        opened = self.open_ledger
        return 0 if opened is None else opened.last_confirmed + 1

    def unclosed(self) -> list[int]:
        """Ledgers that are open in the record, but no longer written."""
        written = self.newest.ledger_id if self.newest and self.writes else None
        return [i.ledger_id for i in self._stored.now.ledgers if i.open and i.ledger_id != written]

    @property
    def writes(self) -> bool:
        """Whether a ledger may still confirm entries."""
        return self.life.state in WRITTEN

    def is_full(self, writer: LedgerWriter) -> bool:
        """Whether the writer's ledger is to be closed for the next one."""
        now = self._clock.monotonic()
        age_ms = int((now - self._created) * 1000)
        return now >= self._roll_at and (
            self.config.is_full(writer.last_pushed + 1, writer.length, age_ms, self.times)
            or self._shortages.is_to_end(writer, self.config.ensemble_size)
        )

    def failing(self) -> StorageError | MetadataError | None:
        """The error with which appends fail at present without being tried, if they do."""
        return self.storage_error if self._clock.monotonic() < self._retry_at else None

    def note_failure(self, error: StorageError | MetadataError) -> None:
        """Let appends fail at once for a while."""
        self.storage_error = error
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS

    @property
    def may_be_ours(self) -> bool:
        """Whether a fence may be another one's than a new owner's: it can be asked who that is.

        BookKeeper's auto-recovery closes a ledger that has lost a bookie, whoever writes to it.
        """
        return self._manager.has_owner

    def ledger_failed(self) -> None:
        """The ledger that is written confirms nothing more."""
        self.writer = None
        self.life.on(Event.FAILED)

    def stop(self, event: Event, error: PulsarkError) -> None:
        """Refuse everything from now on."""
        newest, written, before = self.newest, self.writes, self.life.state
        self.life.on(event)
        if self.life.state is not before:  # else the first reason is the one
            self.refusal = error
        self.writer = None
        if written and newest is not None:
            newest.abandon()
        self._appends.fail(error)

    def lost(self, error: LedgerFencedError) -> None:
        """Another owner is there."""
        self.stop(Event.FENCED, error)

    async def reopen(self) -> None:
        """Find the end of a ledger that failed; open the next one if appends wait for it."""
        await self.recover()
        error = self.failing()
        if error is not None:
            self._appends.fail(error)
        elif self._appends.entries and self.life.state is State.NO_LEDGER:
            await self._open()

    async def recover(self) -> None:
        """Find the end of the ledger that failed, if one did."""
        if self.life.state is not State.FAILED:
            return
        self.life.on(Event.RECOVER)
        with self._unless_done(State.RECOVERING, Event.NOT_RECOVERED):
            await self._manager.check_owner()
            found = await self.recover_unclosed()
        self.life.on(Event.RECOVERED)
        for ledger_id, known, count in found:
            if self._appends.waits_for_answers:
                # They wait for just this ledger: nobody else wrote to it, and none has failed.
                self._appends.confirm(ledger_id, known + count - 1)
                self._appends.send_again()
            else:
                self._appends.listener.entries_recovered(ledger_id, known, count)

    async def recover_unclosed(self) -> list[tuple[int, int, int]]:
        """Recover what the record shows as open.

        Returns the last ledger, how many of its entries were confirmed here, and how many more
        there are.
        """
        record, recovered = self._stored.now, []
        for ledger_id in self.unclosed():
            metadata = await self._manager.recover(ledger_id)
            record = record.with_closed(metadata, self._clock.now_ms())
            recovered.append(metadata)
        if not recovered:
            return []
        known = self.confirmed_entries
        await self._stored.save(record)
        last = recovered[-1]
        count = last.last_entry_id + 1 - known
        if count < 0:
            log.error("%s: %d confirmed entries were lost: %s", self._stored.path, -count, last)
        return [(last.ledger_id, known, max(count, 0))]

    async def _open(self) -> None:
        self.life.on(Event.OPEN)
        with self._unless_done(State.OPENING, Event.NOT_OPENED):
            await self._adopt(await self._create(), self._stored.now)

    async def _create(self) -> LedgerWriter:
        config = self.config.ledger_config(self._stored.path)
        return await self._manager.create(config, self._reports)

    async def _adopt(self, writer: LedgerWriter, record: ManagedLedgerRecord) -> None:
        """Make a new ledger part of the topic, then use it."""
        info = LedgerInfo(writer.ledger_id, 0, 0, self._clock.now_ms(), open=True)
        try:
            await self._stored.save(record.with_ledger(info))
        except LedgerFencedError:
            await delete_ledgers([writer.ledger_id], self._manager)
            raise
        # After another error the record may list the ledger: it stays, perhaps unlisted.
        self.life.on(Event.OPENED)
        self.writer = self.newest = writer
        self._created = self._clock.monotonic()
        if len(record.ledgers) > 0:
            self._appends.listener.ledger_closed()

    async def roll_over(self) -> None:
        """Close the full ledger and go on in a new one.

        The new one gets no entry before all of the old one are confirmed: were the old one
        to fail, later entries would exist and earlier ones not.
        """
        old = self.writer
        if old is None or not self.is_full(old):
            return
        self.life.on(Event.ROLL)
        try:
            new = await self._create()
        except LedgerFencedError:
            raise
        except (StorageError, MetadataError) as e:
            self.troubles.tell(self._stored.path, f"cannot create a new ledger yet: {e}")
            self._roll_at = self._clock.monotonic() + ROLL_OVER_RETRY_SECONDS
            if self.life.state is State.ROLLING:
                self.life.on(Event.NOT_ROLLED)
            return
        try:
            # It may have failed meanwhile; then recovery comes first.
            record = await self._close() if self.life.state is State.ROLLING else None
        except (StorageError, MetadataError) as e:
            if isinstance(e, LedgerFencedError):
                await delete_ledgers([new.ledger_id], self._manager)
                raise
            record = None
        if record is not None:
            with self._unless_done(State.UNRECORDED, Event.NOT_RECORDED):
                await self._adopt(new, record)
            return
        await delete_ledgers([new.ledger_id], self._manager)
        if not self.life.is_final:
            await self.reopen()

    async def close(self) -> None:
        """Close the ledger that takes entries at its end, durably; the next append opens one."""
        record = await self._close()
        with self._unless_done(State.UNRECORDED, Event.NOT_RECORDED):
            await self._stored.save(record)
        self.life.on(Event.RECORDED)

    async def finish(self, flush: Callable[[], None]) -> None:
        """Confirm everything that was appended, and leave no ledger open."""
        if self.writer is None and (self._appends.entries or self.life.state is State.FAILED):
            await self.reopen()
        flush()
        if self.writer is not None:
            await self.close()
        await self.recover()

    async def reserve(self) -> ManagedLedgerRecord:
        """Confirm what was appended, and leave no ledger open; appends wait from here on.

        Returns the record that says so, not yet saved.
        """
        await self.recover()
        if self.refusal is not None:
            raise self.refusal  # another owner fenced the ledger that took appends until now
        record = self._stored.now if self.writer is None else await self._close()
        self.life.on(Event.RESERVED)
        return record

    async def _close(self) -> ManagedLedgerRecord:
        """Close the ledger that takes entries; returns the record that says so, not yet saved."""
        writer = self.writer
        assert writer is not None, "no ledger takes entries"
        self.life.on(Event.CLOSE)
        self.writer = None
        try:
            with self._unless_done(State.CLOSING, Event.FAILED):
                metadata = await writer.close()
        except LedgerFencedError as e:
            if not self.may_be_ours:
                raise
            raise StorageError(f"ledger {writer.ledger_id} was closed by others: {e}") from e
        except asyncio.CancelledError:
            # What it confirms from here on must not meet what a later ledger was sent.
            writer.abandon()
            self._appends.fail(StorageError(f"ledger {writer.ledger_id} was not closed"))
            raise
        self.life.on(Event.ENDED)
        return self._stored.now.with_closed(metadata, self._clock.now_ms())

    @contextmanager
    def _unless_done(self, state: State, event: Event) -> Iterator[None]:
        """If the step fails, and nothing else has happened to its state, that is the event."""
        try:
            yield
        except BaseException:
            if self.life.state is state:
                self.life.on(event)
            raise
