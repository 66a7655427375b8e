"""How a bundle leaves this broker, by intent or not, with all that is in memory of its topics.

A planned release comes in one order: nobody gets a topic of it any more, topics are closed, then
the cursor log, and only then the owner's node goes. So the next owner finds closed ledgers, and
waits for no recovery. If it is known who that will be, it is told to claim the bundle, and clients
hear of the move when it has done so, and where to go (PIP-307).

Between the first of these steps and the last nobody serves the bundle. So what can be done before
is: the log of the cursors is made short, topics without clients are closed, and ledgers to which
nobody appends. Topics to which somebody does are closed last.

A bundle that was lost is another's already: its clients are told at once, and what can be closed is
closed behind them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.loop.turns import for_each, in_turns
from pulsark.dispatch.model.moving import Moving
from pulsark.dispatch.topics.bundles import Covered, namespace_of
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.tasks import heard, unattended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from pulsark.dispatch.brokers.counts import Reason
    from pulsark.dispatch.brokers.owners import BundleOwners
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.dispatch.topics.cursor_logs import CursorLogs
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock
    from pulsark.storage.cursor.log import CursorLog
    from pulsark.storage.table.tables import Tables
    from pulsark.wire.topic_name import TopicName

    Last = Callable[[CursorLog | None], Awaitable[ServiceUrls | None]]


log = logging.getLogger(__name__)

CLOSING_SECONDS = 60.0
"""So long a release waits for topics to be closed; as long as in Pulsar."""

TAKING_SECONDS = 5.0
"""So long clients are not told that a bundle left, while its next owner has not claimed it."""

AT_ONCE = 32
"""Topics of a bundle that are closed beside each other: each writes metadata."""

WAITED_FOR_AT_ONCE = 100
"""The same while clients wait. Each waits twice for metadata, which are written for all that do."""

TOLD_AT_ONCE = 25
TELLING_SECONDS = 0.1
"""Clients of so many topics are told in that time, if nobody waits for an answer."""

BUNDLES_AT_ONCE = 4
"""Bundles that a broker gives up beside each other when it stops."""


class BundleRelease:
    """One for a broker."""

    def __init__(
        self,
        ownership: Ownership,
        topics: Topics,
        cursor_logs: CursorLogs,
        owners: BundleOwners,
        registry: BrokerRegistry,
        tables: Tables,
        clock: Clock,
    ) -> None:
        """What is known of ``tables`` is dropped with their bundles: another owner changes them."""
        self._ownership = ownership
        self._topics = topics
        self._cursor_logs = cursor_logs
        self._owners = owners
        self._registry = registry
        self._tables = tables
        self._clock = clock
        self._releasing: dict[str, asyncio.Task[bool]] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._moves: dict[Moving, asyncio.Task[None]] = {}
        """Those that are over, but for clients that have to be told."""
        self._stopping = self._closed = False
        ownership.on_loss(self._lost)

    async def release(self, bundle: str, to: str = "") -> bool:
        """Give a bundle up, also if the caller is cancelled. False: this broker has it not.

        ``to``: the broker that is to have it next.
        """
        releasing = self._releasing.get(bundle)
        if releasing is None:
            releasing = self._begin(bundle, to, None)
        return await asyncio.shield(releasing)

    async def end(self, bundle: str, last: Last) -> None:
        """Close a bundle as for a release, do ``last``, and give up what is left of the claim.

        ``last`` gets the closed log of the cursors; ``None``: it is not certain that it has all. It
        says where clients find their topics then; ``None``: they find that out themselves.
        Raises ``ClientError(ServiceNotReady)`` if this broker has the bundle not, or not for long.
        """
        if bundle in self._releasing or not await asyncio.shield(self._begin(bundle, "", last)):
            raise ClientError(
                ServerError.ServiceNotReady, f"Bundle {bundle} is leaving this broker, or has left"
            )

    def _begin(self, bundle: str, to: str, last: Last | None) -> asyncio.Task[bool]:
        releasing = asyncio.create_task(self._release(bundle, to, last))
        self._releasing[bundle] = releasing
        releasing.add_done_callback(heard)
        releasing.add_done_callback(lambda _: self._releasing.pop(bundle))
        return releasing

    async def release_namespace(self, namespace: str) -> None:
        """Give up all bundles of a namespace that this broker has."""
        for bundle in self._ownership.owned():
            if namespace_of(bundle) == namespace:
                await self.release(bundle)

    async def release_all(self) -> None:
        """Give up whatever this broker has: it is about to stop."""
        self._stopping = True
        self._ownership.stop()

        async def give_up(bundle: str) -> None:
            (found,) = await asyncio.gather(self.release(bundle), return_exceptions=True)
            if isinstance(found, Exception):
                log.warning("bundle %s is given up with the session only: %s", bundle, found)

        await for_each(self._ownership.owned(), give_up, BUNDLES_AT_ONCE)

    async def settled(self) -> None:
        """Return once nothing is under way."""
        while waiting := [*self._releasing.values(), *self._dropping]:
            await asyncio.wait(waiting)
        for moving, telling in list(self._moves.items()):
            moving.tell_some(sys.maxsize)
            telling.cancel()

    def close(self) -> None:
        """The broker has closed all that it had: a session that ends takes nothing away."""
        self._closed = True

    async def _release(self, bundle: str, to: str, last: Last | None) -> bool:
        appended = await self._prepare(bundle)
        if not await self._ownership.begin_leaving(bundle):
            return False
        began = self._clock.monotonic()
        counts = self._ownership.counts
        moving = Moving() if to or last is not None else None
        there: ServiceUrls | None = None
        try:
            try:
                cursors = await self._close_all(bundle, moving, appended)
                if last is not None:
                    there = await last(cursors)
            finally:
                await self._ownership.leave(bundle, to)
            if to:
                there = await self._taken_by(bundle, to)
        finally:
            if moving is not None:
                moving.end(there)
                counts.moves.add(self._clock.monotonic() - began)
                self._tell_the_others(moving)
        why: Reason = "split" if last is not None else "move" if to else "unload"
        counts.left["stop" if self._stopping else why] += 1
        return True

    def _tell_the_others(self, moving: Moving) -> None:
        """Those for whom nobody waits: the next owner has time for the others meanwhile."""

        async def tell() -> None:
            is_left = True
            while is_left:
                await asyncio.sleep(TELLING_SECONDS)
                is_left = moving.tell_some(TOLD_AT_ONCE)

        if moving.tell_some(TOLD_AT_ONCE):
            task = self._moves[moving] = asyncio.create_task(tell())
            task.add_done_callback(lambda _: self._moves.pop(moving))

    async def _prepare(self, bundle: str) -> Mapping[TopicName, int]:
        """Do what there is to do of a release while the bundle is served; entries then by topic."""
        appended: dict[TopicName, int] = {}
        if not self._ownership.has(bundle):
            return appended
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._cursor_logs.renew_of(bundle)
        names = self._topics.names_in(Covered(bundle))
        if len(names) <= AT_ONCE:
            return appended

        async def look(name: TopicName) -> None:
            topic = self._topics.get_loaded(name)
            if topic is not None and topic.is_used:
                appended[name] = topic.entries_in
            elif topic is not None:
                await self._topics.unload(name)

        async def rest(name: TopicName) -> None:
            topic = self._topics.get_loaded(name)
            if topic is not None and topic.entries_in == appended[name]:
                await topic.ledger.close_ledger()

        async def orderly(do: Callable[[TopicName], Awaitable[None]], name: TopicName) -> None:
            try:
                await do(name)
            except PulsarkError as error:
                log.debug("%s is not ready to leave: %s", name, error)

        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await for_each(names, partial(orderly, look), AT_ONCE)
                await for_each(list(appended), partial(orderly, rest), AT_ONCE)
        return appended

    async def _close_all(
        self, bundle: str, moving: Moving | None, appended: Mapping[TopicName, int]
    ) -> CursorLog | None:
        cursors = None
        covered = Covered(bundle)
        names = self._topics.names_in(covered)
        log.info("bundle %s is released, with %d topics in memory", bundle, len(names))

        def is_busy(name: TopicName) -> bool:
            topic = self._topics.get(name)
            return topic is not None and topic.entries_in != appended.get(name)

        names.sort(key=is_busy)
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await for_each(names, partial(self._close, moving), WAITED_FOR_AT_ONCE)
                cursors = await self._cursor_logs.close_of(bundle)
        except TimeoutError:
            log.warning("bundle %s: its topics are not closed in time; it goes anyway", bundle)
            self._aside(self._close_each(bundle, await self._let_go(bundle)), bundle)
        self._tables.forget_those(covered)
        return cursors

    async def _close(self, moving: Moving | None, name: TopicName) -> None:
        try:
            await self._topics.unload(name, moving)
        except PulsarkError as error:
            log.warning("%s is not closed in order: %s", name, error)
        finally:
            self._tables.forget(name.base)

    async def _taken_by(self, bundle: str, to: str) -> ServiceUrls | None:
        """Where the bundle is once ``to`` has claimed it; ``None`` if it does not do so in time."""
        with self._owners.changes_of(bundle) as changed:
            try:
                async with asyncio.timeout(TAKING_SECONDS):
                    while True:
                        changed.clear()
                        owner = await self._owners.of(bundle)
                        if owner is not None and owner.broker_id == to:
                            live = self._registry.get(to)
                            return owner.urls if live is None else live.urls
                        await changed.wait()
            except TimeoutError:
                log.warning("bundle %s is not claimed by %s, to which it was given", bundle, to)
                return None

    def _lost(self, bundle: str) -> None:
        if not self._closed:
            self._aside(self._drop(bundle), bundle)

    def _aside(self, work: Coroutine[Any, Any, None], bundle: str) -> None:
        task = unattended(work, f"letting bundle {bundle} go")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _drop(self, bundle: str) -> None:
        log.warning("bundle %s is another broker's: its topics go", bundle)
        await self._close_each(bundle, await self._let_go(bundle))

    async def _let_go(self, bundle: str) -> list[Awaitable[None]]:
        """Let clients go at once, and forget what they had. What is returned closes it."""
        covered = Covered(bundle)
        self._tables.forget_those(covered)
        # First: who loads a topic again, once the bundle is had again, needs another log.
        closings: list[Awaitable[None]] = [self._cursor_logs.abandon(bundle)]
        async for name in in_turns(self._topics.names_in(covered)):
            self._tables.forget(name.base)
            closings += self._topics.abandon(name)
        return closings

    async def _close_each(self, bundle: str, closings: Sequence[Awaitable[None]]) -> None:
        """Close what was let go, as far as that is possible."""

        async def close(closing: Awaitable[None]) -> None:
            (found,) = await asyncio.gather(closing, return_exceptions=True)
            if isinstance(found, BaseException):
                log.info("bundle %s: not closed in order: %s", bundle, found)

        await for_each(closings, close, AT_ONCE)
