"""Requests of and about consumers."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.command_properties import (
    check_subscription_properties,
    client_metadata,
)
from pulsark.dispatch.stats.iso_time import iso_time
from pulsark.errors import ClientError, MetadataError, ServerError, StorageError
from pulsark.limits import (
    CONSUMER_NAME_CHARS_MAX,
    GREETING_SECONDS,
    IDS_PER_STEP_MAX,
)
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.message_id import MessageId, position_of
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.runtime import Done
    from pulsark.storage.cursor.cursor import Ack


Command = pb.BaseCommand

_IDS_LOGGED = 5


def subscribe(connection: Connection, command: Command) -> None:
    request = command.subscribe
    known = connection.opened.consumers.get(request.consumer_id)
    if known is not None and not known.closed:
        connection.output.send(notices.success(request.request_id))
        return
    connection.requests.open(
        "consumer", request.consumer_id, request.request_id, _subscribe(connection, request)
    )


async def _subscribe(connection: Connection, request: pb.CommandSubscribe) -> None:
    client_metadata("Consumer", request.metadata)
    if len(request.consumer_name) > CONSUMER_NAME_CHARS_MAX:
        raise ClientError(
            ServerError.NotAllowedError,
            f"The consumer name is longer than {CONSUMER_NAME_CHARS_MAX} characters",
        )
    check_subscription_properties(request.subscription_properties)
    if connection.broker.scalable is not None and request.subType == pb.CommandSubscribe.Exclusive:
        groups = connection.broker.scalable.groups
        name = TopicName.parse(request.topic)
        await groups.turn(name, request.subscription, request.consumer_name)
    consumer = await connection.broker.subscribing.subscribe(connection.client, request)
    if consumer.closed:
        raise ClientError(ServerError.ServiceNotReady, "The consumer was closed meanwhile")
    connection.opened.add_consumer(consumer)
    connection.output.send(notices.success(request.request_id))
    audit = connection.broker.audit
    if audit is not None:
        from pulsark.dispatch.connection.accesses import note_access  # where there is an audit

        note_access(audit, connection, "consume", consumer.subscription.topic.name)
    loop = asyncio.get_running_loop()
    loop.call_later(GREETING_SECONDS, _greet, weakref.ref(consumer))


def _greet(known: weakref.ref[Consumer]) -> None:
    """A consumer that has asked for nothing yet still hears what it is."""
    consumer = known()
    if consumer is not None:
        consumer.subscription.members.greet(consumer)


def flow(connection: Connection, command: Command) -> None:
    flow = command.flow
    consumer = connection.opened.consumer(flow.consumer_id)
    if consumer is not None and flow.messagePermits:
        if not consumer.greeted:
            consumer.subscription.members.greet(consumer)
        consumer.subscription.flow(consumer, flow.messagePermits, connection.broker.clock.now_ms())


def ack(connection: Connection, command: Command) -> None:
    ack = command.ack
    consumer = connection.opened.consumer(ack.consumer_id)
    if consumer is None:
        return
    done: Done | None = None
    if ack.HasField("request_id"):
        done = _answerer(connection, ack.consumer_id, ack.request_id)
    if ack.HasField("txnid_most_bits") and ack.HasField("txnid_least_bits"):
        if done is not None:
            done(
                ClientError(
                    ServerError.NotAllowedError, "Transactions are not enabled on this broker"
                )
            )
        return
    if ack.HasField("validation_error"):
        shown = [f"{m.ledgerId}:{m.entryId}" for m in ack.message_id[:_IDS_LOGGED]]
        connection.broker.connections.complaints.note(
            "%s: consumer %.100s discarded %d corrupt messages, such as %s",
            consumer.subscription.topic.name,
            consumer.name,
            len(ack.message_id),
            shown,
        )
    now_ms = connection.broker.clock.now_ms()
    if ack.ack_type == pb.CommandAck.Cumulative:
        _ack_cumulative(consumer, ack, done, now_ms)
    elif len(ack.message_id) <= IDS_PER_STEP_MAX:
        consumer.subscription.acks.individual(consumer, _acks(ack.message_id), done, now_ms)
    else:
        connection.turns.take_steps(_ack_in_steps(consumer, ack, done, now_ms))


def _acks(message_ids: Iterable[pb.MessageIdData]) -> list[Ack]:
    # Nearly all ack sets are empty. A list of nothing would take as long as the position.
    return [
        (position_of(m), list(words) if (words := m.ack_set) else None, m.batch_size or None)
        for m in message_ids
    ]


def _ack_in_steps(
    consumer: Consumer, ack: pb.CommandAck, done: Done | None, now_ms: int
) -> Iterator[bool]:
    ids = ack.message_id
    last = (len(ids) - 1) // IDS_PER_STEP_MAX
    for step in range(last + 1):
        if consumer.closed:
            return
        some = ids[step * IDS_PER_STEP_MAX : (step + 1) * IDS_PER_STEP_MAX]
        # What is durable last makes the answer to all.
        answer = done if step == last else None
        consumer.subscription.acks.individual(consumer, _acks(some), answer, now_ms)
        yield step < last


def _ack_cumulative(consumer: Consumer, ack: pb.CommandAck, done: Done | None, now_ms: int) -> None:
    try:
        if len(ack.message_id) != 1:
            raise ClientError(
                ServerError.NotAllowedError,
                "A cumulative acknowledgement takes exactly one message id",
            )
        (message_id,) = ack.message_id
        ack_set = list(message_id.ack_set) or None
        position = position_of(message_id)
        consumer.subscription.acks.cumulative(consumer, position, ack_set, done, now_ms)
    except ClientError as error:
        if done is not None:
            done(error)


def _answerer(connection: Connection, consumer_id: int, request_id: int) -> Done:
    def answer(error: BaseException | None) -> None:
        command = Command(type=Command.ACK_RESPONSE)
        response = command.ackResponse
        response.consumer_id = consumer_id
        response.request_id = request_id
        if error is not None:
            notices.fill_error(response, error)
        connection.output.send(command)

    return answer


def redeliver(connection: Connection, command: Command) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = connection.opened.consumer(request.consumer_id)
    if consumer is None:
        return
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    if (
        len(request.message_ids) <= IDS_PER_STEP_MAX
        or not consumer.subscription.type.tracks_pending
    ):
        ids = [position_of(m) for m in request.message_ids[:IDS_PER_STEP_MAX]] or None
        consumer.subscription.redeliver(consumer, ids, epoch)
    else:
        connection.turns.take_steps(_redeliver_in_steps(consumer, request.message_ids))


def _redeliver_in_steps(consumer: Consumer, ids: Sequence[pb.MessageIdData]) -> Iterator[bool]:
    for start in range(0, len(ids), IDS_PER_STEP_MAX):
        if consumer.closed:
            return
        some = ids[start : start + IDS_PER_STEP_MAX]
        consumer.subscription.redeliver(consumer, [position_of(m) for m in some], None)
        yield start + IDS_PER_STEP_MAX < len(ids)


def seek(connection: Connection, command: Command) -> None:
    request = command.seek
    known = connection.opened.consumers.get(request.consumer_id)

    async def answer() -> None:
        consumer = known or await connection.opened.returned_consumer(request.consumer_id)
        if consumer is None:
            raise ClientError(ServerError.MetadataError, "Consumer not found")
        try:
            await _move(consumer, request)
        except (StorageError, MetadataError) as error:
            raise ClientError(
                ServerError.UnknownError, f"The subscription could not be moved: {error}"
            ) from error
        connection.output.send(notices.success(request.request_id))

    connection.requests.run(answer(), request.request_id)


async def _move(consumer: Consumer, request: pb.CommandSeek) -> None:
    if request.HasField("message_id"):
        ack_set = list(request.message_id.ack_set) or None
        await consumer.subscription.seeking.to(position_of(request.message_id), ack_set)
    elif request.HasField("message_publish_time"):
        await consumer.subscription.seeking.to_time(request.message_publish_time)
    else:
        raise ClientError(ServerError.MetadataError, "A seek needs a message id or a publish time")


def unsubscribe(connection: Connection, command: Command) -> None:
    request = command.unsubscribe
    known = connection.opened.consumers.get(request.consumer_id)

    async def answer() -> None:
        consumer = known or await connection.opened.returned_consumer(request.consumer_id)
        if consumer is None:
            raise ClientError(ServerError.MetadataError, "Consumer not found")
        subscription = consumer.subscription
        if subscription.type.consumer_count > 1 and not request.force:
            raise ClientError(
                ServerError.MetadataError,
                "Unconnected or shared consumer attempting to unsubscribe",
            )
        if connection.opened.consumers.get(request.consumer_id) is consumer:
            del connection.opened.consumers[request.consumer_id]
        subscription.remove_consumers((consumer,))
        await subscription.delete(force=request.force)
        connection.output.send(notices.success(request.request_id))

    connection.requests.run(answer(), request.request_id)


def close_consumer(connection: Connection, command: Command) -> None:
    request = command.close_consumer
    connection.requests.abandon("consumer", request.consumer_id)
    connection.opened.moving_consumers.pop(request.consumer_id, None)
    connection.opened.forget_closed_consumer(request.consumer_id)
    consumer = connection.opened.consumers.pop(request.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove_consumers((consumer,))
        if connection.opened.scalable is not None:
            connection.opened.scalable.consumer_closed(consumer)
    connection.output.send(notices.success(request.request_id))


def last_message_id(connection: Connection, command: Command) -> None:
    request = command.getLastMessageId
    known = connection.opened.consumers.get(request.consumer_id)

    async def answer() -> None:
        consumer = known or await connection.opened.returned_consumer(request.consumer_id)
        if consumer is None:
            raise ClientError(ServerError.MetadataError, "Consumer not found")
        subscription = consumer.subscription
        try:
            found = await subscription.topic.last_message(compacted=consumer.read_compacted)
        except StorageError as error:
            raise ClientError(
                ServerError.MetadataError, f"The last message could not be read: {error}"
            ) from error
        reply = Command(type=Command.GET_LAST_MESSAGE_ID_RESPONSE)
        response = reply.getLastMessageIdResponse
        response.request_id = request.request_id
        found._replace(partition=subscription.topic.name.partition).fill(response.last_message_id)
        mark_delete = subscription.mark_delete
        if mark_delete.ledger_id >= 0:
            MessageId(*mark_delete).fill(response.consumer_mark_delete_position)
        connection.output.send(reply)

    connection.requests.run(answer(), request.request_id)


def consumer_stats(connection: Connection, command: Command) -> None:
    request = command.consumerStats
    reply = Command(type=Command.CONSUMER_STATS_RESPONSE)
    response = reply.consumerStatsResponse
    response.request_id = request.request_id
    consumer = connection.opened.consumers.get(request.consumer_id)
    if consumer is None:
        response.error_code = int(ServerError.ConsumerNotFound)  # type: ignore[assignment]
        response.error_message = "Consumer not found"
    else:
        rate = connection.broker.rates.consumer(consumer)
        response.msgRateOut = rate.messages
        response.msgThroughputOut = rate.bytes
        response.msgRateRedeliver = rate.redelivered
        response.messageAckRate = rate.acked
        response.consumerName = consumer.name
        response.availablePermits = max(consumer.permits, 0)
        response.unackedMessages = consumer.unacked
        response.blockedConsumerOnUnackedMsgs = consumer.blocked
        response.address = connection.address
        response.connectedSince = iso_time(consumer.connected_since_ms)
        response.type = consumer.subscription.type.sub_type.name
        response.msgRateExpired = connection.broker.rates.subscription(
            consumer.subscription
        ).expired
        response.msgBacklog = consumer.subscription.backlog
    connection.output.send(reply)
