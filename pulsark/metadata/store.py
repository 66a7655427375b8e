"""The metadata store's interface: a tree of small versioned values.

ZooKeeper's model without what it cannot do at scale: compare-and-set, ephemeral nodes and
watches. ``tests/contracts/test_metadata_store.py`` is the contract that each implementation
passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import BadVersionError, MetadataRefusedError
from pulsark.limits import METADATA_PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.session import Session

ANY_VERSION = -2
"""Expected version that matches any."""

ABSENT = -1
"""Expected version for "the path must not exist"."""

MAX_VALUE_BYTES = 1 << 20
"""A longer value is refused."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and its version.

    Versions of a path rise by one with each write and never repeat, not even after a deletion: who
    knows a version knows the value. In a store in which nothing was ever deleted they start at 0.
    """

    value: bytes
    version: int


class MetadataStore(Protocol):
    """Paths look like ``/a/b/c``; a parent need not exist. Values are at most 1 MiB.

    A value that is not as it was written is a ``MetadataError``: never another value, and never
    ``None``.
    """

    @property
    def identity(self) -> str:
        """Chosen at random when the store was made: 32 hexadecimal digits."""

    @property
    def mark(self) -> int:
        """The mark of the last durable change (``metadata.history``). It rises."""

    @property
    def session(self) -> Session:
        """How long ephemeral values of this store certainly stay, and whether they are gone."""

    def knows(self, mark: int) -> bool:
        """Whether a mark was given by this store, and not by a later state that it lost."""

    def on_commit(self, listener: Callable[[int], None]) -> None:
        """Call ``listener(mark)`` when a change is durable, before its write returns."""

    async def adopt(self, marks: Iterable[int]) -> None:
        """Go on above marks that this store does not know; it knows them from now on."""

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

        A write has one of three outcomes, within a bounded time. It returned: it is done.
        ``MetadataRefusedError``: nothing was changed, and will not be; so ``BadVersionError`` when
        the path is not at ``expected_version`` (``ABSENT``: must not exist).
        ``OutcomeUnknownError``: nobody knows, and it may still be done a little later. The same
        holds for a caller that was cancelled. What a write names is undone only after a refusal;
        else the stored value says what holds (``settled.put_settled``).

        An ephemeral value goes away with the session that created it; that it is one is decided
        at its creation, so a put of the other kind over an existing value is a
        ``MetadataError``.
        """

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        """Make several changes durably, all or none; returns what version each path has now.

        All conditions are compared first: if one does not hold, nothing is changed, and the path of
        the ``BadVersionError`` is the first of which that is so. What holds for an error of ``put``
        holds here, for all changes together. ``changes.check_changes`` has the limits.
        """

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Remove a value durably; ``BadVersionError`` if absent or at another version."""

    async def children(self, path: str) -> list[str]:
        """Sorted names of the direct children (with or without values of their own).

        All at once: where there may be very many, ``page`` and ``pages.names_below`` are for it.
        """

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        """Names of direct children, those behind ``after``: at most ``limit``, none at the end.

        The order is the store's own and does not change. So whoever goes on behind the last name of
        each page meets every child once that is there all the time; ``after`` may be gone by then.
        """

    async def next_id(self, path: str) -> int:
        """A number from the counter at ``path``, greater than all before it. Starts at 0.

        That holds over all sessions and restarts; numbers may be left out.
        """

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``changed(path)`` on the event loop after a change at or below ``prefix``.

        ``missed()`` is called instead where changes may not have been told: anything at or below
        ``prefix`` may be another by now. Returns the function that ends the watch. A change may be
        told late, and more than once.
        """

    async def close(self) -> None:
        """End the session; ephemeral values go away."""


def split_path(path: str) -> tuple[str, str]:
    """``(parent, name)`` of a valid path other than the root; raises ``MetadataError``.

    A path starts with a slash, does not end with one, and its parts are neither empty nor
    ``.`` nor ``..`` and hold no NUL: what every implementation can store.
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
    """Raise ``MetadataError`` for a page that no store gives."""
    check_parent(path)
    if not 0 < limit <= METADATA_PAGE_MAX:
        raise MetadataRefusedError(f"a page has 1 to {METADATA_PAGE_MAX} names, not {limit}")


def check_version(path: str, version: int, expected: int) -> None:
    """Raise ``BadVersionError`` if what a path is at is not what a write expects."""
    if expected not in (ANY_VERSION, version):
        raise BadVersionError(path, f"is at version {version}, not {expected}")


def wrong_kind(path: str, *, ephemeral: bool) -> MetadataRefusedError:
    """The error for a put of the other kind over an existing value."""
    return MetadataRefusedError(f"{path} is {'ephemeral' if ephemeral else 'not ephemeral'}")


def check_value(path: str, value: bytes) -> None:
    """Raise ``MetadataError`` for a value that is too long."""
    if len(value) > MAX_VALUE_BYTES:
        raise MetadataRefusedError(
            f"the value of {path} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed"
        )
