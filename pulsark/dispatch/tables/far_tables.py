"""Tables of topics whose partitions several brokers own.

All partitions of a topic share its table, and only the owner of the bundle of the topic itself, the
*table's broker*, commits to it. The owner of a partition writes Parquet files of what is confirmed
of it, and asks the table's broker to attach them. With each file it says under which claim of its
bundle it wrote: the intent is one commit with a check of that claim, beside the one of the table's
broker. So neither a stale owner of the partition nor one of the table can attach anything.

An answer may be lost. The writer then leaves its files alone, and looks up what the table has
before it seals anything more; the table's broker takes only files that begin where the table ends,
so that nothing is in it twice. Files that never were attached are deleted when they are old.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pulsark.dispatch.tables.far_partitions import PartitionCalls
from pulsark.errors import NotAttachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.topics.lookup import Lookup
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.changes import Check
    from pulsark.schemas.column_types import ColumnType
    from pulsark.storage.table.files.record import DataFile
    from pulsark.storage.table.table_writer import TableWriter
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

FILES_A_CALL = 64
"""Files that one call attaches: with their statistics it stays far below 1 MiB."""


@dataclass(frozen=True, slots=True)
class FarAttach:
    """What the owner of partitions asks of the table's broker. Without files: only to look whether
    something of the table is to be tidied."""

    base: TopicName
    table_id: str
    files: Sequence[DataFile] = ()
    value: ColumnType | None = None
    claims: Mapping[int, int] = field(default_factory=dict)
    """By partition: the version of the record of its bundle's claim."""


class TableCalls(Protocol):
    """Calls to the brokers of tables, by their ids. ``PulsarkError``: what came of one is not
    known, unless something else is said."""

    async def attach(self, broker_id: str, asked: FarAttach) -> None:
        """Attach files. ``NotAttachedError``: nothing of it happened, nor will."""

    async def existing(
        self, broker_id: str, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """The reserved ledgers of a partition that exist or ever will."""

    async def work(self, broker_id: str, base: TopicName, what: Mapping[str, Any]) -> Any:
        """Have the owner of partitions do something (``part_works``); returns what came of it."""


class CallsToOthers(TableCalls, PartitionCalls, Protocol):
    """All that brokers ask each other about tables."""


class FarTables:
    """What a broker has attached to tables of other brokers."""

    def __init__(
        self,
        registry: BrokerRegistry,
        ownership: Ownership,
        lookup: Lookup,
        tables: Tables,
        calls: Callable[[], CallsToOthers],
    ) -> None:
        self._registry = registry
        self._ownership = ownership
        self._lookup = lookup
        self._tables = tables
        self.calls = calls
        """Gives what calls other brokers, once there are some."""

    @property
    def is_alone(self) -> bool:
        """Whether no other broker is known."""
        return self._registry.is_alone

    @property
    def process(self) -> str:
        """Which process this is, for others."""
        return self._ownership.instance

    def is_gone(self, broker_id: str) -> bool:
        """Whether a broker lives no more."""
        return self._registry.get(broker_id) is None

    def is_live(self, process: str) -> bool:
        """Whether the process of a broker is there, as far as is known."""
        return process == self.process or any(
            live.instance == process for live in self._registry.live.values()
        )

    async def broker_of(self, base: TopicName) -> str | None:
        """Which broker has a topic's table, or a partition; ``None``: this one.

        If nobody has the topic's bundle, somebody is made to: then something of it is to be done.
        """
        if self.is_alone or self._ownership.has(await self._ownership.bundle_named(base)):
            return None
        found = await self._lookup.find(base)
        return None if found.is_here else found.broker_id

    async def writer(
        self, base: TopicName, table_id: str, partitions: Collection[TopicName]
    ) -> TableWriter | None:
        """For files of partitions that this broker owns; ``None``: it has the table itself."""
        broker_id = await self.broker_of(base)
        if broker_id is None:
            return None
        calls = self.calls()
        claims: dict[int, Check] = {}
        for name in partitions:
            claim = self._ownership.guard_of(await self._ownership.bundle_named(name))
            if claim is None:
                raise NotAttachedError(f"another broker serves {name} now")
            claims[name.partition] = claim

        async def ask(files: Sequence[DataFile], value: ColumnType | None) -> None:
            concerned = {file.partition: claims[file.partition] for file in files}
            versions = {number: claim.expected_version for number, claim in concerned.items()}
            asked = FarAttach(base, table_id, tuple(files), value, versions)
            try:
                await calls.attach(broker_id, asked)
            except NotAttachedError:
                for claim in concerned.values():  # nothing else tells who only seals
                    await self._ownership.doubt(claim)
                raise

        return await self._tables.elsewhere.writer(base, table_id, FILES_A_CALL, ask)

    async def tidy(self, base: TopicName, table_id: str) -> bool:
        """Tell another broker that something of its table may be to be tidied; ``False``: it is
        this broker's."""
        broker_id = await self.broker_of(base)
        if broker_id is None:
            return False
        await self.calls().attach(broker_id, FarAttach(base, table_id))
        return True

    async def existing(
        self, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int] | None:
        """``TopicTables.existing_far``."""
        broker_id = await self.broker_of(name.base)
        if broker_id is None:
            return None
        return await self.calls().existing(broker_id, name, table_id, ledger_ids)
