"""The end of a namespace: it is hidden, looked at, and removed or shown again.

It is hidden first, so that no topic appears after it was looked at. A kill in between leaves it
hidden: ``settle`` decides then.

With force its topics go before. So that clients that connect again do not make new ones meanwhile,
they get none from when this begins (``Namespace.emptying``); brokers that have not heard of it yet
may make some, so it is looked at all the same. After a kill, or if a failure could not be noted,
the leader goes on with it (``settle``).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.topics.deletion import suppress_not_found
from pulsark.errors import PulsarkError
from pulsark.metadata.paths import MANAGED_LEDGERS, namespace_schemas_path, topic_below, topics_path
from pulsark.metadata.records import DoesNotExistError, InUseError
from pulsark.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere
    from pulsark.dispatch.policies.schemas import Schemas
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

_ATTEMPTS = 3
"""How often a forced deletion is repeated if brokers that know nothing of it make topics."""


class NamespaceDeletion:
    """Deletes namespaces, on the broker that was asked."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        schemas: Schemas,
        catalog: TopicCatalog,
        non_persistent: NonPersistentTopics,
        deletion: TopicDeletion,
        elsewhere: Callable[[], TopicsElsewhere | None] = lambda: None,
    ) -> None:
        """``elsewhere``: the topics of other brokers, where there are some."""
        self._metadata = metadata
        self._resources = resources
        self._schemas = schemas
        self._catalog = catalog
        self._non_persistent = non_persistent
        self._deletion = deletion
        self._elsewhere = elsewhere
        self._deciding = asyncio.Lock()
        """Held while a namespace is hidden."""
        self._emptying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a namespace. ``InUseError`` if it has topics, which ``force`` deletes too."""
        if force:
            try:
                await self._delete_with_topics(name)
            except Exception:
                with suppress(PulsarkError):  # else it is as after a kill
                    await self._resources.namespaces.end_emptying(name)
                raise
        elif await self._has_topics(name) or not await self._delete_empty(name):
            raise InUseError("Cannot delete a namespace that has topics")

    async def _delete_with_topics(self, name: str) -> None:
        """Other brokers may be about the same; what fails because of that is no failure."""
        namespaces = self._resources.namespaces
        async with self._emptying_alone(name):
            try:
                await namespaces.begin_emptying(name)
                for _ in range(_ATTEMPTS):
                    await self._delete_topics(name)
                    if await self._delete_empty(name, emptied=True):
                        return
            except PulsarkError:
                if await namespaces.get(name) is None:
                    return  # another broker was first
                raise
        raise InUseError(
            f"Clients made topics of {name} again while they were deleted. Stop them, or "
            "switch autoTopicCreation of the namespace off, and try again"
        )

    def _emptying_alone(self, name: str) -> asyncio.Lock:
        """Held while a namespace is deleted with its topics."""
        lock = self._emptying.get(name)
        if lock is None:
            lock = self._emptying[name] = asyncio.Lock()
        return lock

    async def _delete_empty(self, name: str, *, emptied: bool = False) -> bool:
        """Delete a namespace that seems to have no topics; whether it is gone."""
        async with self._deciding:
            try:
                await self._resources.namespaces.begin_delete(name, emptied=emptied)
                return await self._decide(name)
            except DoesNotExistError:
                return True  # another broker was first

    async def settle(self, tenant: str) -> None:
        """Bring to their end, or decide about, deletions of namespaces that were broken off.

        What fails stays as it is until the next time.
        """
        async for name in in_turns(await self._resources.namespaces.names(tenant)):
            with _told(name):
                await self._settle(name)

    async def _settle(self, name: str) -> None:
        namespaces = self._resources.namespaces
        namespace = await namespaces.get(name)
        if namespace is None:
            async with self._deciding:
                if await namespaces.is_hidden(name):
                    await self._decide(name)
            namespace = await namespaces.get(name)
        if namespace is None or not namespace.emptying or self._emptying_alone(name).locked():
            return
        log.info("%s: completing its deletion, which was interrupted", name)
        await self._delete_with_topics(name)

    async def _decide(self, name: str) -> bool:
        """Remove a hidden namespace, or show it again if it has topics; whether it is gone."""
        namespaces = self._resources.namespaces
        if await self._has_topics(name):
            await namespaces.cancel_delete(name)
            return False
        await self._delete_what_was_set(name)
        await namespaces.finish_delete(name)
        return True

    async def _delete_what_was_set(self, name: str) -> None:
        """Policies and schemas of topics that are not there: the next namespace has none."""
        policies = self._resources.topic_policies
        for topic in await policies.list(name):
            await policies.delete(topic)
        for child in await self._metadata.children(namespace_schemas_path(name)):
            topic = TopicName.parse(topic_below(name, child))
            await self._schemas.erase(topic)

    async def _has_topics(self, name: str) -> bool:
        for domain in (PERSISTENT, NON_PERSISTENT):
            if await self._resources.partitioned_topics.list(name, domain):
                return True
        if self._non_persistent.of_namespace(name):
            return True
        elsewhere = self._elsewhere()
        if elsewhere is not None and await elsewhere.non_persistent(name):
            return True
        return bool(await self._metadata.children(topics_path(MANAGED_LEDGERS, name)))

    async def _delete_topics(self, name: str) -> None:
        """Before each it is looked whether another broker was first: then these are new ones."""
        still = partial(self._resources.namespaces.require_emptying, name)
        for domain in (PERSISTENT, NON_PERSISTENT):
            for base in await self._resources.partitioned_topics.list(name, domain):
                await still()
                with suppress_not_found():
                    await self._deletion.delete_partitioned_topic(base, force=True)
        topics = await self._catalog.stored_topics(name)
        elsewhere = self._elsewhere()
        volatile = await self._catalog.list_non_persistent_topics(name, include_system=True)
        if elsewhere is not None:
            volatile += await elsewhere.non_persistent(name)
        for topic in [*topics, *map(TopicName.parse, volatile)]:
            await still()
            with suppress_not_found():
                await self._deletion.delete_topic(topic, force=True)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What fails of one namespace keeps no others back."""
    try:
        yield
    except DoesNotExistError:
        log.debug("%s: another broker was first", name)
    except PulsarkError as error:
        log.warning("%s: cannot complete its deletion yet, trying again: %s", name, error)
