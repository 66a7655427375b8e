"""Requests about topics as such: partitions, lookup, lists, schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.error_codes import error_code
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.connection import Connection

Command = pb.BaseCommand


def partitioned_metadata(connection: Connection, command: Command) -> None:
    request = command.partitionMetadata

    async def answer() -> None:
        reply = Command(type=Command.PARTITIONED_METADATA_RESPONSE)
        response = reply.partitionMetadataResponse
        response.request_id = request.request_id
        try:
            name = TopicName.parse(request.topic)
            response.partitions = await connection.broker.topic_admin.partition_count(
                name, create=request.metadata_auto_creation_enabled
            )
            response.response = pb.CommandPartitionedTopicMetadataResponse.Success
        except PulsarkError as error:
            response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
            response.error = int(error_code(error))  # type: ignore[assignment]
            response.message = str(error)
        connection.send(reply)

    connection.run(answer(), request.request_id)


def lookup(connection: Connection, command: Command) -> None:
    request = command.lookupTopic

    async def answer() -> None:
        reply = Command(type=Command.LOOKUP_RESPONSE)
        response = reply.lookupTopicResponse
        response.request_id = request.request_id
        try:
            found = await connection.broker.lookup(
                TopicName.parse(request.topic), request.advertised_listener_name
            )
            response.response = pb.CommandLookupTopicResponse.Connect
            response.authoritative = True
            response.brokerServiceUrl = found.broker_url
            response.proxy_through_service_url = found.through_service_url
        except PulsarkError as error:
            response.response = pb.CommandLookupTopicResponse.Failed
            response.error = int(error_code(error))  # type: ignore[assignment]
            response.message = str(error)
        connection.send(reply)

    connection.run(answer(), request.request_id)


def topics_of_namespace(connection: Connection, command: Command) -> None:
    request = command.getTopicsOfNamespace

    async def answer() -> None:
        async with connection.large_answer():
            found = await connection.broker.topic_admin.topics_of_namespace(
                request.namespace, request.mode
            )
            reply = Command(type=Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            response = reply.getTopicsOfNamespaceResponse
            response.request_id = request.request_id
            response.topics_hash = found.hash
            response.changed = request.topics_hash != found.hash
            if response.changed:
                response.topics.extend(found.topics)
            connection.send(reply)

    connection.run(answer(), request.request_id)


def get_schema(connection: Connection, command: Command) -> None:
    request = command.getSchema

    async def answer() -> None:
        reply = Command(type=Command.GET_SCHEMA_RESPONSE)
        response = reply.getSchemaResponse
        response.request_id = request.request_id
        try:
            name = TopicName.parse(request.topic)
            version = request.schema_version if request.HasField("schema_version") else None
            schema, number = await connection.broker.schemas.get(name, version)
            response.schema.CopyFrom(schema)
            response.schema_version = number
        except PulsarkError as error:
            response.error_code = int(error_code(error))  # type: ignore[assignment]
            response.error_message = str(error)
        connection.send(reply)

    connection.run(answer(), request.request_id)


def get_or_create_schema(connection: Connection, command: Command) -> None:
    request = command.getOrCreateSchema

    async def answer() -> None:
        reply = Command(type=Command.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = reply.getOrCreateSchemaResponse
        response.request_id = request.request_id
        try:
            name = TopicName.parse(request.topic)
            await connection.broker.topic_admin.require_topic(name)
            response.schema_version = await connection.broker.schemas.register(name, request.schema)
        except PulsarkError as error:
            response.error_code = int(error_code(error))  # type: ignore[assignment]
            response.error_message = str(error)
        connection.send(reply)

    connection.run(answer(), request.request_id)


def watch_topics(connection: Connection, command: Command) -> None:
    """Watchers are not offered in the handshake; clients that ask for one poll instead."""
    connection.send_request_error(
        command.watchTopicList.request_id,
        ClientError(ServerError.NotAllowedError, "Watching topics is not enabled on this broker"),
    )


def unwatch_topics(connection: Connection, command: Command) -> None:
    """There is nothing to close."""
    connection.send_success(command.watchTopicListClose.request_id)
