"""Ids that rise over all processes: callers of one turn share one change of the counter.

Ranges for each process would be cheaper, but a topic that moves would then get a lower ledger id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataError, OutcomeUnknownError
from pulsark.metadata.store import ABSENT
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore, Versioned


class Counter:
    """One counter."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = path
        self._known: tuple[int, int] | None = None
        """The next number and the version of the counter, as this process left it."""
        self._waiting: list[asyncio.Future[int]] = []
        self._task: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """A number; the errors are those of ``put``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self._waiting.append(future)
        if self._task is None or self._task.done():
            self._task = unattended(self._take_all(), "taking numbers of a counter")
        return await future

    async def _take_all(self) -> None:
        await asyncio.sleep(0)  # the rest of this turn
        while self._waiting:
            takers, self._waiting = self._waiting, []
            takers = [taker for taker in takers if not taker.done()]
            error: BaseException
            try:
                first = await self._take(len(takers))
            except MetadataError as failed:
                error = failed
            except BaseException:
                self._give_up(takers, OutcomeUnknownError("the counter was interrupted"))
                raise
            else:
                for number, taker in enumerate(takers, first):
                    if not taker.done():
                        taker.set_result(number)
                continue
            self._give_up(takers, error)

    @staticmethod
    def _give_up(takers: list[asyncio.Future[int]], error: BaseException) -> None:
        for taker in takers:
            if not taker.done():
                taker.set_exception(error)

    async def _take(self, count: int) -> int:
        while True:
            known, self._known = self._known, None
            if known is None:
                known = self._read(await self._store.get(self._path))
            first, version = known
            try:
                version = await self._store.put(self._path, b"%d" % (first + count), version)
            except BadVersionError:
                continue  # another process was first
            self._known = first + count, version
            return first

    def _read(self, found: Versioned | None) -> tuple[int, int]:
        if found is None:
            return 0, ABSENT
        try:
            return int(found.value), found.version
        except ValueError as error:
            raise CorruptMetadataError(f"the counter {self._path} is no number") from error


class Counters:
    """All counters of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._counters: dict[str, Counter] = {}

    async def next(self, path: str) -> int:
        """A number of the counter at a path."""
        counter = self._counters.get(path)
        if counter is None:
            counter = self._counters[path] = Counter(self._store, path)
        return await counter.next()
