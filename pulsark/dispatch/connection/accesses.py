"""What clients read, write and change, for an audit. Imported only with one."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection.needs import request_of
from pulsark.security.audit.effects import CHANGED
from pulsark.security.audit.events import Call
from pulsark.security.decisions import Target
from pulsark.security.effects import watched
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection, Handler, Handlers
    from pulsark.security.audit.audit import Audit
    from pulsark.security.effects import Effect
    from pulsark.wire.topic_name import TopicName

Command = pb.BaseCommand

CHANGELESS = frozenset(
    {
        Command.AUTH_RESPONSE,
        Command.PING,
        Command.PONG,
        Command.FLOW,
        Command.ACK,
        Command.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Command.CLOSE_PRODUCER,
        Command.CLOSE_CONSUMER,
        Command.GET_LAST_MESSAGE_ID,
        Command.CONSUMER_STATS,
    }
)
"""Commands that are too frequent to be watched, and change nothing but what a consumer has read."""


def note_access(audit: Audit, connection: Connection, action: str, topic: TopicName) -> None:
    """The client publishes to a topic now, or reads it."""
    if audit.notes_access:
        target = Target.of_topic(topic)
        audit.accessed(connection.origin, connection.principal, action, target)


def audited(handlers: Handlers, audit: Audit) -> Handlers:
    """Return functions that do what ``handlers`` do, and have the audit hear what that changes."""
    return {
        kind: function if kind in CHANGELESS else partial(_carry_out, function, audit)
        for kind, function in handlers.items()
    }


def _carry_out(function: Handler, audit: Audit, connection: Connection, command: Command) -> None:
    request_id = str(getattr(request_of(command), "request_id", ""))
    call = Call(Command.Type.Name(command.type), request_id)
    # What the command begins, such as the timers of a topic, may outlive the connection.
    with watched(partial(_note_effect, audit, weakref.ref(connection), call)):
        function(connection, command)


def _note_effect(audit: Audit, client: weakref.ref[Connection], call: Call, effect: Effect) -> None:
    connection = client()
    if connection is None:
        return
    target = Target.of_topic(effect.topic, effect.subscription)
    call = call._replace(parameters={CHANGED: effect.what.value})
    audit.changed(connection.origin, connection.principal, call, target)
