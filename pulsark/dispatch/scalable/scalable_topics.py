"""What one broker has for the clients of scalable topics. It is made for the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.scalable.followed import FollowedTopics
from pulsark.dispatch.scalable.groups import Groups
from pulsark.dispatch.scalable.scalable_stats import Json, ScalableTotals, counted, of_topic

if TYPE_CHECKING:
    from pulsark.dispatch.scalable.layouts import Layout
    from pulsark.dispatch.topics.consumer_admission import Subscribing
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName


class ScalableTopics:
    """The layouts in use, and the groups that share the segments of a topic."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        creation: TopicCreation,
        topics: Topics,
        subscribing: Subscribing,
    ) -> None:
        self.followed = FollowedTopics(metadata, creation, clock, self._prepare)
        self.groups = Groups(clock, topics, subscribing, self.followed)

    async def _prepare(self, name: TopicName, layout: Layout) -> None:
        await self.groups.prepare(name, layout)

    async def sums(self) -> ScalableTotals:
        """What there is on the whole."""
        return await counted(self.followed.all(), self.groups.all())

    def stats(self, name: TopicName) -> Json | None:
        """What there is of a topic; ``None`` if nobody follows it."""
        topic = self.followed.get(str(name))
        if topic is None:
            return None
        return of_topic(topic, self.groups.of(name))

    def close(self) -> None:
        """The broker stops."""
        self.groups.close()
        self.followed.close()
