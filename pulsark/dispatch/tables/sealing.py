"""Moving messages of topics from the journal into their tables.

What is due of one table (``sealing_due``) is sealed and attached at once. After the attach the
journal releases the entries. Loaded topics have their turn in ``rounds``, others in
``upkeep.unloaded_sealing``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.loop.chores import Chore
from pulsark.dispatch.tables.apart_sealing import ApartSealing
from pulsark.dispatch.tables.everywhere import Everywhere
from pulsark.dispatch.tables.journal_release import JournalRelease
from pulsark.dispatch.tables.listed_ledgers import ListedLedgers
from pulsark.dispatch.tables.progress import SealingProgress
from pulsark.dispatch.tables.rejoining import Rejoining
from pulsark.dispatch.tables.repairs import TableRepairs
from pulsark.dispatch.tables.rounds import SealingRounds, TableFailures
from pulsark.dispatch.tables.sealing_due import ATTACH_BYTES, CHECK_SECONDS, Due, first_of
from pulsark.dispatch.tables.table_waits import CrowdedTables, Leases, ReadTables, TidyQueue
from pulsark.errors import (
    CrowdedTableError,
    DamagedLogError,
    OlderMetadataError,
    PulsarkError,
    SealedApartError,
    StorageError,
)
from pulsark.storage.table.range_reader import RangeReader
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.attach_for_others import AttachForOthers
    from pulsark.dispatch.tables.far_tables import FarTables
    from pulsark.dispatch.tables.part_works import PartWorks
    from pulsark.dispatch.tables.sealed_copies import SealedCopies
    from pulsark.dispatch.tables.sealing_jobs import SealingJobs
    from pulsark.dispatch.tables.tidying import Tidying
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.topic_tables import TopicTables
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.files.record import OthersCommit
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.table_writer import TableWriter
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableState:
    """A topic's table: its directories, the primary first, and what its files hold."""

    directories: tuple[str, ...]
    files: int
    rows: int
    size: int
    """Bytes of the files on one root."""
    others: tuple[OthersCommit, ...] = ()
    """What another engine has written to its log, one commit a root."""


TRIMMED_SECONDS = 10.0
"""Time that a request waits until the rows that it trimmed have left the table."""

ADOPTION_SAID_SECONDS = 30.0
"""Time between two lines that say how far the adoption of tables is."""


class Sealing:
    """Seals what the policies ask for; one table after the other."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        metadata: MetadataStore,
        storage: GuardedStorage,
        resources: Resources,
        ledgers: LedgerManager,
        tables: Tables,
        topic_tables: TopicTables,
        catalog: TopicCatalog,
        topics: Topics,
        ownership: Ownership,
        far: FarTables,
        policies_of: Callable[[TopicName], Awaitable[TopicPolicies]],
    ) -> None:
        clock = self._clock = runtime.clock
        self._sure_clock = runtime.sure_clock
        self._settings = settings
        self._topics = topics
        self._catalog = catalog
        self._tables = tables
        self.topic_tables = topic_tables
        self._metadata = metadata
        self._resources = resources
        self._ownership = ownership
        self.far = far
        self._policies_of = policies_of
        self._adopting: asyncio.Task[None] | None = None
        self._is_ready = False
        self._trimmed: dict[TopicName, Topic] = {}
        """Tables that trimmed rows are to leave now, with any partition that was trimmed."""
        self._trimming: dict[TopicName, asyncio.Task[None]] = {}
        self._failures = TableFailures()
        self.apart = tables.processes.apart
        self._apart_sealing = ApartSealing(self.apart, self._failures)
        self._tidy_queue = TidyQueue(clock)
        self._crowded = CrowdedTables(clock, self._tidy_queue)
        self._release = JournalRelease(ledgers, clock)
        self.source = RangeReader(ledgers)
        self.leases = Leases(clock)
        self.reads = ReadTables(settings, clock)
        self._progress = SealingProgress(tables, self._release, self.reads, self._tidy_queue)
        self.rounds = SealingRounds(
            settings, clock, topics, self._progress, self.leases, self._crowded,
            self._tidy_queue, self._failures, lambda: settings.sealByJobs,
            self.seal, self.tidy, self._apart_sealing, topic_tables.is_busy,
        )  # fmt: skip
        self._rejoining = Rejoining(runtime, storage, topics)
        self.everywhere = Everywhere(resources, catalog, far, lambda: self.part_works)
        self.repairs = TableRepairs(
            settings, tables, topic_tables, self.source, self.everywhere, self._repaired
        )
        topic_tables.on_end = self._deleted
        topic_tables.existing_far = far.existing

    # -- what few brokers are asked for; an idle one has nothing of it ---

    @cached_property
    def jobs(self) -> SealingJobs:
        """Sealing by Spark."""
        from pulsark.dispatch.tables.sealing_jobs import SealingJobs

        return SealingJobs(self._resources, self._topics, self, self._tables, self.topic_tables)

    @cached_property
    def copies(self) -> SealedCopies:
        """On which roots tables are."""
        from pulsark.dispatch.tables.sealed_copies import SealedCopies

        return SealedCopies(
            self._clock, self._metadata, self._resources, self._tables, self.topic_tables
        )

    @cached_property
    def for_others(self) -> AttachForOthers:
        """What other brokers have attached here."""
        from pulsark.dispatch.tables.attach_for_others import AttachForOthers

        return AttachForOthers(
            self._metadata, self._resources, self._ownership, self._tables, self.topic_tables,
            self._tidy_queue, self._crowded,
        )  # fmt: skip

    @cached_property
    def part_works(self) -> PartWorks:
        """What is done in partitions of this broker for tables of others, and its own."""
        from pulsark.dispatch.tables.erasing_here import ErasingHere
        from pulsark.dispatch.tables.part_works import PartWorks

        erasing = ErasingHere(
            self._clock, self._metadata, self._ownership, self._topics, self, self.far.is_live
        )
        return PartWorks(
            self._ownership, self._topics, self._rejoining, self._progress, self.leases,
            self._tidy_queue, erasing,
        )  # fmt: skip

    @cached_property
    def _tidying(self) -> Tidying:
        from pulsark.dispatch.tables.tidying import Tidying

        return Tidying(
            self._settings, self._clock, self._sure_clock, self._metadata, self._topics,
            self._tables, self.source.entries, self._are_shared, self.rounds.is_short,
        )  # fmt: skip

    # -- tables ---

    async def table(self, base: TopicName) -> TableState | None:
        """Where the table of a topic is and what it has; ``None`` without one."""
        record = await self._tables.record(base)
        if record is None:
            return None
        files = rows = size = 0
        async for sealed in self._tables.each_ledger(base):
            files += len(sealed.files)
            rows += sum(file.rows for file in sealed.files)
            size += sum(file.size for file in sealed.files)
        return TableState(record.roots, files, rows, size, record.others)

    def shown(self, base: TopicName) -> dict[str, Any]:
        """Return what statistics say of a topic's sealing, if there is anything unusual."""
        shown: dict[str, Any] = {}
        if refused := self._tables.processes.refused.of(str(base)):
            shown["payloadsBeyondBounds"] = refused
        if base in self.apart:
            found = self.apart.get(base)
            shown["apart"] = True
            if found is not None:
                shown["reason"] = found.reason
                shown["endedProcesses"] = found.deaths
                shown["retryInSeconds"] = math.ceil(self.apart.seconds_to_wait(base))
        if (damage := self.damaged_logs.get(base)) is not None:
            shown["damagedLog"] = damage
        return {"sealing": shown} if shown else {}

    @property
    def damaged_logs(self) -> Mapping[TopicName, str]:
        """Topics that are not sealed because the logs of their tables are damaged."""
        return self._failures.damaged

    def start(self) -> None:
        """Begin with what is done once. The rest is a chore."""
        if self.repairs.adopts:
            self._adopting = unattended(
                self._adopt_all(), "comparing tables with the metadata store"
            )

    def chore(self) -> Chore:
        """With ``sealByJobs`` this process tidies, and seals only unloaded topics."""
        return Chore("sealing", CHECK_SECONDS, self._round, first_seconds=0.0)

    def tidy_soon(self, base: TopicName) -> None:
        """Have a table tidied in the next round."""
        self._tidy_queue.soon(base)

    async def drop_trimmed(self, topic: Topic) -> None:
        """Take the rows of trimmed ledgers out of a topic's table, as far as that is quick.

        What takes longer goes on, and what fails is tried again by a round.
        """
        base = topic.name.base
        self._tidy_queue.soon(base)
        self._trimmed[base] = topic
        if base not in self._trimming:
            task = unattended(self._drop_trimmed(base), f"{base}: removing trimmed rows")
            self._trimming[base] = task
        await asyncio.wait([self._trimming[base]], timeout=TRIMMED_SECONDS)

    async def _drop_trimmed(self, base: TopicName) -> None:
        try:
            # Partitions that are trimmed meanwhile are not seen by a look that has begun.
            while (topic := self._trimmed.pop(base, None)) is not None:
                await self._failures.attempt(base, self.tidy(base, [topic]))
        finally:
            del self._trimming[base]

    async def close(self) -> None:
        """End, once the chore does. What was decided is finished by the table's next owner."""
        if "part_works" in vars(self):
            await self.part_works.erasing.close()
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.wait([self._adopting])
        self._trimmed.clear()
        if self._trimming:
            await asyncio.wait(list(self._trimming.values()))
        await self._apart_sealing.close()
        await self._tables.close()

    async def _round(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            try:
                await self.apart.load()
                await self._tables.get_ready()
            except PulsarkError as error:
                log.warning("cannot read sealed entries yet, trying again: %s", error)
        await self._release.tell_again()
        await self.rounds.run()

    async def _adopt_all(self) -> None:
        """Compare each table with what the metadata store knows; it changes only older ones.

        Each broker does it to tables of its own.
        """
        seen: set[TopicName] = set()
        begun = said = self._clock.monotonic()
        number = 0
        async for name in self._catalog.all_stored():
            base = name.base
            if name.partition >= 0:
                if base in seen:
                    continue
                seen.add(base)
            await self._failures.attempt(base, self._adopt_one(base))
            number += 1
            if self._clock.monotonic() - said >= ADOPTION_SAID_SECONDS:
                said = self._clock.monotonic()
                log.info("tables are compared with the metadata store: %d so far", number)
        seconds = self._clock.monotonic() - begun
        log.info("all %d topics' tables were compared in %.0f s", number, seconds)

    async def _adopt_one(self, base: TopicName) -> None:
        if await self.far.broker_of(base) is None:
            await self.repairs.adopt_if_older(base)

    def _deleted(self, base: TopicName) -> None:
        for kept in (self._crowded, self._failures, self._tidy_queue):
            kept.drop(base)
        if "_tidying" in vars(self):  # a deletion shall not wait for its import
            self._tidying.known.pop(base)

    def _repaired(self, base: TopicName) -> None:
        self._failures.drop(base)
        self._tidy_queue.later(base)

    @property
    def tables(self) -> Tables:
        """The tables of this broker's topics."""
        return self._tables

    async def staging(self, base: TopicName, table_id: str) -> tuple[list[str], int, ValueSchemas]:
        """Directories for the files of a bulk publish, how many are needed, and how to write."""
        found = await self._tables.publishing.staging(base, table_id)
        self._tidy_queue.later(base)
        return found

    def listed_ledgers(self, base: TopicName) -> ListedLedgers:
        """Which ledgers a topic has by now."""
        shared = self._are_shared()
        return ListedLedgers(self._metadata, self._topics, base, shared=shared)

    def _are_shared(self) -> bool:
        """Whether other brokers may own partitions of tables that this one has, or did just now."""
        return not self.far.is_alone or self.for_others.was_asked

    async def tidy(self, base: TopicName, topics: list[Topic]) -> None:
        """``Tidying`` of a table; ``topics`` is any partition of it, or none if others have all."""
        table_id = await self._table_id(base, topics)
        if table_id is None or await self.far.tidy(base, table_id):
            return
        async with self.topic_tables.exclusively(base):
            policies = topics[0].policies if topics else await self._policies_of(base)
            found = await self._tidying.tidy(base, table_id, policies)
            if found.more:
                self._tidy_queue.soon(base)
            elif found.later:
                self._tidy_queue.later(base)
        if found.error is not None:
            raise found.error

    async def _table_id(self, base: TopicName, topics: list[Topic]) -> str | None:
        if topics:
            return await self.topic_tables.id_for(topics[0])
        record = None if self.far.is_alone else await self._tables.record(base)
        return None if record is None else record.table_id

    # -- for jobs ---

    async def due(
        self, topics: list[Topic] | None, runner: str, *, everything: bool
    ) -> list[tuple[TopicName, dict[Topic, list[SealRange]]]]:
        """What is due of each table, in the order of its urgency; ``None``: of all loaded topics.

        What another job has already is left out. What this one had, it asks for anew: it died.
        """
        self.leases.drop_those_of(runner)
        now = self._clock.monotonic()
        work = [Due(t.name.base, [t], 0, now) for t in topics or ()]
        if topics is None:
            work = await self.rounds.look(now)
            work.sort(key=lambda table: -table.size)
        tables: dict[TopicName, dict[Topic, list[SealRange]]] = {}
        for table in work:
            if self.leases.is_lent(table.base):
                continue
            for topic in table.topics:
                if not topic.policies.sealing.enabled:
                    continue
                ranges = await self._progress.surely_due(topic, now, everything=everything)
                if ranges:
                    tables.setdefault(table.base, {})[topic] = ranges
        return list(tables.items())

    # -- sealing ---

    async def seal(
        self,
        base: TopicName,
        topics: list[Topic],
        *,
        everything: bool = False,
        again: bool = True,
    ) -> None:
        """Seal what is due of the given partitions of a topic; or all that there is.

        Entries are in the table and released by the journal when this returns. ``StorageError``
        or ``MetadataError``: not all of them yet.

        ``SealedApartError``: the topic made trouble, or ended a process not long ago. When all is
        to be sealed, that is tried ``again`` apart.
        """
        was_apart, deaths = base in self.apart, self.apart.deaths(base)
        if (seconds := self.apart.seconds_to_wait(base)) > 0:
            raise SealedApartError(
                f"sealing it ended {deaths} processes, so it waits for {seconds:.0f} s more"
            )
        try:
            await self._seal_exclusively(base, topics, everything)
        except SealedApartError:
            if was_apart or not (everything and again):
                raise
            await self.seal(base, topics, everything=True)
        finally:
            if was_apart:
                await self.apart.sealed(base, deaths)
            else:
                await self.apart.store(base)

    async def seal_unloaded(self, topic: Topic) -> None:
        """Seal all that a topic has, unless it is sealed apart: then that comes later."""
        base = topic.name.base
        if base in self.apart:
            seal = partial(self.seal, base, [topic], everything=True)
            self._apart_sealing.offer(base, "seal", seal)
        else:
            await self.seal(base, [topic], everything=True, again=False)

    async def _seal_exclusively(
        self, base: TopicName, topics: list[Topic], everything: bool
    ) -> None:
        async with self.topic_tables.exclusively(base):
            # Some may have been unloaded while this waited, and others have sealed them since.
            topics = [topic for topic in topics if everything or not topic.closed]
            topics = [await self._present(topic) for topic in topics]
            try:
                await self._seal_all(base, topics, everything)
            except CrowdedTableError:
                self._crowded.add(base)
                raise
            except DamagedLogError as error:
                self._failures.damaged[base] = str(error)
                raise
            except OlderMetadataError as error:
                if not self.repairs.may_adopt(base):
                    raise
                await self.repairs.adopt(base, error)
                topics = [await self._present(topic) for topic in topics]
                await self._seal_all(base, topics, everything)
            self._crowded.drop(base)
            self._failures.damaged.pop(base, None)

    async def _close_crowded(self, topic: Topic, ranges: list[SealRange]) -> None:
        """What ``Tidying`` does to open ledgers of this broker, it cannot do to those of others."""
        for ledger_id in {part.ledger_id for part in ranges}:
            info = topic.ledger.ledger(ledger_id)
            sealed = await self._tables.sealed(topic.name, ledger_id)
            if info is not None and info.open and sealed is not None:
                known = len(sealed.files) + len(sealed.left)
                if known > self._tables.limits.files_of_ledger and not topic.ledger.is_fenced:
                    await topic.ledger.close_ledger()

    async def _present(self, topic: Topic) -> Topic:
        return await self._topics.load(topic.name) if topic.closed else topic

    async def _seal_all(self, base: TopicName, topics: list[Topic], everything: bool) -> None:
        while await self._seal(base, topics, everything) and everything:
            pass

    async def _seal(self, base: TopicName, topics: list[Topic], everything: bool) -> bool:
        """One attach; whether there was anything to be sealed."""
        topics = [topic for topic in topics if not topic.closed]  # it may be deleted by now
        progress = self._progress
        now = self._clock.monotonic()
        found = [await progress.surely_due(topic, now, everything=everything) for topic in topics]
        if not any(found):
            return False
        before = self._tables.get(base)
        table_id = await self.topic_tables.id_for(topics[0])
        far = await self.far.writer(base, table_id, [topic.name for topic in topics])
        table: TableWriter = far or await self._tables.open(base, table_id)
        if table is not before:
            # Opening may have done what an owner before had only decided; another broker may, too.
            for topic in topics:
                await progress.look_up(topic)
        due = first_of(
            {topic: progress.due(topic, now, everything=everything) for topic in topics},
            ATTACH_BYTES,
        )
        try:
            await table.seal(
                [wanted for ranges in due.values() for wanted in ranges],
                self.source.entries,
                topics[0].policies.sealing.target_file_bytes,
                located=self.source.located,
                patient=not everything,
            )
        except StorageError:
            for topic in due:
                await progress.look_up(topic)  # some of it may be attached
            raise
        for topic, ranges in due.items():
            since = now if ranges else progress.waits_since(topic)
            await progress.attached(topic, [part.ledger_id for part in ranges], since=since)
            if far is not None:
                await self._close_crowded(topic, ranges)
        self._tidy_queue.later(base)
        return True
