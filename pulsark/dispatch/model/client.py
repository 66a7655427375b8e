"""A client, as producers, consumers, topics and subscriptions know it.

`connection.ServedClient` is one behind a socket; tests have clients that only note what they are
told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.holdings import Holdings
    from pulsark.dispatch.model.producer import Producer
    from pulsark.errors import ServerError


class Client(Protocol):
    """The other end of a connection. Nothing here awaits the socket, or raises because of it."""

    address: str
    host: str
    """The address without the port."""
    writable: bool
    """Whether it takes messages now; when it does again, it wakes its consumers."""
    holdings: Holdings
    non_persistent_in_flight: int
    """Publishes to non-persistent topics that are not answered yet."""

    @property
    def client_version(self) -> str:
        """What it calls itself."""

    @property
    def is_open(self) -> bool:
        """Whether it is served: nothing reaches it otherwise."""

    async def probe(self) -> bool:
        """Whether it still answers; if not, its connection is closed."""

    def flush(self) -> None:
        """What was sent leaves now, without waiting for the end of this turn."""

    def send_receipts(
        self, producer: Producer, entries: list[Entry], successive: bool = True
    ) -> None:
        """Confirm SENDs of one producer, whose entries follow each other if ``successive``."""

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        """Refuse one SEND that was waiting."""

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Deliver one entry."""

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Tell a consumer that the topic is terminated and nothing is left."""

    def close_producer(self, producer: Producer) -> None:
        """Have it create the producer anew."""

    def forget_producer(self, producer: Producer) -> None:
        """A producer is not its own any more: SENDs that are on their way are ignored."""

    def close_consumer(self, consumer: Consumer) -> None:
        """Have it subscribe anew."""
