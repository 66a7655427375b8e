"""What is stored of ledgers, and how it changes: the seam to a metadata store, or to BookKeeper's.

A ledger's metadata have more writers than its owner: whoever recovers it, and where ledgers live in
BookKeeper its auto-recovery, which changes earlier ensembles and even closes ledgers that are
written. So a version conflict says only that there is something newer to read. Every change is a
``Decision`` about what is stored now (``decisions``), made again after each conflict.

``ComparedLedgerStore`` has the rules for every store that can compare and set one value.
Implementations pass ``tests/contracts/test_ledger_store.py``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from pulsark.errors import (
    BadVersionError,
    MetadataError,
    MetadataRefusedError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    OwnershipLostError,
)
from pulsark.metadata.guarded import check_guard, is_guarded
from pulsark.metadata.paths import LEDGER_ID_COUNTER, ledger_path
from pulsark.metadata.store import ABSENT
from pulsark.storage.ledger.metadata import LedgerMetadata, decode_ledger_metadata

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore

_RETRY_SECONDS: Final = 0.5
_UNHEARD_ATTEMPTS: Final = 10
_CONFLICTS: Final = 1000


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger's metadata, and the version under which the store has them.

    ``kept`` is the store's own: what else it has of the ledger, and writes again with the metadata.
    """

    metadata: LedgerMetadata
    version: int
    kept: object = field(default=None, compare=False, repr=False)


Decision: TypeAlias = Callable[[LedgerMetadata], LedgerMetadata]
"""From what is stored to what is to be stored; equal to what it is given if nothing is to change.

Pure, and made anew for each state that is found, also for one that it brought about itself: the
answer to a write may be lost. What it raises ends the update."""


class LedgerStore(Protocol):
    """The metadata of ledgers. Versions are only compared by the store that gave them.

    Writes may also raise ``OwnershipLostError``, see ``over``, and ``OutcomeUnknownError``: the
    write was made, or not, or comes a little later.
    """

    async def new_id(self) -> int:
        """An id that no ledger ever had, above all before it."""

    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        """Store a new ledger durably; ``BadVersionError`` if another one has its id.

        Returns the metadata as they are stored; a store may add to them.
        """

    async def get(self, ledger_id: int) -> StoredLedger | None:
        """A ledger, or ``None``. ``MetadataError`` also if what is stored cannot be read."""

    async def update(self, known: StoredLedger, decide: Decision) -> StoredLedger:
        """Make a decision true, durably; returns what is stored then.

        ``known`` is what the caller read or wrote last. It may be old: then the decision is made
        again about what is found. The same after an answer that was lost; so a decision must
        recognise its own result. ``NoSuchLedgerError`` if the ledger is gone.
        """

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger, at any version; no error if it is gone."""

    async def check_owner(self) -> None:
        """Raise ``OwnershipLostError`` if this view may write no more (``over``)."""

    @property
    def has_owner(self) -> bool:
        """Whether ``check_owner`` can tell: this is a view with a guard."""

    def over(self, metadata: MetadataStore) -> LedgerStore:
        """The same ledgers, for one who writes metadata through this view of their store.

        If the view has a guard, a write holds only while the guard does: its check is part of the
        same commit where the store can do that. Otherwise it is checked before, after everything
        that the caller has read by then; a new owner may come in between. Such a write can still
        close or fence a ledger that the former owner knew, never one that the new owner made.
        """


class ComparedLedgerStore(ABC):
    """A ``LedgerStore`` over single values with compare-and-set: repeats and decides."""

    @abstractmethod
    async def get(self, ledger_id: int) -> StoredLedger | None: ...

    @abstractmethod
    async def put(self, metadata: LedgerMetadata, over: StoredLedger) -> StoredLedger:
        """Write in the place of what is ``over``, at its version, which may be ``ABSENT``.

        The outcomes are those of ``MetadataStore.put``.
        """

    def made(self, metadata: LedgerMetadata) -> StoredLedger:
        """A new ledger, not yet stored: its version is ``ABSENT``."""
        return StoredLedger(metadata, ABSENT)

    def is_own(self, made: StoredLedger, found: StoredLedger) -> bool:
        """Whether what is found is what this ``create`` stored, although no answer came."""
        return made.metadata == found.metadata

    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        made = self.made(metadata)
        unheard: MetadataError | None = None
        for _ in range(_UNHEARD_ATTEMPTS):
            if unheard is not None:
                await asyncio.sleep(_RETRY_SECONDS)
            try:
                return await self.put(metadata, made)
            except OwnershipLostError:
                raise
            except BadVersionError:
                found = None if unheard is None else await self.get(metadata.ledger_id)
                if found is None or not self.is_own(made, found):
                    raise
                return found
            except OutcomeUnknownError as error:
                unheard = error
            except MetadataRefusedError as error:
                if unheard is None:
                    raise
                raise OutcomeUnknownError(str(error)) from error
        assert unheard is not None
        raise unheard

    async def update(self, known: StoredLedger, decide: Decision) -> StoredLedger:
        ledger_id = known.metadata.ledger_id
        unheard = 0
        for _ in range(_CONFLICTS):
            wanted = decide(known.metadata)
            if wanted == known.metadata:
                return known
            try:
                return await self.put(wanted, known)
            except BadVersionError:
                pass
            except OutcomeUnknownError:
                unheard += 1
                if unheard == _UNHEARD_ATTEMPTS:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            found = await self.get(ledger_id)
            if found is None:
                raise NoSuchLedgerError(f"ledger {ledger_id} is gone")
            known = found
        raise MetadataError(f"the metadata of ledger {ledger_id} change all the time")


class MetadataLedgerStore(ComparedLedgerStore):
    """Ledgers as JSON in our own metadata store (``docs/formats/ledger.md``)."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def new_id(self) -> int:
        return await self._metadata.next_id(LEDGER_ID_COUNTER)

    async def get(self, ledger_id: int) -> StoredLedger | None:
        found = await self._metadata.get(ledger_path(ledger_id))
        if found is None:
            return None
        return StoredLedger(decode_ledger_metadata(ledger_id, found.value), found.version)

    async def put(self, metadata: LedgerMetadata, over: StoredLedger) -> StoredLedger:
        path = ledger_path(metadata.ledger_id)
        version = await self._metadata.put(path, metadata.encode(), over.version)
        return StoredLedger(metadata, version)

    async def delete(self, ledger_id: int) -> None:
        try:
            await self._metadata.delete(ledger_path(ledger_id))
        except BadVersionError:
            return  # another broker has deleted it

    async def check_owner(self) -> None:
        await check_guard(self._metadata)

    @property
    def has_owner(self) -> bool:
        return is_guarded(self._metadata)

    def over(self, metadata: MetadataStore) -> MetadataLedgerStore:
        return MetadataLedgerStore(metadata)
