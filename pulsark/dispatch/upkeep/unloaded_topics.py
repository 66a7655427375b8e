"""The one walk over unloaded topics.

Such a topic is a row in the metadata store and packed cursors in its bundle's log. Both are looked
at now and then, slowly; only where they show that something is due the topic is loaded, for as long
as that takes. So a topic to which nothing happens stays a row.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.policies.policies import TopicPolicies, effective
from pulsark.errors import trace_of
from pulsark.limits import UNLOADED_VISITS_PER_SECOND
from pulsark.metadata.pages import names_below
from pulsark.metadata.paths import MANAGED_LEDGERS, topic_below, topics_path
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.upkeep.share import Share
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

PAUSES_PER_SECOND = 10


class Care(Protocol):
    """Something for which an unloaded topic may have to be loaded."""

    looks_per_second: int

    def concerns(self, policies: TopicPolicies) -> bool:
        """Whether anything can ever be due of a topic with these policies."""

    async def is_due(self, name: TopicName, policies: TopicPolicies) -> bool:
        """Whether the topic has to be loaded now, by what is stored of it."""

    async def attend(self, topic: Topic) -> None:
        """Do what is due of a topic that is loaded for it."""


class UnloadedTopics:
    """Goes round the topics of the metadata store, those that are this broker's."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        resources: Resources,
        topics: Topics,
        share: Share,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._resources = resources
        self._topics = topics
        self._share = share

    async def look_after(
        self, care: Care, namespaces: Container[str] | None = None, *, everywhere: bool = False
    ) -> None:
        """One round, of all namespaces or of some; ``everywhere``: of other brokers' topics, too.

        What fails of a topic concerns only that, and is tried in the next one.
        """
        looks = max(care.looks_per_second // PAUSES_PER_SECOND, 1)
        number = 0
        async for name, policies in self._concerned(care, namespaces, everywhere=everywhere):
            number += 1
            if number % looks == 0:
                await asyncio.sleep(1 / PAUSES_PER_SECOND)
            if self._topics.is_loading(name):
                continue
            try:
                if await care.is_due(name, policies):
                    await self._visit(name, care)
                    await asyncio.sleep(1 / UNLOADED_VISITS_PER_SECOND)
            except Exception as error:
                log.warning(
                    "cannot work on the unloaded topic %s now, trying again later: %s",
                    name,
                    error,
                    exc_info=trace_of(error),
                )

    async def _concerned(
        self, care: Care, namespaces: Container[str] | None, *, everywhere: bool
    ) -> AsyncIterator[tuple[TopicName, TopicPolicies]]:
        """Topics of which something may become due, and what holds for them."""
        resources = self._resources
        for tenant in await resources.tenants.list():
            for namespace in await resources.namespaces.list(tenant):
                if namespaces is not None and namespace not in namespaces:
                    continue
                found = await resources.namespaces.get(namespace)
                if found is None or not (everywhere or self._share.may_have(found)):
                    continue
                share = self._share.of_namespace(found)
                shared = effective(self._settings, found.policies, {})
                with_own = set(await resources.topic_policies.list(namespace))
                if not care.concerns(shared) and not with_own:
                    continue
                parent = topics_path(MANAGED_LEDGERS, namespace)
                async for child in names_below(self._metadata, parent):
                    name = TopicName.parse(topic_below(namespace, child))
                    policies = shared
                    if name.base in with_own:
                        own = await resources.topic_policies.get(name.base)
                        policies = effective(self._settings, found.policies, own)
                    if care.concerns(policies) and (everywhere or await share.has(name)):
                        yield name, policies

    async def _visit(self, name: TopicName, care: Care) -> None:
        async with self._topics.visit(name) as topic:
            if topic is not None:  # else it was loaded meanwhile, and has its turn with the others
                await care.attend(topic)
