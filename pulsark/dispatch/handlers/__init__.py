"""What a connection does for each command after the handshake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsark.dispatch.handlers import consumers, lookup, producers, transactions
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.dispatch.connection import Connection

Command = pb.BaseCommand


def ping(connection: Connection, command: pb.BaseCommand) -> None:
    """Answer at once."""
    pong = Command(type=Command.PONG)
    pong.pong.SetInParent()
    connection.send(pong)


def pong(connection: Connection, command: pb.BaseCommand) -> None:
    """Any frame counts as the answer to a ping; nothing else to do."""


HANDLERS: dict[int, Callable[[Connection, pb.BaseCommand], None]] = {
    Command.PING: ping,
    Command.PONG: pong,
    Command.PARTITIONED_METADATA: lookup.partitioned_metadata,
    Command.LOOKUP: lookup.lookup,
    Command.GET_TOPICS_OF_NAMESPACE: lookup.topics_of_namespace,
    Command.WATCH_TOPIC_LIST: lookup.watch_topics,
    Command.WATCH_TOPIC_LIST_CLOSE: lookup.unwatch_topics,
    Command.GET_SCHEMA: lookup.get_schema,
    Command.GET_OR_CREATE_SCHEMA: lookup.get_or_create_schema,
    Command.PRODUCER: producers.create_producer,
    Command.CLOSE_PRODUCER: producers.close_producer,
    Command.SUBSCRIBE: consumers.subscribe,
    Command.FLOW: consumers.flow,
    Command.ACK: consumers.ack,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumers.redeliver,
    Command.SEEK: consumers.seek,
    Command.UNSUBSCRIBE: consumers.unsubscribe,
    Command.CLOSE_CONSUMER: consumers.close_consumer,
    Command.GET_LAST_MESSAGE_ID: consumers.last_message_id,
    Command.CONSUMER_STATS: consumers.consumer_stats,
    Command.TC_CLIENT_CONNECT_REQUEST: transactions.refuse,
    Command.NEW_TXN: transactions.refuse,
    Command.ADD_PARTITION_TO_TXN: transactions.refuse,
    Command.ADD_SUBSCRIPTION_TO_TXN: transactions.refuse,
    Command.END_TXN: transactions.refuse,
    Command.END_TXN_ON_PARTITION: transactions.refuse,
    Command.END_TXN_ON_SUBSCRIPTION: transactions.refuse,
}
