"""Follows the changes of other processes: one watch of all that is told, from revision to revision.

After a lost connection it goes on where it was. If etcd has forgotten that revision (compaction),
everybody is told that changes were missed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import MetadataError
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.connection import BrokenError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.metadata.etcd.gateway import Gateway
    from pulsark.metadata.etcd.layout import Layout
    from pulsark.metadata.etcd.marks import Marks
    from pulsark.metadata.etcd.transactions import Transactions

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_ANSWER_SECONDS: Final = 5.0
_RESYNC_SECONDS: Final = 10.0
_AT_ONCE: Final = 200
_OWN_MAX: Final = 10_000


class Watch:
    """One session's watch."""

    def __init__(
        self,
        gateway: Gateway,
        transactions: Transactions,
        layout: Layout,
        marks: Marks,
        told: Callable[[Sequence[str]], None],
        missed: Callable[[], None],
    ) -> None:
        """``told(paths)`` is called for changes of others, ``missed()`` if some are not known."""
        self._gateway = gateway
        self._transactions = transactions
        self._layout = layout
        self._marks = marks
        self._told = told
        self._missed = missed
        self._position = 0
        self._own: set[int] = set()
        self._behind = False
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def start(self, revision: int) -> None:
        """Follow what comes after a revision."""
        self._position = revision
        self._gateway.on_moved(self._listen_elsewhere)
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Follow no longer."""
        for task in (self._task, self._listening):
            if task is not None:
                task.cancel()

    def made(self, revision: int) -> bool:
        """This process has made a revision: whether its changes are not told yet.

        They will not be told by the watch, either.
        """
        if revision <= self._position:
            return False
        if len(self._own) >= _OWN_MAX:  # what is told twice harms nobody
            self._own.clear()
        self._own.add(revision)
        return True

    def _listen_elsewhere(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _follow(self) -> None:
        pause, said = _PAUSE_SECONDS, False
        while True:
            position, trouble = self._position, ""
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            await asyncio.wait([self._listening])
            if not self._listening.cancelled():
                error = self._listening.exception()  # also a refusal: the session's end closes this
                trouble = str(error or "it has ended")
                if error is not None and not isinstance(error, BrokenError | MetadataError):
                    log.error("a defect while changes of metadata are followed", exc_info=error)
            if position != self._position:
                pause = _PAUSE_SECONDS
                if said:
                    said = False
                    log.warning("changes of metadata are followed again")
            elif pause == _PAUSE_SECONDS and trouble:
                said = True
                log.warning("changes of metadata cannot be followed for now: %s", trouble)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def _listen(self) -> None:
        if self._behind:
            deadline = asyncio.get_running_loop().time() + _RESYNC_SECONDS
            now = await self._transactions.read([], deadline)
            self._position = max(self._position, now.revision)
            self._behind = False
            self._missed()
        told = self._layout.told
        body = messages.watch(told, messages.after(told), self._position + 1)
        async with aclosing(self._gateway.stream("watch", body, _ANSWER_SECONDS)) as answers:
            async for answer in answers:
                if answer.get("canceled"):
                    self._behind = int(answer.get("compact_revision", 0)) > 0
                    raise BrokenError(str(answer.get("cancel_reason", "etcd has cancelled it")))
                if answer.get("events"):
                    await self._take(answer["events"], is_part=bool(answer.get("fragment")))

    async def _take(self, events: Sequence[dict[str, Any]], *, is_part: bool) -> None:
        paths: list[str] = []
        changed = self._position
        try:
            for number, event in enumerate(events, 1):
                found = messages.key_value(event["kv"])
                changed = max(changed, found.changed)
                paths += self._paths(found)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        except (ValueError, KeyError, TypeError) as error:
            log.exception("a change of metadata cannot be read")
            self._behind = True
            raise BrokenError("an event cannot be read") from error
        self._marks.reached(changed)
        for first in range(0, len(paths), _AT_ONCE):
            if first:
                await asyncio.sleep(0)
            self._told(paths[first : first + _AT_ONCE])
        # Only now: who is cancelled before tells it again rather than not at all. More of the same
        # revision may follow in another part.
        self._position = changed - is_part
        self._own = {revision for revision in self._own if revision > self._position}
        self._marks.tell()

    def _paths(self, found: messages.KeyValue) -> list[str]:
        if found.key == self._layout.history:
            with suppress(MetadataError):  # the next transaction meets it, too
                self._marks.learn(found.value, found.changed)
            return []
        if found.changed in self._own:
            return []
        if found.key == self._layout.appeared:
            return found.value.decode().split("\0")
        path = self._layout.told_path(found.key)
        return [] if path is None else [path]
