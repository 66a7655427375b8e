"""The metadata store in ZooKeeper, for brokers of several machines. See ``ZooKeeperMetadataStore``.

Reads ask the server: what a session has written or was told of, it reads. Writes go through
``writer``; ``change_queue`` tells other processes, and ``marks`` lets bookies notice a ZooKeeper
that went back to an earlier state.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.based_values import decode
from pulsark.metadata.changes import Change, Delete, check_changes
from pulsark.metadata.counters import Counters
from pulsark.metadata.history import NONCE_BITS
from pulsark.metadata.server_store import ServerStore
from pulsark.metadata.store import Versioned, check_page, check_parent, split_path
from pulsark.metadata.watches import Watches
from pulsark.metadata.zookeeper.change_queue import ChangeQueue, Ephemerals, telling
from pulsark.metadata.zookeeper.client import OPERATION_SECONDS, SESSION_SECONDS, ZooKeeperClient
from pulsark.metadata.zookeeper.instance import check_size, find_or_create
from pulsark.metadata.zookeeper.layout import SESSIONS, Layout, name_of
from pulsark.metadata.zookeeper.marks import Marks
from pulsark.metadata.zookeeper.nodes import NoNodeError
from pulsark.metadata.zookeeper.plan import Prune
from pulsark.metadata.zookeeper.shared_reads import SharedReads
from pulsark.metadata.zookeeper.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.metadata.session import Session
    from pulsark.metadata.zookeeper.address import ZooKeeperAddress
    from pulsark.runtime import Runtime

LISTED_AT_ONCE: Final = 32
"""Directories that are listed at the same time."""


class ZooKeeperMetadataStore(ServerStore):
    """One session. See ``open``."""

    _marks: Marks

    def __init__(
        self,
        client: ZooKeeperClient,
        runtime: Runtime,
        layout: Layout,
        identity: str,
        timeout_seconds: float,
    ) -> None:
        self.identity = identity
        self._client = client
        self._reads = SharedReads(self._read)
        self._runtime = runtime
        self._layout = layout
        self._watches = Watches()
        self._marks = Marks(client, runtime)
        self._counters = Counters(self)
        self._queue = ChangeQueue(client, self._told, self._missed)
        self._ephemerals = Ephemerals(client, layout, self._vanished, self._watches.cover)
        tell = partial(telling, client.session_id)
        self._writer = Writer(client, layout, timeout_seconds, tell, self._written)
        self._closed = False

    @classmethod
    async def open(
        cls,
        address: ZooKeeperAddress,
        runtime: Runtime,
        *,
        create: bool = True,
        session_seconds: float = SESSION_SECONDS,
        timeout_seconds: float = OPERATION_SECONDS,
        layout: Layout | None = None,
    ) -> ZooKeeperMetadataStore:
        """Begin a session. ``MetadataError`` if ZooKeeper cannot be reached, or has no store.

        With ``create`` a store that is missing is created, as for a new cluster. Everybody else
        refuses an empty ZooKeeper. ``layout`` is for tests.
        """
        client = await ZooKeeperClient.connect(
            address,
            runtime.clock,
            session_seconds=session_seconds,
            operation_seconds=timeout_seconds,
        )
        store = None
        try:
            new = f"{runtime.rng.getrandbits(128):032x}"
            instance = await find_or_create(client, new, create=create)
            await client.give_signs(SESSIONS)
            await check_size(client, runtime)
            layout = layout or Layout(instance.directories)
            store = cls(client, runtime, layout, instance.identity, timeout_seconds)
            await store._start()
        except BaseException:
            await (client.close() if store is None else store.close())
            raise
        return store

    async def _start(self) -> None:
        await self._marks.start(self._runtime.rng.getrandbits(NONCE_BITS))
        self._marks.follow()
        await self._queue.start()

    @property
    def session(self) -> Session:
        return self._client.session

    async def adopt(self, marks: Iterable[int]) -> None:
        await self._marks.start(self._runtime.rng.getrandbits(NONCE_BITS), marks)

    async def get(self, path: str) -> Versioned | None:
        return await self._reads.get(path)

    async def _read(self, path: str) -> Versioned | None:
        split_path(path)
        node = self._layout.node(path)
        seen = self._writer.seen(node)
        found = await self._client.get(node)
        stored = None if found is None else decode(path, found.data)
        if seen is not None:
            seen(found, 0 if stored is None else stored.base)
        if found is None or stored is None:
            return None
        if found.owner not in (0, self._client.session_id):
            self._ephemerals.watch(path)
        return Versioned(stored.value, stored.base + found.version)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        check_changes(changes)
        versions = await self._writer.write(changes)
        for change in changes:
            if isinstance(change, Delete):
                await self._prune_above(change.path)
        return versions

    async def _prune_above(self, path: str) -> None:
        """Delete what has neither a value nor children any more, as far as that works."""
        with suppress(MetadataError):
            while path != "/":
                found = await self._client.get(self._layout.node(path))
                if found is not None:
                    if found.data or found.children:
                        return
                    if await self._writer.write((Prune(path),)) != [1]:
                        return
                path = split_path(path)[0]
                if self._layout.is_spread(path):
                    return  # its directories stay, but nobody sees them

    async def children(self, path: str) -> list[str]:
        check_parent(path)
        directories = await self._directories(path)
        names: list[str] = []
        for first in range(0, len(directories), LISTED_AT_ONCE):
            some = directories[first : first + LISTED_AT_ONCE]
            for found in await asyncio.gather(*map(self._names, some)):
                names += found
        return sorted(names)

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        check_page(path, limit)
        directories = await self._directories(path)
        if after and self._layout.is_spread(path):
            base = f"{self._layout.node(path)}/{self._layout.directory_of(after)}"
            directories = [each for each in directories if each >= base]
            rest = directories and directories[0] == base
        else:
            rest = bool(after)
        names: list[str] = []
        at_once = 1
        while directories and len(names) < limit:
            some, directories = directories[:at_once], directories[at_once:]
            for found in await asyncio.gather(*map(self._names, some)):
                found.sort()
                names += found[bisect_right(found, after) :] if rest else found
                rest = False
            at_once = min(2 * at_once, LISTED_AT_ONCE)  # one is enough where there are many names
        return names[:limit]

    async def _directories(self, path: str) -> list[str]:
        """The nodes whose children are those of a path, in order."""
        node = self._layout.node(path)
        if not self._layout.is_spread(path):
            return [node]
        return [f"{node}/{name}" for name in sorted(await self._names(node))]

    async def _names(self, node: str) -> list[str]:
        try:
            children = await self._client.children(node)
        except NoNodeError:
            return []
        return [*map(name_of, children)]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.close()
        self._ephemerals.close()
        self._marks.close()
        self._writer.close()
        await self._client.close()

    # -- what is heard ---

    def _written(self, told_as: str | None, changed: Sequence[str]) -> None:
        """A multi was made, but nobody knows yet."""
        self._marks.tell()
        if told_as is not None:
            self._queue.created(told_as)
        for path in changed:
            self._watches.tell(path)

    def _told(self, paths: Sequence[str], ephemeral: Sequence[str]) -> None:
        self._marks.tell()
        for path in (*paths, *ephemeral):
            self._watches.tell(path)
        for path in ephemeral:
            self._ephemerals.watch(path)

    def _vanished(self, path: str) -> None:
        self._marks.tell()
        self._watches.tell(path)

    def _missed(self) -> None:
        self._marks.tell()
        self._watches.tell_missed()
