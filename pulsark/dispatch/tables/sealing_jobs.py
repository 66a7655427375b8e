"""Sealing by Spark jobs: the broker plans, the job writes files, the broker attaches them.

The broker is the only committer. What it hands out in a plan it leaves alone until the lease is
over, so that nothing is written twice; if it is all the same, the later attach is refused and its
files are deleted in time.

With several brokers each plans for partitions of its own, and one attaches the files of all: the
table's broker. It asks the owners how long their ledgers are, and under which claims they are
theirs; the intent is one commit with checks of these.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.tables.everywhere import HERE
from pulsark.dispatch.tables.far_tables import FILES_A_CALL
from pulsark.errors import NotAttachedError, PulsarkError
from pulsark.metadata.changes import Check
from pulsark.metadata.records import InUseError, InvalidResourceError
from pulsark.storage.table.files.table_limits import FILES_PER_ATTACH_MAX
from pulsark.storage.table.root_identity import storage_root_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.resources import Resources
    from pulsark.schemas.column_types import ColumnType
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.table.files.record import DataFile
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.table_writer import TableWriter
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

TABLES_A_PLAN_MAX: Final = 1000
"""Tables that one plan has at most; a job that is done asks for the next one."""

LEASE_SECONDS_MAX: Final = 3600.0
"""The longest time for which a job may have a table to itself."""

_path = re.compile(r"partition=(-1|\d{1,9})/ledger_id=(\d{1,19})/part-[-\w]{1,100}\.parquet")


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Entries that one task seals. ``attempt`` goes into the names of the files."""

    name: TopicName
    topic_id: str
    wanted: SealRange
    attempt: str


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What is due of one table, and where its files go."""

    base: TopicName
    table_id: str
    roots: tuple[str, ...]
    roots_needed: int
    target_file_bytes: int
    values: ValueSchemas
    ranges: tuple[PlannedRange, ...]


class SealingJobs:
    """Plans and attaches for jobs."""

    def __init__(
        self,
        resources: Resources,
        topics: Topics,
        sealing: Sealing,
        tables: Tables,
        topic_tables: TopicTables,
    ) -> None:
        self._resources = resources
        self._topics = topics
        self._topic_tables = topic_tables
        self._sealing = sealing
        self._tables = tables

    async def plan(
        self,
        names: Sequence[TopicName],
        runner: str,
        *,
        everything: bool,
        lease_seconds: float,
        range_bytes: int,
    ) -> list[PlannedTable]:
        """What is due of some topics, or without names of all that are loaded.

        Only what is named is loaded. ``everything``: as far as it goes, and not what policies ask
        for. Topics whose sealing is off are left out, and so are, where all are asked for, those
        that cannot be planned for now. A range has about ``range_bytes`` at most.
        ``runner`` is the job that asks: its next run takes over what a run had that died.
        """
        topics: list[Topic] | None = [t for name in names for t in await self._load(name)]
        if not names:
            topics = self._topics.loaded() if everything else None
        found: list[PlannedTable] = []
        for base, due in await self._sealing.due(topics, runner, everything=everything):
            if len(found) == TABLES_A_PLAN_MAX:
                break
            try:
                found.append(await self._planned(base, due, range_bytes))
            except PulsarkError as error:
                if names:
                    raise
                log.warning("%s: left out of a plan of sealing: %s", base, error)
                continue
            self._sealing.leases.lend(base, runner, min(lease_seconds, LEASE_SECONDS_MAX))
        return found

    async def _load(self, name: TopicName) -> list[Topic]:
        """The partitions of this broker."""
        partitions = await self._resources.partitioned_topics.get(name)
        names = [name] if partitions is None else name.partitions(partitions.partitions)
        return [
            await self._topics.load(each, create=each.partition >= 0)
            for each in names
            if await self._sealing.far.broker_of(each) is None
        ]

    async def _planned(
        self, base: TopicName, due: dict[Topic, list[SealRange]], range_bytes: int
    ) -> PlannedTable:
        some = next(iter(due))
        table_id = await self._topic_tables.id_for(some)
        table: TableWriter
        if await self._sealing.far.broker_of(base) is None:
            table = await self._tables.open(base, table_id)
        else:
            table = await self._tables.elsewhere.writer(
                base, table_id, FILES_A_CALL, _attaches_none
            )
        record, processes = table.record, self._tables.processes
        return PlannedTable(
            base,
            table_id,
            tuple([d for d in record.roots if not await self._problem(d)]),
            self._tables.roots.needed(record),
            some.policies.sealing.target_file_bytes,
            await table.values(),
            tuple(
                PlannedRange(topic.name, topic.ledger.topic_id, piece, processes.new_attempt())
                for topic, ranges in due.items()
                for wanted in ranges
                for piece in wanted.cut(range_bytes)
            ),
        )

    async def _problem(self, directory: str) -> str:
        return await self._tables.roots.problem(storage_root_of(directory))

    async def attach(
        self,
        base: TopicName,
        table_id: str,
        files: Sequence[DataFile],
        value: ColumnType | None = None,
    ) -> int:
        """Make files part of a topic that a job wrote; returns the number of the attach.

        ``value`` is the type that the plan gave their values.
        Attaching the same files once more changes nothing. ``InvalidResourceError`` for files
        that cannot be right, ``InUseError`` if another change was faster. The lease is over.
        """
        if not files or len(files) > FILES_PER_ATTACH_MAX:
            raise InvalidResourceError(f"files: there are 1 to {FILES_PER_ATTACH_MAX} in an attach")
        self._sealing.leases.lend(base, "", 0)
        ledgers: dict[int, set[int]] = {}
        for file in files:
            check_path(file)
            ledgers.setdefault(file.partition, set()).add(file.ledger_id)
        everywhere = self._sealing.everywhere
        known = set(await everywhere.partitions(base))
        async with self._topic_tables.exclusively(base):
            if table_id != await self._topic_tables.id_of(base):
                raise InUseError(f"{base} was deleted and created again; plan anew")
            ends: dict[int, int] = {}
            claims: dict[str, int] = {}
            for partition in ledgers.keys() & known:
                (broker_id,) = await everywhere.places(base, [partition])
                what = {
                    "do": "ends",
                    "partitions": [partition],
                    "ledgers": sorted(ledgers[partition]),
                }
                told = await everywhere.do(broker_id, base, what)
                ends.update(told["ends"])
                if broker_id != HERE:  # this broker's own claims are checked with the table's
                    claims.update(told["claims"])
            for file in files:
                _check(file, ends.get(file.ledger_id, 0))
            table = await self._tables.open(base, table_id)
            if await are_new(self._tables, base, files):
                await table.attach(files, value, [Check(*claim) for claim in claims.items()])
        for partition in ledgers:
            what = {"do": "attached", "ledgers": sorted(ledgers[partition])}
            try:
                await everywhere.all(base, [partition], what)
            except PulsarkError as error:  # it finds out when it seals
                log.info(
                    "%s: the owner of partition %d does not answer: %s", base, partition, error
                )
        return (await self._tables.open(base, table_id)).record.attached


async def _attaches_none(_files: Sequence[DataFile], _value: ColumnType | None) -> None:
    """Who plans writes nothing."""
    raise NotAttachedError("a plan attaches nothing")


async def are_new(tables: Tables, base: TopicName, files: Sequence[DataFile]) -> bool:
    """False if the table has these files already; ``InUseError`` if it has others."""
    ends: dict[int, int] = {}
    known = []
    for file in files:
        sealed = await tables.sealed(base, file.ledger_id)
        if sealed is not None and any(file.path == other.path for other in sealed.files):
            known.append(file)
            continue
        through = ends.get(file.ledger_id, sealed.through if sealed is not None else -1)
        if file.first_entry_id != through + 1:
            raise InUseError(
                f"ledger {file.ledger_id} is sealed through {through}, and the next file "
                f"begins with {file.first_entry_id}; plan anew"
            )
        ends[file.ledger_id] = file.last_entry_id
    if known and len(known) < len(files):
        raise InUseError("some of the files are attached already; plan anew")
    return not known


def check_path(file: DataFile) -> None:
    """``InvalidResourceError`` unless a file is where those of its partition and ledger are."""
    found = _path.fullmatch(file.path)
    if found is None or (int(found[1]), int(found[2])) != (file.partition, file.ledger_id):
        raise InvalidResourceError(
            f"files: the path {file.path[:100]} is not partition=P/ledger_id=L/part-NAME.parquet "
            "of the file's own partition and ledger"
        )
    if file.size <= 0 or file.rows < 0:
        raise InvalidResourceError(f"files: {file.path} has {file.size} bytes, {file.rows} rows")


def _check(file: DataFile, entries: int) -> None:
    """``InvalidResourceError`` unless a file can be of a ledger of that length."""
    if not 0 <= file.first_entry_id <= file.last_entry_id < entries:
        raise InvalidResourceError(
            f"files: entries {file.first_entry_id} to {file.last_entry_id} of ledger "
            f"{file.ledger_id}: partition {file.partition} has {entries} there"
        )
