"""Moving messages of loaded topics from the journal into their tables.

Every so often all topics are looked at together, and what is due of one table is sealed and
attached at once. A ledger that is closed is due; one that is open, when it has enough for a file
or when its messages have waited for as long as the policy allows. After the attach the journal
releases the entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pulsark.dispatch.topic_admin import ledger_path
from pulsark.errors import PulsarkError, StorageError
from pulsark.storage.managed_ledger import read_record
from pulsark.storage.table.tables import SealRange

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.topic import Topic
    from pulsark.storage.ledger_list import LedgerInfo
    from pulsark.storage.table.process import Entries
    from pulsark.storage.table.record import SealedLedger
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""Time between two looks at all topics."""

TIDY_SECONDS = 600.0
"""Time between two times that small files are merged and old ones deleted."""

READ_BYTES = 4 << 20
"""Entries that are on their way to the table process at a time."""


class Sealing:
    """Seals what the policies ask for; one table after the other."""

    def __init__(self, broker: Broker, tables: Tables) -> None:
        self._broker = broker
        self._tables = tables
        self._task: asyncio.Task[None] | None = None
        self._sealed_at: dict[int, float] = {}
        """By ledger: when it was last found to have nothing new, or sealed."""
        self._tidied_at: dict[TopicName, float] = {}
        self._done: dict[int, int] = {}
        """By ledger: the last entry that is in the table and released by the journal; -1: none."""

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._repeat())

    async def close(self) -> None:
        """End. What was decided is finished by the next owner of the table."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._tables.close()

    async def forget(self, base: TopicName) -> None:
        """A topic was deleted with all its partitions: so is its table."""
        await self._tables.delete(base)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            tables: dict[TopicName, list[Topic]] = {}
            for topic in self._broker.loaded_topics():
                if topic.policies.sealing.enabled and not topic.closed:
                    tables.setdefault(topic.name.base, []).append(topic)
            for base, topics in tables.items():
                try:
                    await self.seal(base, topics)
                    await self._tidy_if_due(base, topics[0])
                except PulsarkError as error:
                    log.warning("%s is not sealed yet: %s", base, error)
                except Exception:
                    log.exception("%s is not sealed", base)
            self._forget_gone(tables)

    async def seal(self, base: TopicName, topics: list[Topic], *, everything: bool = False) -> None:
        """Seal what is due of the given partitions of a topic; or all that there is.

        Entries are in the table and released by the journal when this returns. ``StorageError``
        or ``MetadataError``: not all of them yet.
        """
        await self._look_up(topics)
        due = self._all_due(topics, everything)
        if not due:
            return
        table_id = await self._table_id(topics[0])
        if await self._tables.open(base, table_id):
            # Opening may have done what an owner before had only decided.
            for wanted in due:
                self._done.pop(wanted.ledger_id, None)
            await self._look_up(topics)
            due = self._all_due(topics, everything)
        await self._tables.seal(
            base,
            table_id,
            due,
            self._entries,
            topics[0].policies.sealing.target_file_bytes,
        )
        now = self._broker.clock.monotonic()
        for wanted in due:
            self._sealed_at[wanted.ledger_id] = now
            await self._release(base, wanted.ledger_id)

    async def _tidy_if_due(self, base: TopicName, topic: Topic) -> None:
        now = self._broker.clock.monotonic()
        if now - self._tidied_at.setdefault(base, now) >= TIDY_SECONDS:
            self._tidied_at[base] = now
            await self.tidy(base, topic)

    async def tidy(self, base: TopicName, topic: Topic) -> None:
        """Merge, remove and delete files of a table; ``topic`` is any partition of it.

        A long log gets a checkpoint.
        The files of a ledger that was closed are merged if they are many. Rows of a ledger that
        was trimmed leave the table. Files that left it longer ago than retention are deleted.
        """
        table_id = await self._table_id(topic)
        sealed_ledgers = await self._tables.ledgers(base)
        if sealed_ledgers:
            await self._tables.checkpoint(base)
        target = topic.policies.sealing.target_file_bytes
        retention_ms = self._broker.settings.tableVacuumRetentionHours * 3_600_000
        for sealed in sealed_ledgers:
            infos = await self._ledgers_of(base, sealed.partition)
            if infos is None:
                continue
            info = infos.get(sealed.ledger_id)
            if info is None and sealed.files:
                await self._tables.remove(base, table_id, sealed)
            elif info is not None and is_complete(sealed, info) and is_scattered(sealed, target):
                await self._tables.merge(base, table_id, sealed, self._entries, target)
            before_ms = self._broker.clock.now_ms() - retention_ms
            if any(file.time_ms < before_ms for file in sealed.left):
                await self._tables.vacuum(base, table_id, sealed.ledger_id, before_ms)

    async def _ledgers_of(self, base: TopicName, partition: int) -> dict[int, LedgerInfo] | None:
        """The ledgers of a partition, loaded or not; ``None`` if that cannot be said."""
        name = base if partition < 0 else base.with_partition(partition)
        topic = self._broker.loaded_topic(name)
        if topic is not None:
            return {info.ledger_id: info for info in topic.ledger.ledgers()}
        if self._broker.is_loading(name):
            return None
        record = await read_record(ledger_path(name), self._broker.metadata)
        return None if record is None else {info.ledger_id: info for info in record.ledgers}

    async def _look_up(self, topics: list[Topic]) -> None:
        """What the table has of ledgers that were never asked about; the journal releases it."""
        for topic in topics:
            for info in topic.ledger.ledgers():
                if info.ledger_id not in self._done:
                    await self._release(topic.name, info.ledger_id)

    def _all_due(self, topics: list[Topic], everything: bool) -> list[SealRange]:
        return [wanted for topic in topics for wanted in self._due(topic, everything)]

    def _due(self, topic: Topic, everything: bool) -> list[SealRange]:
        found = []
        now = self._broker.clock.monotonic()
        for info in topic.ledger.ledgers():
            first = self._done.get(info.ledger_id, -1) + 1
            if first >= info.entries:
                self._sealed_at[info.ledger_id] = now
            elif everything or self._is_due(topic, info, first, now):
                found.append(
                    SealRange(topic.name.partition, info.ledger_id, first, info.entries - 1)
                )
        return found

    def _is_due(self, topic: Topic, info: LedgerInfo, first: int, now: float) -> bool:
        if not info.open:
            return True
        policy = topic.policies.sealing
        share = (info.entries - first) / info.entries
        if info.size * share >= policy.target_file_bytes:
            return True
        waited = now - self._sealed_at.setdefault(info.ledger_id, now)
        # A look more than that would be too late.
        return policy.freshness_seconds > 0 and waited + CHECK_SECONDS >= policy.freshness_seconds

    async def _release(self, name: TopicName, ledger_id: int) -> None:
        """Let the journal forget what is in the table, once after each start and each attach."""
        sealed = await self._tables.sealed(name, ledger_id)
        if sealed is not None and sealed.files:
            await self._broker.ledgers.release(ledger_id, sealed.through)
        self._done[ledger_id] = sealed.through if sealed is not None else -1

    async def _entries(self, wanted: SealRange) -> AsyncIterator[Entries]:
        first = wanted.first
        while first <= wanted.last:
            found = await self._broker.ledgers.read(
                wanted.ledger_id, first, wanted.last, READ_BYTES, confirmed=wanted.last
            )
            if not found:
                raise StorageError(f"entry {wanted.ledger_id}:{first} cannot be read")
            yield found
            first = found[-1][0] + 1

    async def _table_id(self, topic: Topic) -> str:
        if topic.name.partition >= 0:
            parent = await self._broker.resources.partitioned_topics.get(topic.name.base)
            if parent is not None:
                return parent.topic_id
        return topic.ledger.topic_id

    def _forget_gone(self, tables: dict[TopicName, list[Topic]]) -> None:
        known = {
            info.ledger_id
            for topics in tables.values()
            for topic in topics
            for info in topic.ledger.ledgers()
        }
        for notes in (self._sealed_at, self._done):
            for gone in notes.keys() - known:
                del notes[gone]
        for base in self._tidied_at.keys() - tables.keys():
            del self._tidied_at[base]


def is_complete(sealed: SealedLedger, info: LedgerInfo) -> bool:
    """Whether all entries are sealed that the ledger will ever have."""
    return not info.open and sealed.through == info.entries - 1


def is_scattered(sealed: SealedLedger, target_bytes: int) -> bool:
    """Whether the files of a ledger could be less than half as many."""
    size = sum(file.size for file in sealed.files)
    return len(sealed.files) > 2 * max(1, size // target_bytes)
