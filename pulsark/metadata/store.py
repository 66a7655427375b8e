"""The metadata store's interface: a tree of small versioned values.

ZooKeeper's model without what it cannot do at scale: compare-and-set, ephemeral nodes and
watches. ``tests/contracts/test_metadata_store.py`` is the contract that each implementation
passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ANY_VERSION = -2
"""Expected version for "whatever is there"."""

ABSENT = -1
"""Expected version for "the path must not exist"."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and its version; versions of a path start at 0 and rise by one a write."""

    value: bytes
    version: int


class MetadataStore(Protocol):
    """Paths look like ``/a/b/c``; a parent need not exist. Values are at most 1 MiB."""

    async def get(self, path: str) -> Versioned | None:
        """The value at a path, or ``None``."""

    async def put(
        self, path: str, value: bytes, expected_version: int = ANY_VERSION, *, ephemeral: bool = False
    ) -> int:
        """Store a value durably and return its new version.

        Raises ``BadVersionError`` when the path is not at ``expected_version`` (``ABSENT``:
        must not exist). An ephemeral value goes away with this store's session.
        """

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Remove a value durably; ``BadVersionError`` if absent or at another version."""

    async def children(self, path: str) -> list[str]:
        """Sorted names of the direct children (with or without values of their own)."""

    async def next_id(self, path: str) -> int:
        """A number from the counter at ``path`` that was never returned before. Starts at 0."""

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed(path)`` on the event loop after a change below ``prefix``.

        Returns the function that ends the watch.
        """

    async def close(self) -> None:
        """End the session; ephemeral values go away."""
