"""The rates of publishing on one broker: of its topics, of resource groups, and its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.policies.policies import broker_publish_rate
from pulsark.rates.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.topics.group_throttles import GroupThrottles
    from pulsark.runtime import Clock

    Told = Callable[[str, str, float], None]
    """Hears of what kind a rate is, whose, and for how many seconds it has held somebody."""


class PublishRates:
    """Finds what applies to a topic. A topic has a throttle from its first publish on."""

    def __init__(self, settings: Settings, clock: Clock, groups: GroupThrottles) -> None:
        self.held = 0
        """Connections that are not read because of a rate."""
        self._told: Told | None = None
        self._clock = clock
        self._groups = groups
        self._settings = settings
        self._broker: Throttle | None = None
        self.settings_changed()

    def tell(self, told: Told) -> None:
        """Have somebody know of what is held back for long; before the first publish."""
        self._told = told
        self._groups.told = partial(told, "resource_group")
        if self._broker is not None:
            self._broker.told = partial(told, "broker", "")

    def settings_changed(self) -> None:
        """The rate of the broker may be another."""
        rate = broker_publish_rate(self._settings)
        if self._broker is not None:
            self._broker.change(rate)
            if not rate.is_limit:
                self._broker = None
        elif rate.is_limit:
            self._broker = Throttle(rate, self._clock)
            if self._told is not None:
                self._broker.told = partial(self._told, "broker", "")

    def of(self, topic: AnyTopic) -> Iterator[Throttle]:
        """All throttles that a publish to a topic concerns."""
        rate = topic.policies.publish_rate
        if rate.is_limit:
            if topic.throttle is None:
                topic.throttle = Throttle(rate, self._clock)
                if self._told is not None:
                    topic.throttle.told = partial(self._told, "topic", str(topic.name))
            yield topic.throttle
        group = self._groups.of(topic.policies.resource_group)
        if group is not None:
            yield group
        if self._broker is not None:
            yield self._broker
