"""Bundles that this broker is told to claim: by the leader, a lookup, or who had them before."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.owners import Assigned
from pulsark.dispatch.loop.retries import until_read
from pulsark.errors import BadVersionError, PulsarkError
from pulsark.metadata.paths import ASSIGNED_BUNDLES, assigned_bundle_at, assigned_bundle_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class AssignedBundles:
    """Follows the notes, and claims each bundle whose note names this broker."""

    def __init__(
        self, metadata: MetadataStore, ownership: Ownership, registry: BrokerRegistry
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._registry = registry
        self._waiting: dict[str, None] = {}
        """Bundles whose notes have to be read, in order."""
        self._all = False
        self._claiming: asyncio.Task[None] | None = None
        self._end_watch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Claim what is assigned from now on, and what was before."""
        self._end_watch = self._metadata.watch(ASSIGNED_BUNDLES, self._changed, self._missed)
        self._missed()

    def close(self) -> None:
        """Claim nothing more."""
        self._end_watch()
        if self._claiming is not None:
            self._claiming.cancel()

    def _changed(self, path: str) -> None:
        self._waiting[assigned_bundle_at(path)] = None
        self._claim_soon()

    def _missed(self) -> None:
        self._all = True
        self._claim_soon()

    def _claim_soon(self) -> None:
        if self._claiming is None or self._claiming.done():
            work = until_read(self._claim, "bundles that are assigned to this broker have to wait")
            self._claiming = asyncio.create_task(work)

    async def _claim(self) -> None:
        while self._all or self._waiting:
            # What changes meanwhile has to be read after it.
            if self._all:
                self._all = False
                try:
                    self._waiting.update(dict.fromkeys(await self._list()))
                except PulsarkError:
                    self._all = True
                    raise
                continue
            bundle = next(iter(self._waiting))
            del self._waiting[bundle]
            try:
                await self._take(bundle)
            except PulsarkError:
                self._waiting[bundle] = None
                raise

    async def _list(self) -> list[str]:
        found = [""]
        for _ in ("tenant", "namespace", "bundle"):
            found = [
                f"{above}/{child}"
                for above in found
                for child in await self._metadata.children(ASSIGNED_BUNDLES + above)
            ]
        return [path.removeprefix("/") for path in found]

    async def _take(self, bundle: str) -> None:
        path = assigned_bundle_path(bundle)
        found = await self._metadata.get(path)
        if found is None or Assigned.decode(found).broker_id != self._registry.own_id:
            return
        try:
            await self._ownership.claim(bundle)
        except PulsarkError as error:
            log.info("bundle %s is assigned to this broker: %s", bundle, error)
        # The claim deletes the note, unless there was one already: here or of another broker.
        found = await self._metadata.get(path)
        if found is not None and Assigned.decode(found).broker_id == self._registry.own_id:
            try:
                await self._metadata.delete(path, found.version)
            except BadVersionError:
                log.debug("bundle %s is assigned anew", bundle)
