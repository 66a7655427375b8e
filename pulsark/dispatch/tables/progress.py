"""How far loaded topics are sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS, due_ranges
from pulsark.limits import READS_PER_TURN_MAX
from pulsark.wire.position import EARLIEST

RESTART_TIDY_SECONDS = 5.0
"""Time after which the table of a trimmed topic is tidied that was loaded just now."""

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pulsark.dispatch.tables.journal_release import JournalRelease
    from pulsark.dispatch.tables.table_waits import ReadTables, TidyQueue
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName


class TopicProgress:
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


class SealingProgress:
    """The progress of all loaded topics. The journal releases entries that are in tables."""

    def __init__(
        self, tables: Tables, release: JournalRelease, reads: ReadTables, tidy: TidyQueue
    ) -> None:
        self._tables = tables
        self._journal = release
        self._reads = reads
        self._tidy = tidy
        self._of: dict[Topic, TopicProgress] = {}

    def keep_only(self, loaded: Sequence[Topic]) -> None:
        """Forget topics that are not loaded any more."""
        if len(self._of) > len(loaded):
            for gone in self._of.keys() - set(loaded):
                del self._of[gone]

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._of

    async def partitions_of(self, bases: Collection[TopicName]) -> dict[TopicName, Topic]:
        """Of each of these topics any loaded partition, if there is one."""
        found: dict[TopicName, Topic] = {}
        wanted = set(bases)
        async for topic in in_turns(list(self._of) if wanted else ()):
            base = topic.name.base
            if base in wanted and not topic.closed:
                found[base] = topic
        return found

    def is_settled(self, topic: Topic) -> bool:
        """Whether nothing has come since all was sealed."""
        progress = self._of.get(topic)
        if progress is None or progress.settled != topic.ledger.last_confirmed:
            return False
        if progress.trimmed != topic.ledger.record.trimmed:
            self._trimmed(topic, progress)
        return True

    def due(self, topic: Topic, now: float, *, everything: bool = False) -> list[SealRange]:
        """What is due of a topic that was looked up; nothing if it was forgotten since."""
        progress = self._of.get(topic)
        if progress is None:
            return []
        last = topic.ledger.last_confirmed
        infos = topic.ledger.ledgers(progress.first)
        progress.pass_over(infos)
        infos = [info for info in infos if info.ledger_id >= progress.first]
        if all(progress.through.get(i.ledger_id, -1) + 1 >= i.entries for i in infos):
            progress.settled, progress.since = last, None
            return []
        if progress.since is None:
            progress.since = now
        if progress.trimmed != topic.ledger.record.trimmed:
            self._trimmed(topic, progress)
        return due_ranges(
            self._reads.policy(topic, now),
            topic.name.partition,
            infos,
            progress.through,
            # A look more than that would be too late.
            now - progress.since + CHECK_SECONDS,
            everything=everything,
        )

    async def surely_due(
        self, topic: Topic, now: float, *, everything: bool = False
    ) -> list[SealRange]:
        """What is due, with what the table has by now.

        Bulk publishes and other brokers attach, too. ``MetadataError`` if the table is not known.
        """
        if topic not in self._of:
            await self.look_up(topic)
        if (progress := self._of.get(topic)) is not None:
            for part in self.due(topic, now, everything=everything):
                await self._release(topic, progress, part.ledger_id)
        return self.due(topic, now, everything=everything)

    def waits_since(self, topic: Topic) -> float | None:
        """When entries were first seen that are not in the table."""
        progress = self._of.get(topic)
        return progress.since if progress is not None else None

    def _trimmed(self, topic: Topic, progress: TopicProgress) -> None:
        """Rows of ledgers that are gone leave the table in the next round."""
        progress.trimmed = topic.ledger.record.trimmed
        for gone in [i for i in progress.through if topic.ledger.ledger(i) is None]:
            del progress.through[gone]
        self._tidy.soon(topic.name.base)

    async def look_up(self, topic: Topic) -> None:
        """What the table has of a topic's ledgers; the journal releases it."""
        # It counts as looked up when it is known to its end; it may be forgotten on the way.
        is_new = topic not in self._of
        progress = self._of.get(topic) or TopicProgress()
        progress.trimmed = topic.ledger.record.trimmed
        progress.first = max(progress.first, topic.ledger.unsettled_from)
        async for info in in_turns(topic.ledger.each_ledger(progress.first), READS_PER_TURN_MAX):
            await self._release(topic, progress, info.ledger_id)
        self._of.setdefault(topic, progress)
        if is_new and progress.trimmed != EARLIEST:
            # The table still has the rows of ledgers that were trimmed just before a restart.
            self._tidy.within(topic.name.base, RESTART_TIDY_SECONDS)
        elif progress.first or any(through >= 0 for through in progress.through.values()):
            self._tidy.later(topic.name.base)

    async def attached(
        self, topic: Topic, ledger_ids: Iterable[int], *, since: float | None
    ) -> None:
        """Files of these ledgers are in the table. What is not there yet waits since then."""
        progress = self._of.get(topic)
        if progress is None:
            await self.look_up(topic)
            progress = self._of.get(topic) or TopicProgress()
        for ledger_id in ledger_ids:
            await self._release(topic, progress, ledger_id)
        progress.since = since

    async def _release(self, topic: Topic, progress: TopicProgress, ledger_id: int) -> None:
        """Let the journal forget what is in the table, once after each start and each attach."""
        sealed = await self._tables.sealed(topic.name, ledger_id)
        through = sealed.through if sealed is not None else -1
        before = progress.through.get(ledger_id, -1)
        progress.through[ledger_id] = through  # so it is, whether all bookies hear of it or not
        if through > before:
            await self._journal.tell(ledger_id, through)
