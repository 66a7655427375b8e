"""Which ledgers a topic has by now: those of its table that are not among them were trimmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.managed_ledger import read_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.wire.topic_name import TopicName

    ById = Callable[[int], LedgerInfo | None]
    """A ledger by its id; ``None`` if the topic does not have it."""


class ListedLedgers:
    """The ledgers of one topic's partitions, each looked up once, loaded or not.

    To be made after the table's ledgers were listed: a ledger is in its topic's list before it is
    in the table, so that what is missing here is gone.
    """

    def __init__(
        self, metadata: MetadataStore, topics: Topics, base: TopicName, *, shared: bool = False
    ) -> None:
        """``shared``: other brokers may own partitions. Then what is in memory here is believed of
        none: a broker that lost one and does not know it would take for gone what is new."""
        self._metadata = metadata
        self._topics = topics
        self._base = base
        self._shared = shared
        self._known: dict[int, ById | None] = {}

    def name(self, partition: int) -> TopicName:
        """A partition, or the topic itself if it has none."""
        return self._base if partition < 0 else self._base.with_partition(partition)

    async def of(self, partition: int) -> ById | None:
        """Finds ledgers of a partition; ``None`` if that cannot be said now."""
        if partition not in self._known:
            self._known[partition] = await self._look_up(self.name(partition))
        return self._known[partition]

    async def _look_up(self, name: TopicName) -> ById | None:
        topic = self._topics.get_loaded(name)
        if not self._shared:
            if topic is not None and not topic.ledger.is_fenced:
                return topic.ledger.ledger
            if self._topics.is_loading(name):
                return None
        found = await read_ledgers(managed_ledger_path(name), self._metadata)
        if found is None or found[0].pending:
            return None
        return found[1].info
