"""The record of a table, as its owner has it: only it changes it, by compare-and-set.

With it go the documents of sealed ledgers, which say the same of one ledger each.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import (
    BadVersionError,
    CrowdedTableError,
    LedgerFencedError,
    MetadataError,
    MetadataRefusedError,
    NotAttachedError,
    OwnershipLostError,
    StorageError,
    TableTakenError,
)
from pulsark.metadata.changes import Put
from pulsark.metadata.paths import TABLES, sealed_ledger_path, topic_at
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.table.files.record import (
    DataFile,
    Intent,
    OthersCommit,
    SealedLedger,
    TableRecord,
    ledgers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.changes import Check
    from pulsark.storage.table.files.table_limits import TableLimits

log = logging.getLogger(__name__)

DOUBT_SECONDS = 1.0
DOUBT_ATTEMPTS = 10
"""How often the outcome of an intent is asked for before its ledgers are left in doubt."""

LEDGERS_A_TURN = 64
"""Documents that are read before the event loop does other work."""


class OwnedTableRecord:
    """``record`` is the table as it is now, and ``path`` where its record is."""

    def __init__(
        self,
        path: str,
        record: TableRecord,
        version: int,
        metadata: MetadataStore,
        where: Callable[[str], str],
        limits: TableLimits,
        touched: Callable[[Iterable[int]], None],
    ) -> None:
        """``touched`` hears of ledgers whose documents are about to change."""
        self.path = path
        self.record = record
        self._version = version
        self._metadata = metadata
        self._where = where
        self._limits = limits
        self._touched = touched
        self._doubtful = False
        """Whether the outcome of a write of the record is unknown."""

    @property
    def changed(self) -> str:
        """What is said when another engine has written to the table's log."""
        topic = topic_at(TABLES, self.path)
        newest = max(self.record.others, key=lambda found: found.version)
        return (
            f"the table of {topic} was changed by another engine (commit {newest.version} in "
            f"{newest.directory} is {newest.what}): nothing of it is merged, removed or deleted "
            f"until you run: pulsark tables repair {topic}"
        )

    async def save(self, record: TableRecord, checks: Sequence[Check] = ()) -> None:
        """Replace the record, while ``checks`` hold: ``NotAttachedError`` if one does not.

        ``LedgerFencedError``: the table has another owner. ``TableTakenError``, which is one: and
        no earlier attempt to save anything is in doubt, so that this one certainly was not made.
        """
        value = record.encode()
        try:
            if checks:
                put = Put(self.path, value, self._version)
                self._version = (await self._metadata.commit((put, *checks)))[0]
            else:
                self._version = await self._metadata.put(self.path, value, self._version)
        except (BadVersionError, OwnershipLostError) as error:
            if isinstance(error, BadVersionError) and error.path != self.path:
                raise NotAttachedError(f"its writer owns it no more: {error}") from None
            if self._doubtful:
                raise self._fenced() from None
            raise TableTakenError(self._taken) from None
        except BaseException:  # a caller that is cancelled does not know either
            self._doubtful = True
            raise
        self.record, self._doubtful = record, False  # no earlier attempt can be made any more

    async def settle(self) -> None:
        """Find out what became of a write whose outcome is unknown."""
        if self._doubtful:
            await self._reload()

    async def _reload(self) -> None:
        """Another owner's version is told by its next write."""
        found = await self._metadata.get(self.path)
        if found is None or found.version not in (self._version, self._version + 1):
            raise self._fenced()
        self.record = TableRecord.decode(self.path, found.value).relocated(self._where)
        self._version = found.version
        self._doubtful = False

    async def check_owned(self) -> None:
        """``LedgerFencedError`` if the table has another owner by now."""
        found = await self._metadata.get(self.path)
        if found is None or found.version != self._version:
            raise self._fenced()

    @property
    def _taken(self) -> str:
        return f"table {self.record.table_id} has another owner"

    def _fenced(self) -> LedgerFencedError:
        return LedgerFencedError(self._taken)

    async def decide(self, record: TableRecord) -> bool:
        """Write the intent; whether it is there, which may take a while to find out.

        An error that leaves this open is raised. A write without an answer may still come after
        the record was read, so it is repeated, not asked for: all attempts expect one version, so
        one of them is made at most, however late.
        """
        attempts_left = DOUBT_ATTEMPTS
        while True:
            try:
                await self.save(record)
            except LedgerFencedError:
                if attempts_left in (DOUBT_ATTEMPTS, 0):
                    raise
                if await self._has_become(record):
                    return True
            except MetadataError as error:
                if attempts_left == DOUBT_ATTEMPTS and isinstance(error, MetadataRefusedError):
                    return False
                if not attempts_left:
                    raise
            else:
                return True
            attempts_left -= 1
            await asyncio.sleep(DOUBT_SECONDS)

    async def _has_become(self, record: TableRecord) -> bool:
        """Whether an earlier attempt to save a record was made; ``LedgerFencedError`` if another
        owner has written. False: what was read is older than that."""
        try:
            found = await self._metadata.get(self.path)
        except MetadataError:
            return False
        if found is not None and found.version == self._version:
            return False
        if found is None or found.version != self._version + 1 or found.value != record.encode():
            raise self._fenced()
        self.record, self._version, self._doubtful = record, found.version, False
        return True

    async def note(self, found: OthersCommit) -> None:
        """Remember that another engine has written, before anything is written behind it."""
        await self.save(self.record.with_others(found))
        log.warning("%s", self.changed)

    async def check(self, record: TableRecord) -> None:
        """``StorageError`` for an intent that could not be rolled forward."""
        assert record.intent is not None
        self.check_size(record.encode(), "the table record")
        for ledger_id, partition in ledgers_of(record.intent).items():
            sealed = await self.sealed(ledger_id) or SealedLedger(ledger_id, partition)
            after = sealed.with_intent(record.intent)
            if not after.is_whole():
                raise StorageError(
                    f"the files of ledger {ledger_id} would not follow each other: "
                    f"sealed through {sealed.through}"
                )
            self.check_size(after.encode(), f"the list of {len(after.files)} files of {ledger_id}")

    def check_size(self, document: bytes, what: str) -> None:
        """``CrowdedTableError`` for a document that would be too large."""
        if len(document) > self._limits.document_bytes:
            raise CrowdedTableError(
                f"table {self.record.table_id}: {what} would have {len(document)} bytes, and may "
                f"have {self._limits.document_bytes}; it goes on when files are merged and deleted"
            )

    async def sealed(self, ledger_id: int) -> SealedLedger | None:
        """Which files hold a ledger's entries; ``None`` if none of them is sealed."""
        return await read_sealed(self.path, ledger_id, self._metadata)

    async def files(self) -> list[DataFile]:
        """All files that the table has."""
        files: list[DataFile] = []
        for number, child in enumerate(await self._metadata.children(self.path), 1):
            if number % LEDGERS_A_TURN == 0:
                await asyncio.sleep(0)
            sealed = await self.sealed(int(child)) if child.isdigit() else None
            files += sealed.files if sealed is not None else ()
        return files

    async def document(self, ledger_id: int) -> tuple[SealedLedger, int] | None:
        """What is stored of a ledger, and its version in the metadata store."""
        path = sealed_ledger_path(self.path, ledger_id)
        found = await self._metadata.get(path)
        return None if found is None else (SealedLedger.decode(path, found.value), found.version)

    async def put(self, sealed: SealedLedger, version: int) -> None:
        """Replace what is stored of a ledger; nothing is stored of one that has no files.

        ``LedgerFencedError``: it has another version, so that the table has another owner.
        """
        try:
            await self._put(sealed, version)
        except (BadVersionError, OwnershipLostError):
            raise self._fenced() from None

    async def _put(self, sealed: SealedLedger, version: int) -> None:
        path = sealed_ledger_path(self.path, sealed.ledger_id)
        if sealed.files or sealed.left:
            await self._metadata.put(path, sealed.encode(), version)
        elif version != ABSENT:
            await self._metadata.delete(path, version)

    async def show(self, intent: Intent) -> None:
        """Bring the documents of all ledgers of an intent up to date.

        Each is written in its version that was read while the table was certainly this owner's:
        what another owner does to it comes later, and is not overwritten.
        """
        self._touched(ledgers_of(intent))
        for ledger_id, partition in ledgers_of(intent).items():
            shown = False
            while not shown:
                found = await self.document(ledger_id)
                await self.check_owned()
                before, version = found or (SealedLedger(ledger_id, partition), ABSENT)
                try:
                    await self._put(before.with_intent(intent), version)
                    shown = True
                except BadVersionError:
                    pass  # a stale owner rolled the same intent forward, or this is one

    async def take_up(self, found: SealedLedger, left: Sequence[str], now_ms: int) -> None:
        """Know of a ledger what a log says of it."""
        known = await self.document(found.ledger_id)
        before, version = known or (found, ABSENT)
        after = before.taking_up(found.files, left, now_ms)
        self.check_size(after.encode(), f"the list of files of {found.ledger_id}")
        await self.put(after, version)


async def read_sealed(path: str, ledger_id: int, metadata: MetadataStore) -> SealedLedger | None:
    """Which files hold a ledger's entries, for readers; ``path`` is that of the table record."""
    where = sealed_ledger_path(path, ledger_id)
    found = await metadata.get(where)
    return None if found is None else SealedLedger.decode(where, found.value)
