"""A client that notes what it is told: `model.client.Client` without a socket."""

from __future__ import annotations

from collections.abc import Callable

from pulsark.config.settings import Settings
from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.holdings import Holdings
from pulsark.dispatch.model.producer import Producer
from pulsark.errors import ServerError


class FakeClient:
    """Answers probes while it is open; ``on_message`` hears of each delivery at once."""

    address = "/10.0.0.1:5000"
    host = "10.0.0.1"
    client_version = "test-1.0"

    def __init__(self) -> None:
        self.writable = self.is_open = True
        self.holdings = Holdings(Settings())
        self.non_persistent_in_flight = 0
        self.received: list[tuple[Consumer, Entry, int, list[int] | None]] = []
        self.confirmed: list[Entry] = []
        self.refused: list[tuple[Entry, ServerError, str]] = []
        self.actives: list[tuple[str, bool]] = []
        self.ended: list[Consumer] = []
        self.closed: list[Producer | Consumer] = []
        self.on_message: Callable[[Consumer, Entry, int, list[int] | None], None] | None = None

    async def probe(self) -> bool:
        return self.is_open

    def flush(self) -> None: ...

    def send_receipts(
        self, producer: Producer, entries: list[Entry], successive: bool = True
    ) -> None:
        self.confirmed += entries

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        self.refused.append((entry, code, message))

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        self.received.append((consumer, entry, redeliveries, ack_set))
        if self.on_message is not None:
            self.on_message(consumer, entry, redeliveries, ack_set)

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        self.actives.append((consumer.name, is_active))

    def send_end_of_topic(self, consumer: Consumer) -> None:
        self.ended.append(consumer)

    def close_producer(self, producer: Producer) -> None:
        self.closed.append(producer)
        producer.topic.remove_producer(producer)

    def forget_producer(self, producer: Producer) -> None: ...

    def close_consumer(self, consumer: Consumer) -> None:
        self.closed.append(consumer)
        consumer.subscription.remove_consumers((consumer,))
