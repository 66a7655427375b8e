"""What one client can name in its commands: the producers, consumers and watchers it created."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.limits import (
    CONSUMER_RETURN_SECONDS,
    RECENTLY_CLOSED_CONSUMERS_MAX,
    RECENTLY_CLOSED_PRODUCERS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.connection.scalable_client import ScalableClient
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.topics.topic_lists import TopicWatcher


class Opened:
    """Each by the id that the client gave it. What topics have of the client is in ``Holdings``."""

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        """Producers that are ready to publish."""
        self.waiting_producers: dict[int, Producer] = {}
        """Producers that will be ready, or refused, later."""
        self.consumers: dict[int, Consumer] = {}
        self.moving_producers: dict[int, Callable[[], None]] = {}
        """The broker has closed them, and their client is to be told later; or now if it is called.
        They are no more than it had open before their topics began to move."""
        self.moving_consumers: dict[int, Callable[[], None]] = {}
        self.watchers: dict[int, TopicWatcher] = {}
        self.scalable: ScalableClient | None = None
        """What only clients of Pulsar 5 have."""
        self._recently_closed: dict[int, None] = {}
        self._returning: dict[int, asyncio.Future[None] | None] = {}
        """Consumers that the broker closed and that will subscribe again, and who waits for it."""

    def add_producer(self, producer: Producer) -> None:
        """A producer is ready: its SENDs are carried out from now on."""
        self.producers[producer.producer_id] = producer
        self._recently_closed.pop(producer.producer_id, None)
        self.moving_producers.pop(producer.producer_id, None)

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer may be sent messages from now on."""
        self.consumers[consumer.consumer_id] = consumer
        self.forget_closed_consumer(consumer.consumer_id)
        self.moving_consumers.pop(consumer.consumer_id, None)

    def drop_producer(self, producer: Producer) -> bool:
        """The broker closes a producer; its SENDs on their way are ignored. Whether it was here."""
        if self.producers.get(producer.producer_id) is not producer:
            return False
        del self.producers[producer.producer_id]
        self.note_closed(producer.producer_id)
        return True

    def note_closed(self, producer_id: int) -> None:
        """The client may not have heard yet that the broker closed a producer."""
        self._recently_closed[producer_id] = None
        while len(self._recently_closed) > RECENTLY_CLOSED_PRODUCERS_MAX:
            del self._recently_closed[next(iter(self._recently_closed))]

    def was_closed(self, producer_id: int) -> bool:
        """Whether the broker closed a producer with this id, and the client may not know it yet."""
        return producer_id in self._recently_closed

    def consumer(self, consumer_id: int) -> Consumer | None:
        """The consumer that a client says something for. If that goes unheard, it moves sooner."""
        found = self.consumers.get(consumer_id)
        if found is None and (hurry := self.moving_consumers.get(consumer_id)) is not None:
            hurry()
        return found

    def drop_consumer(self, consumer: Consumer) -> bool:
        """The broker closes a consumer. Whether it was here."""
        if self.consumers.get(consumer.consumer_id) is not consumer:
            return False
        del self.consumers[consumer.consumer_id]
        self._returning.setdefault(consumer.consumer_id, None)
        while len(self._returning) > RECENTLY_CLOSED_CONSUMERS_MAX:
            self.forget_closed_consumer(next(iter(self._returning)))
        return True

    async def returned_consumer(self, consumer_id: int) -> Consumer | None:
        """Return a consumer; wait a little for one that the broker closed to subscribe again.

        A seek closes consumers. Their client may send the next request about one before it heard.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + CONSUMER_RETURN_SECONDS
        timed_out = False
        while (found := self.consumers.get(consumer_id)) is None:
            if consumer_id not in self._returning or timed_out:
                return None
            waited = self._returning[consumer_id]
            if waited is None:
                waited = self._returning[consumer_id] = loop.create_future()
            # Another request that waited, too, may have closed it again.
            told, _ = await asyncio.wait([waited], timeout=end - loop.time())
            timed_out = not told
        return found

    def forget_closed_consumer(self, consumer_id: int) -> None:
        """Nobody need wait any more for a consumer to return: it is here, or will not come."""
        waited = self._returning.pop(consumer_id, None)
        if waited is not None and not waited.done():
            waited.set_result(None)

    def drop_watcher(self, watcher_id: int) -> None:
        """A client watches a list of topics no more."""
        watcher = self.watchers.pop(watcher_id, None)
        if watcher is not None:
            watcher.close()

    def clear(self) -> None:
        """The client is gone."""
        self.producers.clear()
        self.waiting_producers.clear()
        self.consumers.clear()
        self.moving_producers.clear()
        self.moving_consumers.clear()
        for consumer_id in list(self._returning):
            self.forget_closed_consumer(consumer_id)
        for watcher_id in list(self.watchers):
            self.drop_watcher(watcher_id)
        if self.scalable is not None:
            self.scalable.close()
            self.scalable = None
