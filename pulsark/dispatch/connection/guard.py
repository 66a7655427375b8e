"""The one place where the binary protocol asks whether a client may do something.

Commands are asked for in order, and nearly always at once. Where something has to be read first,
the command waits for that in a task, as others wait for storage.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection.needs import NEEDS, Own, request_of
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.security.decisions import Rule
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.connection.connection import Connection, Handler, Handlers
    from pulsark.dispatch.connection.needs import Asked, Needs
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.decisions import Decision, Target
    from pulsark.security.operations import Operation

Command = pb.BaseCommand


def guarded(handlers: Handlers, provider: AuthorizationProvider) -> Handlers:
    """Functions that ask before they do what those do; every command says what it needs."""
    guard = Guard(provider)
    return {kind: guard.before(function, NEEDS[kind]) for kind, function in handlers.items()}


class Guard:
    """Asks a provider before commands are carried out."""

    def __init__(self, provider: AuthorizationProvider) -> None:
        self._provider = provider

    def before(self, function: Handler, needs: Needs | Own) -> Handler:
        """A function that asks first; the function itself if there is nothing to ask."""
        if isinstance(needs, Own):
            return function
        return partial(self._carry_out, function, needs)

    def _carry_out(
        self, function: Handler, needs: Needs, connection: Connection, command: Command
    ) -> None:
        try:
            asked = needs.asked(command)
        except ClientError as error:
            _refuse(needs, connection, command, error)
            return
        for operation, target in asked:
            decision = self._provider.decided(connection.principal, operation, target)
            if decision is None:
                self._wait(function, needs, asked, connection, command)
                return
            if not decision.granted:
                _note(needs, connection, command, operation, target, decision)
                _refuse(needs, connection, command, _denial(needs, command, decision.rule))
                return
        function(connection, command)

    def _wait(
        self,
        function: Handler,
        needs: Needs,
        asked: Sequence[Asked],
        connection: Connection,
        command: Command,
    ) -> None:
        request = request_of(command)
        work = self._ask(function, needs, asked, connection, command)
        request_id = getattr(request, needs.id_field)
        if needs.opens is None:
            connection.requests.run(work, request_id)
        else:  # so that a client that gives it up meanwhile finds it
            kind, field = needs.opens
            connection.requests.open(kind, getattr(request, field), request_id, work)

    async def _ask(
        self,
        function: Handler,
        needs: Needs,
        asked: Sequence[Asked],
        connection: Connection,
        command: Command,
    ) -> None:
        try:
            for operation, target in asked:
                principal = connection.principal
                decision = await self._provider.decision(principal, operation, target)
                if not decision.granted:
                    _note(needs, connection, command, operation, target, decision)
                    raise _denial(needs, command, decision.rule)
        except PulsarkError as error:
            _refuse(needs, connection, command, error)
            return
        function(connection, command)


def _note(
    needs: Needs,
    connection: Connection,
    command: Command,
    operation: Operation,
    target: Target,
    decision: Decision,
) -> None:
    """Have the audit know of a denial, if there is one."""
    audit = connection.broker.audit
    if audit is not None:
        from pulsark.security.audit.events import Call, Judged  # where there is an audit

        request_id = getattr(request_of(command), needs.id_field)
        call = Call(Command.Type.Name(command.type), str(request_id))
        judged = Judged(operation, target, decision)
        audit.call(connection.origin, connection.principal, call, judged)


def _refuse(needs: Needs, connection: Connection, command: Command, error: PulsarkError) -> None:
    request_id = getattr(request_of(command), needs.id_field)
    connection.output.send(needs.refusal(request_id, error))


def _denial(needs: Needs, command: Command, rule: Rule) -> ClientError:
    if rule is Rule.NO_TENANT and command.type == Command.PARTITIONED_METADATA:
        return ClientError(ServerError.TopicNotFound, "Tenant does not exist")
    return ClientError(ServerError.AuthorizationError, needs.denied)
