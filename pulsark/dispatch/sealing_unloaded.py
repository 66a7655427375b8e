"""Sealing of topics that nobody has loaded, one after the other.

Nothing comes to such a topic, so that one visit is enough: after the start of the broker, and now
and then for those that were unloaded since. A topic with something to be sealed is loaded for as
long as that takes. The broker does so by itself also where jobs seal: they plan what is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pulsark.errors import PulsarkError, trace_of
from pulsark.storage.ledger_record import managed_ledger_path
from pulsark.storage.managed_ledger import read_record
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.sealing import Sealing
    from pulsark.storage.table.tables import Tables

log = logging.getLogger(__name__)

FIRST_SWEEP_SECONDS = 60.0
"""After a start, clients have the time to load their topics first."""

SWEEP_SECONDS = 3600.0
"""Time between two sweeps."""

VISIT_SECONDS = 0.01
"""Pause between two topics: a hundred thousand are looked at in a quarter of an hour."""


class UnloadedTopics:
    """Visits all topics in the metadata store."""

    def __init__(self, broker: Broker, sealing: Sealing, tables: Tables) -> None:
        self._broker = broker
        self._sealing = sealing
        self._tables = tables

    async def repeat(self) -> None:
        """Sweep again and again."""
        pause = FIRST_SWEEP_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = SWEEP_SECONDS
            try:
                await self._sealing.delete_doomed()
                await self._sweep()
            except PulsarkError as error:
                log.warning("topics that nobody uses are not sealed now: %s", error)
            except Exception:
                log.exception("topics that nobody uses are not sealed")

    async def _sweep(self) -> None:
        async for name in self._names():
            await asyncio.sleep(VISIT_SECONDS)
            if self._broker.is_loading(name) or self._sealing.is_lent(name.base):
                continue
            try:
                if await self._has_something(name):
                    await self._visit(name)
            except Exception as error:
                log.warning("%s is not sealed yet: %s", name, error, exc_info=trace_of(error))

    async def _names(self) -> AsyncIterator[TopicName]:
        resources = self._broker.resources
        for tenant in await resources.tenants.list():
            for namespace in await resources.namespaces.list(tenant):
                parent = f"/managed-ledgers/{namespace}/persistent"
                for child in await self._broker.metadata.children(parent):
                    yield TopicName.parse(f"persistent://{namespace}/{unquote(child)}")

    async def _has_something(self, name: TopicName) -> bool:
        """Whether there are entries outside the table. An open ledger may have some."""
        record = await read_record(managed_ledger_path(name), self._broker.metadata)
        if record is None or not (record.ledgers or record.folded):
            return False
        if not (await self._broker.policy_source.current(name)).sealing.enabled:
            return False
        for info in reversed(record.ledgers):
            sealed = await self._tables.sealed(name, info.ledger_id)
            if info.open or (sealed.through if sealed is not None else -1) < info.entries - 1:
                return True
        return not all(line.settled for line in record.folded)

    async def _visit(self, name: TopicName) -> None:
        async with self._broker.visit(name) as topic:
            if topic is not None:  # else it was loaded meanwhile, and has its turn with the others
                await self._sealing.seal(name.base, [topic], everything=True)
