"""What makes groups of cursor records durable: one active ledger, and its rollover.

Theory of operation
-------------------
The bundle record names the *active* ledger. A *rollover* replaces it: a new ledger is
created, noted in the record as one to delete, filled with a snapshot of all cursors, and named in
the record by a compare-and-set. From the moment the successor takes entries, each group goes
to both ledgers, and is durable when it is in both: whichever the record names after a crash,
it is there. What was given to the active ledger alone was in memory before the snapshot was
taken, so the snapshot has it. A snapshot is taken piece by piece while operations go on; that
is sound because records merge (`cursor_state.AckedSet`).

A rollover starts when the log has grown, and when there is no active ledger: after opening,
with the first group, and after the active ledger failed. Groups that no active ledger will
confirm wait for its outcome (``_awaiting_outcome``). If it fails as well, they fail, and it is
tried again with the next group, or after a while: what is in memory is never missing from the
ledger that is named next.

An owner that lost the bundle learns it from a fenced append or a lost compare-and-set, fails
everything that waits, and stays *failed*.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.errors import LedgerFencedError, MetadataError, StorageError
from pulsark.storage.cursor.bundle_record import BundleRecord, BundleState, FormerLedger
from pulsark.storage.cursor.history import NO_HISTORY, HistoryLimits
from pulsark.storage.cursor.log_ledger import CommitGroup, CursorLedger
from pulsark.storage.cursor.records import pack
from pulsark.storage.cursor.snapshot import write_snapshot
from pulsark.storage.ledger.metadata import LedgerConfig
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pulsark.config.settings import Settings
    from pulsark.runtime import Done, Runtime
    from pulsark.storage.cursor.bundle_cursors import CursorTable
    from pulsark.storage.cursor.cursor import Cursor, Reached
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.proto import cursor_pb2 as pb

log = logging.getLogger(__name__)

_SLOWEST_RETRY_MS = 30_000


@dataclass(frozen=True, slots=True)
class CursorLogConfig:
    """How cursors are stored.

    A snapshot is taken once the log after the last one is longer than ``roll_bytes`` and than
    ``roll_ratio`` times that snapshot.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    flush_interval_ms: int = 1000
    roll_bytes: int = 2 << 20
    roll_ratio: float = 1.0
    renew_bytes: int = 64 << 10
    """A log that is not longer is read within a few milliseconds."""
    history: HistoryLimits = NO_HISTORY

    def of_ledger(self, owner: str) -> LedgerConfig:
        """The configuration of a ledger for the cursors of a bundle, whose record ``owner`` is."""
        return LedgerConfig(
            self.ensemble_size, self.write_quorum, self.ack_quorum, reserve=True, owner=owner
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> CursorLogConfig:
        """From the broker's configuration."""
        return cls(
            settings.managedLedgerDefaultEnsembleSize,
            settings.managedLedgerDefaultWriteQuorum,
            settings.managedLedgerDefaultAckQuorum,
            settings.cursorFlushIntervalMillis,
            history=HistoryLimits(
                settings.cursorHistoryMinutes * 60_000, settings.cursorHistoryMaxMB << 20
            ),
        )


class CursorLogWriter:
    """One a log. Everything runs on the event loop."""

    def __init__(
        self,
        bundle: str,
        manager: LedgerManager,
        record: BundleRecord,
        table: CursorTable,
        config: CursorLogConfig,
        runtime: Runtime,
        inherited_bytes: int = 0,
    ) -> None:
        """``inherited_bytes``: size of the ledger that the record names now."""
        self.failed: StorageError | None = None
        """Why nothing can be made durable here any more."""
        self.unwritten = False
        """Whether memory holds something that was given to no ledger that may become active."""
        self.last_group: CommitGroup | None = None
        self._bundle = bundle
        self._manager = manager
        self._record = record
        self._table = table
        self._config = config
        self._clock = runtime.clock
        self._sure_clock = runtime.sure_clock
        self._named_bytes = inherited_bytes
        self._active: CursorLedger | None = None
        self._successor: CursorLedger | None = None
        self._rollover: asyncio.Task[None] | None = None
        self._awaiting_outcome: list[CommitGroup] = []
        self._owed: dict[Cursor, Reached] = {}
        """Cursors of failed groups; the next ledger that is named has what was in memory."""
        self._to_delete = set(record.state.to_delete)
        self._roll_at_bytes = config.roll_bytes
        self._retry_ms = config.flush_interval_ms
        self._retry: asyncio.TimerHandle | None = None

    @property
    def named_bytes(self) -> int:
        """The size of the ledger that the record names."""
        return self._named_bytes if self._active is None else self._active.bytes

    def submit(
        self, records: list[pb.Record], dones: list[Done], reached: list[tuple[Cursor, Reached]]
    ) -> None:
        """Write records that tell what changed in memory; ``dones`` are called once it is durable.

        With no records, once everything submitted before is durable. ``reached`` is what
        will be durable then.
        """
        if self.failed is not None:
            CommitGroup(dones, [], 0).fail(self.failed)
        elif records or self.unwritten:
            self._write(records, CommitGroup(dones, reached, 0))
        elif dones:
            self._when_all_is_durable(dones)

    def _write(self, records: list[pb.Record], group: CommitGroup) -> None:
        active, successor = self._active, self._successor
        broken = successor is not None and successor.error is not None
        ledgers = [x for x in (active, None if broken else successor) if x is not None]
        assert records or not ledgers
        self.last_group = group
        group.waits = len(ledgers)
        if active is None or broken:
            group.waits += 1
            self._awaiting_outcome.append(group)
        entries = list(pack(records, self._clock.now_ms())) if ledgers else []
        for ledger in ledgers:
            ledger.append(entries, group)
        if not ledgers:
            self.unwritten = True
            self._start_succession()
        elif active is not None and active.bytes > self._roll_at_bytes:
            self._start_succession()

    def _when_all_is_durable(self, dones: list[Done]) -> None:
        if self.last_group is not None and not self.last_group.finished:
            self.last_group.also(dones, [])
            return
        loop = asyncio.get_running_loop()
        for done in dones:
            loop.call_soon(done, None)

    # -- rollover --------------------------------------------------------------------------

    def _start_succession(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._rollover is None and self.failed is None:
            self._rollover = unattended(self._roll_over(), f"{self._bundle}: a new cursor log")

    async def renew(self) -> None:
        """Replace a ledger that is long, and mostly log: who opens it next reads all of it."""
        active = self._active
        if active is None:
            return
        log_bytes = active.bytes - active.snapshot_bytes
        if log_bytes > max(self._config.renew_bytes, active.snapshot_bytes):
            self._start_succession()
            if self._rollover is not None:
                await asyncio.wait((self._rollover,))

    async def _roll_over(self) -> None:
        """Replace the active ledger, or say that it failed."""
        ledger = CursorLedger(self._ledger_failed)
        try:
            await self._fill(ledger)
            await self._switch_to(ledger)
        except LedgerFencedError as error:
            if error is ledger.error and self._manager.has_owner:
                self._abandon(ledger, error)
            else:
                self.stop(error)
        except StorageError as error:
            self._abandon(ledger, error)
        except MetadataError as error:
            # Callers are promised a StorageError, and undo what was not stored.
            self._abandon(ledger, StorageError(f"the metadata store failed: {error}"))
        except Exception as error:
            self.stop(StorageError(f"{self._bundle}: the cursor log broke: {error!r}"))
            raise
        else:
            self._succeeded(ledger)
        await self.delete_doomed()
        self._rollover = None
        if self._awaiting_outcome:
            self._start_succession()

    async def _fill(self, ledger: CursorLedger) -> None:
        """Create the successor and bring a snapshot into it."""
        writer = await self._manager.create(self._config.of_ledger(self._record.path), ledger)
        ledger.writer = writer
        self._to_delete.add(writer.ledger_id)
        await self._record.update(self._with_to_delete(self._to_delete))
        self._successor = ledger
        self.unwritten = False
        await write_snapshot(ledger, self._table, self._clock)

    async def _switch_to(self, ledger: CursorLedger) -> None:
        """Name the successor in the record. If it fails meanwhile, that is looked at later."""
        if ledger.error is not None:
            raise ledger.error
        now_ms = self._clock.now_ms()
        state = self._record.state
        former = (*state.history, *self._retiring(now_ms))
        history = self._config.history.kept(former, self._sure_clock.now_ms())
        to_delete = self._to_delete | replace(state, to_delete=()).own_ledgers
        to_delete -= {ledger.writer.ledger_id, *(former.ledger_id for former in history)}
        try:
            await self._record.update(
                replace(
                    self._with_to_delete(to_delete),
                    ledger_id=ledger.writer.ledger_id,
                    since_ms=now_ms,
                    history=history,
                )
            )
        except MetadataError as error:
            # Either ledger may be the one that counts, so neither can be dropped or used alone.
            raise LedgerFencedError(
                f"Bundle {self._bundle}: it is unknown which ledger holds the cursors: {error}"
            ) from error
        self._to_delete = to_delete

    def _with_to_delete(self, to_delete: Iterable[int]) -> BundleState:
        return replace(self._record.state, to_delete=tuple(sorted(to_delete)))

    def _retiring(self, now_ms: int) -> Iterator[FormerLedger]:
        """The ledger that holds the cursors now, as history."""
        state = self._record.state
        if state.ledger_id is not None and state.since_ms:
            yield FormerLedger(state.ledger_id, state.since_ms, now_ms, self.named_bytes)

    def _succeeded(self, ledger: CursorLedger) -> None:
        """The record names the successor."""
        former, self._active, self._successor = self._active, ledger, None
        self._named_bytes = ledger.snapshot_bytes
        log_bytes = max(self._config.roll_bytes, self._config.roll_ratio * ledger.snapshot_bytes)
        self._roll_at_bytes = ledger.snapshot_bytes + int(log_bytes)
        self._retry_ms = self._config.flush_interval_ms
        if former is not None:
            former.writer.abandon()
            for group in former.take_groups():
                group.release()
        if ledger.error is not None:
            self._active = None
            self.unwritten = True
            return
        owed, self._owed = self._owed, {}
        for cursor, point in owed.items():
            cursor.durably_reached = point
        self._release_outcome()

    def _abandon(self, ledger: CursorLedger, error: StorageError) -> None:
        """The rollover failed, and the record names what it named before."""
        log.warning("%s: cannot create a ledger for the cursor log: %s", self._bundle, error)
        if self._successor is ledger:
            self._successor = None
            self._awaiting_outcome += ledger.take_groups()
            ledger.writer.abandon()
        if self._active is not None:
            self._roll_at_bytes = self._active.bytes + self._config.roll_bytes
            self._release_outcome()
            return
        self.unwritten = True
        groups, self._awaiting_outcome = self._awaiting_outcome, []
        for group in groups:
            self._owed.update(group.fail(error))
        self._retry_ms = min(2 * self._retry_ms, _SLOWEST_RETRY_MS)
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(self._retry_ms / 1000, self._start_succession)

    def _release_outcome(self) -> None:
        groups, self._awaiting_outcome = self._awaiting_outcome, []
        for group in groups:
            group.release()

    def _ledger_failed(self, ledger: CursorLedger) -> None:
        """A ledger confirms nothing more; what waits for it waits for the rollover instead."""
        assert ledger.error is not None
        if ledger is not self._active and ledger is not self._successor:
            return
        fenced = isinstance(ledger.error, LedgerFencedError)
        if fenced and not self._manager.has_owner:
            self.stop(ledger.error)
            return
        log.warning(
            "%s: a ledger of the cursor log failed, replacing it: %s",
            self._bundle,
            ledger.error,
        )
        self._awaiting_outcome += ledger.take_groups()
        if ledger is self._active:
            self._active = None
            self.unwritten = self.unwritten or self._successor is None
            # A fence may be a new owner's: only the record's version tells.
            if self._awaiting_outcome or fenced:
                self._start_succession()

    async def delete_doomed(self) -> None:
        """Delete ledgers that are not needed; those that resist stay noted in the record."""
        for ledger_id in sorted(self._to_delete):
            if self.failed is not None:
                return
            try:
                await self._manager.delete(ledger_id)
            except (StorageError, MetadataError) as error:
                log.warning("%s: cannot delete ledger %d: %s", self._bundle, ledger_id, error)
                continue
            self._to_delete.discard(ledger_id)

    # -- the end -----------------------------------------------------------------------------

    def stop(self, error: StorageError) -> None:
        """Fail everything that waits, for good. The record and its ledger stay as they are."""
        if self.failed is not None:
            return
        self.failed = error
        log.info("%s: the cursor log stops: %s", self._bundle, error)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        ledgers = [ledger for ledger in (self._active, self._successor) if ledger is not None]
        groups = [group for ledger in ledgers for group in ledger.take_groups()]
        groups += self._awaiting_outcome
        self._awaiting_outcome = []
        self._active = self._successor = None
        for ledger in ledgers:
            ledger.writer.abandon()
        for group in groups:
            group.fail(error)
        if self._rollover is not None and self._rollover is not asyncio.current_task():
            self._rollover.cancel()

    async def close(self) -> None:
        """Close the active ledger, for a successor that then has nothing to recover."""
        rollover, active = self._rollover, self._active
        self._named_bytes = self.named_bytes
        self._active = None
        self.stop(StorageError(f"The cursors of bundle {self._bundle} are closed"))
        if rollover is not None:
            await asyncio.wait((rollover,))
        if active is None or active.error is not None:
            return
        try:
            await active.writer.close()
        except (StorageError, MetadataError) as error:
            # The next owner recovers it as after a crash.
            log.warning("%s: cannot close the cursor ledger: %s", self._bundle, error)
