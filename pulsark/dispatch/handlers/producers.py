"""Requests about producers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.producer import Producer
from pulsark.errors import ClientError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.connection import Connection

Command = pb.BaseCommand


def create_producer(connection: Connection, command: Command) -> None:
    request = command.producer
    known = connection.producers.get(request.producer_id)
    if known is not None and not known.closed:
        _ready(connection, known, request.request_id)
        return
    connection.open(
        "producer", request.producer_id, request.request_id, _create(connection, request)
    )


async def _create(connection: Connection, request: pb.CommandProducer) -> None:
    name = TopicName.parse(request.topic)
    if request.producer_access_mode != 0:
        raise ClientError(
            ServerError.NotAllowedError, "Only the Shared producer access mode is supported"
        )
    topic = await connection.broker.topic_for_clients(name)
    topic.check_writable()
    schema_version = b""
    if request.HasField("schema"):
        schema_version = await connection.broker.schemas.register(name, request.schema)
    if request.initial_subscription_name:
        await connection.broker.subscribing.ensure_subscription(
            topic, request.initial_subscription_name
        )
    producer_name = request.producer_name or await connection.broker.new_producer_name()
    producer = Producer(
        topic,
        connection,
        request.producer_id,
        producer_name,
        epoch=request.epoch,
        user_provided_name=request.user_provided_producer_name,
        metadata={m.key: m.value for m in request.metadata},
        schema_version=schema_version,
        connected_since_ms=connection.broker.clock.now_ms(),
    )
    await topic.add_producer(producer)
    if not connection.is_open:
        topic.remove_producer(producer)
        return
    connection.remember_producer(producer)
    _ready(connection, producer, request.request_id)


def _ready(connection: Connection, producer: Producer, request_id: int) -> None:
    command = Command(type=Command.PRODUCER_SUCCESS)
    success = command.producer_success
    success.request_id = request_id
    success.producer_name = producer.name
    success.last_sequence_id = -1
    success.schema_version = producer.schema_version
    success.producer_ready = True
    connection.send(command)


def close_producer(connection: Connection, command: Command) -> None:
    request = command.close_producer
    connection.abandon("producer", request.producer_id)
    producer = connection.producers.pop(request.producer_id, None)
    if producer is None:
        connection.send_success(request.request_id)
        return
    connection.run(
        _close_when_drained(connection, producer, request.request_id), request.request_id
    )


async def _close_when_drained(connection: Connection, producer: Producer, request_id: int) -> None:
    if producer.pending:
        producer.drained = asyncio.get_running_loop().create_future()
        await producer.drained
    producer.topic.remove_producer(producer)
    connection.send_success(request_id)
