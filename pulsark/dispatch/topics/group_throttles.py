"""The throttles of resource groups, as the metadata store has the groups now."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.retries import until_read
from pulsark.errors import CorruptMetadataError
from pulsark.metadata.paths import RESOURCE_GROUPS, resource_group_at
from pulsark.rates.publish_limit import NO_LIMIT, PublishRate
from pulsark.rates.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.metadata.resource_groups import ResourceGroups
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

_MEANWHILE = "a resource group cannot be read and stays as it was"


class GroupThrottles:
    """One for each group that limits publishes, whether or not a namespace is in it."""

    def __init__(self, clock: Clock, metadata: MetadataStore, groups: ResourceGroups) -> None:
        self.told: Callable[[str, float], None] | None = None
        """Hears which group has held somebody back for how many seconds, if that lasts."""
        self._clock = clock
        self._metadata = metadata
        self._groups = groups
        self._throttles: dict[str, Throttle] = {}
        self._changes = 0
        self._refreshing: set[asyncio.Task[None]] = set()
        self._end_watch: Callable[[], None] | None = None

    def of(self, name: str) -> Throttle | None:
        """The throttle of a group, if it limits publishes."""
        return self._throttles.get(name)

    async def start(self) -> None:
        """Read all groups, and follow the metadata store."""
        self._end_watch = self._metadata.watch(RESOURCE_GROUPS, self._changed, self._missed)
        for name in await self._groups.list():
            await self.refresh(name)

    def close(self) -> None:
        """Follow no longer."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        for task in self._refreshing:
            task.cancel()

    async def refresh(self, name: str) -> None:
        """Bring one group up to date."""
        while True:
            seen = self._changes
            found = await self._groups.get(name)
            if seen == self._changes:  # else another one may have read what is newer
                break
        rate = NO_LIMIT
        if found is not None:
            rate = PublishRate(found["publishRateInMsgs"], found["publishRateInBytes"])
        throttle = self._throttles.get(name)
        if throttle is not None:
            throttle.change(rate)
            if not rate.is_limit:
                del self._throttles[name]
        elif rate.is_limit:
            throttle = self._throttles[name] = Throttle(rate, self._clock)
            if self.told is not None:
                throttle.told = partial(self.told, name)

    def _changed(self, path: str) -> None:
        self._changes += 1
        self._spawn(partial(self.refresh, resource_group_at(path)))

    def _missed(self) -> None:
        self._changes += 1
        self._spawn(self._refresh_all)

    def _spawn(self, refresh: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(until_read(refresh, _MEANWHILE))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)

    async def _refresh_all(self) -> None:
        for name in sorted({*self._throttles, *await self._groups.list()}):
            try:
                await self.refresh(name)
            except CorruptMetadataError as error:  # of one, which concerns no other
                log.warning("%s: %s", _MEANWHILE, error)
