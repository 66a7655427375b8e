"""What one broker has for the clients of scalable topics. It is made for the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.scalable.followed import FollowedTopics
from pulsark.dispatch.scalable.groups import Groups

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

    def close(self) -> None:
        """The broker stops."""
        self.groups.close()
        self.followed.close()
