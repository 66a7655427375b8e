"""Names for producers that bring none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.paths import PRODUCER_NAME_COUNTER

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore


class ProducerNames:
    """Names that no other broker of the cluster gives: each process has a number of its own."""

    def __init__(self, cluster: str, metadata: MetadataStore) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._process: int | None = None
        self._given = 0

    async def new(self) -> str:
        """A producer name that is unique in the cluster."""
        if self._process is None:
            self._process = await self._metadata.next_id(PRODUCER_NAME_COUNTER)
        self._given += 1
        return f"{self._cluster}-{self._process}-{self._given - 1}"
