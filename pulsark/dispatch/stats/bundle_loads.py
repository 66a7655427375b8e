"""What goes on in each bundle that this broker has topics of, measured now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.load import BundleLoad
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.topics.bundles import NamespaceBundles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.stats.rates import Rates
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.namespaces import Namespaces
    from pulsark.wire.topic_name import TopicName


class BundleLoads:
    """The loads of one broker's bundles."""

    def __init__(self, namespaces: Namespaces, topics: Topics, rates: Rates) -> None:
        self._namespaces = namespaces
        self._topics = topics
        self._rates = rates
        self.loads: Mapping[str, BundleLoad] = {}
        """By bundle, as they were when it was measured."""

    async def measure(self) -> None:
        """Go through all topics, at a pace."""
        loads: dict[str, BundleLoad] = {}
        namespaces: dict[str, NamespaceBundles | None] = {}
        async for topic in in_turns(self._topics.served()):
            name = topic.name.namespace_name
            if name not in namespaces:
                found = await self._namespaces.get(name)
                namespaces[name] = None if found is None else NamespaceBundles(found)
            bundles = namespaces[name]
            if bundles is not None:
                bundle = bundles.of(topic.name)
                loads[bundle] = loads.get(bundle, BundleLoad()).plus(self._of(topic))
        self.loads = loads

    def weight(self, name: TopicName) -> float:
        """What a topic costs; 0 if it is not in memory."""
        topic = self._topics.get(name)
        return 0.0 if topic is None else self._of(topic).weight

    def _of(self, topic: AnyTopic) -> BundleLoad:
        came = self._rates.topic_in(topic)
        sessions, messages, size = len(topic.producers), 0.0, 0.0
        for subscription in list(topic.subscriptions.values()):
            went = self._rates.subscription(subscription)
            sessions += len(subscription.type.consumers)
            messages += went.messages
            size += went.bytes
        return BundleLoad(1, sessions, came.messages, messages, came.bytes, size)
