"""ZooKeeper's raw nodes over one session after the other.

For who keeps nothing in ZooKeeper that belongs to a session: the client of BookKeeper. When a
session is over, another one is begun; until it stands, calls are refused. A server whose data are
older than what the former session has seen is asked for nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

from pulsark.errors import trace_of
from pulsark.metadata.zookeeper.nodes import ANY
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.metadata.zookeeper.nodes import Node, Operation, Result

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class RawNodes(Protocol):
    """What ``ZooKeeperClient`` has of nodes; its methods say more."""

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None: ...

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]: ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str: ...

    async def set(self, path: str, data: bytes, version: int = ANY) -> int: ...

    async def delete(self, path: str, version: int = ANY) -> None: ...

    async def multi(self, operations: Sequence[Operation]) -> list[Result]: ...

    async def make(self, path: str) -> None: ...

    async def sync(self) -> None: ...

    def on_regained(self, listener: Callable[[], None]) -> None: ...


class LastingNodes:
    """Implements ``RawNodes``. Watches end with their session; ``on_regained`` says when."""

    def __init__(
        self, client: ZooKeeperClient, connect: Callable[[], Awaitable[ZooKeeperClient]]
    ) -> None:
        self._connect = connect
        self._regained: list[Callable[[], None]] = []
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False
        self._client = client
        self._use(client)

    @classmethod
    async def connect(cls, connect: Callable[[], Awaitable[ZooKeeperClient]]) -> LastingNodes:
        """Begin the first session; ``connect`` begins each."""
        return cls(await connect(), connect)

    async def close(self) -> None:
        """End the session, and begin no other one."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await self._client.close()

    def on_regained(self, listener: Callable[[], None]) -> None:
        self._regained.append(listener)

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        return await self._client.get(path, changed)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        return await self._client.children(path, changed)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._client.create(path, data, ephemeral=ephemeral, sequential=sequential)

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        return await self._client.set(path, data, version)

    async def delete(self, path: str, version: int = ANY) -> None:
        await self._client.delete(path, version)

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        return await self._client.multi(operations)

    async def make(self, path: str) -> None:
        await self._client.make(path)

    async def sync(self) -> None:
        await self._client.sync()

    def _use(self, client: ZooKeeperClient) -> None:
        self._client = client
        client.on_regained(self._tell)
        client.session.on_end(self._renew)
        if client.session.has_ended:
            self._renew()

    def _tell(self) -> None:
        for listener in self._regained:
            listener()

    def _renew(self) -> None:
        if not self._closed and (self._renewing is None or self._renewing.done()):
            self._renewing = unattended(self._begin_another(), "a new session with ZooKeeper")

    async def _begin_another(self) -> None:
        former, said = self._client, ""
        while True:
            try:
                client = await self._connect()
                await self._check_not_older(client)
            except Exception as e:  # whatever it is: there is no way without a session
                if str(e) != said:
                    said = str(e)
                    log.warning(
                        "no new session with ZooKeeper yet, will try again: %s",
                        e,
                        exc_info=trace_of(e),
                    )
                await asyncio.sleep(RETRY_SECONDS)
                continue
            break
        try:
            await former.close()
        except BaseException:
            await client.close()
            raise
        self._renewing = None
        log.error("a new session with ZooKeeper has begun")  # as its end was logged
        self._use(client)
        self._tell()

    async def _check_not_older(self, client: ZooKeeperClient) -> None:
        """Wait for ever if ZooKeeper has lost what a former session has seen.

        Its transactions are counted on from there, so a later look would notice nothing.
        """
        try:
            await client.sync()
            if client.zxid > self._client.zxid:
                return
        except BaseException:
            await client.close()
            raise
        await client.close()
        await self._client.close()  # which would go on asking for its session
        log.error(
            "ZooKeeper went back: its data are older than what it had confirmed. Nothing is asked "
            "of it any more. Put the newer data back, and start this process again"
        )
        await asyncio.Event().wait()
