"""What a connection does for each command after the handshake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.connection import (
    consumer_commands,
    lookup_commands,
    producer_commands,
    transaction_commands,
)
from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.connection import Connection, Handlers

Command = pb.BaseCommand


def ping(connection: Connection, command: pb.BaseCommand) -> None:
    """Answer at once."""
    pong = Command(type=Command.PONG)
    pong.pong.SetInParent()
    connection.output.send(pong)


def pong(connection: Connection, command: pb.BaseCommand) -> None:
    """Any frame counts as the answer to a ping; nothing else to do."""


def auth_response(connection: Connection, command: pb.BaseCommand) -> None:
    """Credentials anew."""
    if connection.login is None:
        raise ProtocolError("AUTH_RESPONSE without authentication")
    connection.login.refresh(command.authResponse.response)


def scalable(connection: Connection, command: pb.BaseCommand) -> None:
    """A command of Pulsar 5's clients: what carries it out is imported for the first of them."""
    from pulsark.dispatch.connection.scalable_commands import SCALABLE

    SCALABLE[command.type](connection, command)


HANDLERS: Handlers = {
    Command.AUTH_RESPONSE: auth_response,
    Command.PING: ping,
    Command.PONG: pong,
    Command.PARTITIONED_METADATA: lookup_commands.partitioned_metadata,
    Command.LOOKUP: lookup_commands.lookup,
    Command.GET_TOPICS_OF_NAMESPACE: lookup_commands.topics_of_namespace,
    Command.WATCH_TOPIC_LIST: lookup_commands.watch_topics,
    Command.WATCH_TOPIC_LIST_CLOSE: lookup_commands.unwatch_topics,
    Command.GET_SCHEMA: lookup_commands.get_schema,
    Command.GET_OR_CREATE_SCHEMA: lookup_commands.get_or_create_schema,
    Command.PRODUCER: producer_commands.create_producer,
    Command.CLOSE_PRODUCER: producer_commands.close_producer,
    Command.SUBSCRIBE: consumer_commands.subscribe,
    Command.FLOW: consumer_commands.flow,
    Command.ACK: consumer_commands.ack,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumer_commands.redeliver,
    Command.SEEK: consumer_commands.seek,
    Command.UNSUBSCRIBE: consumer_commands.unsubscribe,
    Command.CLOSE_CONSUMER: consumer_commands.close_consumer,
    Command.GET_LAST_MESSAGE_ID: consumer_commands.last_message_id,
    Command.CONSUMER_STATS: consumer_commands.consumer_stats,
    Command.TC_CLIENT_CONNECT_REQUEST: transaction_commands.refuse,
    Command.NEW_TXN: transaction_commands.refuse,
    Command.ADD_PARTITION_TO_TXN: transaction_commands.refuse,
    Command.ADD_SUBSCRIPTION_TO_TXN: transaction_commands.refuse,
    Command.END_TXN: transaction_commands.refuse,
    Command.END_TXN_ON_PARTITION: transaction_commands.refuse,
    Command.END_TXN_ON_SUBSCRIPTION: transaction_commands.refuse,
    Command.SCALABLE_TOPIC_LOOKUP: scalable,
    Command.SCALABLE_TOPIC_CLOSE: scalable,
    Command.SCALABLE_TOPIC_SUBSCRIBE: scalable,
    Command.SCALABLE_TOPIC_UNSUBSCRIBE: scalable,
    Command.WATCH_SCALABLE_TOPICS: scalable,
    Command.WATCH_SCALABLE_TOPICS_CLOSE: scalable,
    Command.WATCH_TC_ASSIGNMENTS: scalable,
    Command.WATCH_TC_ASSIGNMENTS_CLOSE: scalable,
}
"""All but CONNECT, which is the handshake, and SEND, which goes to a producer at once."""


def handlers_of(broker: Broker) -> Handlers:
    """What the connections of a broker do. Without authorization nothing is asked before it."""
    handlers = HANDLERS
    if broker.authorization is not None:
        from pulsark.dispatch.connection.guard import guarded  # for those who need it

        handlers = guarded(handlers, broker.authorization)
    if broker.audit is not None:
        from pulsark.dispatch.connection.accesses import audited  # where there is an audit

        handlers = audited(handlers, broker.audit)
    return handlers
