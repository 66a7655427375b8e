"""What one client has in topics, from before a topic knows of it until no topic does.

A topic or a subscription registers a producer or consumer here before it takes it in, and strikes
it out when it lets it go. So nothing depends on a coroutine to be released: whatever a request
was waiting for when the connection went, all that it had is here, and leaves in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX

if TYPE_CHECKING:
    from pulsark.config import Settings
    from pulsark.dispatch.consumer import Consumer
    from pulsark.dispatch.producer import Producer
    from pulsark.dispatch.topic_kinds import AnySubscription


class Holdings:
    """The producers and consumers of one connection, whatever state they are in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producers: dict[Producer, None] = {}
        self._consumers: dict[Consumer, None] = {}
        self._open = True

    def __len__(self) -> int:
        return len(self._producers) + len(self._consumers)

    def add_producer(self, producer: Producer) -> None:
        """A topic is about to take it in. ``ClientError`` if it may not."""
        self._check("producers", len(self._producers), self._settings.maxProducersPerConnection)
        self._producers[producer] = None

    def add_consumer(self, consumer: Consumer) -> None:
        """A subscription is about to take it in. ``ClientError`` if it may not."""
        self._check("consumers", len(self._consumers), self._settings.maxConsumersPerConnection)
        self._consumers[consumer] = None

    def drop_producer(self, producer: Producer) -> None:
        """No topic has it any more."""
        self._producers.pop(producer, None)

    def drop_consumer(self, consumer: Consumer) -> None:
        """No subscription has it any more."""
        self._consumers.pop(consumer, None)

    def close(self) -> None:
        """Nothing comes in any more."""
        self._open = False

    def leave(self) -> Iterator[None]:
        """Take everything out of its topic: the steps of it, all of which have to be taken.

        Until its step has come a producer keeps its name and a consumer its place, as those of a
        connection do that is dead and has not been missed yet: who wants them probes, and has them.
        """
        for producer in list(self._producers):
            producer.topic.remove_producer(producer)
            yield
        groups: dict[AnySubscription, list[Consumer]] = {}
        for consumer in self._consumers:
            groups.setdefault(consumer.subscription, []).append(consumer)
        # The others of a subscription hear of a change once for a whole group.
        for subscription, leaving in groups.items():
            for start in range(0, len(leaving), CONSUMERS_LEAVING_AT_ONCE_MAX):
                some = leaving[start : start + CONSUMERS_LEAVING_AT_ONCE_MAX]
                subscription.remove_consumers(some)
                yield

    def _check(self, what: str, count: int, most: int) -> None:
        if not self._open:
            raise ClientError(ServerError.ServiceNotReady, "The connection is closed")
        if 0 < most <= count:
            raise ClientError(
                ServerError.NotAllowedError,
                f"A connection may have {most} {what} (max{what.title()}PerConnection)",
            )
