"""Sealing of unloaded topics: one visit is enough, because nothing comes to such a topic.

The broker does so by itself also where jobs seal: they plan what is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.record import read_record

if TYPE_CHECKING:
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

FIRST_SWEEP_SECONDS = 60.0
"""After a start, clients have the time to load their topics first."""

SWEEP_SECONDS = 3600.0
"""Time between two sweeps."""


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
        """Whether there are entries outside the table, or statistics that its log lacks.

        An open ledger may have such entries.
        """
        if self._sealing.leases.is_lent(name.base):
            return False
        if await self._lacks_statistics(name.base):
            return True
        record = await read_record(managed_ledger_path(name), self._metadata)
        if record is None or not (record.ledgers or record.folded):
            return False
        for info in reversed(record.ledgers):
            sealed = await self._tables.sealed(name, info.ledger_id)
            if info.open or (sealed.through if sealed is not None else -1) < info.entries - 1:
                return True
        return not all(line.settled for line in record.folded)

    async def attend(self, topic: Topic) -> None:
        """Seal all that the topic has, and have its table tidied if that adds statistics."""
        await self._sealing.seal_unloaded(topic)
        if await self._lacks_statistics(topic.name.base):
            self._sealing.tidy_soon(topic.name.base)

    async def _lacks_statistics(self, base: TopicName) -> bool:
        """Return whether a table, of an older release for instance, has an incomplete log."""
        if not self._tables.states():
            return False
        record = await self._tables.record(base)
        return record is not None and record.attached > 0 and not record.stated
