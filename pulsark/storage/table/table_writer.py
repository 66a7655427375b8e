"""Entries become files, and files part of a table, whoever commits to it.

That is the table's owner, in this process or in that of another broker, which is asked then.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pulsark.errors import UnsealableError
from pulsark.metadata.paths import table_path
from pulsark.runtime import run_in_worker
from pulsark.schemas.column_types import BINARY, ColumnType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.seal_attempts import SealAttempts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from pulsark.metadata.changes import Check
    from pulsark.storage.table.files.record import DataFile, RowChange, TableRecord
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.process.table_processes import EntriesOf, PiecesOf
    from pulsark.storage.table.table_parts import TableParts
    from pulsark.wire.topic_name import TopicName

T = TypeVar("T")


class Committer(Protocol):
    """Makes files part of a table, or has it done."""

    @property
    def record(self) -> TableRecord:
        """The table, as far as it is known."""

    async def attach(
        self,
        adds: Sequence[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        decided: Callable[[bool | None], Awaitable[None]] | None = None,
        checks: Sequence[Check] = (),
        change: RowChange | None = None,
    ) -> int:
        """As ``TableOwner.attach``."""

    async def remove_files(self, paths: Sequence[str]) -> None:
        """Delete files that are no part of the table."""


class TableWriter:
    """A table that files are written for."""

    def __init__(self, name: TopicName, committer: Committer, parts: TableParts) -> None:
        self.name = name
        self._committer = committer
        self._parts = parts
        self._disk = parts.files
        self._limits = parts.limits
        self._path = table_path(name)

    @property
    def record(self) -> TableRecord:
        """The table as it is now."""
        return self._committer.record

    def lose(self) -> None:
        """The present owner knows more: who needs the table again begins anew."""

    async def values(self) -> ValueSchemas:
        """With which schemas, and as which type, further files have their values."""
        schemas_of, record = self._parts.schemas_of, self.record
        if schemas_of is None or (record.attached and record.value == BINARY):
            return ValueSchemas()
        versions = await schemas_of(self.name)
        kind = record.value if record.attached else None
        known = self._parts.knows_format_3()
        return await self._run(lambda: ValueSchemas.next(kind, versions, known_to_all=known))

    async def seal(
        self,
        ranges: Sequence[SealRange],
        entries_of: EntriesOf,
        target_bytes: int,
        *,
        located: PiecesOf | None = None,
        patient: bool = False,
    ) -> None:
        """Seal entries of the topic's partitions, and attach them all at once.

        ``located`` may give excerpts; where they cannot be read, ``entries_of`` gives entries.
        What is ``patient`` is done while no other process wants the processor, unless that takes
        long.
        When this returns, they are in the table on as many roots as are needed, and the journal
        may release them; of a range for which there is no room, its beginning. ``StorageError``
        or ``MetadataError``: not yet; it may be tried again. A range that has an entry which cannot
        be sealed at all keeps no other out: its error comes when they are attached.
        """
        values = await self.values()
        unsealable: UnsealableError | None = None
        async with self._files() as adds:
            for wanted in ranges:
                try:
                    await self._seal(
                        adds, wanted, entries_of, target_bytes, values, located, patient
                    )
                except UnsealableError as e:
                    unsealable = e
                if len(adds) > self._limits.files_per_attach // 2:
                    await self._attach_all(adds, values.kind)
            await self._attach_all(adds, values.kind)
        if unsealable is not None:
            raise unsealable

    async def _run(self, action: Callable[[], T]) -> T:
        return await run_in_worker(self._parts.thread(), action)

    async def _seal(
        self,
        adds: list[DataFile],
        wanted: SealRange,
        entries_of: EntriesOf,
        target_bytes: int,
        values: ValueSchemas,
        located: PiecesOf | None = None,
        patient: bool = False,
        *,
        again: bool = False,
    ) -> None:
        """Add files with the entries of a range to a list; of its beginning if that is all."""
        roots, size = await self._parts.roots.with_room(self.record, wanted.size)
        needed = self._parts.roots.needed(self.record)

        async def attempt(part: SealRange, as_sent: bool) -> list[DataFile]:
            return await self._parts.processes.seal(
                part, roots, needed, target_bytes, values, entries_of, located, patient, as_sent,
                base=self.name,
                on_lost=None
                if again
                else partial(self._parts.lost.add, self.name, part.partition),
            )  # fmt: skip

        await SealAttempts(attempt, adds).seal(wanted.within(size))

    @asynccontextmanager
    async def _files(self) -> AsyncIterator[list[DataFile]]:
        """A list of files to be attached; those that are left in it in the end are deleted."""
        files: list[DataFile] = []
        try:
            yield files
        finally:
            if files:
                await self._committer.remove_files([file.path for file in files])

    async def _attach_all(self, adds: list[DataFile], value: ColumnType) -> None:
        while adds:
            await self._attach(adds, (), value, self._limits.files_per_attach)

    async def _attach(
        self,
        adds: list[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        most: int | None = None,
        checks: Sequence[Check] = (),
        change: RowChange | None = None,
    ) -> None:
        """Attach some of the files, and take them from the list once they may be attached."""
        new = adds[:] if most is None else adds[: self._fitting(adds, most)]

        async def decided(happened: bool | None) -> None:
            if happened is not False:
                del adds[: len(new)]

        try:
            await self._committer.attach(new, removes, value, decided, checks, change)
        except BaseException:
            # It may be decided. The table's next owner does it, and forgets what was known.
            self.lose()
            raise
        finally:
            changed = {file.ledger_id for file in (*new, *removes)}
            self._parts.ledgers.forget(self._path, changed)
            if removes:
                self._parts.ahead.forget(self._path, {file.ledger_id for file in removes})

    def _fitting(self, adds: Sequence[DataFile], most: int) -> int:
        """Return how many of the files one attach may have with their statistics; at least one."""
        room = self._limits.document_bytes // 2
        for number, file in enumerate(adds[:most]):
            room -= len(json.dumps(file.to_json()))
            if room < 0 and number:
                return number
        return most
