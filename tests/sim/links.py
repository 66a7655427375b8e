"""The way from one owner of ledgers to bookies and metadata: slow, lossy, and cut at times.

What a link loses, it loses after the request or before it: the caller hears of an error in both
cases and cannot tell. A request that is on its way when its sender dies arrives all the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pulsark.errors import BookieAwayError, OutcomeUnknownError, StorageError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.runtime import Done
from pulsark.storage.bookie.bookie import Bookie, EntryRun, LedgerTail

T = TypeVar("T")


@dataclass
class Weather:
    """How bad it is. Chances are of one request; all zero is a quiet day."""

    rng: random.Random
    slow: float = 0.0
    """Chance that a message takes up to ``slow_seconds`` and not a millisecond."""
    slow_seconds: float = 0.05
    lost: float = 0.0
    """Chance that a request is lost, and that its answer is."""
    unknown: float = 0.0
    """Chance that the answer to a write of metadata is lost."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Weather:
        """One seed in four is quiet, the others have a mix of their own."""
        if rng.random() < 0.25:
            return cls(rng)
        return cls(
            rng,
            rng.choice((0.0, 0.1, 0.5)),
            rng.choice((0.01, 0.05, 0.4)),
            rng.choice((0.0, 0.02, 0.1, 0.25)),
            rng.choice((0.0, 0.0, 0.05, 0.2)),
        )

    def clear(self) -> None:
        """From now on everything arrives, at once."""
        self.slow = self.lost = self.unknown = 0.0

    def delay(self) -> float:
        """Seconds that one message takes."""
        if self.rng.random() < self.slow:
            return self.rng.uniform(0, self.slow_seconds)
        return self.rng.uniform(0, 0.001)

    def loses(self) -> bool:
        """Whether one message gets lost."""
        return self.rng.random() < self.lost


class LinkedBookie:
    """A bookie as one owner sees it. Requests arrive in order, and so do answers to appends.

    ``cut``: nothing goes through, in both directions. ``dead``: its owner has died and hears
    nothing any more; what is on its way arrives.
    """

    def __init__(self, bookie: Bookie, weather: Weather) -> None:
        self._bookie = bookie
        self._weather = weather
        self._arrives_at = 0.0
        self._answers: deque[tuple[Done, list[BaseException | None]]] = deque()
        self._unheard: list[object] = []
        self.cut = False
        self.dead = False
        self.slow_seconds = 0.0
        """What each message takes beyond the weather, in both directions."""

    @property
    def bookie_id(self) -> str:
        return self._bookie.bookie_id

    @property
    def is_away(self) -> bool:
        return False

    async def ready(self) -> None:
        """There is always a way, however bad."""

    def flush(self) -> None:
        """Nothing waits here for more."""

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        answer: list[BaseException | None] = []
        self._answers.append((done, answer))
        loses_answer = self._weather.loses()

        def answered(error: BaseException | None) -> None:
            lost = loses_answer or self.cut
            self._later(lambda: self._answer(answer, self._lost() if lost else error))

        def arrives() -> None:
            self._bookie.append(run, answered, recovery=recovery, reserve=reserve)

        if self.cut or self._weather.loses():
            self._later(lambda: self._answer(answer, self._lost()))
        else:
            self._in_order(arrives)

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        return await self._call(
            lambda: self._bookie.read(ledger_id, first_entry_id, last_entry_id, max_bytes)
        )

    async def excerpt(self, ledger_id: int, first: int, last: int) -> None:
        """It is on another machine."""

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        return await self._call(lambda: self._bookie.tail(ledger_id, fence=fence))

    async def release(self, ledger_id: int, through_entry_id: int) -> None:
        await self._call(lambda: self._bookie.release(ledger_id, through_entry_id))

    async def recycle(self) -> int:
        return await self._call(self._bookie.recycle)

    async def delete(self, ledger_id: int) -> None:
        await self._call(lambda: self._bookie.delete(ledger_id))

    async def _call(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        if self.cut or self._weather.loses():
            await asyncio.sleep(self._delay())
            raise self._lost()
        arrived: asyncio.Future[None] = loop.create_future()
        self._in_order(lambda: arrived.done() or arrived.set_result(None))
        await arrived
        result = await request()
        await asyncio.sleep(self._delay())
        if self.dead:
            await _never(self._unheard)
        if self.cut or self._weather.loses():
            raise self._lost()
        return result

    def _in_order(self, arrives: Callable[[], Any]) -> None:
        """One connection: a later request does not overtake an earlier one."""
        loop = asyncio.get_running_loop()
        self._arrives_at = max(loop.time() + self._delay(), self._arrives_at + 1e-6)
        loop.call_at(self._arrives_at, arrives)

    def _later(self, action: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(self._delay(), action)

    def _delay(self) -> float:
        return self.slow_seconds + self._weather.delay()

    def _answer(self, answer: list[BaseException | None], error: BaseException | None) -> None:
        answer.append(error)
        while self._answers and self._answers[0][1]:
            done, [outcome] = self._answers.popleft()
            if self.dead:
                self._unheard.append(done)
            else:
                done(outcome)

    def _lost(self) -> StorageError:
        # What an owner does with its appends depends on whether it expects the bookie back.
        kind = BookieAwayError if self._weather.rng.random() < 0.5 else StorageError
        return kind(f"bookie {self.bookie_id} does not answer")


class LinkedStore(MemoryMetadataStore):
    """A metadata store whose writes take time, and whose answers get lost."""

    def __init__(self, tree: MemoryTree, weather: Weather) -> None:
        super().__init__(tree)
        self._weather = weather
        self._unheard: list[object] = []
        self.dead = False

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        path = changes[-1].path
        await asyncio.sleep(self._weather.delay())
        unknown = self._weather.rng.random() < self._weather.unknown
        if unknown and self._weather.rng.random() < 0.5:
            raise OutcomeUnknownError(f"{path}: no answer")
        versions = await super().commit(changes)
        await self._answer(path, unknown)
        return versions

    async def _answer(self, path: str, unknown: bool) -> None:
        await asyncio.sleep(self._weather.delay())
        if self.dead:
            await _never(self._unheard)
        if unknown:
            raise OutcomeUnknownError(f"{path}: no answer")


async def _never(kept: list[object]) -> None:
    """Where a process stands that has died: whoever keeps the list keeps its tasks from view."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    kept.append(future)
    await future
