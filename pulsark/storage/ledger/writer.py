"""The single writer of a ledger: sends runs of entries to a quorum and says what is confirmed.

Bookies complete a writer's appends in order, so one number a bookie tells all that it has
confirmed. The last-add-confirmed (LAC) is the highest entry such that it and every earlier
one are held by an ack quorum. The work is per run and bookie, not per entry, unless entries
are striped over more bookies than hold each of them.

When a bookie fails and a spare exists, the spare takes its place in an ensemble that begins behind
the LAC. Until that is in the metadata the spare is sent nothing: a recovery that reads the old
metadata would not ask it. Meanwhile entries are confirmed by the slots that both ensembles share:
whichever a recovery finds, it asks them. The spare is then sent all from the new ensemble's first
entry on, also what was confirmed meanwhile, since a slot counts for everything up to its last
answer. If that became too much to keep, the ensemble begins again behind the LAC of by then. While
the metadata store cannot be reached the change is tried again, the same one: it may be true
already. Without a spare the ledger goes on while ack quorums can be met; its owner begins another
one when that has more copies (``managed_ledger.shortage``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from pulsark.errors import (
    BookieAwayError,
    LedgerFencedError,
    MetadataError,
    MetadataRefusedError,
    OwnershipLostError,
    StorageError,
)
from pulsark.storage.bookie.bookie import Bookie, EntryRun
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.ledger.bookies import LedgerBookies
    from pulsark.storage.ledger.store import Decision, LedgerStore, StoredLedger


log = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 64 << 20
"""Of confirmed entries, for a bookie that is not in the ensemble yet."""
CHANGE_RETRY_SECONDS: Final = 1.0


class LedgerListener(Protocol):
    """Whom a writer tells. Called on the event loop, never from inside ``append``."""

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """All entries up to ``last_confirmed`` are durable. It only rises."""

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """Nothing more will be confirmed. The outcome of entries above the LAC is unknown.

        ``LedgerFencedError``: another owner took over. Told once.
        """


class _Slot:
    """One slot of the ensemble and the bookie that has it now."""

    __slots__ = ("bookie", "confirmed", "failed", "index")

    def __init__(self, index: int, bookie: Bookie, confirmed: int) -> None:
        self.index = index
        self.bookie = bookie
        self.confirmed = confirmed
        """Every entry up to this one that belongs here is stored here."""
        self.failed = False


class LedgerWriter:
    """Made by ``LedgerManager.create``; recovery uses one too, to complete the copies."""

    def __init__(
        self,
        stored: StoredLedger,
        ensemble: Sequence[Bookie],
        store: LedgerStore,
        listener: LedgerListener,
        bookies: LedgerBookies,
        *,
        recovery: bool = False,
        last_confirmed: int = -1,
        length: int = 0,
    ) -> None:
        self.metadata = metadata = stored.metadata
        self.ledger_id = metadata.ledger_id
        self.last_confirmed = last_confirmed
        """The LAC: entries up to it are durable, and exist."""
        self.last_pushed = last_confirmed
        """The last entry that got an id."""
        self.length = length
        """Bytes of all confirmed entries."""
        self.pushed_length = length
        """Bytes of all entries that got an id."""
        self.error: StorageError | None = None
        """Why nothing more will be confirmed."""
        self._stored = stored
        self._store = store
        self._listener = listener
        self._bookies = bookies
        self._recovery = recovery
        self._reserve = metadata.config.reserve or recovery
        self._write_quorum = metadata.config.write_quorum
        self._ack_quorum = metadata.config.ack_quorum
        self._striped = metadata.config.ensemble_size > self._write_quorum
        self._slots = [_Slot(i, bookie, last_confirmed) for i, bookie in enumerate(ensemble)]
        self._unconfirmed: deque[EntryRun] = deque()
        self._change: asyncio.Task[None] | None = None
        self._kept: deque[EntryRun] | None = None
        """What was confirmed since a new ensemble was proposed; ``None`` if that is not kept."""
        self._kept_bytes = 0
        self._failure = StorageError(f"ledger {self.ledger_id} has lost its bookies")
        self._closing = False
        self._finished = False
        self._waiting: list[asyncio.Future[None]] = []

    def append(self, payloads: Sequence[bytes]) -> int:
        """Send entries, at least one; returns the id of the first. They are kept, not copied.

        Raises the ``StorageError`` that ended this writer, if one did.
        """
        if self.error is not None:
            raise self.error
        if self._closing:
            raise StorageError(f"ledger {self.ledger_id} is closed")
        first = self.last_pushed + 1
        self.last_pushed += len(payloads)
        preceding = self.pushed_length
        self.pushed_length = preceding + sum(map(len, payloads))
        run = EntryRun(self.ledger_id, first, self.last_confirmed, payloads, self.length, preceding)
        self._unconfirmed.append(run)
        for slot in self._slots:
            if not slot.failed:
                self._send(slot, run)
        return first

    async def close(self) -> LedgerMetadata:
        """Wait until everything sent is confirmed, then close the ledger at its end.

        Raises the error with which it failed instead; then the ledger needs recovery.
        """
        self._closing = True
        await self.drained()
        if self.error is not None:
            raise self.error
        # From here on no answer counts: one that fails must not change a closed ensemble.
        self._finished = True
        if self._recovery:
            began = self._stored.metadata
            ours = self.metadata.ensembles[len(began.ensembles) - 1 :]
            end = decisions.end_recovery(began, ours, self.last_confirmed, self.length)
        else:
            end = decisions.close(self.last_confirmed, self.length)
        await self._decide(end)
        return self.metadata

    async def drained(self, *, everywhere: bool = False) -> None:
        """Wait until all entries are confirmed or the ledger failed.

        ``everywhere``: until every bookie that has not failed holds its entries.
        """
        while self.error is None and not self._is_drained(everywhere):
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def bookie_lost(self, bookie_id: str) -> bool:
        """Replace a bookie that is gone, also if nothing is under way to it; whether it can be.

        While there is no spare one it stays: it may answer, and is replaced if it does not.
        """
        if self._finished or self.error is not None:
            return False
        if self._bookies.spare([slot.bookie.bookie_id for slot in self._slots]) is None:
            return False
        for slot in self._slots:
            if slot.bookie.bookie_id == bookie_id and not slot.failed:
                self._slot_failed(slot, BookieAwayError(f"bookie {bookie_id} is gone"))
                return True
        return False

    @property
    def failed(self) -> list[str]:
        """The bookies of the ensemble that failed and have no successor."""
        return [slot.bookie.bookie_id for slot in self._slots if slot.failed]

    def abandon(self) -> None:
        """Stop listening to answers, silently. What was sent may be stored or not."""
        if self.error is None:
            self.error = StorageError(f"ledger {self.ledger_id} was abandoned")
            self._wake()

    def _send(self, slot: _Slot, run: EntryRun) -> None:
        last = run.first_entry_id + len(run.payloads) - 1
        self._bookies.given(slot.bookie)
        if not self._striped:
            slot.bookie.append(
                run,
                partial(self._answered, slot, last),
                recovery=self._recovery,
                reserve=self._reserve,
            )
            return
        for part in self._stripe(slot.index, run):
            last = part.first_entry_id + len(part.payloads) - 1
            slot.bookie.append(
                part,
                partial(self._answered, slot, last),
                recovery=self._recovery,
                reserve=self._reserve,
            )

    def _stripe(self, index: int, run: EntryRun) -> list[EntryRun]:
        """The parts of a run that belong to one slot of the ensemble."""
        size, parts, start = len(self._slots), [], -1
        before = skipped = 0
        for i in range(len(run.payloads) + 1):
            entry_id = run.first_entry_id + i
            mine = i < len(run.payloads) and (index - entry_id) % size < self._write_quorum
            if mine and start < 0:
                start, skipped = i, before
            elif not mine and start >= 0:
                parts.append(run.part(start, i, skipped))
                start = -1
            if i < len(run.payloads):
                before += len(run.payloads[i])
        return parts

    def _answered(self, slot: _Slot, last: int, error: BaseException | None) -> None:
        if slot.failed or self._finished or self.error is not None:
            return
        if error is not None:
            self._slot_failed(slot, error)
            return
        slot.confirmed = last
        # A recovery completes the copies: its replacements get all that it found.
        if self._change is None or not self._recovery:
            self._advance()

    def _advance(self) -> None:
        last_confirmed = self._quorum_confirmed()
        if last_confirmed > self.last_confirmed:
            self.last_confirmed = last_confirmed
            self._forget_confirmed()
            if self._bookies.full and not self._reserve:
                self._bookies.has_room(s.bookie.bookie_id for s in self._slots if not s.failed)
            self._listener.ledger_confirmed(self.ledger_id, last_confirmed)
        if self._waiting:
            self._wake()

    def _quorum_confirmed(self) -> int:
        slots, quorum = self._slots, self._ack_quorum
        if not self._striped:
            if len(slots) == 1:
                return slots[0].confirmed
            return sorted([slot.confirmed for slot in slots], reverse=True)[quorum - 1]
        size, end = len(slots), self.last_pushed
        for residue in range(size):
            holders = [slots[(residue + i) % size].confirmed for i in range(self._write_quorum)]
            confirmed = sorted(holders, reverse=True)[quorum - 1]
            # The first entry of this residue that is neither below the LAC nor confirmed.
            start = max(confirmed, self.last_confirmed) + 1
            end = min(end, start + (residue - start) % size - 1)
        return end

    def _forget_confirmed(self) -> None:
        runs, last_confirmed = self._unconfirmed, self.last_confirmed
        while runs:
            run = runs[0]
            count = last_confirmed - run.first_entry_id + 1
            if count < len(run.payloads):
                if count > 0:
                    size = sum(map(len, run.payloads[:count]))
                    if self._kept is not None:
                        self._keep(run.part(0, count, 0), size)
                    runs[0] = run = run.part(count, len(run.payloads), size)
                self.length = run.preceding_bytes
                return
            runs.popleft()
            if self._kept is not None:
                self._keep(run, sum(map(len, run.payloads)))
        self.length = self.pushed_length

    def _keep(self, run: EntryRun, size: int) -> None:
        assert self._kept is not None
        self._kept.append(run)
        self._kept_bytes += size
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._kept = None

    def _is_drained(self, everywhere: bool) -> bool:
        if self._change is not None or self.last_confirmed < self.last_pushed:
            return False
        return not everywhere or all(
            slot.failed or slot.confirmed >= self._last_of(slot) for slot in self._slots
        )

    def _last_of(self, slot: _Slot) -> int:
        """The last entry sent that belongs to this slot; -1 if none does."""
        if not self._striped:
            return self.last_pushed
        size = len(self._slots)
        for entry_id in range(self.last_pushed, max(self.last_pushed - size, -1), -1):
            if (slot.index - entry_id) % size < self._write_quorum:
                return entry_id
        return -1

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _slot_failed(self, slot: _Slot, error: BaseException) -> None:
        if isinstance(error, LedgerFencedError):
            self._fail(error)
            return
        slot.failed = True
        # What it confirmed above the LAC no longer counts: it leaves the ensemble.
        slot.confirmed = -1
        self._bookies.failed(slot.bookie.bookie_id, error)
        self._failure = error if isinstance(error, StorageError) else StorageError(str(error))
        if self._change is not None:
            return
        if self._bookies.spare([slot.bookie.bookie_id for slot in self._slots]) is not None:
            self._change = unattended(
                self._change_ensemble(), f"ledger {self.ledger_id}: an ensemble change"
            )
        elif self._quorum_lost():
            self._fail(self._failure)
        elif self._waiting:
            self._wake()

    def _quorum_lost(self) -> bool:
        size = len(self._slots)
        return any(
            sum(not self._slots[(residue + i) % size].failed for i in range(self._write_quorum))
            < self._ack_quorum
            for residue in range(size)
        )

    def _fail(self, error: StorageError) -> None:
        self.error = error
        self._wake()
        self._listener.ledger_failed(self.ledger_id, error)

    async def _change_ensemble(self) -> None:
        """Put spares into the slots of failed bookies until none fails or none is left."""
        error: StorageError | None = None
        try:
            while replacements := self._replacements():
                await self._install(replacements)
        except StorageError as e:
            error = e
        except MetadataError as e:
            error = StorageError(f"ledger {self.ledger_id}: the ensemble change failed: {e}")
        except Exception as e:  # a defect; appends must not wait for ever
            log.exception("ledger %d: the ensemble change failed", self.ledger_id)
            error = StorageError(f"ledger {self.ledger_id}: the ensemble change failed: {e!r}")
        finally:
            self._change = self._kept = None
        if self.error is not None:
            return
        if error is None and self._quorum_lost():
            error = self._failure
        if error is not None:
            self._fail(error)
        else:
            self._advance()

    def _replacements(self) -> dict[int, Bookie]:
        ids = [slot.bookie.bookie_id for slot in self._slots]
        found: dict[int, Bookie] = {}
        for slot in self._slots:
            if slot.failed and self.error is None:
                spare = self._bookies.spare(ids)
                if spare is None:
                    break
                found[slot.index] = spare
                ids.append(spare.bookie_id)
        return found

    async def _install(self, replacements: dict[int, Bookie]) -> None:
        ids = tuple(replacements.get(slot.index, slot.bookie).bookie_id for slot in self._slots)
        while self._kept is None and self.error is None:
            first = self.last_confirmed + 1
            self._kept, self._kept_bytes = deque(), 0
            await self._propose(Ensemble(first, self.length, ids))
        if self.error is not None:
            return
        assert self._kept is not None
        for index, bookie in replacements.items():
            slot = self._slots[index] = _Slot(index, bookie, first - 1)
            for run in (*self._kept, *self._unconfirmed):
                self._send(slot, run)
        self._kept = None

    async def _propose(self, ensemble: Ensemble) -> None:
        """Return once it is the last one; what was confirmed meanwhile may be kept or not."""
        if self._recovery:
            # It comes true only with the close; see there.
            self.metadata = self.metadata.with_ensemble(ensemble)
            return
        change = decisions.change_ensemble(self.metadata.ensembles[-1], ensemble)
        while self.error is None:
            try:
                await self._decide(change)
            except MetadataRefusedError:
                raise
            except MetadataError as e:
                if self._closing or self._quorum_lost():
                    raise
                problem = f"ledger {self.ledger_id}: cannot replace a bookie yet: {e}"
                owner = self.metadata.config.owner or "of nobody"
                self._bookies.troubles.tell(owner, problem)
                await asyncio.sleep(CHANGE_RETRY_SECONDS)
            else:
                return

    async def _decide(self, decide: Decision) -> None:
        try:
            self._stored = await self._store.update(self._stored, decide)
        except OwnershipLostError as e:
            if self._recovery:
                raise  # a fence would have it recovered again
            raise LedgerFencedError(f"ledger {self.ledger_id}: {e}") from e
        self.metadata = self._stored.metadata
