"""Ledgers: append-only lists of entries, each with one writer and copies on several bookies."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING

from pulsark.errors import (
    BadVersionError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OwnershipLostError,
    StorageError,
)
from pulsark.storage.bookie.bookie import Bookie, LedgerTail
from pulsark.storage.bookie.records import is_lost
from pulsark.storage.ledger.answers import is_absent
from pulsark.storage.ledger.bookies import LedgerBookies, Shortage
from pulsark.storage.ledger.copies import PATIENCE_SECONDS, Copies
from pulsark.storage.ledger.metadata import (
    Ensemble,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
)
from pulsark.storage.ledger.open_ledgers import ClosedLedgers, OpenLedgers
from pulsark.storage.ledger.recovery import recover_ledger
from pulsark.storage.ledger.sealed_through import Entries, SealedEntries, SealedThrough
from pulsark.storage.ledger.store import LedgerStore, MetadataLedgerStore
from pulsark.storage.ledger.writer import LedgerListener, LedgerWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
    from pulsark.storage.ledger.placement import Places

__all__ = [
    "LedgerConfig",
    "LedgerListener",
    "LedgerManager",
    "LedgerMetadata",
    "LedgerState",
    "LedgerWriter",
    "SealedEntries",
    "Shortage",
]

log = logging.getLogger(__name__)


class LedgerManager:
    """Creates, reads, recovers and deletes ledgers over a metadata store and bookies.

    ``store``: where the metadata of ledgers are, if not in the metadata store. ``places``: which
    of the bookies can be written, and their racks, if that makes a difference. ``patience``: the
    seconds after which a read that a bookie has not answered asks another one, too; 0 for never.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        bookies: Mapping[str, Bookie],
        runtime: Runtime,
        sealed: SealedEntries | None = None,
        *,
        store: LedgerStore | None = None,
        places: Places | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._sealed = sealed
        self._in_table = None if sealed is None else SealedThrough(sealed)
        self._metadata = metadata
        self._store: LedgerStore = MetadataLedgerStore(metadata) if store is None else store
        self._bookies = LedgerBookies(bookies, runtime, places)
        self.shortage = self._bookies.shortage
        """Whether a ledger lacks copies."""
        self.is_full, self.try_full = self._bookies.is_full, self._bookies.try_full
        """Whether bookies have no room for entries; and that there may be room again."""
        self.troubles = self._bookies.troubles
        """Told of what fails with ledgers that are written."""
        self._clock = runtime.clock
        self.open_ledgers = OpenLedgers()
        self._bookies.on_lost(self.open_ledgers.bookie_lost)
        self._closed = ClosedLedgers()
        self._copies = Copies(metadata, self._store, self._bookies, self._closed, patience)

    def over(self, metadata: MetadataStore) -> LedgerManager:
        """The same ledgers; what is written of them goes to a view of the metadata store."""
        view = copy(self)
        view._metadata = metadata  # noqa: SLF001 - it is one of this class
        view._store = self._store.over(metadata)  # noqa: SLF001
        return view

    @property
    def has_owner(self) -> bool:
        """Whether ``check_owner`` can tell who is the owner."""
        return self._store.has_owner

    async def check_owner(self) -> None:
        """Raise ``LedgerFencedError`` if what is written through this view has another owner."""
        try:
            await self._store.check_owner()
        except OwnershipLostError as error:
            raise LedgerFencedError(str(error)) from error

    @property
    def bookies(self) -> Mapping[str, Bookie]:
        """Those that ledgers can be on, by id; they may change."""
        return self._bookies.by_id

    @property
    def bookie_count(self) -> int:
        """Bookies that ledgers can be on."""
        return self._bookies.count

    def flush(self) -> None:
        """What was appended so far need not wait for more of this turn of the loop."""
        self._bookies.flush()

    async def create(
        self, config: LedgerConfig, listener: LedgerListener, *, ledger_id: int | None = None
    ) -> LedgerWriter:
        """A new ledger with an id that was never used, open for the returned writer.

        ``ledger_id`` is one from ``new_ids``, for a ledger that is listed before it exists. With
        fewer bookies than the ensemble needs it has fewer copies, but an ack quorum. If too
        many bookies are away they are waited for: a ledger whose first append fails is of no use.
        """
        config = self._bookies.attainable(config)
        ensemble = self._bookies.choose(config)
        await self._bookies.wait_for(config.ack_quorum, ensemble)
        if ledger_id is None:
            ledger_id = await self._store.new_id()
        metadata = LedgerMetadata(
            ledger_id,
            config,
            LedgerState.OPEN,
            (Ensemble(0, 0, tuple(bookie.bookie_id for bookie in ensemble)),),
            self._clock.now_ms(),
        )
        with _fenced_if_lost(ledger_id):
            stored = await self._store.create(metadata)
        writer = LedgerWriter(stored, ensemble, self._store, listener, self._bookies)
        self.open_ledgers.add(writer)
        return writer

    async def new_ids(self, count: int) -> list[int]:
        """Ids of ledgers that were never used, ascending."""
        return [await self._store.new_id() for _ in range(count)]

    async def add_sealed(self, ledger_id: int, owner: str, entries: int, length: int) -> None:
        """Let there be a closed ledger whose entries are in the table of ``owner``'s topic."""
        metadata = LedgerMetadata(
            ledger_id,
            LedgerConfig(owner=owner),
            LedgerState.CLOSED,
            (),
            self._clock.now_ms(),
            entries - 1,
            length,
        )
        await self._store.create(metadata)

    async def take_up(
        self, ledger_id: int, owner: str, entries: int, length: int
    ) -> LedgerMetadata:
        """Let there be a ledger again of which the table of ``owner``'s topic has ``entries``.

        If bookies know of it, it is open, on all that do: a recovery, which asks each of them,
        finds where it ends. Else it has no more than the table. One that is there stays as it is.
        """
        holders = []
        for bookie in self._bookies.all():
            if await bookie.tail(ledger_id, fence=False) != LedgerTail(-1, -1):
                holders.append(bookie.bookie_id)
        if not holders:
            with suppress(BadVersionError):
                await self.add_sealed(ledger_id, owner, entries, length)
            return await self.open(ledger_id)
        count = len(holders)
        metadata = LedgerMetadata(
            ledger_id,
            # With an ack quorum of one nothing is absent as long as one of them has it.
            LedgerConfig(count, count, 1, owner=owner),
            LedgerState.OPEN,
            (Ensemble(0, 0, tuple(holders)),),
            self._clock.now_ms(),
        )
        with suppress(BadVersionError):
            await self._store.create(metadata)
        return await self.open(ledger_id)

    async def open(self, ledger_id: int) -> LedgerMetadata:
        """A ledger as the metadata store knows it; ``NoSuchLedgerError`` if it does not."""
        cached = self._closed.get(ledger_id)
        if cached is not None:
            return cached
        found = await self._store.get(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return self._closed.remember(found.metadata)

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence and close a ledger at its true end; see ``recovery``. Closed ones are kept."""
        self._forget(ledger_id)
        with _fenced_if_lost(ledger_id):
            metadata = await recover_ledger(ledger_id, self._store, self._bookies)
        return self._closed.remember(metadata)

    async def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, confirmed: int = -1
    ) -> Entries:
        """Entries from ``first`` on, without gaps, up to ``last``, the ledger's end or its LAC.

        ``confirmed``: the caller knows that entries up to this one are confirmed; without it,
        only those entries of another process's ledger are read that its bookies know of.

        At least one if there is one at ``first``, further ones up to about ``max_bytes``; it may
        end earlier. Any copy serves. Errors, if none does: ``EntrySealedError``,
        ``CorruptEntryError`` (a copy is damaged), ``NoSuchEntryError`` (all are sure),
        ``UnreadableTableError`` (so are all bookies, and the table has lost it),
        ``NoSuchLedgerError``, ``StorageError``.
        """
        metadata, end = await self._readable(ledger_id, confirmed)
        last = min(last, end)
        if first > last or first < 0:
            return []
        if metadata.is_attached:
            return await self._read_sealed(metadata, first, last, max_bytes)
        through = -1 if self._in_table is None else await self._in_table.of(metadata)
        if first <= through:
            try:
                return await self._read_sealed(metadata, first, min(last, through), max_bytes)
            except NoSuchEntryError as e:
                raise EntrySealedError(f"{ledger_id}:{first} is not in its table: {e}") from e
        last = min(last, metadata.ensemble_at(first)[1])
        try:
            return await self._copies.read(metadata, first, last, max_bytes)
        except StorageError as e:
            if self._sealed is None:
                raise
            try:
                return await self._read_sealed(metadata, first, last, max_bytes)
            except NoSuchEntryError as unknown:
                if isinstance(e, EntrySealedError):
                    raise EntrySealedError(f"{e}; {unknown}") from None
                raise e from None  # what is not sealed is as the bookies say
            except StorageError as f:
                # Only if bookies are sure that they have none, it is as the table says.
                raise f if is_absent(e) else e from f

    async def excerpt(self, ledger_id: int, first: int, last: int) -> JournalExcerpt | None:
        """Where some of these entries lie, ``first`` among them, in a journal of this machine.

        They have to be confirmed. ``None``: they can be ``read`` at most.
        """
        metadata, end = await self._readable(ledger_id, last)
        config = metadata.config
        if metadata.is_attached or config.ensemble_size > config.write_quorum or first > end:
            return None
        ensemble, ensemble_end = metadata.ensemble_at(first)
        last = min(last, end, ensemble_end)
        for bookie_id in self._copies.in_order(metadata, ensemble, first):
            if self._bookies.is_suspect(bookie_id):
                continue
            found = await self._bookies.get(bookie_id).excerpt(ledger_id, first, last)
            if found is not None:
                return found
        return None

    async def sealed_through(self, ledger_id: int) -> int:
        """The last entry of a ledger that lives in its topic's table; -1 without one."""
        if self._sealed is None:
            return -1
        metadata = await self._metadata_of(ledger_id)
        return await self._sealed.sealed_through(metadata.config.owner, ledger_id)

    async def release(self, ledger_id: int, through: int) -> None:
        """The entries up to ``through`` live in the table: bookies may forget them, durably.

        Raises ``StorageError`` if a bookie could not be told; then it is to be called again.
        """
        metadata = await self._metadata_of(ledger_id)
        if self._in_table is not None:
            self._in_table.raised(ledger_id, through)
        errors = await self._tell(metadata, lambda bookie: bookie.release(ledger_id, through))
        if self._in_table is not None:
            self._in_table.told(ledger_id, frozenset(errors))
        for error in errors.values():
            raise error

    async def recycle(self) -> tuple[int, list[str]]:
        """Bookies keep no bytes of what was released or deleted.

        Returns how many files stay all the same, and the bookies that could not be told now, or
        were not told of something that was released.
        """
        files, behind = 0, set(() if self._in_table is None else self._in_table.untold)
        for bookie_id in self._bookies.ids:
            try:
                files += await self._bookies.get(bookie_id).recycle()
            except StorageError as e:
                log.warning("bookie %s cannot free disk space yet: %s", bookie_id, e)
                behind.add(bookie_id)
        return files, sorted(behind)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger from its bookies and then from the metadata; no error if it is gone.

        Raises ``StorageError`` if a bookie could not be told; then it is to be called again.
        """
        self._forget(ledger_id)
        try:
            metadata = await self.open(ledger_id)
        except NoSuchLedgerError:
            return
        self._closed.forget(ledger_id)
        for error in (await self._tell(metadata, lambda bookie: bookie.delete(ledger_id))).values():
            raise error
        if self._in_table is not None:
            self._in_table.forget(ledger_id)
        await self._store.delete(ledger_id)

    async def _tell(
        self, metadata: LedgerMetadata, tell: Callable[[Bookie], Awaitable[None]]
    ) -> dict[str, StorageError]:
        """Tell every bookie that may hold entries; returns why some could not be told.

        One that is lost for good has none any more.
        """
        errors = {}
        for bookie_id in metadata.bookie_ids():
            try:
                await tell(self._bookies.get(bookie_id))
            except StorageError as e:
                if bookie_id in self._bookies or not await is_lost(bookie_id, self._metadata):
                    errors[bookie_id] = e
        return errors

    def _forget(self, ledger_id: int) -> None:
        self._closed.forget(ledger_id)
        writer = self.open_ledgers.pop(ledger_id)
        if writer is not None and not writer.metadata.is_closed:
            writer.abandon()

    async def _read_sealed(
        self, metadata: LedgerMetadata, first: int, last: int, max_bytes: int
    ) -> Entries:
        if self._sealed is None:
            raise StorageError(f"ledger {metadata.ledger_id} is in a table, and there are none")
        return await self._sealed.read_of(
            metadata.config.owner, metadata.ledger_id, first, last, max_bytes
        )

    async def _metadata_of(self, ledger_id: int) -> LedgerMetadata:
        writer = self.open_ledgers.get(ledger_id)
        return writer.metadata if writer is not None else await self.open(ledger_id)

    async def _readable(self, ledger_id: int, confirmed: int) -> tuple[LedgerMetadata, int]:
        """A ledger, and the last entry of it that exists."""
        metadata = self._closed.get(ledger_id)
        if metadata is None:
            writer = self.open_ledgers.get(ledger_id)
            if writer is not None:
                self._closed.remember(writer.metadata)
                return writer.metadata, writer.last_confirmed
            metadata = await self.open(ledger_id)
        if metadata.is_closed:
            return metadata, metadata.last_entry_id
        return metadata, confirmed if confirmed >= 0 else await self._copies.stored_end(metadata)


@contextmanager
def _fenced_if_lost(ledger_id: int) -> Iterator[None]:
    """Who lost the bundle is as good as fenced: nothing that is tried again can help."""
    try:
        yield
    except OwnershipLostError as error:
        raise LedgerFencedError(f"ledger {ledger_id}: {error}") from error
