"""Reads entries from whichever bookie has a copy.

A bookie that has not answered within the patience is not given up, but another one is asked beside
it, and the first answer counts. So one that hangs, or reads from a slow disk, delays a read by the
patience, and not by the time after which its connection is given up. For a while it is then asked
last.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, NoSuchEntryError, StorageError
from pulsark.storage.bookie.records import is_lost
from pulsark.storage.ledger.answers import consecutive, gravest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.ledger.bookies import LedgerBookies
    from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata
    from pulsark.storage.ledger.open_ledgers import ClosedLedgers
    from pulsark.storage.ledger.sealed_through import Entries
    from pulsark.storage.ledger.store import LedgerStore

PATIENCE_SECONDS: Final = 1.0
"""How long one bookie is waited for alone."""


class Copies:
    """The copies of ledgers on bookies."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: LedgerStore,
        bookies: LedgerBookies,
        closed: ClosedLedgers,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """With a patience of 0, a bookie is asked only when the one before has failed."""
        self._metadata = metadata
        self._store = store
        self._bookies = bookies
        self._closed = closed
        self._patience = patience

    async def read(
        self, metadata: LedgerMetadata, first: int, last: int, max_bytes: int
    ) -> Entries:
        """Entries without gaps from ``first`` on, at least that one; all in one ensemble.

        From bookies that the metadata name now, if none of those that were known has it. The
        gravest of their errors, if none of these has.
        """
        ensemble, _ = metadata.ensemble_at(first)
        if metadata.config.ensemble_size > metadata.config.write_quorum and last > first:
            found = await self._read_striped(metadata, ensemble, first, last, max_bytes)
            if found:
                return found

        async def ask(bookie_id: str) -> Entries | StorageError:
            return await self._ask(bookie_id, metadata.ledger_id, first, last, max_bytes)

        names = self.in_order(metadata, ensemble, first)
        try:
            return await _first_of(names, ask, self._patience, self._bookies.was_slow)
        except StorageError:
            repaired = await self._repaired(metadata)
            if repaired is None:
                raise
        return await self.read(repaired, first, last, max_bytes)

    async def stored_end(self, metadata: LedgerMetadata) -> int:
        """What another owner's open ledger has confirmed, as far as its bookies know.

        Those that do not answer within the patience are left out, unless none has answered. So are
        those that were slow lately, unless they answer before the others.
        """
        ensemble = metadata.ensembles[-1]
        asked: dict[asyncio.Future[int | StorageError], str] = {
            asyncio.ensure_future(self._tail(name, metadata.ledger_id)): name
            for name in ensemble.bookies
        }
        answered: set[asyncio.Future[int | StorageError]] = set()
        pending = set(asked)
        try:
            quick = [task for task in asked if not self._bookies.is_slow(asked[task])]
            answered, late = await asyncio.wait(quick or asked, timeout=self._patience or None)
            for task in late:
                self._bookies.was_slow(asked[task])
            pending -= answered
            while pending and not any(isinstance(task.result(), int) for task in answered):
                more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                answered |= more
        finally:
            for task in pending:
                task.cancel()
        found = [task.result() for task in asked if task.done() and not task.cancelled()]
        ends = [end for end in found if isinstance(end, int)]
        if not ends:
            raise gravest([error for error in found if isinstance(error, StorageError)])
        return max(ensemble.first_entry_id - 1, *ends)

    async def _tail(self, bookie_id: str, ledger_id: int) -> int | StorageError:
        try:
            tail = await self._bookies.get(bookie_id).tail(ledger_id, fence=False)
        except StorageError as e:
            return e
        return tail.last_confirmed

    def in_order(
        self, metadata: LedgerMetadata, ensemble: Ensemble, entry_id: int
    ) -> Sequence[str]:
        """The holders of an entry, those that were slow lately behind others, and last those that
        failed.

        Ledgers start with different holders, which spreads reads, and each with one, which
        keeps them sequential.
        """
        holders = metadata.holders(ensemble, entry_id)
        if len(holders) == 1:
            return holders
        start = metadata.ledger_id % metadata.config.ensemble_size
        slots = {name: index for index, name in enumerate(ensemble.bookies)}
        size, bookies = len(ensemble.bookies), self._bookies
        return sorted(
            holders,
            key=lambda name: (
                bookies.is_suspect(name),
                bookies.is_slow(name),
                (slots[name] - start) % size,
            ),
        )

    async def _ask(
        self, bookie_id: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries | StorageError:
        """The entries, at least one, or why there are none."""
        try:
            bookie = self._bookies.get(bookie_id)
            found = consecutive(await bookie.read(ledger_id, first, last, max_bytes), first)
        except StorageError as e:
            return await self._unless_lost(bookie_id, e)
        return found or NoSuchEntryError(f"{bookie_id} does not hold {ledger_id}:{first}")

    async def _unless_lost(self, bookie_id: str, error: StorageError) -> StorageError:
        """Why a bookie could not be read; one that is lost for good has no entry any more."""
        if bookie_id in self._bookies:
            return error
        try:
            lost = await is_lost(bookie_id, self._metadata)
        except MetadataError:
            return error
        return NoSuchEntryError(f"bookie {bookie_id} is lost for good") if lost else error

    async def _repaired(self, known: LedgerMetadata) -> LedgerMetadata | None:
        """A ledger whose copies are on other bookies by now.

        Also one that is written here: auto-recovery repairs all its ensembles but the last.
        """
        try:
            stored = await self._store.get(known.ledger_id)
        except MetadataError:
            return None
        if stored is None or stored.metadata.ensembles in (known.ensembles, ()):
            return None
        return self._closed.remember(stored.metadata)

    async def _read_striped(
        self,
        metadata: LedgerMetadata,
        ensemble: Ensemble,
        first: int,
        last: int,
        max_bytes: int,
    ) -> Entries:
        """What the fewest bookies that together hold all entries have, merged; may be empty."""
        config = metadata.config
        names = ensemble.bookies[:: config.write_quorum]
        merged: dict[int, bytes] = {}
        for name in names:
            if self._bookies.is_slow(name):
                continue
            try:
                async with asyncio.timeout(self._patience or None):
                    found = await self._bookies.get(name).read(
                        metadata.ledger_id, first, last, max(max_bytes // len(names), 1)
                    )
            except TimeoutError:
                self._bookies.was_slow(name)
                continue
            except StorageError:
                continue  # the entries it lacks end the run; another copy serves those
            merged.update(found)
        return consecutive(sorted(merged.items()), first)


async def _first_of(
    names: Sequence[str],
    ask: Callable[[str], Awaitable[Entries | StorageError]],
    patience: float,
    was_slow: Callable[[str], None],
) -> Entries:
    """The first entries that one of these bookies has; the gravest error, once none has any."""
    errors: list[StorageError] = []
    if len(names) == 1 or not patience:  # without tasks
        for name in names:
            answer = await ask(name)
            if not isinstance(answer, StorageError):
                return answer
            errors.append(answer)
        raise gravest(errors)
    left = list(reversed(names))
    asked: dict[asyncio.Future[Entries | StorageError], str] = {}
    try:
        while left or asked:
            if left:
                name = left.pop()
                asked[asyncio.ensure_future(ask(name))] = name
            answered, _ = await asyncio.wait(
                asked,
                timeout=patience if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not answered:
                for name in asked.values():
                    was_slow(name)
            for task in [task for task in asked if task in answered]:
                del asked[task]
                answer = task.result()
                if not isinstance(answer, StorageError):
                    return answer
                errors.append(answer)
    finally:
        for task in asked:
            task.cancel()
    raise gravest(errors)
