"""A metadata store in memory, for simulation and tests: several sessions share one tree."""

from __future__ import annotations

import asyncio
import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, MetadataRefusedError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.changes import Change, Check, Delete, Put, check_changes
from pulsark.metadata.history import NONCE_BITS, History
from pulsark.metadata.session import SIGNS_A_DEADLINE, Session
from pulsark.metadata.single_writes import SingleWrites
from pulsark.metadata.store import (
    ABSENT,
    ANY_VERSION,
    Versioned,
    check_page,
    check_parent,
    check_version,
    split_path,
    wrong_kind,
)
from pulsark.metadata.watches import Watches
from pulsark.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.runtime import Clock


@dataclass(slots=True)
class _Node:
    value: bytes
    version: int
    session: MemoryMetadataStore | None


class MemoryTree:
    """The data that sessions share. It outlives them, as a server outlives its clients."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        number = next(self._numbers)
        self.identity = f"{number:032x}"
        self.history = History((), 0).with_session(number % (1 << NONCE_BITS))
        self.listeners: list[Callable[[int], None]] = []
        self.watches = Watches()
        self.first_version = 0
        """The first version of a new path, above the versions of all deleted paths."""
        self._nodes: dict[str, _Node] = {}
        self._children: dict[str, set[str]] = {}
        self._heard: dict[MemoryMetadataStore, float] = {}
        """The time of the last sign of life of each session with a deadline."""

    def get(self, path: str) -> Versioned | None:
        """The value at a path, or ``None``."""
        split_path(path)
        node = self._nodes.get(path)
        return None if node is None else Versioned(node.value, node.version)

    def put(
        self, path: str, value: bytes, expected_version: int, session: MemoryMetadataStore | None
    ) -> int:
        """Store a value; ``session`` owns it if it is ephemeral."""
        change = Put(path, value, expected_version, ephemeral=session is not None)
        return self.commit((change,), session)[0]

    def delete(self, path: str, expected_version: int) -> None:
        """Remove a value."""
        self.commit((Delete(path, expected_version),), None)

    def commit(self, changes: Sequence[Change], session: MemoryMetadataStore | None) -> list[int]:
        """Make all changes or none; ``session`` owns the ephemeral values among them."""
        check_changes(changes)
        for change in changes:
            self._check(change, session)
        versions = [self._make(change, session) for change in changes]
        self._committed()
        for change in changes:
            if not isinstance(change, Check):
                self.watches.tell(change.path)
        return versions

    def _check(self, change: Change, session: MemoryMetadataStore | None) -> None:
        path, node = change.path, self._nodes.get(change.path)
        check_version(path, ABSENT if node is None else node.version, change.expected_version)
        if node is None:
            if isinstance(change, Delete):
                raise BadVersionError(path, "does not exist")
        elif isinstance(change, Put) and node.session is not (
            session if change.ephemeral else None
        ):
            raise wrong_kind(path, ephemeral=node.session is not None)

    def _make(self, change: Change, session: MemoryMetadataStore | None) -> int:
        path, node = change.path, self._nodes.get(change.path)
        if isinstance(change, Check):
            return change.expected_version
        if isinstance(change, Put):
            if node is None:
                owner = session if change.ephemeral else None
                self._nodes[path] = _Node(change.value, self.first_version, owner)
                self._link(path)
                return self.first_version
            node.value = change.value
            node.version += 1
            return node.version
        assert node is not None
        self.first_version = max(self.first_version, node.version + 1)
        del self._nodes[path]
        self._unlink(path)
        return ABSENT

    def _committed(self) -> None:
        self.history = replace(self.history, last_commit=self.history.last_commit + 1)
        for listener in self.listeners:
            listener(self.history.mark)

    def branch(self, above: Iterable[int] = ()) -> None:
        """Begin a new session of the history, as every start of a store does."""
        number = next(self._numbers)
        self.history = self.history.with_session(number % (1 << NONCE_BITS), above)

    def children(self, path: str) -> list[str]:
        """Sorted names of the direct children."""
        check_parent(path)
        return sorted(self._children.get(path, ()))

    def hear(self, session: MemoryMetadataStore, now: float) -> None:
        """Record a sign of life, and end the sessions that were silent for too long."""
        self._heard[session] = now
        for other, heard in list(self._heard.items()):
            if heard + other.session.timeout_seconds < now:
                other.expire()

    def end_session(self, session: MemoryMetadataStore) -> None:
        """Remove the session's ephemeral values."""
        self._heard.pop(session, None)
        mine = [path for path, node in self._nodes.items() if node.session is session]
        for path in mine:
            self.delete(path, ANY_VERSION)

    def copy(self) -> MemoryTree:
        """A copy of the tree with its versions, like a backup of the store."""
        twin = MemoryTree()
        twin.identity, twin.history = self.identity, self.history
        twin.first_version = self.first_version
        twin._nodes = {path: replace(node, session=None) for path, node in self._nodes.items()}
        twin._children = {path: set(names) for path, names in self._children.items()}
        return twin

    def _link(self, path: str) -> None:
        while path != "/":
            parent, name = split_path(path)
            siblings = self._children.setdefault(parent, set())
            if name in siblings:
                return
            siblings.add(name)
            path = parent

    def _unlink(self, path: str) -> None:
        while path != "/" and path not in self._nodes and not self._children.get(path):
            self._children.pop(path, None)
            parent, name = split_path(path)
            self._children[parent].discard(name)
            path = parent


class MemoryMetadataStore(SingleWrites):
    """One session. A write takes effect one turn of the loop after the call, then returns."""

    def __init__(
        self,
        tree: MemoryTree | None = None,
        clock: Clock | None = None,
        session_seconds: float = math.inf,
    ) -> None:
        """``session_seconds``: the session ends when it was silent for this long."""
        self.tree = tree if tree is not None else MemoryTree()
        self._clock = clock if clock is not None else SystemClock()
        self.session = Session(self._clock, session_seconds)
        self.is_silent = False
        """For tests: gives no sign of life, like a stopped process."""
        self._watches: list[Callable[[], None]] = []
        if session_seconds < math.inf:
            self._give_sign()

    @property
    def identity(self) -> str:
        return self.tree.identity

    @property
    def mark(self) -> int:
        return self.tree.history.mark

    def knows(self, mark: int) -> bool:
        return self.tree.history.knows(mark)

    def on_commit(self, listener: Callable[[int], None]) -> None:
        def told(mark: int) -> None:
            if not self.session.has_ended:
                listener(mark)

        self.tree.listeners.append(told)
        self._watches.append(lambda: self.tree.listeners.remove(told))

    async def adopt(self, marks: Iterable[int]) -> None:
        self.tree.branch(marks)

    async def get(self, path: str) -> Versioned | None:
        self._check_session()
        return self.tree.get(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        await asyncio.sleep(0)
        self._check_session()
        versions = self.tree.commit(changes, self)
        await asyncio.sleep(0)
        return versions

    async def children(self, path: str) -> list[str]:
        self._check_session()
        return self.tree.children(path)

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        self._check_session()
        check_page(path, limit)
        names = self.tree.children(path)
        first = bisect_right(names, after)
        return names[first : first + limit]

    async def next_id(self, path: str) -> int:
        await asyncio.sleep(0)
        self._check_session()
        current = self.tree.get(path)
        number = 0 if current is None else int(current.value)
        self.tree.put(path, b"%d" % (number + 1), ANY_VERSION, None)
        return number

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        check_parent(prefix)
        end = self.tree.watches.add(prefix, changed, missed)
        self._watches.append(end)
        return end

    async def close(self) -> None:
        self.expire()

    def expire(self) -> None:
        """End the session now, as a lost connection does."""
        if self.session.has_ended:
            return
        self.session.end()
        self.vanish()

    def vanish(self) -> None:
        """End the session as the death of its process does: its listeners are not called."""
        for end in self._watches:
            end()
        self._watches.clear()
        self.tree.end_session(self)

    def _give_sign(self) -> None:
        if self.session.has_ended:
            return
        now = self._clock.monotonic()
        if not self.is_silent:
            self.tree.hear(self, now)
            self.session.heard(now)
        loop = asyncio.get_running_loop()
        loop.call_later(self.session.timeout_seconds / SIGNS_A_DEADLINE, self._give_sign)

    def _check_session(self) -> None:
        if self.session.has_ended:
            raise MetadataRefusedError("the session of the metadata store has ended")
