"""What one broker has for the clients of scalable topics. It is made for the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.scalable.followed import FollowedTopics

if TYPE_CHECKING:
    from pulsark.dispatch.scalable.layouts import Layout
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName


class ScalableTopics:
    """The layouts in use."""

    def __init__(self, metadata: MetadataStore, creation: TopicCreation, clock: Clock) -> None:
        self.followed = FollowedTopics(metadata, creation, clock, self._prepare)
        self.sessions = 0
        """Lookups that clients have open."""

    async def _prepare(self, name: TopicName, layout: Layout) -> None:
        """Nobody knows of a later layout yet."""

    def close(self) -> None:
        """The broker stops."""
        self.followed.close()
