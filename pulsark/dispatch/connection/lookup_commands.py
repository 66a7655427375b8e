"""Requests about topics as such: partitions, lookup, lists, schemas."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.connection import notices
from pulsark.dispatch.policies.schemas import decode_version, encode_version, from_wire, to_wire
from pulsark.dispatch.topics.topic_lists import ByPattern, TopicList
from pulsark.dispatch.topics.topic_names import in_order
from pulsark.dispatch.topics.topic_pattern import TopicPattern
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.limits import TOPIC_WATCHERS_PER_CONNECTION_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_fields import TopicsField, frame_with_topics
from pulsark.wire.topic_name import TopicName, parse_namespace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterator

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.connection import Connection

Command = pb.BaseCommand


def partitioned_metadata(connection: Connection, command: Command) -> None:
    request = command.partitionMetadata
    reply = Command(type=Command.PARTITIONED_METADATA_RESPONSE)
    response = reply.partitionMetadataResponse
    response.response = pb.CommandPartitionedTopicMetadataResponse.Failed

    async def fill() -> None:
        response.partitions = await connection.broker.creation.partition_count(
            TopicName.parse(request.topic), create=request.metadata_auto_creation_enabled
        )
        response.response = pb.CommandPartitionedTopicMetadataResponse.Success

    _answer_lookup(connection, reply, response, request.request_id, fill)


def lookup(connection: Connection, command: Command) -> None:
    request = command.lookupTopic
    reply = Command(type=Command.LOOKUP_RESPONSE)
    response = reply.lookupTopicResponse
    response.response = pb.CommandLookupTopicResponse.Failed

    async def fill() -> None:
        found = await connection.broker.lookup.find(
            TopicName.parse(request.topic),
            authoritative=request.authoritative,
            listener=request.advertised_listener_name,
            over_tls=connection.is_over_tls,
        )
        kinds = pb.CommandLookupTopicResponse
        response.response = kinds.Redirect if found.is_redirect else kinds.Connect
        response.authoritative = True
        if found.urls.broker:
            response.brokerServiceUrl = found.urls.broker
        if found.urls.broker_tls:
            response.brokerServiceUrlTls = found.urls.broker_tls
        response.proxy_through_service_url = found.through_service_url

    _answer_lookup(connection, reply, response, request.request_id, fill)


def topics_of_namespace(connection: Connection, command: Command) -> None:
    request = command.getTopicsOfNamespace

    async def answer() -> None:
        pattern = _pattern_of(connection, request)
        async with connection.output.large_answer():
            try:
                found = await _topics(connection.broker, request, pattern)
            except ClientError as error:
                if error.code is not ServerError.TopicNotFound:
                    raise
                found = await TopicList.of([])  # as in Pulsar, if there is no such namespace
            reply = Command(type=Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            response = reply.getTopicsOfNamespaceResponse
            response.request_id = request.request_id
            response.filtered = pattern is not None
            response.topics_hash = found.hash
            response.changed = request.topics_hash != found.hash
            topics: list[bytes] = []
            if response.changed:
                topics = await connection.broker.topic_feeds.encoded(found, TopicsField.LISTED)
            connection.output.send_frame(frame_with_topics(reply, TopicsField.LISTED, topics))

    connection.requests.run(answer(), request.request_id)


async def _topics(
    broker: Broker, request: pb.CommandGetTopicsOfNamespace, pattern: TopicPattern | None
) -> TopicList:
    """Topics of a namespace for a client: all, or those that a pattern takes."""
    namespace = "/".join(parse_namespace(request.namespace))
    other: list[str] = []
    if request.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        other = await _non_persistent(broker, namespace)
        other = other if pattern is None else pattern.select(other)
    if request.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
        return await TopicList.of(other)
    await broker.catalog.require_namespace(namespace)
    stored = await broker.topic_feeds.of(namespace).select(pattern)
    return await stored.changed(other, set()) if other else stored


async def _non_persistent(broker: Broker, namespace: str) -> list[str]:
    """They are in the memory of the brokers that serve them."""
    found = await broker.catalog.list_non_persistent_topics(namespace)
    elsewhere = broker.topics_elsewhere()
    if elsewhere is not None:
        found = await in_order(
            found + await elsewhere.non_persistent(namespace), include_system=False
        )
    return found


def _pattern_of(
    connection: Connection, request: pb.CommandGetTopicsOfNamespace
) -> TopicPattern | None:
    """The request's pattern; ``None`` if the client has to evaluate it itself."""
    settings = connection.settings
    if not (request.topics_pattern and settings.enableBrokerSideSubscriptionPatternEvaluation):
        return None
    try:
        return TopicPattern(request.topics_pattern, settings.subscriptionPatternMaxLength)
    except ClientError:
        return None


def get_schema(connection: Connection, command: Command) -> None:
    request = command.getSchema
    reply = Command(type=Command.GET_SCHEMA_RESPONSE)
    response = reply.getSchemaResponse

    async def fill() -> None:
        name = TopicName.parse(request.topic)
        given = request.HasField("schema_version")
        version = decode_version(request.schema_version) if given else None
        found = await connection.broker.schemas.get(name, version)
        response.schema.CopyFrom(to_wire(name, found.schema))
        response.schema_version = encode_version(found.version)

    _answer(connection, reply, response, request.request_id, fill)


def get_or_create_schema(connection: Connection, command: Command) -> None:
    request = command.getOrCreateSchema
    reply = Command(type=Command.GET_OR_CREATE_SCHEMA_RESPONSE)
    response = reply.getOrCreateSchemaResponse
    broker = connection.broker

    async def fill() -> None:
        name = TopicName.parse(request.topic)
        await broker.catalog.require_topic(name)
        response.schema_version = await broker.schema_admission.of_producer(
            name, await broker.policy_source.current(name), from_wire(request.schema)
        )

    _answer(connection, reply, response, request.request_id, fill)


class _Response(Protocol):
    """What names the request that it answers, and has fields for an error."""

    request_id: int


def _answer(
    connection: Connection,
    reply: Command,
    response: _Response,
    request_id: int,
    fill: Callable[[], Awaitable[None]],
) -> asyncio.Task[None]:
    """Send ``reply`` once its ``response`` is filled; an error is told in the response itself."""

    async def answer() -> None:
        response.request_id = request_id
        try:
            await fill()
        except PulsarkError as error:
            notices.fill_error(response, error)
        connection.output.send(reply)

    return connection.requests.run(answer(), request_id)


def _answer_lookup(
    connection: Connection,
    reply: Command,
    response: _Response,
    request_id: int,
    fill: Callable[[], Awaitable[None]],
) -> None:
    """The same, unless the broker has too many of them."""
    lookups = connection.broker.lookups
    try:
        lookups.begin()
    except ClientError as error:
        response.request_id = request_id
        notices.fill_error(response, error)
        connection.output.send(reply)
        return
    task = _answer(connection, reply, response, request_id, fill)
    task.add_done_callback(lambda _: lookups.end())


def watch_topics(connection: Connection, command: Command) -> None:
    request = command.watchTopicList

    async def answer() -> None:
        settings = connection.settings
        if not settings.enableBrokerSideSubscriptionPatternEvaluation:
            raise ClientError(
                ServerError.NotAllowedError, "Watching topics is not enabled on this broker"
            )
        watchers, most = connection.opened.watchers, TOPIC_WATCHERS_PER_CONNECTION_MAX
        pattern = TopicPattern(request.topics_pattern, settings.subscriptionPatternMaxLength)
        namespace = "/".join(parse_namespace(request.namespace))

        early: list[Command] | None = []
        """Changes from before the answer was sent."""

        def updated(new: list[str], deleted: list[str], topics_hash: str) -> None:
            room = settings.maxMessageSize
            for change in _topic_updates(request.watcher_id, new, deleted, topics_hash, room):
                if early is None:
                    connection.output.send(change)
                else:
                    early.append(change)

        async with connection.output.large_answer():
            if len(watchers) >= most and request.watcher_id not in watchers:
                raise ClientError(
                    ServerError.TooManyRequests, f"A connection may watch {most} topic lists"
                )
            feeds = connection.broker.topic_feeds
            # As in Pulsar, the namespace need not exist yet.
            watcher = await feeds.of(namespace).watch(ByPattern(pattern), updated)
            connection.opened.drop_watcher(request.watcher_id)
            watchers[request.watcher_id] = watcher
            reply = Command(type=Command.WATCH_TOPIC_LIST_SUCCESS)
            success = reply.watchTopicListSuccess
            success.request_id = request.request_id
            success.watcher_id = request.watcher_id
            success.topics_hash = watcher.found.hash
            known = request.topics_hash == success.topics_hash
            topics = [] if known else await feeds.encoded(watcher.found, TopicsField.WATCHED)
            try:
                connection.output.send_frame(frame_with_topics(reply, TopicsField.WATCHED, topics))
            except ClientError:
                connection.opened.drop_watcher(request.watcher_id)
                raise
            waiting, early = early or [], None
            for change in waiting:
                connection.output.send(change)

    connection.requests.run(answer(), request.request_id)


_NAME_HEAD_BYTES = 3
"""What a name takes in a command beside its text, of 16 KiB at most."""


def _topic_updates(
    watcher_id: int, new: list[str], deleted: list[str], topics_hash: str, room: int
) -> Iterator[Command]:
    """Yield commands of at most ``room`` bytes, each with the hash after all the changes."""
    longest = max((len(name.encode()) for name in chain(new, deleted)), default=0)
    step = max(1, room // (2 * (longest + _NAME_HEAD_BYTES)))
    for start in range(0, max(len(new), len(deleted)), step):
        change = Command(type=Command.WATCH_TOPIC_UPDATE)
        update = change.watchTopicUpdate
        update.watcher_id = watcher_id
        update.new_topics.extend(new[start : start + step])
        update.deleted_topics.extend(deleted[start : start + step])
        update.topics_hash = topics_hash
        yield change


def unwatch_topics(connection: Connection, command: Command) -> None:
    request = command.watchTopicListClose
    connection.opened.drop_watcher(request.watcher_id)
    connection.output.send(notices.success(request.request_id))
