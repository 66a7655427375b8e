"""A metadata store that can be stopped at each write, and copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import ANY_VERSION, Versioned


class SteppingStore(MemoryMetadataStore):
    """Tells about the moment before and after each write takes effect."""

    def __init__(self, tree: MemoryTree, moment: Callable[[str], None]) -> None:
        super().__init__(tree)
        self._moment = moment

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        self._moment(f"put {path}")
        version = await super().put(path, value, expected_version, ephemeral=ephemeral)
        self._moment(f"end of put {path}")
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        self._moment(f"delete {path}")
        await super().delete(path, expected_version)
        self._moment(f"end of delete {path}")


class HeldStore(MemoryMetadataStore):
    """Holds one request back, the ``hold_at``th from now on, until it is let go."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.hold_at = 0
        self.requests = 0
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()

    async def get(self, path: str) -> Versioned | None:
        await self._request()
        found = await super().get(path)
        await self._request()
        return found

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        await self._request()
        return await super().put(path, value, expected_version, ephemeral=ephemeral)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        await self._request()
        await super().delete(path, expected_version)

    async def _request(self) -> None:
        if self.hold_at:
            self.requests += 1
            if self.requests == self.hold_at:
                self.reached.set()
                await self.let_go.wait()


def copy_of(tree: MemoryTree) -> MemoryTree:
    """The metadata as they are now, with their versions: what a backup of the store is."""
    twin = MemoryTree()
    for path, node in tree._nodes.items():
        for _ in range(node.version + 1):
            twin.put(path, node.value, ANY_VERSION, None)
    twin.identity, twin.history = tree.identity, tree.history
    return twin
