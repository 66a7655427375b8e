"""A metadata store that can be stopped at each write, copied, and left without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from pulsark.errors import MetadataError, OutcomeUnknownError
from pulsark.metadata.changes import Change, Check
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import Versioned

T = TypeVar("T")


def paths_of(changes: Iterable[Change]) -> list[str]:
    """What a commit writes, without what it only checks."""
    return [change.path for change in changes if not isinstance(change, Check)]


def _below(prefix: str, paths: Iterable[str]) -> bool:
    return any(path.startswith(prefix) for path in paths)


class SteppingStore(MemoryMetadataStore):
    """Tells about the moment before and after each write takes effect."""

    def __init__(self, tree: MemoryTree, moment: Callable[[str], None]) -> None:
        super().__init__(tree)
        self._moment = moment

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        what = " and ".join(f"{type(c).__name__.lower()} {c.path}" for c in changes)
        self._moment(what)
        versions = await super().commit(changes)
        self._moment(f"end of {what}")
        return versions


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

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        await self._request()
        return await super().commit(changes)

    async def _request(self) -> None:
        if self.hold_at:
            self.requests += 1
            if self.requests == self.hold_at:
                self.reached.set()
                await self.let_go.wait()


class UnsureStore(MemoryMetadataStore):
    """Does not answer some of its writes: ``MetadataError``, and nobody knows what became of them.

    Such a write was never made, was made, or is made a little later, when its caller may have asked
    for something else. ``part`` of the writes below ``prefix`` go that way while it is not 0.
    """

    def __init__(
        self, tree: MemoryTree, rng: random.Random, part: float, prefix: str = "/"
    ) -> None:
        super().__init__(tree)
        self.part = part
        self.unanswered = 0
        self._rng = rng
        self._prefix = prefix
        self._late: set[asyncio.Task[object]] = set()

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        commit = super().commit
        return await self._answered(paths_of(changes), lambda: commit(changes))

    async def next_id(self, path: str) -> int:
        next_id = super().next_id
        return await self._answered([path], lambda: next_id(path))

    async def _answered(self, paths: Sequence[str], write: Callable[[], Awaitable[T]]) -> T:
        if not _below(self._prefix, paths) or self._rng.random() >= self.part:
            return await write()
        self.unanswered += 1
        fate = self._rng.choice(["never", "done", "late"])
        if fate == "done":
            with contextlib.suppress(MetadataError):
                await write()
        elif fate == "late":
            task = asyncio.ensure_future(self._do_late(write))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        raise OutcomeUnknownError("the store did not answer")

    async def _do_late(self, write: Callable[[], Awaitable[object]]) -> None:
        for _ in range(self._rng.randint(1, 30)):
            await asyncio.sleep(0)
        with contextlib.suppress(MetadataError):
            await write()


class AwayStore(MemoryMetadataStore):
    """Goes away at its ``at``th write, and comes back some seconds later.

    Nobody hears what became of that write: it was made or, unless ``made``, it was not.
    """

    def __init__(self, tree: MemoryTree, at: int, seconds: float, *, made: bool) -> None:
        super().__init__(tree)
        self.writes = 0
        self._at = at
        self._seconds = seconds
        self._made = made
        self._back_at = 0.0

    async def get(self, path: str) -> Versioned | None:
        self._check_there()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self._check_there()
        return await super().children(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        return await self._write(super().commit(changes))

    async def next_id(self, path: str) -> int:
        return await self._write(super().next_id(path))

    async def _write(self, write: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_there()
            self.writes += 1
            if self.writes != self._at:
                return await write
            if self._made:
                with contextlib.suppress(MetadataError):
                    await write
            self._back_at = asyncio.get_running_loop().time() + self._seconds
            self._check_there()
            raise AssertionError("it is away")
        finally:
            write.close()

    def _check_there(self) -> None:
        if asyncio.get_running_loop().time() < self._back_at:
            raise OutcomeUnknownError("the store does not answer")
