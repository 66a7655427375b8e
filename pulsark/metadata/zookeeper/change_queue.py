"""How processes tell each other of changes: ZooKeeper has no watch of a whole tree.

Whoever changes values creates a sequential node in the same multi, which names their paths. Each
process reads these nodes in order, and waits for the next one with a watch. Old ones are deleted;
a process that is too far behind, or was cut off, is told that it missed changes.

Nobody tells of ephemeral values that vanish with their session. ``Ephemerals`` watches those that
this process has read or was told of, if somebody here wants to know.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, trace_of
from pulsark.limits import METADATA_CHANGES_KEPT
from pulsark.metadata.changes import Check, Put
from pulsark.metadata.told import is_told
from pulsark.metadata.zookeeper.layout import CHANGE, CHANGES
from pulsark.metadata.zookeeper.nodes import CreateNode, DeleteNode, NodeError
from pulsark.metadata.zookeeper.plan import Prune
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.metadata.zookeeper.layout import Layout
    from pulsark.metadata.zookeeper.nodes import Node
    from pulsark.metadata.zookeeper.plan import Step

log = logging.getLogger(__name__)

TOLD_BYTES_MAX: Final = 128 << 10
_AHEAD: Final = 32
"""Changes that are read at once by who is behind."""
_TRIM_EACH: Final = 256
_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 10.0
"""How often to look whether the next change was skipped."""


def telling(session_id: int, steps: Sequence[Step]) -> CreateNode | None:
    """The node that tells of changes, if others are to be told."""
    paths: list[str] = []
    ephemeral: list[str] = []
    for step in steps:
        wanted = step.wanted
        if isinstance(wanted, Check | Prune) or not is_told(wanted.path, appearance=step.appeared):
            continue
        is_ephemeral = isinstance(wanted, Put) and wanted.ephemeral
        (ephemeral if is_ephemeral else paths).append(wanted.path)
    if not paths and not ephemeral:
        return None
    told = {"version": 1, "session": session_id, "paths": paths, "ephemeral": ephemeral}
    data = json.dumps(told, separators=(",", ":")).encode()
    if len(data) > TOLD_BYTES_MAX:  # everybody reads again what is of interest
        data = json.dumps({"version": 1, "session": session_id, "many": True}).encode()
    return CreateNode(CHANGE, data, sequential=True)


def node_of(number: int) -> str:
    """The node of a change."""
    return f"{CHANGE}{number:010d}"


class ChangeQueue:
    """Follows the changes of others."""

    def __init__(
        self,
        client: ZooKeeperClient,
        told: Callable[[Sequence[str], Sequence[str]], None],
        missed: Callable[[], None],
    ) -> None:
        """``told(paths, ephemeral paths)`` is called for changes of which ``created`` was not."""
        self._client = client
        self._told = told
        self._missed = missed
        self._next = 0
        self._own: set[int] = set()
        """Changes of this process which it has told itself. Another one's answer may be lost."""
        self._wake = asyncio.Event()
        self._again = False
        self._task: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Follow from now on. ``MetadataError``."""
        changes = await self._changes()
        self._next = changes.created_children
        if changes.children > METADATA_CHANGES_KEPT + 2 * _TRIM_EACH:
            self._delete_unattended(self._sweep())
        self._client.on_regained(self._regained)
        self._task = unattended(self._follow(), "following the changes in ZooKeeper")

    def close(self) -> None:
        """Follow no longer."""
        for task in (self._task, *self._deleting):
            if task is not None:
                task.cancel()

    def created(self, node: str) -> None:
        """This process has told of a change; now and then it deletes old ones."""
        number = int(node[len(CHANGE) :])
        if number >= self._next:
            self._own.add(number)
        if number % _TRIM_EACH == 0 and number > METADATA_CHANGES_KEPT:
            last = number - METADATA_CHANGES_KEPT
            self._delete_unattended(self._trim(last - _TRIM_EACH, last))

    def _regained(self) -> None:
        self._again = True
        self._wake.set()

    async def _changes(self) -> Node:
        found = await self._client.get(CHANGES)
        if found is None:
            raise MetadataError("ZooKeeper has lost the changes of the metadata store")
        return found

    async def _follow(self) -> None:
        failed = False
        while not self._client.session.has_ended:
            try:
                await self._step()
                if failed:
                    failed = False
                    log.warning("changes of metadata are followed again")
            except Exception as error:  # whatever it is: what nobody follows is outdated unseen
                if self._client.session.has_ended:
                    return
                log.warning(
                    "changes of metadata cannot be followed for now: %s",
                    error,
                    exc_info=trace_of(error),
                )
                failed = self._again = True
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _step(self) -> None:
        self._wake.clear()
        if self._again:
            self._again = False  # before the read: a connection may be lost during it
            self._go_on_at((await self._changes()).created_children)
        first = await self._client.get(node_of(self._next))
        if first is not None:
            await self._catch_up(first.data)
        elif not await self._client.exists(node_of(self._next), self._wake.set):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
                return
            await self._look_whether_it_was_skipped()

    async def _catch_up(self, data: bytes) -> None:
        self._hear(data)
        numbers = range(self._next, self._next + _AHEAD)
        following = await asyncio.gather(*(self._client.get(node_of(n)) for n in numbers))
        for found in following:
            if found is None:
                return
            self._hear(found.data)

    async def _look_whether_it_was_skipped(self) -> None:
        newest = (await self._changes()).created_children
        if newest > self._next and await self._client.get(node_of(self._next)) is None:
            self._go_on_at(newest)

    def _go_on_at(self, number: int) -> None:
        self._next = number
        self._own = {own for own in self._own if own >= number}
        self._missed()

    def _hear(self, data: bytes) -> None:
        is_told = self._next in self._own
        self._own.discard(self._next)
        self._next += 1
        try:
            told = json.loads(data)
            if told["version"] != 1 or told.get("many"):
                self._missed()
            elif not is_told:
                self._told(told["paths"], told["ephemeral"])
        except (ValueError, KeyError, TypeError) as error:
            log.error("a change of metadata cannot be read: %s", error)
            self._missed()

    def _delete_unattended(self, deleting: Coroutine[None, None, None]) -> None:
        task = unattended(deleting, "deleting old changes in ZooKeeper")
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _trim(self, first: int, last: int) -> None:
        """Delete some; what fails is left to whoever starts next."""
        deletions = [DeleteNode(node_of(number)) for number in range(max(first, 0), last)]
        with suppress(MetadataError):
            try:
                await self._client.multi(deletions)
            except NodeError:  # some are gone
                await asyncio.gather(*map(self._client.apply, deletions), return_exceptions=True)

    async def _sweep(self) -> None:
        """Delete what is old and still there: who was to delete it could not, or has died.

        All that start together want to: whoever is not the first leaves it to that one.
        """
        prefix, last = CHANGE[len(CHANGES) + 1 :], self._next - METADATA_CHANGES_KEPT
        with suppress(MetadataError):
            numbers = [name.removeprefix(prefix) for name in await self._client.children(CHANGES)]
            old = [node_of(int(n)) for n in numbers if n.isdecimal() and int(n) < last]
            for begin in range(0, len(old), _TRIM_EACH):
                await self._client.multi(list(map(DeleteNode, old[begin : begin + _TRIM_EACH])))


class Ephemerals:
    """Watches ephemeral values of other sessions."""

    def __init__(
        self,
        client: ZooKeeperClient,
        layout: Layout,
        changed: Callable[[str], None],
        wanted: Callable[[str], bool],
    ) -> None:
        """``wanted`` says whether somebody wants to know of a path."""
        self._client = client
        self._layout = layout
        self._changed = changed
        self._wanted = wanted
        self._watched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        client.on_regained(self._watched.clear)

    def close(self) -> None:
        """Watch nothing any more."""
        for task in self._tasks:
            task.cancel()

    def watch(self, path: str) -> None:
        """Watch a value that this process has read, or heard of."""
        if path in self._watched or not self._wanted(path):
            return
        self._watched.add(path)
        self._look(path, again=False)

    def _event(self, path: str) -> None:
        if path in self._watched:
            self._changed(path)
            self._look(path, again=True)

    def _look(self, path: str, *, again: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._look_at(path, again=again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_at(self, path: str, *, again: bool) -> None:
        node = self._layout.node(path)
        try:
            if await self._client.exists(node, lambda: self._event(path)):
                return
        except MetadataError:
            pass
        # It is gone: its next appearance is told by who creates it.
        self._watched.discard(path)
        if not again:
            self._changed(path)
