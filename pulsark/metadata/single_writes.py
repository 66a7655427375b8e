"""``put`` and ``delete`` of a metadata store: commits of one change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pulsark.metadata.changes import Change, Delete, Put
from pulsark.metadata.store import ANY_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence


class SingleWrites(ABC):
    """Implements them with the store's ``commit``; see ``MetadataStore``."""

    @abstractmethod
    async def commit(self, changes: Sequence[Change]) -> Sequence[int]: ...

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        (version,) = await self.commit((Put(path, value, expected_version, ephemeral),))
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        await self.commit((Delete(path, expected_version),))
