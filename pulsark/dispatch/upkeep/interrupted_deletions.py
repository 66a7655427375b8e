"""Deletions that a process before this one did not bring to their end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import PulsarkError
from pulsark.limits import UNLOADED_LOOKS_PER_SECOND
from pulsark.wire.topic_name import NON_PERSISTENT, PERSISTENT

if TYPE_CHECKING:
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.namespace_deletion import NamespaceDeletion
    from pulsark.metadata.resources import Resources

log = logging.getLogger(__name__)

LOOKS_A_TURN = 50


class InterruptedDeletions:
    """Goes on with them once, and again if one fails."""

    def __init__(
        self,
        resources: Resources,
        catalog: TopicCatalog,
        deletion: TopicDeletion,
        namespace_deletion: NamespaceDeletion,
    ) -> None:
        self._resources = resources
        self._catalog = catalog
        self._deletion = deletion
        self._namespace_deletion = namespace_deletion
        self._has_finished = False

    async def finish(self) -> None:
        """Bring to their end what can be brought there now."""
        if self._has_finished:
            return
        resources = self._resources
        number = failed = 0
        for tenant in await resources.tenants.list():
            await self._namespace_deletion.settle(tenant)
            for namespace in await resources.namespaces.list(tenant):
                bases = [
                    *await resources.partitioned_topics.list(namespace, PERSISTENT),
                    *await resources.partitioned_topics.list(namespace, NON_PERSISTENT),
                ]
                for name in [*bases, *await self._catalog.stored_topics(namespace)]:
                    number += 1
                    if number % LOOKS_A_TURN == 0:
                        await asyncio.sleep(LOOKS_A_TURN / UNLOADED_LOOKS_PER_SECOND)
                    try:
                        if await self._deletion.go_on_with(name):
                            log.info(
                                "%s: its deletion, which had been interrupted, is complete", name
                            )
                    except PulsarkError as error:
                        log.warning("%s is not deleted yet: %s", name, error)
                        failed += 1
        self._has_finished = not failed
