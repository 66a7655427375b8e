"""The compacted form of a topic: which ledger it is, and how the next one takes its place."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from pulsark.errors import PulsarkError
from pulsark.limits import COMPACTED_HOLD_SECONDS
from pulsark.storage.managed_ledger.compacted_ledger import CompactedLedger, CompactedLedgerWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.runtime import Clock
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.managed_ledger.changes import Changes
    from pulsark.storage.managed_ledger.compacted_ledger import CompactedTo
    from pulsark.storage.managed_ledger.last_ledger import LastLedger
    from pulsark.storage.managed_ledger.owned_record import OwnedRecord


class CompactedForm:
    """The compacted form of one managed ledger.

    A ledger with readers is retained for ``COMPACTED_HOLD_SECONDS`` after it was asked
    for, also when another one has taken its place; a restart ends that.
    """

    def __init__(
        self,
        stored: OwnedRecord,
        manager: LedgerManager,
        changes: Changes,
        last: LastLedger,
        clock: Clock,
    ) -> None:
        self._stored = stored
        self._manager = manager
        self._changes = changes
        self._last = last
        self._clock = clock
        self._retained_until: dict[int, float] = {}
        self._unfinished: set[int] = set()
        """Ledgers to be removed that are still being written."""

    @property
    def to(self) -> CompactedTo | None:
        """Where it is, and how far it goes."""
        return self._stored.now.compacted

    def open(self) -> CompactedLedger | None:
        """For reading."""
        return None if self.to is None else CompactedLedger(self._manager, self.to.ledger_id)

    def retain(self, ledger_id: int) -> CompactedLedger | None:
        """A compacted form, the present one or one that is retained; it is retained from now on.

        ``None`` if it is there no more.
        """
        if not self._is_retained(ledger_id) and (self.to is None or self.to.ledger_id != ledger_id):
            return None
        now = self._clock.monotonic()
        self._retained_until = {i: at for i, at in self._retained_until.items() if at > now}
        self._retained_until[ledger_id] = now + COMPACTED_HOLD_SECONDS
        return CompactedLedger(self._manager, ledger_id)

    def is_used(self, ledger_id: int) -> bool:
        """Whether a ledger that is to be removed is still read, or being written."""
        return ledger_id in self._unfinished or self._is_retained(ledger_id)

    def _is_retained(self, ledger_id: int) -> bool:
        return self._retained_until.get(ledger_id, 0.0) > self._clock.monotonic()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[CompactedLedgerWriter]:
        """A ledger for another compacted form. It goes, unless ``set`` names it.

        The record has it as one to be removed before anything is in it. So whatever happens to
        the writer, to ``set`` or to its answer, the record alone says what it is.
        """
        (ledger_id,) = await self._manager.new_ids(1)
        self._unfinished.add(ledger_id)
        try:
            writer = await self._changes.order(lambda: self._begin(ledger_id))
            try:
                yield writer
            finally:
                writer.abandon()
        finally:
            # If this is refused, the topic's next owner sweeps it.
            with suppress(PulsarkError):
                await self._changes.order(lambda: self._finish(ledger_id), terminated=True)

    async def _begin(self, ledger_id: int) -> CompactedLedgerWriter:
        await self._stored.save(self._stored.now.with_removing({ledger_id}))
        config = self._last.config.ledger_config(self._stored.path)
        return await CompactedLedgerWriter.open(self._manager, config, ledger_id)

    async def _finish(self, ledger_id: int) -> None:
        """Behind ``set``, if that was called. What is to be removed is swept now."""
        self._unfinished.discard(ledger_id)

    async def set(self, compacted: CompactedTo, *, at_once: bool = False) -> None:
        """From now on this is the topic's compacted form, durably; the one before is removed.

        Its ledger comes from ``write``. ``at_once``: the one before goes even if it is retained,
        and so do earlier ones.
        """

        async def save() -> None:
            await self._stored.save(self._stored.now.with_compacted(compacted))
            if at_once:
                self._retained_until.clear()

        await self._changes.order(save)
