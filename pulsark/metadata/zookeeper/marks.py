"""Marks of the store's states, so that bookies notice a ZooKeeper that went back; see ``history``.

The number of a commit is ZooKeeper's number of the transaction, plus an offset if marks were
adopted. Each session of a store is written down; it begins with the transaction that wrote it. This
process is told of that before it learns of any later transaction. So it gives no mark with an old
nonce for a transaction of a newer session: it gives none until it has read the history again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptMetadataError, MetadataError
from pulsark.metadata.history import NONCE_BITS, History, StoreStart
from pulsark.metadata.zookeeper.layout import HISTORY
from pulsark.metadata.zookeeper.nodes import NodeVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.metadata.zookeeper.nodes import Node

log = logging.getLogger(__name__)

_COMMIT_MAX: Final = (1 << (63 - NONCE_BITS)) - 1
"""Later transactions share one number: marks still do not fall, but show no loss any more."""

_PAUSE_SECONDS: Final = 1.0


class Marks:
    """The marks that this session gives and knows."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._history = History((), 0)
        self._offset = 0
        self._frozen: int | None = 0
        """The last transaction of which a mark is given while the history is read again."""
        self._events = 0
        """How often the history has changed."""
        self._listeners: list[Callable[[int], None]] = []
        self._reading: asyncio.Task[None] | None = None

    async def start(self, nonce: int, above: Iterable[int] = ()) -> None:
        """Write down a new session, above the marks. ``MetadataError``."""
        while True:
            found, history, offset = await self._read()
            zxid = self._client.zxid
            history = history.at(_number(zxid + offset)).with_session(nonce, above)
            # ``zxid`` may not be the last one, so the offset may be larger than it needs to be.
            offset = max(offset, history.last_commit - zxid - 1)
            document = {
                "version": 1,
                "offset": offset,
                "sessions": [[start.first_commit, start.nonce] for start in history.sessions],
            }
            try:
                await self._client.set(HISTORY, json.dumps(document).encode(), found.version)
            except NodeVersionError:
                continue  # another process was first
            await self._read_again()
            return

    def follow(self) -> None:
        """Notice the sessions of others after a lost connection, too."""
        self._client.on_regained(self._changed)

    def close(self) -> None:
        """Give no new marks."""
        if self._reading is not None:
            self._reading.cancel()

    @property
    def mark(self) -> int:
        """The mark of the last transaction that this process knows of."""
        zxid = self._client.zxid if self._frozen is None else self._frozen
        return self._history.at(_number(zxid + self._offset)).mark

    def knows(self, mark: int) -> bool:
        """See ``MetadataStore``."""
        return self._history.at(_number(self._client.zxid + self._offset)).knows(mark)

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call ``listener(mark)`` after changes."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """There is a change: tell its mark."""
        mark = self.mark
        for listener in self._listeners:
            listener(mark)

    async def _read(self) -> tuple[Node, History, int]:
        found = await self._client.get(HISTORY, self._changed)
        if found is None:
            raise MetadataError("ZooKeeper has lost the history of the metadata store")
        if not found.data:
            return found, History((), 0), 0
        try:
            document = json.loads(found.data)
            offset = int(document["offset"])
            sessions = [StoreStart(int(first), int(nonce)) for first, nonce in document["sessions"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptMetadataError(f"{HISTORY} in ZooKeeper cannot be read") from error
        if sessions:  # who wrote it did not know yet in which transaction
            first = _number(found.changed + offset)
            sessions[-1] = StoreStart(first, sessions[-1].nonce)
        return found, History(tuple(sessions), _number(found.changed + offset)), offset

    async def _read_again(self) -> None:
        events = -1
        while events != self._events:  # what changes during the read is read, too
            events = self._events
            _, self._history, self._offset = await self._read()
        self._frozen = None

    def _changed(self) -> None:
        self._events += 1
        if self._frozen is None:
            self._frozen = self._client.zxid
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_until_known())

    async def _read_until_known(self) -> None:
        while not self._client.session.has_ended:
            try:
                await self._read_again()
            except MetadataError as error:
                log.warning("the history of the metadata store cannot be read: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self.tell()
            return


def _number(commit: int) -> int:
    return min(commit, _COMMIT_MAX)
