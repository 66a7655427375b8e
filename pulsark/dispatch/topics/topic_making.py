"""Making topics: one at a time of a name, and where their number is limited, of a namespace.

Whether a topic may be made depends on what there is: no topic of that name, no partitioned topic
either, not too many in the namespace. All of that is asked and the topic made under one lock.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pulsark.dispatch.policies.policies import max_topics
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.resources import is_system_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

KNOWN_SECONDS = 10.0
"""Time for which the number of a namespace's topics is kept; longer if counting took long."""

MADE_ELSEWHERE_MAX = 200
"""Topics that other brokers may make in that time. Nearer to the limit, each broker counts anew."""

COUNTING_SHARE = 100
"""The inverse of the share of time that counting takes at most."""


class NamespaceFullError(ClientError):
    """A namespace has as many topics as it may have."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.NotAllowedError, message)


class TopicMaking:
    """The topics of a broker as they are made."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ownership: Ownership,
        catalog: TopicCatalog,
        is_alone: Callable[[], bool],
    ) -> None:
        """``is_alone``: whether no other broker makes topics."""
        self._is_alone = is_alone
        self._settings = settings
        self._clock = clock
        self._ownership = ownership
        self._catalog = catalog
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[str, tuple[int, float]] = {}
        """By namespace the number of its topics that are stored, and until when it is used."""

    def alone(self, name: TopicName) -> asyncio.Lock:
        """Held while a topic, or partitions of it, are made."""
        return self._lock(f"topic {name.base}")

    @asynccontextmanager
    async def room(self, name: TopicName, more: int = 1) -> AsyncIterator[None]:
        """Make ``more`` topics within this context; ``NamespaceFullError`` if the limit forbids it.

        A partition counts since its topic was made, and is not asked for here.
        """
        namespace = await self._ownership.namespace(name)
        most = max_topics(self._settings, namespace.policies)
        if most <= 0 or is_system_topic(str(name)):
            yield
            return
        async with self._lock(f"namespace {name.namespace_name}"):
            count = await self._count(name, most - more)
            if count + more > most:
                raise NamespaceFullError(
                    f"{name.namespace_name} may have {most} topics, each partition counts: "
                    f"{name} exceeds maximum number of topics in namespace"
                )
            try:
                yield
            except BaseException:
                self.forget(name)  # whether it was made is not known
                raise
            if name.is_persistent and name.namespace_name in self._known:
                count, until = self._known[name.namespace_name]
                self._known[name.namespace_name] = count + more, until

    def forget(self, name: TopicName) -> None:
        """A topic went: they are counted again."""
        self._known.pop(name.namespace_name, None)

    async def _count(self, name: TopicName, room_until: int) -> int:
        """Return the number of a namespace's topics; up to ``room_until`` there is room for more.

        Other brokers may have made topics since they were counted, but hardly very many.
        """
        namespace = name.namespace_name
        if not name.is_persistent:  # these are in memory, and come and go
            return len(await self._catalog.list_non_persistent_topics(namespace))
        began = self._clock.monotonic()
        count, until = self._known.get(namespace, (0, began))
        made_elsewhere = 0 if self._is_alone() else MADE_ELSEWHERE_MAX
        is_certain = count > room_until or count + made_elsewhere <= room_until
        if began < until and is_certain:
            return count
        count = len(await self._catalog.list_topics(namespace))
        now = self._clock.monotonic()
        self._known[namespace] = count, now + max(KNOWN_SECONDS, COUNTING_SHARE * (now - began))
        return count

    def _lock(self, what: str) -> asyncio.Lock:
        lock = self._locks.get(what)
        if lock is None:
            lock = self._locks[what] = asyncio.Lock()
        return lock
