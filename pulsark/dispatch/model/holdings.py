"""What one client has in topics, from before a topic knows of it until no topic does.

A topic or a subscription registers a producer or consumer here before it takes it in, and strikes
it out when it lets it go. So nothing depends on a coroutine to be released: whatever a request
was waiting for when the connection went, all that it had is here, and leaves in one place.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import CONSUMERS_LEAVING_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.interfaces import AnySubscription
    from pulsark.dispatch.model.producer import Producer


class Holdings:
    """The producers and consumers of one connection, whatever state they are in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producers: dict[Producer, None] = {}
        self._consumers: dict[Consumer, None] = {}
        self._expected = 0
        """Consumers whose subscription is being made."""
        self._open = True

    def __len__(self) -> int:
        return len(self._producers) + len(self._consumers)

    def add_producer(self, producer: Producer) -> None:
        """A topic is about to take it in. ``ClientError`` if it may not."""
        self._check("producers", len(self._producers), self._settings.maxProducersPerConnection)
        self._producers[producer] = None

    def add_consumer(self, consumer: Consumer) -> None:
        """A subscription is about to take it in. ``ClientError`` if it may not."""
        self._check_consumers()
        self._consumers[consumer] = None

    @contextmanager
    def place_for_consumer(self) -> Iterator[None]:
        """Have a place for a consumer while its subscription is made, or raise ``ClientError``.

        Else it might be refused when the subscription is there, which would stay unused.
        """
        self._check_consumers()
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    def drop_producer(self, producer: Producer) -> None:
        """No topic has it any more."""
        self._producers.pop(producer, None)

    def drop_consumer(self, consumer: Consumer) -> None:
        """No subscription has it any more."""
        self._consumers.pop(consumer, None)

    def close(self) -> None:
        """Nothing comes in any more."""
        self._open = False

    def departures(self) -> Iterator[Callable[[], None]]:
        """What takes everything out of its topic. All of it is to be called, whatever fails.

        Until it is taken out, a producer keeps its name and a consumer its place, like those of a
        connection that died unnoticed: a client that wants them probes it, and gets them.
        """
        for producer in list(self._producers):
            yield partial(producer.topic.remove_producer, producer)
        groups: dict[AnySubscription, list[Consumer]] = {}
        for consumer in self._consumers:
            groups.setdefault(consumer.subscription, []).append(consumer)
        # The others of a subscription hear of a change once for a whole group.
        for subscription, leaving in groups.items():
            for start in range(0, len(leaving), CONSUMERS_LEAVING_AT_ONCE_MAX):
                some = leaving[start : start + CONSUMERS_LEAVING_AT_ONCE_MAX]
                yield partial(subscription.remove_consumers, some)

    def _check_consumers(self) -> None:
        count = len(self._consumers) + self._expected
        self._check("consumers", count, self._settings.maxConsumersPerConnection)

    def _check(self, what: str, count: int, most: int) -> None:
        if not self._open:
            raise ClientError(ServerError.ServiceNotReady, "The connection is closed")
        if 0 < most <= count:
            raise ClientError(
                ServerError.NotAllowedError,
                f"A connection may have {most} {what} (max{what.title()}PerConnection)",
            )
