"""Requests about producers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.command_properties import client_metadata
from pulsark.dispatch.model.producer import Producer
from pulsark.dispatch.model.producer_access import AccessMode
from pulsark.dispatch.policies.schemas import from_wire
from pulsark.dispatch.producer.topic_producers import check_encryption
from pulsark.dispatch.topics.topic_names import check_clients_may_publish
from pulsark.errors import ClientError, ServerError
from pulsark.limits import PRODUCER_NAME_CHARS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection

Command = pb.BaseCommand


def create_producer(connection: Connection, command: Command) -> None:
    request = command.producer
    known = connection.opened.producers.get(request.producer_id)
    if known is not None and not known.closed:
        connection.output.send(_success(known, request.request_id, ready=True))
        return
    if request.producer_id in connection.opened.waiting_producers:
        error = ClientError(ServerError.ServiceNotReady, "This producer waits for its turn")
        connection.output.send(notices.request_error(request.request_id, error))
        return
    connection.requests.open(
        "producer", request.producer_id, request.request_id, _create(connection, request)
    )


async def _create(connection: Connection, request: pb.CommandProducer) -> None:
    name = TopicName.parse(request.topic)
    if len(request.producer_name) > PRODUCER_NAME_CHARS_MAX:
        raise ClientError(
            ServerError.NotAllowedError,
            f"The producer name is longer than {PRODUCER_NAME_CHARS_MAX} characters",
        )
    check_clients_may_publish(name)
    metadata = client_metadata("Producer", request.metadata)
    topic = await connection.broker.creation.topic_for_clients(name)
    topic.check_writable()
    check_encryption(name, topic.policies, encrypted=request.encrypted)
    schema = from_wire(request.schema) if request.HasField("schema") else None
    schema_version = await connection.broker.schema_admission.of_producer(
        name, topic.policies, schema
    )
    if request.initial_subscription_name and name.is_persistent:
        await connection.broker.subscribing.ensure_subscription(
            topic, request.initial_subscription_name
        )
    producer_name = request.producer_name or await connection.broker.producer_names.new()
    producer = Producer(
        topic,
        connection.client,
        request.producer_id,
        producer_name,
        epoch=request.epoch,
        user_provided_name=request.user_provided_producer_name,
        metadata=metadata,
        schema_version=schema_version,
        connected_since_ms=connection.broker.clock.now_ms(),
        encrypted=request.encrypted,
        access_mode=AccessMode(request.producer_access_mode),
        topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
        decide=partial(_decided, connection, request.request_id),
    )
    ready = await topic.add_producer(producer)
    if producer.closed:
        raise ClientError(ServerError.ServiceNotReady, "The producer was closed meanwhile")
    if ready:
        _begin(connection, producer, request.request_id)
    else:
        connection.opened.waiting_producers[producer.producer_id] = producer
        connection.output.send(_success(producer, request.request_id, ready=False))


def _decided(
    connection: Connection, request_id: int, producer: Producer, error: Exception | None
) -> None:
    """A producer that had to wait is the only one now, or never will be."""
    if connection.opened.waiting_producers.get(producer.producer_id) is not producer:
        return  # the client gave it up meanwhile
    del connection.opened.waiting_producers[producer.producer_id]
    if error is not None:
        connection.output.send(notices.request_error(request_id, error))
    else:
        _begin(connection, producer, request_id)


def _begin(connection: Connection, producer: Producer, request_id: int) -> None:
    """A producer is the connection's, once its client can be told so."""
    try:
        success = _success(producer, request_id, ready=True)
    except BaseException:
        producer.topic.remove_producer(producer)
        raise
    connection.opened.add_producer(producer)
    connection.output.send(success)
    audit = connection.broker.audit
    if audit is not None:
        from pulsark.dispatch.connection.accesses import note_access  # where there is an audit

        note_access(audit, connection, "produce", producer.topic.name)
    if producer.has_rate:
        connection.sends.may_have_to_wait(producer)


def _success(producer: Producer, request_id: int, *, ready: bool) -> pb.BaseCommand:
    command = Command(type=Command.PRODUCER_SUCCESS)
    success = command.producer_success
    success.request_id = request_id
    success.producer_name = producer.name
    success.last_sequence_id = producer.topic.last_sequence_id(producer.name) if ready else -1
    success.schema_version = producer.schema_version
    success.producer_ready = ready
    if ready and producer.topic_epoch is not None:
        success.topic_epoch = producer.topic_epoch
    return command


def close_producer(connection: Connection, command: Command) -> None:
    request = command.close_producer
    connection.requests.abandon("producer", request.producer_id)
    connection.opened.moving_producers.pop(request.producer_id, None)
    producer = connection.opened.producers.pop(request.producer_id, None)
    if producer is None:
        waiting = connection.opened.waiting_producers.pop(request.producer_id, None)
        if waiting is not None:
            waiting.topic.remove_producer(waiting)
        connection.output.send(notices.success(request.request_id))
        return
    connection.requests.run(
        _close_when_drained(connection, producer, request.request_id), request.request_id
    )


async def _close_when_drained(connection: Connection, producer: Producer, request_id: int) -> None:
    if producer.pending:
        producer.drained = asyncio.get_running_loop().create_future()
        await producer.drained
    producer.topic.remove_producer(producer)
    connection.output.send(notices.success(request_id))
