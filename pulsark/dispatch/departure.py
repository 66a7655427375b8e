"""How what a connection had leaves its topics once the connection is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX

if TYPE_CHECKING:
    from pulsark.dispatch.consumer import Consumer
    from pulsark.dispatch.producer import Producer
    from pulsark.dispatch.topic_kinds import AnySubscription


def departure(producers: Iterable[Producer], consumers: Iterable[Consumer]) -> Iterator[None]:
    """The steps of it; all of them have to be taken.

    Until its step has come a producer keeps its name and a consumer its place, as those of a
    connection do that is dead and has not been missed yet: who wants them probes, and has them.
    """
    for producer in producers:
        producer.topic.remove_producer(producer)
        yield
    groups: dict[AnySubscription, list[Consumer]] = {}
    for consumer in consumers:
        groups.setdefault(consumer.subscription, []).append(consumer)
    # The others of a subscription hear of a change once for a whole group.
    for subscription, leaving in groups.items():
        for start in range(0, len(leaving), CONSUMERS_LEAVING_AT_ONCE_MAX):
            subscription.remove_consumers(leaving[start : start + CONSUMERS_LEAVING_AT_ONCE_MAX])
            yield
