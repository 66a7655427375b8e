"""Requests about transactions, which are not enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.errors import ClientError, ServerError
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection

Command = pb.BaseCommand


def refuse(connection: Connection, command: Command) -> None:
    """Transactions are off: every request is told so, as the protocol asks."""
    for _, request in command.ListFields():
        request_id = getattr(request, "request_id", None)
        if request_id is not None:
            error = ClientError(
                ServerError.NotAllowedError, "Transactions are not enabled on this broker"
            )
            connection.output.send(notices.request_error(request_id, error))
            return
