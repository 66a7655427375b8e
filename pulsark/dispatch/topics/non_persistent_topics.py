"""The non-persistent topics that are in memory, which is all there is of them.

One appears when it is created or first used, and goes when it was not used for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.topics.names_by_bundle import NamesByBundle

if TYPE_CHECKING:
    from pulsark.dispatch.model.moving import Moving
    from pulsark.dispatch.topic.non_persistent_topic import NonPersistentTopic
    from pulsark.wire.topic_name import TopicName


class NonPersistentTopics:
    """The non-persistent topics of one broker. Everything runs on the event loop."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, NonPersistentTopic] = {}
        self.ends = 0
        """How often a topic was closed, also one that was only being made: it may be gone."""
        self.names = NamesByBundle()

    def all(self) -> list[NonPersistentTopic]:
        """All of them."""
        return list(self._topics.values())

    def of_namespace(self, namespace: str) -> list[TopicName]:
        """The names of those in a namespace."""
        return [name for name in self._topics if name.namespace_name == namespace]

    def get(self, name: TopicName) -> NonPersistentTopic | None:
        """A topic if it is there."""
        return self._topics.get(name)

    def add(self, topic: NonPersistentTopic) -> NonPersistentTopic:
        """The topic of this name from now on: this one, unless there is one already."""
        self.names.add(topic.name)
        return self._topics.setdefault(topic.name, topic)

    async def close(self, name: TopicName, moving: Moving | None = None) -> None:
        """Let a topic go; clients that are connected to it connect anew."""
        self.ends += 1
        topic = self._topics.pop(name, None)
        if topic is not None:
            self.names.discard(name)
            topic.moving = moving
            await topic.close()

    async def close_all(self) -> None:
        """Let all of them go."""
        for name in list(self._topics):
            await self.close(name)
