"""May a client read this topic over Flight? Tickets are its own words, so each is asked.

So is each chunk of a stream: a right may go while a stream lasts, and credentials may end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.security.decisions import Target
from pulsark.security.operations import TopicOperation
from pulsark.security.principal import Origin
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.security.audit.audit import Audit
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.decisions import Decision
    from pulsark.security.logins import Logins
    from pulsark.security.principal import Principal


class FlightRights:
    """What decides. On the event loop."""

    def __init__(
        self,
        logins: Logins | None,
        provider: AuthorizationProvider | None,
        audit: Audit | None = None,
    ) -> None:
        self._logins = logins
        self._audit = audit
        self._provider = provider

    async def check(self, principal: Principal | None, topic: str) -> None:
        """``ClientError`` unless somebody may read a topic now.

        Its code is ``AuthenticationError`` if the credentials of the call have ended.
        """
        if self._logins is not None and (principal is None or self._logins.has_ended(principal)):
            raise ClientError(
                ServerError.AuthenticationError, "the credentials have ended; ask with new ones"
            )
        provider = self._provider
        if provider is None and (self._audit is None or not self._audit.notes_access):
            return
        target = Target.of_topic(TopicName.parse(topic))
        if provider is not None:
            await self._ask(provider, principal, target)
        if self._audit is not None:
            self._audit.accessed(_origin(principal), principal, "consume", target)

    async def _ask(
        self, provider: AuthorizationProvider, principal: Principal | None, target: Target
    ) -> None:
        decision = provider.decided(principal, TopicOperation.CONSUME, target)
        if decision is None:
            decision = await provider.decision(principal, TopicOperation.CONSUME, target)
        if not decision.granted:
            self._note(principal, target, decision)
            raise ClientError(ServerError.AuthorizationError, "Client is not authorized to consume")

    def _note(self, principal: Principal | None, target: Target, decision: Decision) -> None:
        if self._audit is not None:
            from pulsark.security.audit.events import Call, Judged  # where there is an audit

            judged = Judged(TopicOperation.CONSUME, target, decision)
            self._audit.call(_origin(principal), principal, Call("do_get"), judged)


def _origin(principal: Principal | None) -> Origin:
    if principal is None:
        return Origin("flight")
    return Origin("flight", principal.address, tls=principal.tls)
