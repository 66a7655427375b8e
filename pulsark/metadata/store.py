"""The metadata store's interface: a tree of small versioned values.

The part of ZooKeeper's model that scales: compare-and-set, ephemeral values and watches. Each
implementation passes the contract in ``tests/contracts/test_metadata_store.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import BadVersionError, MetadataRefusedError
from pulsark.limits import METADATA_PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.session import Session

ANY_VERSION = -2
"""An expected version that matches any."""

ABSENT = -1
"""An expected version that matches only a path without a value."""

MAX_VALUE_BYTES = 1 << 20
"""Longer values are refused."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and its version.

    Versions of a path rise by one with each write and never repeat, not even after a deletion: the
    same version always means the same value. Without any deletion in the store they start at 0.
    """

    value: bytes
    version: int


class MetadataStore(Protocol):
    """Paths look like ``/a/b/c``; a parent need not exist. Values are at most 1 MiB.

    Reading a damaged value raises ``MetadataError``. It never returns another value or ``None``.
    """

    @property
    def identity(self) -> str:
        """32 random hexadecimal digits, chosen when the store was created."""

    @property
    def mark(self) -> int:
        """The mark of the last durable change (``metadata.history``). Marks rise."""

    @property
    def session(self) -> Session:
        """This process's session: whether its ephemeral values certainly exist, or are gone."""

    def knows(self, mark: int) -> bool:
        """Whether this store gave the mark; false if it was a later state that the store lost."""

    def on_commit(self, listener: Callable[[int], None]) -> None:
        """Call ``listener(mark)`` when a change is durable, before its write returns."""

    async def adopt(self, marks: Iterable[int]) -> None:
        """Continue above marks that this store does not know. It knows them from now on."""

    async def get(self, path: str) -> Versioned | None:
        """The value at a path, or ``None``."""

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        """Store a value durably and return its new version.

        A write has one of three outcomes, within a bounded time. If it returns, it is done.
        ``MetadataRefusedError``: it has no effect, now or later. ``BadVersionError`` is one: the
        path is not at ``expected_version``. ``OutcomeUnknownError``: it may have happened, or may
        still happen a little later; the same is true if the caller is cancelled. Undo what a value
        refers to only after a refusal; otherwise read what is stored (``settled.put_settled``).

        An ephemeral value disappears with the session that created it. A put cannot change an
        existing value from ephemeral to persistent or back: ``MetadataError``.
        """

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        """Make several changes durably, all or none; returns the new version of each path.

        All versions are compared first. If one does not match, nothing changes, and the
        ``BadVersionError`` names the first such path. Errors mean the same as those of ``put``, for
        all changes together. ``changes.check_changes`` has the limits.
        """

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Remove a value durably; ``BadVersionError`` if absent or at another version."""

    async def children(self, path: str) -> list[str]:
        """Sorted names of the direct children (with or without values of their own).

        This returns all of them at once; for many, use ``page`` or ``pages.names_below``.
        """

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        """At most ``limit`` names of direct children that follow ``after``; none at the end.

        The order is the store's own and never changes. A caller that continues after the last name
        of each page sees each permanent child once; ``after`` may have been deleted meanwhile.
        """

    async def next_id(self, path: str) -> int:
        """A number from the counter at ``path``, greater than all before it. Starts at 0.

        This holds across sessions and restarts. Numbers may be skipped.
        """

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``changed(path)`` on the event loop after a change at or below ``prefix``.

        ``missed()`` is called instead if changes may have been lost: anything at or below
        ``prefix`` may have changed. A change may be reported late, and more than once. Returns a
        function that ends the watch.
        """

    async def close(self) -> None:
        """End the session. Its ephemeral values disappear."""


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, str]:
    """``(parent, name)`` of a valid path other than the root; raises ``MetadataError``.

    A path starts with a slash and does not end with one. Its parts are not empty, ``.`` or ``..``,
    and contain no NUL. Every implementation can store such paths. Kept, because each layer asks.
    """
    parts = path.split("/")
    if len(parts) < 2 or parts[0] or "\0" in path:
        raise MetadataRefusedError(f"not a path: {path!r}")
    for part in parts[1:]:
        if part in ("", ".", ".."):
            raise MetadataRefusedError(f"not a path: {path!r}")
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise MetadataRefusedError(f"not a path: {path!r}") from e
    name = parts[-1]
    return path[: -len(name) - 1] or "/", name


def check_parent(path: str) -> None:
    """Raise ``MetadataError`` unless ``path`` can have children (the root can)."""
    if path != "/":
        split_path(path)


def check_page(path: str, limit: int) -> None:
    """Raise ``MetadataError`` for an invalid page request."""
    check_parent(path)
    if not 0 < limit <= METADATA_PAGE_MAX:
        raise MetadataRefusedError(f"a page has 1 to {METADATA_PAGE_MAX} names, not {limit}")


def check_version(path: str, version: int, expected: int) -> None:
    """Raise ``BadVersionError`` unless a path has the version that a write expects."""
    if expected not in (ANY_VERSION, version):
        raise bad_version(path, version, expected)


def bad_version(path: str, version: int, expected: int) -> BadVersionError:
    """Return the error of a write that expects another version of a path."""
    problem = "does not exist" if version == ABSENT else f"is at version {version}"
    return BadVersionError(path, f"{problem}, not as expected ({expected})")


def wrong_kind(path: str, *, ephemeral: bool) -> MetadataRefusedError:
    """The error for a put that would change whether a value is ephemeral."""
    return MetadataRefusedError(f"{path} is {'ephemeral' if ephemeral else 'not ephemeral'}")


def check_value(path: str, value: bytes) -> None:
    """Raise ``MetadataError`` for a value that is too long."""
    if len(value) > MAX_VALUE_BYTES:
        raise MetadataRefusedError(
            f"the value of {path} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed"
        )
