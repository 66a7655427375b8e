"""Sealing of unloaded topics: one visit is enough, because nothing comes to such a topic.

The broker does so by itself also where jobs seal: they plan what is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.paths import managed_ledger_path, table_path
from pulsark.storage.managed_ledger.record import read_record
from pulsark.wire.position import EARLIEST

if TYPE_CHECKING:
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

FIRST_SWEEP_SECONDS = 60.0
"""After a start, clients have the time to load their topics first."""

SWEEP_SECONDS = 3600.0
"""Time between two sweeps."""

TRIMMED_LOOKS = 16
"""Trimmed ledgers whose documents are read of an unloaded topic in one sweep."""


class UnloadedSealing:
    """``Care`` for entries that are not in their table yet."""

    looks_per_second = 100
    """Each reads documents of the table: a hundred thousand take a quarter of an hour."""

    def __init__(self, metadata: MetadataStore, tables: Tables, sealing: Sealing) -> None:
        self._metadata = metadata
        self._tables = tables
        self._sealing = sealing

    def concerns(self, policies: TopicPolicies) -> bool:
        """Whether the topic is sealed at all."""
        return policies.sealing.enabled

    async def is_due(self, name: TopicName, policies: TopicPolicies) -> bool:
        """Whether there are entries outside the table, trimmed rows in it, or statistics that its
        log lacks.

        An open ledger may have such entries.
        """
        if self._sealing.leases.is_lent(name.base):
            return False
        if await self._lacks_statistics(name.base):
            return True
        record = await read_record(managed_ledger_path(name), self._metadata)
        if record is None:
            return False
        if await self._has_trimmed_rows(name, record):
            return True
        if not (record.ledgers or record.folded):
            return False
        for info in reversed(record.ledgers):
            sealed = await self._tables.sealed(name, info.ledger_id)
            if info.open or (sealed.through if sealed is not None else -1) < info.entries - 1:
                return True
        return not all(line.settled for line in record.folded)

    async def attend(self, topic: Topic) -> None:
        """Seal all that the topic has, and have its table tidied if that changes something."""
        await self._sealing.seal_unloaded(topic)
        if topic.ledger.record.trimmed != EARLIEST or await self._lacks_statistics(topic.name.base):
            self._sealing.tidy_soon(topic.name.base)

    async def _has_trimmed_rows(self, name: TopicName, record: ManagedLedgerRecord) -> bool:
        """Return whether a table has rows of trimmed ledgers, as after a kill behind a truncate.

        The last ledgers that were trimmed tell: the oldest rows leave the table first.
        """
        if record.trimmed == EARLIEST:
            return False
        listed = {info.ledger_id for info in record.ledgers}
        children = await self._metadata.children(table_path(name))
        ids = sorted(int(child) for child in children if child.isdigit())
        gone = [i for i in ids if i <= record.trimmed.ledger_id and i not in listed]
        async for sealed in self._tables.each_ledger(name.base, some=gone[-TRIMMED_LOOKS:]):
            if sealed.files and sealed.partition == name.partition:
                return True
        return False

    async def _lacks_statistics(self, base: TopicName) -> bool:
        """Return whether a table, of an older release for instance, has an incomplete log."""
        if not self._tables.states():
            return False
        record = await self._tables.record(base)
        return record is not None and record.attached > 0 and not record.stated
