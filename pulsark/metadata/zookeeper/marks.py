"""Marks of ZooKeeper's states; see ``server_marks``.

What ZooKeeper counts is its transactions. This process is told of a change of the history before it
learns of any later transaction. So it gives no mark with an old nonce for a transaction of a newer
session: it gives none until it has read the history again.

All processes may start together. Each start refuses the writes of the others, and has to be read by
all: so pauses grow, of those who were not the first, and all rest after a read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, trace_of
from pulsark.metadata.server_marks import CountedHistory, ServerMarks
from pulsark.metadata.zookeeper.layout import HISTORY
from pulsark.metadata.zookeeper.nodes import NodeVersionError
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.metadata.zookeeper.nodes import Node
    from pulsark.runtime import Runtime

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 5.0
_ATTEMPTS: Final = 50


class Marks(ServerMarks):
    """The marks that this session gives and knows."""

    def __init__(self, client: ZooKeeperClient, runtime: Runtime) -> None:
        super().__init__()
        self._client = client
        self._rng = runtime.rng
        self._frozen: int | None = 0
        """The last transaction of which a mark is given while the history is read again."""
        self._events = 0
        """How often the history has changed."""
        self._reading: asyncio.Task[None] | None = None

    async def start(self, nonce: int, above: Iterable[int] = ()) -> None:
        """Write down a new session, above the marks. ``MetadataError``."""
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS):
            found = await self._read()
            value = _history(found).begun(self._client.zxid, nonce, above)
            try:
                await self._client.set(HISTORY, value, found.version)
            except NodeVersionError:  # another process was first
                await asyncio.sleep(self._rng.uniform(0, pause))
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
                continue
            await self._read_again()
            return
        raise MetadataError("others write the history of the metadata store all the time")

    def follow(self) -> None:
        """Notice the sessions of others after a lost connection, too."""
        self._client.on_regained(self._changed)

    def close(self) -> None:
        """Give no new marks."""
        if self._reading is not None:
            self._reading.cancel()

    @property
    def mark(self) -> int:
        zxid = self._client.zxid if self._frozen is None else self._frozen
        return self._history.at(zxid).mark

    def knows(self, mark: int) -> bool:
        return self._history.at(self._client.zxid).knows(mark)

    async def _read(self, changed: Callable[[], None] | None = None) -> Node:
        found = await self._client.get(HISTORY, changed)
        if found is None:
            raise MetadataError("ZooKeeper has lost the history of the metadata store")
        return found

    async def _read_again(self) -> None:
        events = -1
        while events != self._events:  # what changes during the read is read, too
            events = self._events
            self._history = _history(await self._read(self._changed))
        self._frozen = None

    def _changed(self) -> None:
        self._events += 1
        if self._frozen is None:
            self._frozen = self._client.zxid
        if self._reading is None or self._reading.done():
            self._reading = unattended(self._read_until_known(), "reading ZooKeeper's history")

    async def _read_until_known(self) -> None:
        while not self._client.session.has_ended:
            try:
                await self._read_again()
            except Exception as error:  # whatever it is: all wait for it
                log.warning(
                    "the history of the metadata store cannot be read: %s",
                    error,
                    exc_info=trace_of(error),
                )
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self.tell()
            await asyncio.sleep(self._rng.uniform(0, _PAUSE_SECONDS))
            if self._frozen is None:  # nothing has changed meanwhile
                return


def _history(node: Node) -> CountedHistory:
    return CountedHistory.read(node.data, node.changed, f"{HISTORY} in ZooKeeper")
