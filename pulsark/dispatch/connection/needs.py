"""What commands need before they are carried out: which right, and on what."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.connection import notices
from pulsark.dispatch.model.producer import REPLICATOR_PREFIX
from pulsark.dispatch.producer.deduplication import BULK_PREFIX
from pulsark.security.decisions import Target
from pulsark.security.operations import GeneralOperation, NamespaceOperation, TopicOperation
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName, parse_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.security.operations import Operation

    Asked = tuple[Operation, Target]
    """An operation, and what it is on."""

Command = pb.BaseCommand
T = TopicOperation

PUBLISHES_FOR_OTHERS = (REPLICATOR_PREFIX, BULK_PREFIX)
"""Names of producers whose messages carry the names and numbers of other producers. Deduplication
believes them, so with such a name a client could have another one's messages dropped."""


class Own(Enum):
    """Commands of which nothing is asked."""

    NOTHING = "none"
    PRODUCER = "own producer"
    """It is about a producer of the connection: its right was asked for when it was created."""
    CONSUMER = "own consumer"
    """The same of consumers."""


class Needs(NamedTuple):
    """The rights that a command needs, and how it is told that it lacks one."""

    asked: Callable[[Command], list[Asked]]
    """``ClientError`` for a name that is none."""
    denied: str
    """What the client is told."""
    refusal: Callable[[int, Exception], Command] = notices.request_error
    """From the id of a request and an error to the answer in the form of the command."""
    opens: tuple[str, str] | None = None
    """The kind of what it creates, and the field with the id that the client gave it."""
    id_field: str = "request_id"
    """The field with the id that its answer has."""


def request_of(command: Command) -> pb.CommandLookupTopic:
    """A command's own fields."""
    for field, request in command.ListFields():
        if field.name != "type":
            return request  # type: ignore[no-any-return]
    raise AssertionError("a command without its fields")


def _lookup_failed(request_id: int, error: Exception) -> Command:
    reply = Command(type=Command.LOOKUP_RESPONSE)
    response = reply.lookupTopicResponse
    response.response = pb.CommandLookupTopicResponse.Failed
    return _failed(reply, response, request_id, error)


def _partitions_failed(request_id: int, error: Exception) -> Command:
    reply = Command(type=Command.PARTITIONED_METADATA_RESPONSE)
    response = reply.partitionMetadataResponse
    response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
    return _failed(reply, response, request_id, error)


def _schema_failed(request_id: int, error: Exception) -> Command:
    reply = Command(type=Command.GET_SCHEMA_RESPONSE)
    return _failed(reply, reply.getSchemaResponse, request_id, error)


def _new_schema_failed(request_id: int, error: Exception) -> Command:
    reply = Command(type=Command.GET_OR_CREATE_SCHEMA_RESPONSE)
    return _failed(reply, reply.getOrCreateSchemaResponse, request_id, error)


def _failed(
    reply: Command,
    response: pb.CommandLookupTopicResponse
    | pb.CommandPartitionedTopicMetadataResponse
    | pb.CommandGetSchemaResponse
    | pb.CommandGetOrCreateSchemaResponse,
    request_id: int,
    error: Exception,
) -> Command:
    response.request_id = request_id
    notices.fill_error(response, error)
    return reply


def _topic(operation: Operation, name: str, subscription: str | None = None) -> Asked:
    return operation, Target.of_topic(TopicName.parse(name), subscription)


def _lookup(command: Command) -> list[Asked]:
    return [_topic(T.LOOKUP, request_of(command).topic)]


def _produce(command: Command) -> list[Asked]:
    return [_topic(T.PRODUCE, request_of(command).topic)]


def _producer(command: Command) -> list[Asked]:
    request = command.producer
    asked = [_topic(T.PRODUCE, request.topic)]
    if request.producer_name.startswith(PUBLISHES_FOR_OTHERS):
        asked.append((GeneralOperation.SUPER_USER, Target()))
    if request.initial_subscription_name:
        asked.append(_topic(T.SUBSCRIBE, request.topic, request.initial_subscription_name))
    return asked


def _consumer(command: Command) -> list[Asked]:
    return [_topic(T.CONSUME, command.subscribe.topic, command.subscribe.subscription)]


def _stream_consumer(command: Command) -> list[Asked]:
    request = command.scalableTopicSubscribe
    return [_topic(T.CONSUME, request.topic, request.subscription)]


def _list(namespace: str) -> list[Asked]:
    return [
        (
            NamespaceOperation.GET_TOPICS,
            Target.of_namespace("/".join(parse_namespace(namespace))),
        )
    ]


def _published_in_transaction(command: Command) -> list[Asked]:
    return [_topic(T.PRODUCE, name) for name in command.addPartitionToTxn.partitions]


def _acknowledged_in_transaction(command: Command) -> list[Asked]:
    return [
        _topic(T.CONSUME, each.topic, each.subscription)
        for each in command.addSubscriptionToTxn.subscription
    ]


def _general(operation: GeneralOperation) -> Needs:
    return Needs(lambda command: [(operation, Target())], "Client is not authorized")


_LOGIN, _SUPER_USER = _general(GeneralOperation.LOGIN), _general(GeneralOperation.SUPER_USER)

NEEDS: Mapping[int, Needs | Own] = {
    Command.AUTH_RESPONSE: Own.NOTHING,
    Command.PING: Own.NOTHING,
    Command.PONG: Own.NOTHING,
    Command.PARTITIONED_METADATA: Needs(
        _lookup, "Client is not authorized to Get Partition Metadata", _partitions_failed
    ),
    Command.LOOKUP: Needs(_lookup, "Client is not authorized to Lookup", _lookup_failed),
    Command.GET_TOPICS_OF_NAMESPACE: Needs(
        lambda command: _list(command.getTopicsOfNamespace.namespace),
        "Client is not authorized to GetTopicsOfNamespace",
    ),
    Command.WATCH_TOPIC_LIST: Needs(
        lambda command: _list(command.watchTopicList.namespace),
        "Client is not authorized to watchTopicList",
    ),
    Command.WATCH_TOPIC_LIST_CLOSE: Own.NOTHING,
    Command.GET_SCHEMA: Needs(_lookup, "Client is not authorized to Get Schema", _schema_failed),
    Command.GET_OR_CREATE_SCHEMA: Needs(
        _produce, "Client is not authorized to Produce", _new_schema_failed
    ),
    Command.PRODUCER: Needs(
        _producer, "Client is not authorized to Produce", opens=("producer", "producer_id")
    ),
    Command.CLOSE_PRODUCER: Own.PRODUCER,
    Command.SUBSCRIBE: Needs(
        _consumer, "Client is not authorized to subscribe", opens=("consumer", "consumer_id")
    ),
    Command.FLOW: Own.CONSUMER,
    Command.ACK: Own.CONSUMER,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: Own.CONSUMER,
    Command.SEEK: Own.CONSUMER,
    Command.UNSUBSCRIBE: Own.CONSUMER,
    Command.CLOSE_CONSUMER: Own.CONSUMER,
    Command.GET_LAST_MESSAGE_ID: Own.CONSUMER,
    Command.CONSUMER_STATS: Own.CONSUMER,
    Command.TC_CLIENT_CONNECT_REQUEST: _LOGIN,
    Command.NEW_TXN: _LOGIN,
    Command.ADD_PARTITION_TO_TXN: Needs(
        _published_in_transaction, "Client is not authorized to Produce"
    ),
    Command.ADD_SUBSCRIPTION_TO_TXN: Needs(
        _acknowledged_in_transaction, "Client is not authorized to subscribe"
    ),
    Command.END_TXN: _LOGIN,
    Command.SCALABLE_TOPIC_LOOKUP: Needs(
        _lookup,
        "Client is not authorized to lookup topic",
        notices.layout_error,
        opens=("lookup", "session_id"),
        id_field="session_id",
    ),
    Command.SCALABLE_TOPIC_CLOSE: Own.NOTHING,
    Command.SCALABLE_TOPIC_SUBSCRIBE: Needs(
        _stream_consumer,
        "Client is not authorized to subscribe",
        notices.share_error,
        opens=("stream consumer", "consumer_id"),
    ),
    Command.SCALABLE_TOPIC_UNSUBSCRIBE: Own.CONSUMER,
    Command.WATCH_SCALABLE_TOPICS: Needs(
        lambda command: _list(command.watchScalableTopics.namespace),
        "Client is not authorized to watchScalableTopics",
        notices.watch_error,
        opens=("watch", "watch_id"),
        id_field="watch_id",
    ),
    Command.WATCH_SCALABLE_TOPICS_CLOSE: Own.NOTHING,
    # Refused, whoever asks.
    Command.WATCH_TC_ASSIGNMENTS: Own.NOTHING,
    Command.WATCH_TC_ASSIGNMENTS_CLOSE: Own.NOTHING,
    Command.END_TXN_ON_PARTITION: _SUPER_USER,
    Command.END_TXN_ON_SUBSCRIPTION: _SUPER_USER,
}
"""All but CONNECT, which is the login, and SEND, which goes to a producer of the connection."""
