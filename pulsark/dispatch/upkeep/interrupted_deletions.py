"""Deletions that another process did not bring to their end."""

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
    from pulsark.dispatch.upkeep.share import Share
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources

log = logging.getLogger(__name__)

LOOKS_A_TURN = 50


class InterruptedDeletions:
    """Goes on with them once for each claim of a bundle, and again if one fails."""

    def __init__(
        self,
        resources: Resources,
        catalog: TopicCatalog,
        deletion: TopicDeletion,
        share: Share,
    ) -> None:
        self._resources = resources
        self._catalog = catalog
        self._deletion = deletion
        self._share = share
        self._finished: set[object] = set()
        """Claims of bundles of which nothing is left to do."""
        self._settled: set[str] = set()
        """Namespaces that were looked at as a whole."""
        self._number = 0

    async def finish(self) -> None:
        """Bring to their end what can be brought there now."""
        self._number = 0
        for tenant in await self._resources.tenants.list():
            for name in await self._resources.namespaces.list(tenant):
                namespace = await self._resources.namespaces.get(name)
                if namespace is not None:
                    await self._finish_in(namespace)

    async def _finish_in(self, namespace: Namespace) -> None:
        bundles = [f"{namespace.name}/{bundle}" for bundle in namespace.bundles]
        whole = self._share.leads and namespace.name not in self._settled
        # As they are now: of a bundle that is claimed meanwhile, some topics are passed already.
        guards = {bundle: self._share.guards((bundle,)) for bundle in bundles}
        if not whole and not set().union(*guards.values()) - self._finished:
            return
        share = self._share.of_namespace(namespace)
        names = [
            *await self._resources.partitioned_topics.list(namespace.name, PERSISTENT),
            *await self._resources.partitioned_topics.list(namespace.name, NON_PERSISTENT),
            *await self._catalog.stored_topics(namespace.name),
        ]
        failed = 0
        for name in names:
            self._number += 1
            if self._number % LOOKS_A_TURN == 0:
                await asyncio.sleep(LOOKS_A_TURN / UNLOADED_LOOKS_PER_SECOND)
            try:
                if await share.has(name) and await self._deletion.go_on_with(name):
                    log.info("%s: completed an interrupted deletion", name)
            except PulsarkError as error:
                log.warning("%s: cannot complete its deletion yet, trying again: %s", name, error)
                failed += 1
        if not failed:
            self._finished.update(*(guards[each] for each in bundles if not share.lacks(each)))
            if whole:
                self._settled.add(namespace.name)
