"""The current isolation policies of this cluster, read from the metadata store."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from pulsark.dispatch.loop.followed_value import FollowedValue
from pulsark.errors import CorruptMetadataError, MetadataError
from pulsark.metadata.isolation import policies_in
from pulsark.metadata.paths import isolation_policies_path
from pulsark.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.dispatch.brokers.isolation import IsolationPolicy
    from pulsark.metadata.isolation import IsolationRecords
    from pulsark.metadata.store import MetadataStore, Versioned

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""So long a claim waits for the policies: the store that several clusters share may be away."""


class IsolationSource(FollowedValue):
    """Follows the policies. While they cannot be read, the last known ones stay in force."""

    def __init__(self, metadata: MetadataStore, records: IsolationRecords, cluster: str) -> None:
        super().__init__(
            metadata,
            isolation_policies_path(cluster),
            without="there are no isolation policies",
            meanwhile="isolation policies stay as they were known",
        )
        self._records = records
        self._cluster = cluster
        self._version = ABSENT
        """Of the record that was read last."""
        self.policies: tuple[IsolationPolicy, ...] = ()
        """Ordered by name."""
        self.changed: Callable[[], None] = lambda: None
        """Called after a change."""

    async def refresh(self) -> None:
        """Read the policies."""
        while True:
            seen = self._changes
            found = await self._records.stored(self._cluster)
            if seen == self._changes:  # otherwise another read may have newer policies
                break
        self._version = _version_of(found)
        stored = None if found is None else policies_in(found)
        self.policies = self._read(stored) if stored else ()
        self.changed()

    async def allow(self, broker_id: str, bundle: str) -> bool:
        """The same by the policies that are stored now; those known here may be older.

        While the store does not answer, they have to do.
        """
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                if _version_of(await self._records.stored(self._cluster)) != self._version:
                    await self.refresh()
        except (MetadataError, TimeoutError) as error:
            log.warning("isolation policies may be others than those known: %r", error)
        return self.could_have(broker_id, bundle)

    def could_have(self, broker_id: str, bundle: str) -> bool:
        """Whether the policies can let a broker have a bundle, whatever the others do."""
        if not self.policies:
            return True
        from pulsark.dispatch.brokers.isolation import may_ever_have  # for clusters with policies

        return may_ever_have(broker_id, bundle.rpartition("/")[0], self.policies)

    def _read(self, stored: Mapping[str, Any]) -> tuple[IsolationPolicy, ...]:
        from pulsark.dispatch.brokers.isolation import policies_of  # for clusters with policies

        try:
            return policies_of(stored)
        except ValueError as error:
            raise CorruptMetadataError(
                f"those of the cluster {self._cluster} are not known to this program: {error}"
            ) from error


def _version_of(found: Versioned | None) -> int:
    return ABSENT if found is None else found.version
