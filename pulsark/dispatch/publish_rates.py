"""The rates of publishing on one broker: of its topics, of resource groups, and its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.policies.policies import broker_publish_rate
from pulsark.rates.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.topics.group_throttles import GroupThrottles
    from pulsark.runtime import Clock


class PublishRates:
    """Finds what applies to a topic. A topic has a throttle from its first publish on."""

    def __init__(self, settings: Settings, clock: Clock, groups: GroupThrottles) -> None:
        self.held = 0
        """Connections that are not read because of a rate."""
        self._clock = clock
        self._groups = groups
        rate = broker_publish_rate(settings)
        self._broker = Throttle(rate, clock) if rate.is_limit else None

    def of(self, topic: AnyTopic) -> Iterator[Throttle]:
        """All throttles that a publish to a topic concerns."""
        rate = topic.policies.publish_rate
        if rate.is_limit:
            if topic.throttle is None:
                topic.throttle = Throttle(rate, self._clock)
            yield topic.throttle
        group = self._groups.of(topic.policies.resource_group)
        if group is not None:
            yield group
        if self._broker is not None:
            yield self._broker
