"""What one client publishes: each SEND on its way from the frame to the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.connection.handshake import HandshakeState
from pulsark.dispatch.connection.notices import send_error
from pulsark.dispatch.connection.publish_hold import PublishHold
from pulsark.dispatch.model.entry import Entry
from pulsark.errors import ProtocolError, ServerError
from pulsark.wire.entry import checked_counts, entry_metadata

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.model.producer import Producer
    from pulsark.wire import pulsar_pb2 as pb


class Sends:
    """Carries out the SENDs of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.published_to: set[AnyTopic] = set()
        """Topics that got something in this turn, and are to be flushed at its end."""
        self._opened = connection.opened
        self._producers = connection.opened.producers
        self._handshake = connection.handshake
        self._intake = connection.intake
        self._output = connection.output
        self._ledgers = connection.broker.ledgers
        self._rates = connection.broker.publish_rates

    def carry_out(self, send: pb.CommandSend, data: bytes) -> None:
        """Publish what a SEND brings, or say why not."""
        producer = self._producers.get(send.producer_id)
        if producer is None or producer.closed:
            self._without_producer(send)
            return
        try:
            counts = checked_counts(data)
        except ProtocolError as error:  # of this entry alone: others go on
            self._refuse(send, ServerError.NotAllowedError, str(error))
            return
        if counts is None:
            self._refuse(
                send,
                ServerError.ChecksumError,
                "The message's checksum is wrong: it was damaged on its way",
            )
            return
        if send.HasField("txnid_most_bits") and send.HasField("txnid_least_bits"):
            self._refuse(
                send, ServerError.NotAllowedError, "Transactions are not enabled on this broker"
            )
            return
        messages, batched, marker, deliver_at, is_chunk = counts
        if producer.inspected:
            if refused := producer.refusal(data, is_chunk=send.is_chunk):
                self._refuse(send, *refused)
                return
            if producer.has_rate:
                # It is taken in any case, but may be the last for a while.
                self._hold().take(producer.topic, messages, len(data))
        if marker and not producer.is_replicator:
            self._refuse(
                send,
                ServerError.NotAllowedError,
                "Messages with a marker_type are for brokers; clients do not publish them",
            )
            return
        if deliver_at:
            limit_ms = producer.topic.policies.delayed_delivery.limit_ms
            if limit_ms and deliver_at - entry_metadata(data).publish_time > limit_ms:
                self._refuse(
                    send,
                    ServerError.NotAllowedError,
                    f"Exceeds max allowed delivery delay of {limit_ms} milliseconds",
                )
                return
        # Absent and 0 are the same to the client that reads the receipt.
        highest = send.highest_sequence_id or None
        entry = Entry(
            data,
            messages,
            batched,
            marker,
            producer,
            send.sequence_id,
            highest,
            deliver_at,
            is_chunk,
        )
        producer.pending += 1
        topic = producer.topic
        topic.publish(entry)
        intake = self._intake  # not before: after a failure, nothing would take it out again
        intake.publishes += 1
        intake.bytes += len(data)
        self.published_to.add(topic)

    def may_have_to_wait(self, producer: Producer) -> None:
        """A producer has come to which a rate applies: before it publishes, others go on."""
        self._hold().join(producer.topic)
        self._intake.hold_back()

    def _hold(self) -> PublishHold:
        hold = self._intake.hold
        if hold is None:
            hold = self._intake.hold = PublishHold(self._intake.may_publish, self._rates)
        return hold

    def _without_producer(self, send: pb.CommandSend) -> None:
        if self._handshake.state is not HandshakeState.CONNECTED:
            raise ProtocolError("SEND before CONNECT")
        # What was on its way when the broker closed the producer will be sent again.
        hurry = self._opened.moving_producers.get(send.producer_id)
        if hurry is not None:
            hurry()
        elif not self._opened.was_closed(send.producer_id):
            raise ProtocolError(f"SEND for unknown producer {send.producer_id}")

    def _refuse(self, send: pb.CommandSend, code: ServerError, message: str) -> None:
        highest = max(send.sequence_id, send.highest_sequence_id)
        self._output.send(send_error(send.producer_id, highest, code, message))

    def store(self) -> None:
        """Let the journal have what one read brought, before the next read keeps the loop busy.

        The loop polls its sockets between two rounds of callbacks, and a poll may bring
        milliseconds of work: what waits for its round in between would wait for that, too.
        """
        self._intake.count()
        for topic in self.published_to:
            topic.flush()
        self.published_to.clear()
        self._ledgers.flush()

    def close(self) -> None:
        """The connection is gone."""
        self.published_to.clear()
