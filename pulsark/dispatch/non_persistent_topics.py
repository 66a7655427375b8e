"""The non-persistent topics that are in memory, which is all there is of them.

One appears when it is created or first used, and goes when nobody has used it for a while.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.inactivity import delete_partitioned_if_empty
from pulsark.dispatch.non_persistent_topic import NonPersistentTopic
from pulsark.errors import ClientError, ServerError
from pulsark.limits import UNUSED_NON_PERSISTENT_TOPIC_SECONDS

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class NonPersistentTopics:
    """Those of one broker. Everything runs on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[TopicName, NonPersistentTopic] = {}

    def all(self) -> list[NonPersistentTopic]:
        """All of them."""
        return list(self._topics.values())

    def get(self, name: TopicName) -> NonPersistentTopic | None:
        """A topic if it is there."""
        return self._topics.get(name)

    async def topic(self, name: TopicName, *, create: bool = False) -> NonPersistentTopic:
        """A topic; made if ``create`` and it is missing."""
        broker = self._broker
        broker.check_enabled(name)
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        if not create and not await broker.topic_admin.exists(name):
            raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        await broker.ownership.own(name)
        policies = await broker.policy_source.current(name)
        broker.check_serving(name)
        topic = self._topics.get(name)  # another request may have been first
        if topic is None:
            topic = NonPersistentTopic(
                name, broker.settings, policies, broker.clock, broker.run_queue
            )
            self._topics[name] = topic
        return topic

    async def close(self, name: TopicName) -> None:
        """Let a topic go; clients that are connected to it connect anew."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            await topic.close()

    async def close_all(self) -> None:
        """Let all of them go."""
        for name in list(self._topics):
            await self.close(name)

    async def drop_unused(self) -> None:
        """Let those go that nobody has used for a while."""
        oldest = self._broker.clock.monotonic() - UNUSED_NON_PERSISTENT_TOPIC_SECONDS
        for topic in self.all():
            if not topic.is_used and topic.last_used <= oldest:
                log.debug("%s is not used any more", topic.name)
                await self.close(topic.name)
                await delete_partitioned_if_empty(
                    topic.name, self._broker.topic_admin, self._broker.settings
                )
