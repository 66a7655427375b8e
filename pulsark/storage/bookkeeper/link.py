"""Connections to one instance of a bookie."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.storage.bookie.kept_link import KeptLink
from pulsark.storage.bookkeeper.channel import Channel

if TYPE_CHECKING:
    from pulsark.storage.bookie.kept_link import Ended
    from pulsark.storage.bookkeeper.limits import ClientSettings


class Address(NamedTuple):
    """Where a bookie listens."""

    host: str
    port: int


class Whereabouts(Protocol):
    """What is known of a bookie outside of its connections. One for each instance."""

    @property
    def bookie_id(self) -> str:
        """Its name, which another instance may get."""

    async def address(self) -> Address:
        """Where it listens; waits until that is known."""

    async def check_instance(self) -> None:
        """Raise a ``StorageError`` if another instance has its name now, ``MetadataError`` if that
        cannot be known."""


class Link(KeptLink[Channel]):
    """Keeps one ``Channel`` open."""

    def __init__(self, whereabouts: Whereabouts, settings: ClientSettings) -> None:
        super().__init__(whereabouts.bookie_id, settings.connect_seconds)
        self._whereabouts = whereabouts
        self._settings = settings
        self._address = Address("", 0)

    async def _found(self) -> str:
        self._address = await self._whereabouts.address()
        return f" at {self._address.host}:{self._address.port}"

    def _made(self, ended: Ended[Channel]) -> Channel:
        return Channel(self._bookie_id, self._settings, ended)

    async def _connect(self, channel: Channel) -> None:
        await asyncio.get_running_loop().create_connection(lambda: channel, *self._address)
        # Only now: whoever accepted the connection had its name by then.
        await self._whereabouts.check_instance()
