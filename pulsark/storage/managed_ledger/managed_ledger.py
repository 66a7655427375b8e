"""A topic partition: a list of ledgers with one writer, read as one sequence of entries.

Appends of one turn of the loop go out as one run. When an append fails, every later one fails
with it, in order; the ledger is recovered to its true end and a new one opened for what comes
then. Entries whose failure was reported may turn out to be stored: they are part of the topic,
and ``entries_recovered`` tells of them. If only the way to the bookies is gone, nothing is
reported yet: the true end tells which appends are stored, and the others go to the new ledger.

Who owns the topic is decided by compare-and-set of its record, and by the fences of recovery.
An owner that loses either stops for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import (
    BookieAwayError,
    ClientError,
    LedgerFencedError,
    MetadataError,
    ServerError,
    StorageError,
    StorageFullError,
)
from pulsark.storage.managed_ledger.append_queue import AppendQueue
from pulsark.storage.managed_ledger.changes import Changes
from pulsark.storage.managed_ledger.compacted_form import CompactedForm
from pulsark.storage.managed_ledger.config import (
    ManagedLedgerConfig,
    ManagedLedgerListener,
    Unheard,
)
from pulsark.storage.managed_ledger.deletion import delete_managed_ledger
from pulsark.storage.managed_ledger.folding import Folding
from pulsark.storage.managed_ledger.last_ledger import RETRY_SECONDS, LastLedger
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.owned_record import OwnedRecord
from pulsark.storage.managed_ledger.record import (
    ManagedLedgerRecord,
    StoredRecord,
    TopicState,
    claim_or_create,
    read_ledgers,
    read_record,
    read_runs,
)
from pulsark.storage.managed_ledger.reservation import Reservation
from pulsark.storage.managed_ledger.states import Event, State
from pulsark.storage.managed_ledger.trimming import Trimming
from pulsark.storage.managed_ledger.view import LedgerView
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager

__all__ = [
    "LedgerInfo",
    "LedgerView",
    "ManagedLedger",
    "ManagedLedgerConfig",
    "ManagedLedgerListener",
    "ManagedLedgerRecord",
    "delete_managed_ledger",
    "read_ledgers",
    "read_record",
]

log = logging.getLogger(__name__)

Attached = Callable[[str, Collection[int]], Awaitable[Collection[int]]]
"""Returns those of the topic's reserved ledgers that its table has; takes the topic's id."""


class ManagedLedger(LedgerView):
    """See ``open``. Everything runs on the event loop; only ``append`` must be quick."""

    def __init__(
        self,
        stored: OwnedRecord,
        manager: LedgerManager,
        config: ManagedLedgerConfig,
        runtime: Runtime,
        listener: ManagedLedgerListener,
    ) -> None:
        super().__init__(LedgerList(), manager)  # until ``_show``
        self.path = stored.path
        self.topic_id = stored.now.topic_id
        self._stored = stored
        self._clock = runtime.clock
        self._call_soon = asyncio.get_running_loop().call_soon
        self._appends = appends = AppendQueue(listener)
        self._last = LastLedger(stored, manager, config, runtime.clock, appends, self)
        self.life = self._last.life
        """What it is doing with the ledger at its end."""
        self._changes = Changes(self.path, self._last, appends, self._go_on)
        self._folding = Folding(stored, manager, runtime.clock)
        self.compacted = CompactedForm(stored, manager, self._changes, self._last, runtime.clock)
        self._trimming = Trimming(
            stored, manager, self._changes, self._folding, self.compacted.is_used
        )
        stored.on_saved, stored.on_lost = self._show, self._last.lost
        self._show()

    @classmethod
    async def open(
        cls,
        path: str,
        manager: LedgerManager,
        metadata: MetadataStore,
        config: ManagedLedgerConfig,
        runtime: Runtime,
        listener: ManagedLedgerListener | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        attached: Attached | None = None,
        known: StoredRecord | None = None,
    ) -> ManagedLedger:
        """Open or create the managed ledger whose record is at ``path``, as its owner.

        Recovers what the owner before left open, and so stops it. The next ledger is opened by
        the first append. ``properties`` are those of a new one. ``attached`` tells which of the
        ledgers exist that the owner before had reserved. ``known``: the record as the caller has
        just read it; if a deletion begins after that, it is the caller's to finish. A later
        listener calls ``tell``.
        Raises ``StorageError`` or ``MetadataError`` if the end of the topic cannot be known now.
        """
        listener = Unheard() if listener is None else listener
        was_there = known is not None
        has_failed = False
        while True:
            record, version = await claim_or_create(
                path, metadata, runtime, properties, known, at_once=has_failed
            )
            known = None
            if record.state is TopicState.DELETING:
                if was_there:  # a topic has more than this to delete
                    raise MetadataError(f"{path} is being deleted just now")
                await delete_managed_ledger(path, manager, metadata)
                continue
            folded = await read_runs(record, metadata)
            if folded is None:
                await read_ledgers(path, metadata)  # raises, unless another broker changed it
                continue
            stored = OwnedRecord(path, record, folded, version, metadata)
            opened = cls(stored, manager, config, runtime, listener)
            try:
                await opened._load(attached)
            except LedgerFencedError:
                has_failed = True
                continue  # another broker opened it meanwhile: read its record again
            return opened

    async def _load(self, attached: Attached | None) -> None:
        """Leave nothing open that the owner before left open."""
        await self._last.recover_unclosed()
        pending = [info.ledger_id for info in self.record.pending]
        if pending:
            if attached is None:
                raise StorageError(f"{self.path} waits for its table, and there are no tables")
            existing = await attached(self.topic_id, pending)
            await self._stored.save(self.record.decided(existing))
        if self.is_terminated:
            self._last.stop(Event.TERMINATE, _terminated(self.path))
        else:
            self._last.life.on(Event.LOADED)
        self._go_on()

    def tell(self, listener: ManagedLedgerListener) -> None:
        """Report to a listener from now on. Nothing may have been appended before."""
        self._appends.listener = listener

    def ledger_config(self, owner: str) -> LedgerConfig:
        """How a ledger is stored that is created now; ``owner`` lists it."""
        return self._last.config.ledger_config(owner)

    def set_quorums(self, ensemble: int, write: int, ack: int) -> None:
        """How the ledgers are stored that are created from now on."""
        now = self._last.config
        if (now.ensemble_size, now.write_quorum, now.ack_quorum) != (ensemble, write, ack):
            self._last.config = replace(
                now, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
            )

    # Appending.

    def append(self, entry: bytes, context: object) -> None:
        """Store an entry; the listener hears what became of it, with ``context``. In order."""
        appends = self._appends
        appends.entries.append(entry)
        appends.contexts.append(context)
        if not appends.scheduled:
            appends.scheduled = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Send what was appended; it need not wait for more of this turn of the loop."""
        appends = self._appends
        appends.scheduled = False
        if not appends.entries:
            return
        last = self._last
        writer = last.writer
        if writer is None:
            self._flush_without_writer()
            return
        try:
            appends.send(writer)
        except StorageError as e:
            # Only if the ledger was recovered or deleted past this owner.
            self.ledger_failed(writer.ledger_id, e)
            return
        if self._changes.is_free and last.is_full(writer):
            self._changes.start(last.roll_over)

    def _flush_without_writer(self) -> None:
        last = self._last
        if last.refusal is not None:
            self._appends.fail(last.refusal)
        elif not self._changes.is_quiet:
            return  # what goes on there ends with a flush
        elif (error := last.failing()) is not None:
            self._appends.fail(error)
        else:
            self._changes.start(last.reopen)

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """The writer's report."""
        self._ledgers.grow(last_confirmed + 1)
        self.last_confirmed = Position(ledger_id, last_confirmed)
        self._last.storage_error = None
        self._appends.confirm(ledger_id, last_confirmed)

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """The writer's report: find the ledger's true end, and fail what waits.

        What waits for a bookie that is away goes on waiting: the end tells what is stored. So does
        what waits for a ledger that was fenced, if it can be asked who owns the topic.
        """
        last = self._last
        writer = last.newest
        if writer is None or writer.ledger_id != ledger_id or not last.writes:
            return
        if isinstance(error, LedgerFencedError) and not last.may_be_ours:
            last.lost(error)
            return
        last.ledger_failed()
        last.troubles.tell(self.path, f"ledger {ledger_id} failed: {error}")
        if not isinstance(error, BookieAwayError | LedgerFencedError):
            if isinstance(error, StorageFullError) or writer.last_confirmed < 0:
                # A new ledger would most likely fail the same way.
                last.note_failure(error)
            self._appends.fail(error)
        if self._changes.is_free:
            self._changes.start(last.reopen)

    def _go_on(self) -> None:
        """After a change: send what waited meanwhile, and try again later what failed."""
        appends, last = self._appends, self._last
        if appends.entries and not appends.scheduled:
            appends.scheduled = True
            self._call_soon(self.flush)
        if last.refusal is not None:
            return
        if last.life.state is State.FAILED:
            self._changes.start_later(RETRY_SECONDS, last.reopen)
        waiting = appends.entries and last.writer is None
        if self._changes.is_free and not waiting and self._folding.is_due:
            self._changes.start(self._folding.run)
        self._trimming.start_sweep()

    def _show(self) -> None:
        """Let the view be that of the record."""
        self._ledgers = self._stored.ledger_list()
        ledgers = self.record.ledgers
        if ledgers and ledgers[-1].open:
            self._ledgers.grow(self._last.confirmed_entries)
        self.last_confirmed = self._ledgers.last()
        self._last.times = self._last.config.times(len(self._ledgers))

    # What an owner may order.

    @asynccontextmanager
    async def reservation(self) -> AsyncIterator[Reservation]:
        """Reserve ledgers at the end; see there. Nothing else changes as long as it lasts."""
        async with self._changes.alone():
            reservation = Reservation(
                self._stored, self._manager, self._last, self._clock, self._appends
            )
            try:
                yield reservation
            finally:
                reservation.leave()

    async def close_ledger(self, *, only_full: bool = False) -> None:
        """Close the open ledger, without waiting for an append; the next append opens one."""

        async def close() -> None:
            last, writer = self._last, self._last.writer
            if writer is None or writer.last_pushed < 0 or (only_full and not last.is_full(writer)):
                return
            await last.close()
            self._appends.listener.ledger_closed()

        await self._changes.order(close)

    async def trim(self, before: Position) -> None:
        """Remove the closed ledgers that end before a position; they are gone when it returns.

        A bookie that cannot be told now is told later.
        """
        await self._trimming.trim(lambda: self._ledgers.infos(), before)

    async def change_properties(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Change the properties, durably. Raises what ``change`` does, which changes nothing."""

        async def step() -> None:
            properties = dict(change(self.record.properties))
            await self._stored.save(replace(self.record, properties=properties))

        await self._changes.order(step, terminated=True)

    async def set_topic_epoch(self, epoch: int) -> None:
        """A producer has the topic for itself: keep its epoch, durably."""
        await self._changes.order(
            lambda: self._stored.save(replace(self.record, topic_epoch=epoch))
        )

    async def terminate(self) -> Position:
        """End the topic, durably: returns the last entry there will ever be."""

        async def terminate() -> None:
            await self._last.finish(self.flush)
            await self._stored.save(replace(self.record, state=TopicState.TERMINATED))
            self._last.stop(Event.TERMINATE, _terminated(self.path))

        if not self.is_terminated:
            await self._changes.order(terminate)
        return self.last_confirmed

    async def close(self) -> None:
        """Confirm what was appended, close the ledger and stop; later appends fail.

        Does not raise if storage fails: the listener hears of every append, and the next open
        recovers the ledger.
        """

        async def close() -> None:
            if self._last.refusal is None:
                try:
                    await self._last.finish(self.flush)
                except (StorageError, MetadataError) as e:
                    log.warning(
                        "%s: cannot close its open ledger; the next owner recovers it: %s",
                        self.path,
                        e,
                    )
                    self._appends.fail(e)
            if not self.is_fenced:
                self._last.stop(Event.SHUT, StorageError(f"{self.path} is closed"))
            await self._trimming.stop()

        await self._changes.end(close)

    async def begin_deletion(self) -> None:
        """Hide the topic from all clients, durably; ``delete`` is to follow."""

        async def begin() -> None:
            try:
                await self._stored.save(replace(self.record, state=TopicState.DELETING))
            finally:
                if not self.is_fenced:
                    self._last.stop(Event.DELETE, StorageError(f"{self.path} is deleted"))

        await self._changes.end(begin, of_owner=True)

    async def delete(self) -> None:
        """Delete everything. The first step hides the topic from all clients."""

        async def delete() -> None:
            self._last.stop(Event.DELETE, StorageError(f"{self.path} is deleted"))
            await delete_managed_ledger(
                self.path, self._manager, self._stored.metadata, topic_id=self.topic_id
            )

        await self._changes.end(delete, of_owner=True)

    # What it is.

    @property
    def record(self) -> ManagedLedgerRecord:
        """What is durable about it."""
        return self._stored.now

    @property
    def record_bytes(self) -> int:
        """Size of the record when it was saved last."""
        return self._stored.bytes

    @property
    def unsettled_from(self) -> int:
        """The first ledger that may have something that is not in the table, or that some bookie
        still has to be told of. Before it are only old ones."""
        return self._stored.unsettled_from

    @property
    def pending_appends(self) -> int:
        """Entries that were appended and are neither confirmed nor refused yet."""
        return self._appends.pending

    @property
    def open_bytes(self) -> int:
        """Confirmed bytes of the ledger that the record shows as open."""
        opened = self._last.open_ledger
        return 0 if opened is None else opened.length

    @property
    def is_terminated(self) -> bool:
        """Whether nothing will ever be appended again."""
        return self.record.state is TopicState.TERMINATED

    @property
    def is_settled(self) -> bool:
        """Whether it is known which entries exist of all whose appends were reported as failed."""
        return not self._last.unclosed()

    @property
    def is_fenced(self) -> bool:
        """Whether another owner took over; this object is of no more use then."""
        return self._last.life.state is State.FENCED

    def full_error(self) -> StorageError | MetadataError | None:
        """The error with which appends fail at present without being tried, if they do."""
        return self._last.failing()


def _terminated(path: str) -> ClientError:
    return ClientError(ServerError.TopicTerminatedError, f"{path} is terminated")
