"""Chores: what a broker does again and again without being asked, each at its own interval."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to be done again and again, the first time after one interval."""

    name: str
    seconds: float
    run: Callable[[], Awaitable[None]]
    first_seconds: float | None = None
    """Time until the first one, if that is another."""


class Chores:
    """Runs chores. One that fails is tried again when its time comes."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, chores: Iterable[Chore]) -> None:
        """Begin, each chore beside the others."""
        self._tasks += [asyncio.create_task(_repeat(chore), name=chore.name) for chore in chores]

    async def close(self) -> None:
        """End. What is under way is broken off."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def running(self) -> bool:
        """Whether every chore is still looked after."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)


async def _repeat(chore: Chore) -> None:
    pause = chore.seconds if chore.first_seconds is None else chore.first_seconds
    while True:
        await asyncio.sleep(pause)
        pause = chore.seconds
        try:
            await chore.run()
        except PulsarkError as error:
            log.warning("%s failed, trying again in %s s: %s", chore.name, pause, error)
        except Exception:
            log.exception("%s: tried again in %s s", chore.name, pause)
