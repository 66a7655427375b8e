"""Requests that only clients of Pulsar 5 make: layouts of topics, shares of them, watches.

``handlers`` imports this for the first of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.scalable_client import ScalableClient
from pulsark.dispatch.scalable.groups import GroupKey
from pulsark.dispatch.scalable.whole_topics import WholeTopics
from pulsark.errors import ClientError, PulsarkError, ServerError, internal_error
from pulsark.limits import CONSUMER_NAME_CHARS_MAX
from pulsark.storage.cursor.owners import check_new_name
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName, parse_namespace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.dispatch.connection.connection import Connection, Handlers

Command = pb.BaseCommand


def look_up(connection: Connection, command: Command) -> None:
    request = command.scalableTopicLookup
    try:
        name = TopicName.parse(request.topic)
        client = client_of(connection)
        session = client.new_session(request.session_id)
    except ClientError as error:
        connection.output.send(notices.layout_error(request.session_id, error))
        return
    work = partial(client.open, session, name, create=request.create_if_missing)
    _run(connection, request.session_id, work, notices.layout_error)


def close_lookup(connection: Connection, command: Command) -> None:
    session_id = command.scalableTopicClose.session_id
    connection.requests.abandon("lookup", session_id)
    if connection.opened.scalable is not None:
        connection.opened.scalable.drop_session(session_id)


def subscribe(connection: Connection, command: Command) -> None:
    request = command.scalableTopicSubscribe
    try:
        check_new_name(request.subscription)
        if not 0 < len(request.consumer_name) <= CONSUMER_NAME_CHARS_MAX:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The name of a consumer has 1 to {CONSUMER_NAME_CHARS_MAX} characters",
            )
        name = TopicName.parse(request.topic)
        exclusive = request.consumer_type == pb.ScalableConsumerType.STREAM
        key = GroupKey(str(name), request.subscription, exclusive)
        client = client_of(connection)
        client.expect_member(request.consumer_id, request.request_id)
    except ClientError as error:
        connection.output.send(notices.share_error(request.request_id, error))
        return
    work = partial(client.join, key, name, request)
    _run(connection, request.request_id, work, notices.share_error)


def unsubscribe(connection: Connection, command: Command) -> None:
    request = command.scalableTopicUnsubscribe
    connection.requests.abandon("stream consumer", request.consumer_id)
    if connection.opened.scalable is not None:
        connection.opened.scalable.drop_member(request.consumer_id)
    connection.output.send(notices.success(request.request_id))


def watch_namespace(connection: Connection, command: Command) -> None:
    request = command.watchScalableTopics
    watch_id, broker = request.watch_id, connection.broker
    try:
        namespace = "/".join(parse_namespace(request.namespace))
        wanted = [(each.key, each.value) for each in request.property_filters]
        selector = WholeTopics(wanted, broker.resources.partitioned_topics, broker.metadata)
        watches = client_of(connection).watches
        watch = watches.begin(watch_id, namespace, request.current_hash)
    except ClientError as error:
        connection.output.send(notices.watch_error(watch_id, error))
        return
    work = partial(watches.open, watch, selector)
    _run(connection, watch_id, work, notices.watch_error)


def unwatch_namespace(connection: Connection, command: Command) -> None:
    watch_id = command.watchScalableTopicsClose.watch_id
    connection.requests.abandon("watch", watch_id)
    if connection.opened.scalable is not None:
        connection.opened.scalable.watches.drop(watch_id)


def refuse_coordinators(connection: Connection, command: Command) -> None:
    """There are no coordinators to watch while transactions are off."""
    reply = Command(type=Command.WATCH_TC_ASSIGNMENTS_UPDATE)
    update = reply.watchTcAssignmentsUpdate
    update.watch_id = command.watchTcAssignments.watch_id
    error = "Transactions are not enabled on this broker"
    notices.fill_error(update, ClientError(ServerError.NotAllowedError, error))
    connection.output.send(reply)


def no_coordinators_watched(connection: Connection, command: Command) -> None:
    """The end of a watch that was refused, which wants no answer."""


def client_of(connection: Connection) -> ScalableClient:
    """What the client has of scalable topics. ``ClientError``: they are switched off."""
    if not connection.settings.scalableTopicsEnabled:
        raise ClientError(
            ServerError.NotAllowedError,
            "Clients of scalable topics are not enabled on this broker (scalableTopicsEnabled)",
        )
    opened = connection.opened
    if opened.scalable is None:
        parts = connection.output, connection.requests, connection.broker
        opened.scalable = ScalableClient(*parts, connection.keep_alive.probe)
    return opened.scalable


def _run(
    connection: Connection,
    request_id: int,
    work: Callable[[], Awaitable[None]],
    refusal: Callable[[int, Exception], Command],
) -> None:
    """Run a request that is answered in any case, in its own form: clients wait without end.

    It may be cancelled before it begins, so nothing may wait to be awaited here.
    """

    async def answered() -> None:
        try:
            await work()
        except PulsarkError as error:
            connection.output.send(refusal(request_id, error))
        except Exception as error:  # noqa: BLE001 - a defect: logged, and answered
            connection.broker.defects.report(error, "A request failed")
            connection.output.send(refusal(request_id, internal_error()))

    connection.requests.run(answered(), request_id)


SCALABLE: Handlers = {
    Command.SCALABLE_TOPIC_LOOKUP: look_up,
    Command.SCALABLE_TOPIC_CLOSE: close_lookup,
    Command.SCALABLE_TOPIC_SUBSCRIBE: subscribe,
    Command.SCALABLE_TOPIC_UNSUBSCRIBE: unsubscribe,
    Command.WATCH_SCALABLE_TOPICS: watch_namespace,
    Command.WATCH_SCALABLE_TOPICS_CLOSE: unwatch_namespace,
    Command.WATCH_TC_ASSIGNMENTS: refuse_coordinators,
    Command.WATCH_TC_ASSIGNMENTS_CLOSE: no_coordinators_watched,
}
"""By command."""
