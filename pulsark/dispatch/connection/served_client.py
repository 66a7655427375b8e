"""The client behind a connection, as producers, consumers, topics and subscriptions know it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.handshake import HandshakeState
from pulsark.dispatch.model.holdings import Holdings
from pulsark.wire.entry import entry_without_checksum
from pulsark.wire.frames import message_head, send_receipt
from pulsark.wire.successive_frames import send_receipts

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.errors import ServerError
    from pulsark.wire import pulsar_pb2 as pb

_OLD_CHECKSUM_VERSION = 11
_ACTIVE_CHANGE_VERSION = 12
_CLOSE_BY_BROKER_VERSION = 5
"""Older clients notice only that their connection is gone."""
_END_OF_TOPIC_VERSION = 9
_WITHOUT_END_OF_TOPIC = "Pulsar-CPP"


class ServedClient:
    """Implements `model.client.Client`: what the broker's parts tell one client."""

    def __init__(self, connection: Connection) -> None:
        self.address = connection.address
        self.host = connection.host
        self.writable = True
        self.holdings = Holdings(connection.settings)
        self.non_persistent_in_flight = 0
        self._connection = connection
        self._handshake = connection.handshake
        self._output = connection.output
        self._intake = connection.intake
        self.opened = connection.opened
        self._keep_alive = connection.keep_alive

    @property
    def client_version(self) -> str:
        """What the client calls itself."""
        return self._handshake.client_version

    @property
    def is_open(self) -> bool:
        """Whether it is served: nothing reaches it otherwise."""
        return self._handshake.state is HandshakeState.CONNECTED

    async def probe(self) -> bool:
        """Whether the client still answers; if not, the connection is closed."""
        return await self._keep_alive.probe()

    def leave(self) -> None:
        """It is not served any more."""
        self.writable = False
        self.holdings.close()
        del self._connection

    def send_receipts(
        self, producer: Producer, entries: list[Entry], successive: bool = True
    ) -> None:
        """Confirm SENDs of one producer, whose entries follow each other if ``successive``."""
        messages = size = chunks = 0
        plain = successive
        sequence_ids = []
        for entry in entries:
            entry.producer = None
            messages += entry.messages
            size += len(entry.data)
            chunks += entry.is_chunk
            sequence_ids.append(entry.sequence_id)
            if entry.highest_sequence_id is not None:
                plain = False
        producer.messages_in += messages
        producer.bytes_in += size
        producer.chunks_in += chunks
        self._intake.answered(producer, len(entries), size)
        if (producer.closed and producer.topic.moving is None) or self._output.closed:
            return
        producer_id = producer.producer_id
        if plain:
            first = entries[0]
            receipts = send_receipts(producer_id, first.ledger_id, first.entry_id, sequence_ids)
        else:
            receipts = b"".join(
                [
                    send_receipt(
                        producer_id,
                        entry.sequence_id,
                        entry.highest_sequence_id,
                        entry.ledger_id,
                        entry.entry_id,
                    )
                    for entry in entries
                ]
            )
        self._output.write_now(receipts)

    def send_publish_error(
        self, producer: Producer, entry: Entry, code: ServerError, message: str
    ) -> None:
        """Refuse one SEND that was waiting for storage."""
        self._intake.answered(producer, 1, len(entry.data))
        if not producer.closed:
            sequence_id = max(entry.sequence_id, entry.highest_sequence_id or 0)
            refusal = notices.send_error(producer.producer_id, sequence_id, code, message)
            self._output.send(refusal)

    def send_message(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        """Deliver one entry."""
        data = entry.data
        if self._handshake.protocol_version < _OLD_CHECKSUM_VERSION:
            data = entry_without_checksum(data)
        if redeliveries or ack_set:
            head = message_head(
                consumer.consumer_id,
                entry.ledger_id,
                entry.entry_id,
                consumer.subscription.topic.name.partition,
                redeliveries,
                ack_set,
                consumer.epoch,
                len(data),
            )
        else:
            head = consumer.heads.head(entry.ledger_id, entry.entry_id, consumer.epoch, len(data))
        if not self._output.write_message(head, data):
            self.writable = False

    def flush(self) -> None:
        """Give the socket what was sent, without waiting for the end of this turn."""
        self._output.flush()

    def become_writable(self) -> None:
        """Messages may follow again, unless there is another reason against it."""
        if self.is_open and not self._output.lags:
            self.writable = True
            for consumer in self.opened.consumers.values():
                consumer.subscription.wake(consumer)

    def send_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""
        if self._handshake.protocol_version >= _ACTIVE_CHANGE_VERSION:
            self._output.send(notices.active_change(consumer.consumer_id, is_active))

    def send_end_of_topic(self, consumer: Consumer) -> None:
        """Tell a consumer that the topic is terminated and nothing is left.

        The C++ client, and those for Python and Node.js that are made of it, does not know the
        command and gives the whole connection up for it.
        """
        if (
            self._handshake.protocol_version >= _END_OF_TOPIC_VERSION
            and not self.client_version.startswith(_WITHOUT_END_OF_TOPIC)
        ):
            self._output.send(notices.end_of_topic(consumer.consumer_id))

    def close_producer(self, producer: Producer) -> None:
        """Tell the client to create the producer anew, unless it is closing it itself."""
        was_open = self.opened.drop_producer(producer)
        topic, producer_id = producer.topic, producer.producer_id
        topic.remove_producer(producer)
        if not was_open:
            return
        if topic.moving is None:
            self._tell_closed(notices.producer_closed(producer_id))
            return
        moving = self.opened.moving_producers
        moving[producer_id] = hurry = partial(topic.moving.hurry, topic.name)

        def tell(there: ServiceUrls | None) -> None:
            if moving.get(producer_id) is hurry:  # else it left, or came back by itself
                del moving[producer_id]
                self.opened.note_closed(producer_id)
                self._tell_closed(notices.producer_closed(producer_id, there))

        topic.moving.later(topic.name, tell)

    def forget_producer(self, producer: Producer) -> None:
        """Drop a producer; its SENDs that are on their way are ignored."""
        self.opened.drop_producer(producer)

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell the client to subscribe anew."""
        was_open = self.opened.drop_consumer(consumer)
        topic, consumer_id = consumer.subscription.topic, consumer.consumer_id
        consumer.subscription.remove_consumers((consumer,))
        if not was_open:
            return
        if topic.moving is None:
            self._tell_closed(notices.consumer_closed(consumer_id))
            return
        moving = self.opened.moving_consumers
        moving[consumer_id] = hurry = partial(topic.moving.hurry, topic.name)

        def tell(there: ServiceUrls | None) -> None:
            if moving.get(consumer_id) is hurry:
                del moving[consumer_id]
                self._tell_closed(notices.consumer_closed(consumer_id, there))

        topic.moving.later(topic.name, tell)

    def _tell_closed(self, notice: pb.BaseCommand) -> None:
        if not self.is_open:
            return  # it left while its topic moved
        if self._handshake.protocol_version >= _CLOSE_BY_BROKER_VERSION:
            self._output.send(notice)
        else:
            self._connection.close()
