"""On which storage roots sealed ledgers are, and when a root that was filled counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.errors import StorageError
from pulsark.metadata.paths import TABLES, topic_below, topics_path
from pulsark.metadata.records import InUseError, InvalidResourceError
from pulsark.storage.table.root_identity import storage_root_of
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.storage.table.files.record import SealedLedger
    from pulsark.storage.table.repair import Copy, LogState
    from pulsark.storage.table.tables import Tables

FILES_A_PAGE: Final = 20_000
"""Files of which one answer tells; a table is always whole in one."""

PAGE_SECONDS: Final = 10.0
"""Time after which an answer ends: who asks does not wait much longer, and there may be very many
tables, or an object store with milliseconds for each file."""


@dataclass(frozen=True, slots=True)
class TableCopies:
    """One table: its ledgers, and by directory how each of their files is there, in their order."""

    name: TopicName
    ledgers: list[SealedLedger]
    directories: Sequence[str]
    """Where it is."""
    wanted: Sequence[str]
    """Where it should be: on as many of the broker's roots as are configured."""
    states: Mapping[str, list[Copy]]
    """The copies in all of these directories."""
    logs: Mapping[str, LogState]
    """By directory where it is: how its log is there."""


class SealedCopies:
    """Looks at the roots of all tables of a broker."""

    def __init__(
        self,
        clock: Clock,
        metadata: MetadataStore,
        resources: Resources,
        tables: Tables,
        topic_tables: TopicTables,
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._resources = resources
        self._topic_tables = topic_tables
        self._tables = tables

    async def roots(self) -> dict[str, str]:
        """The storage roots, and why one is refused, or an empty text."""
        roots = self._tables.roots.paths
        return {root: await self._tables.roots.problem(root) for root in roots}

    async def page(
        self, names: Sequence[TopicName], after: str = ""
    ) -> tuple[list[TableCopies], str]:
        """Tables in the order of their names, those ``after`` a name; the last name, if there may
        be more. Without ``names`` all tables."""
        found: list[TableCopies] = []
        files, begun = 0, self._clock.monotonic()
        async for name in self._names(names, after):
            table = await self._table(name)
            if table is not None:
                found.append(table)
                files += sum(len(ledger.files) for ledger in table.ledgers)
            if files >= FILES_A_PAGE or self._has_taken_long(begun):
                return found, str(name)
        return found, ""

    async def put_in_service(self, root: str, after: str = "") -> tuple[int, str]:
        """A root that was refused has all its files again: it counts.

        The logs of its tables are completed first, of those ``after`` a name. Returns how many, and
        the last name if there may be more: to be asked for then, or the root does not count.
        ``InUseError`` if a file is missing.
        """
        if root not in self._tables.roots.paths:
            raise InvalidResourceError(
                f"root: {root} is not one of {', '.join(self._tables.roots.paths)}"
            )
        tables, begun = 0, self._clock.monotonic()
        async for name in self._names((), after):
            record = await self._tables.record(name)
            for directory in record.roots if record is not None else ():
                if storage_root_of(directory) == root:
                    async with self._topic_tables.exclusively(name):
                        await self._catch_up(name, directory)
                    tables += 1
            if self._has_taken_long(begun):
                return tables, str(name)
        await self._tables.roots.put_in_service(root)
        return tables, ""

    def _has_taken_long(self, begun: float) -> bool:
        return self._clock.monotonic() - begun >= PAGE_SECONDS

    async def _catch_up(self, name: TopicName, directory: str) -> None:
        try:
            await self._tables.catch_up(name, directory)
        except StorageError as e:
            raise InUseError(str(e)) from e

    async def place(self, name: TopicName, directories: Sequence[str]) -> None:
        """A table is where it should be from now on; all its files are there.

        ``InUseError`` if it should be elsewhere by now, or lacks files: look again.
        """
        async with self._topic_tables.exclusively(name):
            record = await self._tables.record(name)
            if record is None or directories != await self._tables.roots.wanted(record):
                raise InUseError(f"{name} should not be in {', '.join(directories)}")
            try:
                await self._tables.place(name, directories)
            except StorageError as e:
                raise InUseError(str(e)) from e

    async def _table(self, name: TopicName) -> TableCopies | None:
        record = await self._tables.record(name)
        if record is None:
            return None
        wanted = await self._tables.roots.wanted(record)
        ledgers = [ledger for ledger in await self._tables.ledgers(name) if ledger.files]
        ledgers.sort(key=lambda ledger: ledger.ledger_id)
        files = [file for ledger in ledgers for file in ledger.files]
        everywhere = [*record.roots, *(d for d in wanted if d not in record.roots)]
        return TableCopies(
            name,
            ledgers,
            record.roots,
            wanted,
            await self._tables.roots.copies(everywhere, files),
            await self._tables.roots.logs(record),
        )

    async def _names(self, names: Sequence[TopicName], after: str) -> AsyncIterator[TopicName]:
        """Topics ``after`` a name that may have a table, in the order of their names."""
        if names:
            for name in sorted(names, key=str):
                if str(name) > after:
                    yield name
            return
        resources = self._resources
        namespaces = [
            n for t in await resources.tenants.list() for n in await resources.namespaces.list(t)
        ]
        # As they stand in names: "a/b-c/" is before "a/b/".
        for namespace in sorted(namespaces, key=lambda namespace: f"{namespace}/"):
            children = await self._metadata.children(topics_path(TABLES, namespace))
            for full_name in sorted(topic_below(namespace, child) for child in children):
                if full_name > after:
                    yield TopicName.parse(full_name)
