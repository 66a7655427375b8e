"""The current isolation policies of this cluster, read from the metadata store."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.loop.retries import until_read
from pulsark.errors import CorruptMetadataError
from pulsark.metadata.paths import isolation_policies_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.dispatch.brokers.isolation import IsolationPolicy
    from pulsark.metadata.isolation import IsolationRecords
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class IsolationSource:
    """Follows the policies. While they cannot be read, the last known ones stay in force."""

    def __init__(self, metadata: MetadataStore, records: IsolationRecords, cluster: str) -> None:
        self._metadata = metadata
        self._records = records
        self._cluster = cluster
        self._changes = 0
        self._reading: asyncio.Task[None] | None = None
        self._end_watch: Callable[[], None] = lambda: None
        self.policies: tuple[IsolationPolicy, ...] = ()
        """Ordered by name."""
        self.changed: Callable[[], None] = lambda: None
        """Called after a change."""

    async def start(self) -> None:
        """Read the policies, and watch them from now on."""
        path = isolation_policies_path(self._cluster)
        self._end_watch = self._metadata.watch(path, self._heard, self._missed)
        try:
            await self.refresh()
        except CorruptMetadataError as error:
            log.warning("cannot read the isolation policies: %s", error)

    def close(self) -> None:
        """Stop watching."""
        self._end_watch()
        if self._reading is not None:
            self._reading.cancel()

    async def refresh(self) -> None:
        """Read the policies."""
        while True:
            seen = self._changes
            stored = await self._records.get(self._cluster)
            if seen == self._changes:  # otherwise another read may have newer policies
                break
        self.policies = self._read(stored) if stored else ()
        self.changed()

    def _read(self, stored: Mapping[str, Any]) -> tuple[IsolationPolicy, ...]:
        from pulsark.dispatch.brokers.isolation import policies_of  # for clusters with policies

        try:
            return policies_of(stored)
        except ValueError as error:
            raise CorruptMetadataError(
                f"those of the cluster {self._cluster} are not known to this program: {error}"
            ) from error

    def _heard(self, path: str) -> None:
        self._missed()

    def _missed(self) -> None:
        self._changes += 1
        if self._reading is None or self._reading.done():
            work = until_read(self.refresh, "isolation policies stay as they were known")
            self._reading = asyncio.create_task(work)
