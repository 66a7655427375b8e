"""A metadata store whose writes have the outcomes that a test gives them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TypeVar

from pulsark.errors import MetadataError, OutcomeUnknownError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.watches import Watches

T = TypeVar("T")

TURNS_LATE = 20


class Fate(Enum):
    """Of a write whose outcome its caller does not hear, but for the first."""

    DONE = "done and answered"
    NEVER = "not done"
    UNHEARD = "done"
    LATE = "done a little later"


class FaultyStore(MemoryMetadataStore):
    """The next writes have these fates, all later ones are answered."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.fates: deque[Fate] = deque()
        self._late: set[asyncio.Task[object]] = set()
        self._own = Watches()
        self.away = False
        """Whether nobody hears of changes."""
        super().watch("/", self._heard, self._own.tell_missed)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        commit = super().commit
        return await self._fated(lambda: commit(changes))

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        return self._own.add(prefix, changed, missed)

    def lose_watches(self) -> None:
        """Nobody hears of changes from now on."""
        self.away = True

    def watch_again(self) -> None:
        """From now on changes are told; what was changed before is not."""
        self.away = False
        self._own.tell_missed()

    def _heard(self, path: str) -> None:
        if not self.away:
            self._own.tell(path)

    async def next_id(self, path: str) -> int:
        next_id = super().next_id
        return await self._fated(lambda: next_id(path))

    async def _fated(self, write: Callable[[], Awaitable[T]]) -> T:
        fate = self.fates.popleft() if self.fates else Fate.DONE
        if fate is Fate.DONE:
            return await write()
        if fate is Fate.UNHEARD:
            with contextlib.suppress(MetadataError):
                await write()
        elif fate is Fate.LATE:
            task = asyncio.ensure_future(self._later(write))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        raise OutcomeUnknownError("the store did not answer")

    async def _later(self, write: Callable[[], Awaitable[object]]) -> None:
        for _ in range(TURNS_LATE):
            await asyncio.sleep(0)
        with contextlib.suppress(MetadataError):
            await write()
