"""Work that takes longer than a request: begun under an id of the caller's, asked for later."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pulsark.errors import PulsarkError

log = logging.getLogger(__name__)

KEPT = 64
"""Works whose outcome is remembered."""


@dataclass
class Work:
    """One piece of work, and how it went."""

    status: str = "RUNNING"
    """RUNNING, SUCCESS or ERROR."""
    result: Any = None
    error: str = ""
    progress: Callable[[], Any] | None = field(default=None, repr=False)
    """What there is to say while it runs."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def shown(self) -> dict[str, Any]:
        """As the admin API answers."""
        found = {"status": self.status, "result": self.result, "error": self.error}
        return found if self.progress is None else {**found, "progress": self.progress()}


class Works:
    """The background work of one process. It ends with the process."""

    def __init__(self, told: Callable[[str, str], None] = lambda ident, status: None) -> None:
        """``told`` hears how each has ended."""
        self._known: OrderedDict[str, Work] = OrderedDict()
        self._told = told

    def get(self, ident: str) -> Work | None:
        """A work that was begun, unless it is long ago."""
        return self._known.get(ident)

    def begin(
        self,
        ident: str,
        do: Callable[[], Awaitable[Any]],
        progress: Callable[[], Any] | None = None,
    ) -> Work:
        """Begin it, unless there is one with this id."""
        work = self._known.get(ident)
        if work is None:
            work = self._known[ident] = Work(progress=progress)
            work.task = asyncio.get_running_loop().create_task(self._run(ident, work, do))
            done = [key for key, known in self._known.items() if known.status != "RUNNING"]
            for old in done[: max(0, len(self._known) - KEPT)]:
                del self._known[old]
        return work

    async def _run(self, ident: str, work: Work, do: Callable[[], Awaitable[Any]]) -> None:
        await _run(work, do)
        self._told(ident, work.status)


async def _run(work: Work, do: Callable[[], Awaitable[Any]]) -> None:
    try:
        work.result = await do()
        work.status = "SUCCESS"
    except PulsarkError as error:
        work.status, work.error = "ERROR", str(error)
    except Exception as error:
        log.exception("work on a table failed")
        work.status, work.error = "ERROR", repr(error)
