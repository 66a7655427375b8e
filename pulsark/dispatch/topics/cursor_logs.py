"""The cursor logs of the bundles that this broker owns, each opened when it is first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.storage.cursor.log import CursorLog, CursorLogConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.runtime import Runtime
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName


class CursorLogs:
    """A broker that asks for the log of a topic's bundle owns the bundle from then on."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        storage: GuardedStorage,
        ownership: Ownership,
    ) -> None:
        self._config = CursorLogConfig.from_settings(settings)
        self._runtime = runtime
        self._storage = storage
        self._ownership = ownership
        self._logs: dict[str, asyncio.Task[CursorLog]] = {}

    async def of(self, name: TopicName) -> CursorLog:
        """The log that has the cursors of a topic."""
        return await self.of_bundle(await self._ownership.own(name))

    async def of_bundle(self, bundle: str) -> CursorLog:
        """The same by the name of the bundle."""
        opening = self._logs.get(bundle)
        if opening is None:
            opening = self._logs[bundle] = asyncio.create_task(self._open(bundle))
            opening.add_done_callback(lambda task: self._opened(bundle, task))
        return await asyncio.shield(opening)

    def _opened(self, bundle: str, task: asyncio.Task[CursorLog]) -> None:
        """One that failed is opened anew by the next, also if nobody waits for it any more."""
        if not _is_open(task) and self._logs.get(bundle) is task:
            del self._logs[bundle]

    async def _open(self, bundle: str) -> CursorLog:
        metadata, ledgers = await self._storage.of_bundle(bundle)
        return await CursorLog.open(bundle, ledgers, metadata, self._config, self._runtime)

    async def mark_deletes(self, name: TopicName, topic_id: str) -> dict[str, Position] | None:
        """The durable cursors of an unloaded topic: names and mark-delete positions.

        ``None`` if this broker has not its bundle, which is not claimed for a question.
        """
        bundle = await self._ownership.bundle_named(name)
        if not self._ownership.has(bundle):
            return None
        return await (await self.of_bundle(bundle)).mark_deletes(topic_id)

    def drop_failed(self) -> None:
        """Forget logs that stopped for good; the next request opens them anew."""
        for bundle, task in list(self._logs.items()):
            if _is_open(task) and task.result().failed is not None:
                del self._logs[bundle]

    async def renew_of(self, bundle: str) -> None:
        """See to it that the next owner of a bundle can read its log quickly."""
        opening = self._logs.get(bundle)
        if opening is not None and _is_open(opening):
            await opening.result().renew()

    async def close_of(self, bundle: str) -> CursorLog | None:
        """Close the log of one bundle, if it is open or about to be; the log if it was whole."""
        opening = self._logs.get(bundle)
        if opening is None:
            return None
        await asyncio.wait([opening])
        if self._logs.get(bundle) is opening:
            del self._logs[bundle]
        if opening.cancelled() or opening.exception() is not None:
            return None
        log = opening.result()
        was_whole = log.failed is None
        await log.close()
        return log if was_whole else None

    def abandon(self, bundle: str) -> Awaitable[None]:
        """The bundle is another broker's: who needs its log asks for it anew, there or here.

        What is returned closes the log.
        """
        return _close(self._logs.pop(bundle, None))

    async def close(self) -> None:
        """Close all of them. What was acknowledged is on disk already."""
        for found in await asyncio.gather(*self._logs.values(), return_exceptions=True):
            if isinstance(found, CursorLog):
                await found.close()
        self._logs.clear()


async def _close(opening: asyncio.Task[CursorLog] | None) -> None:
    if opening is not None:
        await (await opening).close()


def _is_open(opening: asyncio.Task[CursorLog]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is None
