"""May a client read this topic over Flight? Tickets are its own words, so each is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.security.decisions import Target
from pulsark.security.operations import TopicOperation
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.principal import Principal


async def check(provider: AuthorizationProvider, principal: Principal | None, topic: str) -> None:
    """``ClientError(AuthorizationError)`` unless it may."""
    target = Target.of_topic(TopicName.parse(topic))
    decision = provider.decided(principal, TopicOperation.CONSUME, target)
    if decision is None:
        decision = await provider.decision(principal, TopicOperation.CONSUME, target)
    if not decision.granted:
        raise ClientError(ServerError.AuthorizationError, "Client is not authorized to consume")
