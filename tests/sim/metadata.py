"""A metadata store that can be stopped at each write, and copied."""

from __future__ import annotations

from collections.abc import Callable

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import ANY_VERSION


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


def copy_of(tree: MemoryTree) -> MemoryTree:
    """The metadata as they are now, with their versions."""
    twin = MemoryTree()
    for path, node in tree._nodes.items():
        for _ in range(node.version + 1):
            twin.put(path, node.value, ANY_VERSION, None)
    return twin
