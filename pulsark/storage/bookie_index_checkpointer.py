"""Deciding when to checkpoint the index, and doing it beside the bookie's work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set

from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.storage.bookie_index import BookieIndex
from pulsark.storage.bookie_index_checkpoint import CHECKPOINT_NAME, CheckpointDraft, Place
from pulsark.storage.journal_settings import JournalSettings

log = logging.getLogger(__name__)

WORTH_AT_CLOSE_BYTES = 1 << 20


class Checkpointer:
    """Counts what the journal gained since the last checkpoint."""

    def __init__(
        self,
        index: BookieIndex,
        ledger_dir: str,
        instance_id: bytes,
        removing: Set[int],
        settings: JournalSettings,
        runtime: Runtime,
    ) -> None:
        self._index = index
        self._path = f"{ledger_dir}/{CHECKPOINT_NAME}"
        self._instance_id = instance_id
        self._removing = removing
        self._settings = settings
        self._disk = runtime.disk
        self._place = Place(0, 0)
        self._bytes = 0
        self._records = 0

    def journal_grew(self, place: Place, size: int, records: int) -> None:
        """The index now holds the journal up to ``place``, ``size`` bytes more than before."""
        self._place = place
        self._bytes += size
        self._records += records

    @property
    def due(self) -> bool:
        """Whether a start would have to read more than it should."""
        return (
            self._bytes >= self._settings.checkpoint_bytes
            or self._records >= self._settings.checkpoint_records
        )

    @property
    def worth_at_close(self) -> bool:
        """Whether a checkpoint now makes the next start quicker."""
        return self._bytes >= min(WORTH_AT_CLOSE_BYTES, self._settings.checkpoint_bytes)

    async def write(self, worker: Worker) -> None:
        """Write a checkpoint of the current place. A disk error is logged: the next one tries.

        Ledgers are encoded in slices, so that the loop is never held up for long.
        """
        self._bytes = self._records = 0
        place = self._place
        draft = CheckpointDraft(self._index, place, self._instance_id, self._removing)
        ids, a_turn = list(self._index.ledgers), self._settings.ledgers_a_turn
        for start in range(0, len(ids), a_turn):
            if start:
                await asyncio.sleep(0)
            ledgers = self._index.ledgers
            some = [ledgers[i] for i in ids[start : start + a_turn] if i in ledgers]
            draft.add(some)
        try:
            await run_in_worker(worker, lambda: self._disk.write_atomic(self._path, draft.finish()))
        except OSError as e:
            log.warning("checkpoint %s could not be written: %s", self._path, e)
            return
        self._index.checkpoint_written(place.segment_id)
