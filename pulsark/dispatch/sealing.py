"""Moving messages of topics from the journal into their tables.

One task looks at all loaded topics every so often; what is due of one table is sealed and attached
at once (``sealing_due``). After the attach the journal releases the entries. Topics that are not
loaded have their turn in ``sealing_unloaded``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from pulsark.dispatch.sealed_copies import SealedCopies
from pulsark.dispatch.sealing_due import (
    ATTACH_BYTES,
    SMALL_BYTES,
    due_ranges,
    first_of,
    in_order,
    may_wait,
)
from pulsark.dispatch.sealing_jobs import SealingJobs
from pulsark.dispatch.sealing_unloaded import UnloadedTopics
from pulsark.dispatch.tidying import Tidying
from pulsark.dispatch.turns import in_turns
from pulsark.errors import CrowdedTableError, PulsarkError, StorageError
from pulsark.limits import READS_PER_TURN_MAX
from pulsark.storage.ledger_record import managed_ledger_path
from pulsark.storage.managed_ledger import read_record
from pulsark.storage.position import Position
from pulsark.storage.table.seal_range import SealRange
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.loop_load import LoopLoad
    from pulsark.dispatch.policies import Sealing as SealingPolicy
    from pulsark.dispatch.topic import Topic
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.ledger_list import LedgerInfo
    from pulsark.storage.table.process import Entries, Piece
    from pulsark.storage.table.record import OthersCommit
    from pulsark.storage.table.table_repair import Repair
    from pulsark.storage.table.tables import Tables

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""Time between two looks at all topics."""

TIDY_SECONDS = 600.0
"""Time between two times that small files are merged and old ones deleted."""

READ_BYTES = 16 << 10
"""Entries that go to the table process at a time. What comes meanwhile waits for so many."""

REST_SECONDS = 0.002
"""Between two of them: the event loop is for clients."""

UNHURRIED_BYTES = 32 << 20
"""A range with more is what was left behind, and goes without rests."""

READ_SECONDS = 3600.0
"""A table counts as read for so long after somebody asked where it is."""

READ_TABLES_MAX = 10_000
"""Tables that can count as read at a time."""

TOPICS_A_TURN = 512
"""So many topics are looked at before the event loop does other work."""

LOOK_UP_SECONDS = 1.0
"""Time of a round after which topics that were loaded lately wait for the next one."""

SMALL_SECONDS = 1.0
"""Time of a round after which tables with little in them wait for the next one."""


class Progress:
    """What is known of a loaded topic."""

    __slots__ = ("first", "settled", "since", "through", "trimmed")

    def __init__(self) -> None:
        self.settled: Position | None = None
        """The topic's last entry, when all that there was had been sealed."""
        self.since: float | None = None
        """When entries were first seen that are not in the table."""
        self.first = 0
        """Ledgers with lower ids are in the table as a whole, and released."""
        self.through: dict[int, int] = {}
        """By ledger that is not: the last entry that is in the table and released by the journal,
        -1: none."""
        self.trimmed: Position | None = None
        """Up to where the topic was trimmed when it was last looked at."""

    def pass_over(self, ledgers: Iterable[LedgerInfo]) -> None:
        """Look no more at those at the beginning that are done with."""
        for info in ledgers:
            if info.open or self.through.get(info.ledger_id, -1) + 1 < info.entries:
                return
            self.first = info.ledger_id + 1
            self.through.pop(info.ledger_id, None)


@dataclass(slots=True)
class Due:
    """What is due of one table."""

    base: TopicName
    topics: list[Topic]
    size: int
    since: float


@dataclass(frozen=True, slots=True)
class TableState:
    """A topic's table: its directories, the primary first, and what its files hold."""

    directories: tuple[str, ...]
    files: int
    rows: int
    size: int
    """Bytes of the files on one root."""
    others: tuple[OthersCommit, ...] = ()
    """What somebody else has written to its log, one commit a root."""


class Loan(NamedTuple):
    """A table that a job has to itself."""

    runner: str
    until: float


class Sealing:
    """Seals what the policies ask for; one table after the other."""

    def __init__(self, broker: Broker, tables: Tables) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._tables = tables
        self._tasks: list[asyncio.Task[None]] = []
        self._progress: dict[Topic, Progress] = {}
        self._tidy_at: dict[TopicName, float] = {}
        """Tables that may have something to be tidied, and when they are looked at."""
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._complaints: dict[TopicName, str] = {}
        self._lent: dict[TopicName, Loan] = {}
        """Tables that a job has to itself."""
        self._read_until: OrderedDict[TopicName, float] = OrderedDict()
        """Tables that are read, and until when."""
        self._unreleased: dict[int, int] = {}
        """By ledger: up to where some bookie is still to be told that entries are in the table."""
        self._tell_at, self._tell_pause = 0.0, CHECK_SECONDS
        self._tidying = Tidying(broker, tables, self.entries)
        self.load: LoopLoad | None = None
        """While it says that clients keep the broker busy, sealing waits."""
        self.jobs = SealingJobs(broker, self, tables)
        self.copies = SealedCopies(broker, self, tables)

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

    def start(self) -> None:
        """Begin. With ``sealByJobs`` this process tidies, and seals only what nobody has loaded."""
        unloaded = UnloadedTopics(self._broker, self, self._tables)
        self._tasks = [
            asyncio.create_task(self._repeat()),
            asyncio.create_task(unloaded.repeat()),
        ]

    async def close(self) -> None:
        """End. What was decided is finished by the next owner of the table."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._tables.close()

    @property
    def tables(self) -> Tables:
        """The tables of this broker's topics."""
        return self._tables

    async def staging(self, base: TopicName, table_id: str) -> tuple[list[str], int, ValueSchemas]:
        """Directories for the files of a bulk publish, how many are needed, and how to write."""
        found = await self._tables.publishing.staging(base, table_id)
        self._tidy_later(base)
        return found

    async def existing(
        self, name: TopicName, topic_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """Those of a partition's reserved ledgers that exist: the table knows."""
        table_id = await self.table_id_of(name, topic_id)
        return await self._tables.publishing.existing(name, table_id, ledger_ids)

    async def forget(self, base: TopicName) -> None:
        """A topic was deleted with all its partitions: so is its table.

        Unless another topic has the name by now, and has its own: what was doomed goes later then.
        """
        async with self.exclusively(base):
            record = await self._tables.record(base)
            if record is None or not await self._has_table(base, record.table_id):
                await self._tables.delete(base)

    async def doom(self, base: TopicName) -> None:
        """A topic is about to be deleted: its table goes whatever happens from here on."""
        await self._tables.doomed.note(base)

    async def delete_doomed(self) -> None:
        """Go on with deletions of tables that were broken off, or could not reach a root."""
        for doomed in await self._tables.doomed.all():
            base = TopicName.parse(doomed.topic)
            async with self.exclusively(base):
                if not await self._has_table(base, doomed.table_id):
                    await self._tables.doomed.delete(doomed)

    async def _has_table(self, base: TopicName, table_id: str) -> bool:
        """Whether a table is that of a topic that exists."""
        parent = await self._broker.resources.partitioned_topics.get(base)
        if parent is not None and parent.topic_id == table_id:
            return True
        record = await read_record(managed_ledger_path(base), self._broker.metadata)
        return record is not None and record.topic_id == table_id

    def exclusively(self, base: TopicName) -> asyncio.Lock:
        """Held while a table is changed: what is read of it before holds until the attach."""
        lock = self._locks.get(base)
        if lock is None:
            lock = self._locks[base] = asyncio.Lock()
        return lock

    # -- rounds ---

    async def _repeat(self) -> None:
        try:
            await self._tables.get_ready()
        except PulsarkError as error:
            log.warning("sealed entries will be read later: %s", error)
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._round()
            except Exception:
                log.exception("a round of sealing was broken off")

    async def _round(self) -> None:
        await self._tell_bookies_again()
        started = self._clock.monotonic()
        small_had_a_turn = False
        due = await self._look(started)
        for work in () if self._broker.settings.sealByJobs else in_order(due):
            is_small = work.size < SMALL_BYTES
            if is_small and small_had_a_turn and self._clock.monotonic() - started > SMALL_SECONDS:
                break
            small_had_a_turn = is_small
            if self.load is not None and self.load.is_busy() and may_wait(work, started):
                continue
            await self._attempt(work.base, self.seal(work.base, work.topics))
        for base in [base for base, at in self._tidy_at.items() if at <= started]:
            del self._tidy_at[base]
            topic = next((t for t in self._progress if t.name.base == base and not t.closed), None)
            if topic is not None:
                await self._attempt(base, self.tidy(base, topic))

    async def _attempt(self, base: TopicName, work: Awaitable[None]) -> None:
        """Do something with a table; what fails is said once, and tried again."""
        try:
            await work
        except PulsarkError as error:
            if self._complaints.get(base) != str(error):
                self._complaints[base] = str(error)
                log.warning("%s stays in the journal for now: %s", base, error)
        except Exception:
            log.exception("%s is not sealed", base)
        else:
            self._complaints.pop(base, None)

    async def _look(self, now: float) -> list[Due]:
        """What is due of all loaded topics, but for those that a job has."""
        self._lent = {base: loan for base, loan in self._lent.items() if loan.until > now}
        loaded = self._broker.loaded_topics()
        if len(self._progress) > len(loaded):
            for gone in self._progress.keys() - set(loaded):
                del self._progress[gone]
        tables: dict[TopicName, Due] = {}
        for number, topic in enumerate(loaded, 1):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            if topic.closed or not topic.policies.sealing.enabled:
                continue
            if self._lent and topic.name.base in self._lent:
                continue
            progress = self._progress.get(topic)
            if progress is not None and progress.settled == topic.ledger.last_confirmed:
                if progress.trimmed != topic.ledger.trimmed:
                    self._trimmed(topic, progress)
                continue
            if progress is None:
                if not topic.ledger.entries or self._clock.monotonic() - now > LOOK_UP_SECONDS:
                    continue
                await self._look_up(topic)
            due = self._due(topic, now)
            if due:
                work = tables.setdefault(topic.name.base, Due(topic.name.base, [], 0, now))
                work.topics.append(topic)
                work.size += sum(wanted.size for wanted in due)
                work.since = min(work.since, self._progress[topic].since or now)
        return list(tables.values())

    def _due(self, topic: Topic, now: float, *, everything: bool = False) -> list[SealRange]:
        progress = self._progress[topic]
        last = topic.ledger.last_confirmed
        infos = topic.ledger.ledgers(progress.first)
        progress.pass_over(infos)
        infos = [info for info in infos if info.ledger_id >= progress.first]
        if all(progress.through.get(i.ledger_id, -1) + 1 >= i.entries for i in infos):
            progress.settled, progress.since = last, None
            return []
        if progress.since is None:
            progress.since = now
        if progress.trimmed != topic.ledger.trimmed:
            self._trimmed(topic, progress)
        return due_ranges(
            self._policy(topic, now),
            topic.name.partition,
            infos,
            progress.through,
            # A look more than that would be too late.
            now - progress.since + CHECK_SECONDS,
            everything=everything,
        )

    def is_read(self, base: TopicName) -> None:
        """Somebody asks where the table is: for an hour its rows are fresher."""
        self._read_until[base] = self._clock.monotonic() + READ_SECONDS
        self._read_until.move_to_end(base)
        while len(self._read_until) > READ_TABLES_MAX:
            self._read_until.popitem(last=False)

    def _policy(self, topic: Topic, now: float) -> SealingPolicy:
        policy = topic.policies.sealing
        if self._read_until.get(topic.name.base, 0.0) <= now:
            return policy
        return policy.when_read(self._broker.settings.sealFreshnessWhenReadSeconds)

    def _trimmed(self, topic: Topic, progress: Progress) -> None:
        """Rows of ledgers that are gone leave the table in time."""
        progress.trimmed = topic.ledger.trimmed
        for gone in [i for i in progress.through if topic.ledger.ledger(i) is None]:
            del progress.through[gone]
        self._tidy_later(topic.name.base)

    def _tidy_later(self, base: TopicName) -> None:
        self._tidy_at.setdefault(base, self._clock.monotonic() + TIDY_SECONDS)

    # -- for jobs ---

    def lend(self, base: TopicName, runner: str, seconds: float) -> None:
        """Leave a table to a job for a while; 0: no longer."""
        self._lent.pop(base, None)
        if seconds > 0:
            self._lent[base] = Loan(runner, self._clock.monotonic() + seconds)

    def is_lent(self, base: TopicName) -> bool:
        """Whether a job has a table to itself."""
        loan = self._lent.get(base)
        return loan is not None and loan.until > self._clock.monotonic()

    async def due(
        self, topics: list[Topic] | None, runner: str, *, everything: bool
    ) -> list[tuple[TopicName, dict[Topic, list[SealRange]]]]:
        """What is due of each table, in the order of its urgency; ``None``: of all loaded topics.

        What another job has already is left out. What this one had, it asks for anew: it died.
        """
        self._lent = {base: loan for base, loan in self._lent.items() if loan.runner != runner}
        now = self._clock.monotonic()
        work = [Due(t.name.base, [t], 0, now) for t in topics or ()]
        if topics is None:
            work = await self._look(now)
            work.sort(key=lambda table: -table.size)
        tables: dict[TopicName, dict[Topic, list[SealRange]]] = {}
        for table in work:
            if self.is_lent(table.base):
                continue
            for topic in table.topics:
                if not topic.policies.sealing.enabled:
                    continue
                if topic not in self._progress:
                    await self._look_up(topic)
                ranges = self._due(topic, now, everything=everything)
                if ranges:
                    tables.setdefault(table.base, {})[topic] = ranges
        return list(tables.items())

    async def attached(self, topic: Topic, ledger_ids: Iterable[int]) -> None:
        """A job's files of these ledgers are in the table: the journal releases their entries."""
        self._progress.setdefault(topic, Progress())
        for ledger_id in ledger_ids:
            await self._release(topic, ledger_id)
        self._progress[topic].since = None
        self._tidy_later(topic.name.base)

    # -- sealing ---

    async def seal(self, base: TopicName, topics: list[Topic], *, everything: bool = False) -> None:
        """Seal what is due of the given partitions of a topic; or all that there is.

        Entries are in the table and released by the journal when this returns. ``StorageError``
        or ``MetadataError``: not all of them yet.
        """
        async with self.exclusively(base):
            try:
                while await self._seal(base, topics, everything) and everything:
                    pass
            except CrowdedTableError:
                self._tidy_at[base] = 0.0  # now
                raise

    async def _seal(self, base: TopicName, topics: list[Topic], everything: bool) -> bool:
        """One attach; whether there was anything to be sealed."""
        for topic in topics:
            if topic not in self._progress:
                await self._look_up(topic)
        now = self._clock.monotonic()
        if not any(self._due(topic, now, everything=everything) for topic in topics):
            return False
        table_id = await self.table_id(topics[0])
        if await self._tables.open(base, table_id):
            # Opening may have done what an owner before had only decided.
            for topic in topics:
                await self._look_up(topic)
        due = first_of(
            {topic: self._due(topic, now, everything=everything) for topic in topics}, ATTACH_BYTES
        )
        try:
            await self._tables.seal(
                base,
                table_id,
                [wanted for ranges in due.values() for wanted in ranges],
                self.entries,
                topics[0].policies.sealing.target_file_bytes,
                located=self.located,
                patient=not everything,
            )
        except StorageError:
            for topic in due:
                await self._look_up(topic)  # some of it may be attached
            raise
        for topic, ranges in due.items():
            for wanted in ranges:
                await self._release(topic, wanted.ledger_id)
            self._progress[topic].since = now if ranges else self._progress[topic].since
        self._tidy_later(base)
        return True

    async def _look_up(self, topic: Topic) -> None:
        """What the table has of a topic's ledgers; the journal releases it."""
        progress = self._progress.setdefault(topic, Progress())
        progress.trimmed = topic.ledger.trimmed
        progress.first = max(progress.first, topic.ledger.unsettled_from)
        async for info in in_turns(topic.ledger.each_ledger(progress.first), READS_PER_TURN_MAX):
            await self._release(topic, info.ledger_id)
        if progress.first or any(through >= 0 for through in progress.through.values()):
            self._tidy_later(topic.name.base)

    async def _release(self, topic: Topic, ledger_id: int) -> None:
        """Let the journal forget what is in the table, once after each start and each attach."""
        sealed = await self._tables.sealed(topic.name, ledger_id)
        through = sealed.through if sealed is not None else -1
        known = self._progress[topic].through
        before = known.get(ledger_id, -1)
        known[ledger_id] = through  # so it is, whether all bookies hear of it or not
        if through > before:
            await self._tell_bookies(ledger_id, through)

    async def _tell_bookies(self, ledger_id: int, through: int) -> None:
        """Those that cannot be reached now are told later, or hear of it after their restart."""
        try:
            await self._broker.ledgers.release(ledger_id, through)
        except StorageError as error:
            log.debug("ledger %d is not released everywhere yet: %s", ledger_id, error)
            self._unreleased[ledger_id] = through

    async def _tell_bookies_again(self) -> None:
        now = self._clock.monotonic()
        if not self._unreleased or now < self._tell_at:
            return
        again, self._unreleased = self._unreleased, {}
        for ledger_id, through in again.items():
            await self._tell_bookies(ledger_id, through)
        self._tell_pause = min(2 * self._tell_pause, TIDY_SECONDS) if self._unreleased else 0.0
        self._tell_pause = max(self._tell_pause, CHECK_SECONDS)
        self._tell_at = now + self._tell_pause

    async def entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        """``tables.EntriesOf``: from the journal, or from the table what is sealed already."""
        rest = REST_SECONDS if wanted.size <= UNHURRIED_BYTES else 0.0
        first = wanted.first
        while first <= wanted.last:
            if first > wanted.first:
                await asyncio.sleep(rest)
            found = await self._broker.ledgers.read(
                wanted.ledger_id, first, wanted.last, READ_BYTES, confirmed=wanted.last
            )
            if not found:
                raise StorageError(f"entry {wanted.ledger_id}:{first} cannot be read")
            yield found
            first = found[-1][0] + 1

    async def located(self, wanted: SealRange) -> AsyncIterator[Piece]:
        """Likewise; what lies in a journal of this machine is left to be read there."""
        first = wanted.first
        while excerpt := await self._broker.ledgers.excerpt(wanted.ledger_id, first, wanted.last):
            yield excerpt
            first = excerpt.last + 1
            if first > wanted.last:
                return
            await asyncio.sleep(REST_SECONDS)
        async for entries in self.entries(replace(wanted, first=first)):
            yield entries

    async def table_id(self, topic: Topic) -> str:
        """The id of the table of a topic, of which this is a partition or the whole."""
        return await self.table_id_of(topic.name, topic.ledger.topic_id)

    async def table_id_of(self, name: TopicName, topic_id: str) -> str:
        """Likewise; ``topic_id`` is that of ``name``."""
        if name.partition >= 0:
            parent = await self._broker.resources.partitioned_topics.get(name.base)
            if parent is not None:
                return parent.topic_id
        return topic_id

    async def repair(self, base: TopicName, repair: Repair, *, give_up: bool) -> None:
        """Make a table whole again; ``repair`` says how far it is."""
        async with self.exclusively(base):
            await self._tables.repair(
                base, self.entries, self._broker.settings.sealTargetFileSizeMB << 20, repair,
                give_up=give_up,
            )  # fmt: skip
        self._complaints.pop(base, None)
        self._tidy_later(base)

    # -- tidying ---

    async def tidy(self, base: TopicName, topic: Topic) -> None:
        """``Tidying`` of a table; ``topic`` is any partition of it."""
        async with self.exclusively(base):
            found = await self._tidying.tidy(base, await self.table_id(topic), topic.policies)
            if found.more:
                self._tidy_at[base] = 0.0
            elif found.later:
                self._tidy_later(base)
        if found.error is not None:
            raise found.error
