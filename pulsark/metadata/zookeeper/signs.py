"""Signs of life: writes that show that a session lives.

An answer to a read or a ping shows nothing: it may come from a server that has lost its leader.

They show, too, whether ZooKeeper went back to older data that have this session: it refuses who has
seen newer transactions, but only until others have made as many new ones.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pulsark.errors import MetadataError
from pulsark.metadata.session import SIGNS_A_DEADLINE
from pulsark.metadata.zookeeper.nodes import NoNodeError

if TYPE_CHECKING:
    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.runtime import Clock


class Signs:
    """The signs of one client's session: writes to a node of its own."""

    def __init__(self, client: ZooKeeperClient, clock: Clock, directory: str) -> None:
        self._client = client
        self._clock = clock
        self._path = f"{directory}/{client.session_id:016x}"
        self._loop = asyncio.get_running_loop()
        self._version = -1
        """The node's, as ZooKeeper has confirmed it. Nobody else writes to it, or deletes it."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Give the first sign, and then one after the other. ``MetadataError``."""
        await self._give()
        self._later()

    def stop(self) -> None:
        """Give no more."""
        if self._timer is not None:
            self._timer.cancel()

    def give_now(self) -> None:
        """Give a sign, unless one is under way."""
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._give_after_all())

    def _later(self) -> None:
        seconds = self._client.session.timeout_seconds / SIGNS_A_DEADLINE
        self._timer = self._loop.call_later(seconds, self._next)

    def _next(self) -> None:
        if self._client.session.has_ended:
            return
        self._later()
        if self._client.is_connected:
            self.give_now()

    async def _give_after_all(self) -> None:
        with suppress(MetadataError):  # the next one will do
            await self._give()

    async def _give(self) -> None:
        sent_at = self._clock.monotonic()
        try:
            version = await self._client.set(self._path, b"")
        except NoNodeError:
            version = 0
            if self._version < version:  # it was never there
                await self._client.create(self._path, ephemeral=True)
        if version <= self._version:
            self._client.went_back()
            return
        self._version = version
        self._client.session.heard(sent_at)
