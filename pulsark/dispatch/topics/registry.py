"""The topics in memory: loaded when they are first used, one object of each name at a time."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from pulsark.dispatch.loop.turns import for_each, in_turns
from pulsark.dispatch.topics.damage import DamageReports
from pulsark.dispatch.topics.names_by_bundle import NamesByBundle
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.metadata.paths import bundle_counted_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.model.moving import Moving
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.bundles import Covered
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.loader import TopicLoader
    from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.remains import Remains
    from pulsark.metadata.changes import Check
    from pulsark.runtime import Clock
    from pulsark.storage.managed_ledger.record import StoredRecord
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

CLOSED_AT_ONCE = 100
"""At the end of the broker, or when they are lost. One after the other, very many would take
minutes, and hours while the metadata store does not answer."""


class Seen(NamedTuple):
    """A topic that is there, and perhaps its record: read since ``guard`` holds.

    The record is that of not long ago. Whoever opens it writes it, and finds out if it has changed.
    """

    record: StoredRecord | None = None
    guard: Check | None = None


class Topics:
    """Those of a broker. Everything runs on the event loop."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        catalog: TopicCatalog,
        remains: Remains,
        loader: TopicLoader,
        non_persistent: NonPersistentTopics,
        ownership: Ownership,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._catalog = catalog
        self._remains = remains
        self._loader = loader
        self._non_persistent = non_persistent
        self._ownership = ownership
        self._loading: dict[str, asyncio.Task[Topic]] = {}
        """Persistent topics, loaded or on their way."""
        self._names = NamesByBundle()
        """Of those."""
        self.damage = DamageReports(clock)
        self._visited: set[str] = set()
        """Topics that are loaded for a visit only."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Ends of visits; a request waits for one, and loads the topic anew."""
        self._ending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._refused: set[TopicName] = set()
        """Topics that are being deleted with all their partitions just now."""
        self._closed = False
        self.unused_since = clock.monotonic()
        """The time since which unloaded topics are unused, as far as is known."""

    # -- what is in memory ---

    def served(self) -> list[AnyTopic]:
        """All topics in memory, stored or not."""
        return [*self.loaded(), *self._non_persistent.all()]

    def get(self, name: TopicName) -> AnyTopic | None:
        """A topic if it is in memory."""
        return self.get_loaded(name) if name.is_persistent else self._non_persistent.get(name)

    def loaded(self) -> list[Topic]:
        """Persistent topics in memory."""
        return [task.result() for task in self._loading.values() if _has_loaded(task)]

    def get_loaded(self, name: TopicName) -> Topic | None:
        """A persistent topic if it is in memory."""
        task = self._loading.get(str(name))
        return task.result() if task is not None and _has_loaded(task) else None

    def is_loading(self, name: TopicName) -> bool:
        """Whether a persistent topic is in memory, or on its way there."""
        return str(name) in self._loading

    def names_in(self, bundle: Covered) -> list[TopicName]:
        """Topics of a bundle that are in memory, or on their way there."""
        return [*self._names.inside(bundle), *self._non_persistent.names.inside(bundle)]

    # -- loading ---

    async def open(
        self, name: TopicName, *, create: bool = False, seen: Seen | None = None
    ) -> AnyTopic:
        """A topic, stored or not; made if ``create`` and it is missing.

        ``seen``: it was there just now.
        """
        if name.is_persistent:
            return await self.load(name, create=create, seen=seen)
        self._check_serving(name)
        return await self._open_non_persistent(name, create=create)

    async def load(
        self, name: TopicName, *, create: bool = False, seen: Seen | None = None
    ) -> Topic:
        """A persistent topic, loaded if needed; made if ``create`` and it is missing."""
        self._check_serving(name)
        try:
            return await self._load(name, create=create, served=True, seen=seen)
        except PulsarkError as error:
            self.damage.say(name, error)
            raise

    async def load_to_delete(self, name: TopicName) -> Topic:
        """A topic of which there is a record, even while all partitions are being deleted."""
        return await self._load(name, create=True, served=False)

    def check_enabled(self, name: TopicName) -> None:
        """Raise ``ClientError`` if topics of this kind are switched off here."""
        kinds = self._settings
        if not (
            kinds.enablePersistentTopics if name.is_persistent else kinds.enableNonPersistentTopics
        ):
            raise ClientError(
                ServerError.NotAllowedError,
                f"{name.domain.capitalize()} topics are not enabled on this broker",
            )

    def _check_serving(self, name: TopicName) -> None:
        """Raise ``ClientError`` if the broker or the topic is on its way out."""
        if self._closed:
            raise _shutting_down()
        if self.is_refused(name.base):
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name.base} is being deleted")

    async def _open_non_persistent(self, name: TopicName, *, create: bool) -> AnyTopic:
        self.check_enabled(name)
        topic = self._non_persistent.get(name)
        if topic is not None:
            return topic
        while True:
            await self._require(name, create=create)  # first: a question claims no bundle
            guard = await self._ownership.guard(name)
            ends = self._non_persistent.ends
            await self._require(name, create=create)  # a deletion that begins now is seen here
            topic = await self._loader.make_non_persistent(name)
            if create or ends == self._non_persistent.ends:
                break
        self._check_serving(name)
        self._check_held(name, guard)
        return self._non_persistent.add(topic)  # another request may have been first

    async def _require(self, name: TopicName, *, create: bool) -> None:
        """Raise ``ClientError(TopicNotFound)`` unless a topic is there, or may be created."""
        if not create and not await self._catalog.exists(name):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def _load(
        self, name: TopicName, *, create: bool, served: bool, seen: Seen | None = None
    ) -> Topic:
        if not name.is_persistent:
            raise ClientError(
                ServerError.NotAllowedError, f"{name} is not persistent: it stores nothing"
            )
        self.check_enabled(name)
        key = str(name)
        while (leaving := self._leaving.get(key)) is not None:
            await asyncio.wait([leaving])
            seen = None  # it may have gone meanwhile
        if (
            key not in self._loading
            and not create
            and seen is None
            and not await self._catalog.exists(name)
            and key not in self._loading
        ):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        # A deletion may have begun meanwhile, or the end, and then nobody would close it.
        if served:
            self._check_serving(name)
        elif self._closed:
            raise _shutting_down()
        self._visited.discard(key)
        loading = self._loading.get(key) or self._start_loading(name, served=served, seen=seen)
        topic = await asyncio.shield(loading)
        if topic.closed:
            raise ClientError(ServerError.ServiceNotReady, f"Topic {name} is being unloaded")
        return topic

    def _start_loading(
        self, name: TopicName, *, served: bool = True, seen: Seen | None = None
    ) -> asyncio.Task[Topic]:
        key = str(name)
        loading = self._loaded_anew(name, seen or Seen(), served=served)
        task = self._loading[key] = asyncio.create_task(loading)
        self._names.add(name)
        task.add_done_callback(lambda done: self._forget_failed(name, done))
        return task

    async def _loaded_anew(self, name: TopicName, seen: Seen, *, served: bool) -> Topic:
        guard = await self._ownership.guard(name)  # another owner may have written before
        if served and await self._catalog.is_orphan(name):
            # Its topic was there when it was asked for. A deletion that begins now waits for this.
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        stored = seen.record if seen.guard == guard else await self._remains.record_of(name)
        topic = await self._loader.load(name, bundle_counted_at(guard.path), stored)
        try:
            self._check_held(name, guard)
        except ClientError:
            await topic.close()
            raise
        return topic

    def _check_held(self, name: TopicName, guard: Check) -> None:
        """Raise ``ClientError`` if the bundle of a topic went while that was loaded."""
        if not self._ownership.holds(guard):
            raise ClientError(
                ServerError.ServiceNotReady, f"Topic {name} has moved; look it up again"
            )

    def _forget_failed(self, name: TopicName, task: asyncio.Task[Topic]) -> None:
        key = str(name)
        error = None if task.cancelled() else task.exception()
        if (task.cancelled() or error is not None) and self._loading.get(key) is task:
            self._drop(name)
        if error is not None:
            self.damage.say(name, error)

    # -- unloading ---

    async def unload(self, name: TopicName, moving: Moving | None = None) -> None:
        """Close a topic; clients connect anew and load it again. If it is moving, they wait."""
        await self._non_persistent.close(name, moving)
        loading = self._loading.get(str(name))
        if loading is not None:
            await asyncio.wait([loading])
        async with self.ending(name):
            topic = self.get_loaded(name)
            if topic is not None and not topic.closed:
                self.unused_since = self._clock.monotonic()
                topic.moving = moving
                await self._leave(topic)

    def abandon(self, name: TopicName) -> list[Awaitable[None]]:
        """Another broker has a topic: its clients go at once. What is returned closes the rest."""
        closing: list[Awaitable[None]] = [self._non_persistent.close(name)]
        topic = self.get_loaded(name)
        if topic is not None:
            topic.disconnect()
            self.forget(topic)
            closing.append(topic.close())
        return closing

    def ending(self, name: TopicName) -> asyncio.Lock:
        """Held while a topic is unloaded or deleted: only one of them happens at a time."""
        lock = self._ending.get(str(name))
        if lock is None:
            lock = self._ending[str(name)] = asyncio.Lock()
        return lock

    def is_refused(self, base: TopicName) -> bool:
        """Whether a topic with all its partitions is on its way out just now."""
        return base in self._refused

    @contextmanager
    def refusing(self, base: TopicName) -> Iterator[None]:
        """Admit no client to a topic while this lasts. The caller ends the topic."""
        self._refused.add(base)
        try:
            yield
        finally:
            self._refused.discard(base)

    @asynccontextmanager
    async def visit(self, name: TopicName) -> AsyncIterator[Topic | None]:
        """An unloaded topic, loaded for as long as this lasts; ``None`` if it was loaded before.

        It stays loaded if a client asks for it meanwhile.
        """
        key = str(name)
        exists = await self._catalog.is_made(name)
        if not exists or self._closed or key in self._loading or key in self._leaving:
            yield None
            return
        self._visited.add(key)
        try:
            topic = await asyncio.shield(self._start_loading(name))
            try:
                yield topic
            finally:
                if key in self._visited and not topic.closed and not self._closed:
                    leaving = self._leaving[key] = asyncio.create_task(self._leave(topic))
                    leaving.add_done_callback(lambda _: self._leaving.pop(key))
                    await asyncio.shield(leaving)
        finally:
            self._visited.discard(key)

    async def _leave(self, topic: Topic) -> None:
        try:
            await topic.close()
        finally:
            self.forget(topic)

    def forget(self, topic: Topic) -> None:
        """Give this topic to no client any more; the next request loads it anew."""
        if self.get_loaded(topic.name) is topic:
            self._drop(topic.name)

    def _drop(self, name: TopicName) -> None:
        del self._loading[str(name)]
        self._names.discard(name)

    async def drop_lost(self) -> None:
        """Unload topics whose ledger or cursors stopped for good; clients load them anew."""

        async def drop(topic: Topic) -> None:
            if self.get_loaded(topic.name) is not topic:
                return
            log.warning("%s lost its ledger or its cursors: unloading the topic", topic.name)
            try:
                await self.unload(topic.name)
            except PulsarkError as error:
                log.warning("%s is not closed in order: %s", topic.name, error)

        lost = [topic async for topic in in_turns(self.loaded()) if topic.is_lost]
        # Beside each other: one may take long, and the others' clients wait, too.
        await for_each(lost, drop, CLOSED_AT_ONCE)

    # -- the end ---

    def refuse_all(self) -> None:
        """The broker is shutting down: no client gets a topic any more."""
        self._closed = True

    async def close(self) -> None:
        """Close all topics, those that are being loaded, too."""
        self.refuse_all()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        await for_each(list(self._loading.values()), partial(_close, self.ending), CLOSED_AT_ONCE)
        self._loading.clear()
        self._names.clear()


async def _close(ending: Callable[[TopicName], asyncio.Lock], loading: asyncio.Task[Topic]) -> None:
    await asyncio.wait([loading])
    if _has_loaded(loading):
        topic = loading.result()
        async with ending(topic.name):
            if not topic.closed:
                await topic.close()


def _shutting_down() -> ClientError:
    return ClientError(ServerError.ServiceNotReady, "The broker is shutting down")


def _has_loaded(task: asyncio.Task[Topic]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
