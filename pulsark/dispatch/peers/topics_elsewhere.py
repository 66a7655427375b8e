"""Operations on topics that other brokers serve, as parts of a larger operation.

One broker works on a partitioned topic or a namespace. For topics that another broker has loaded it
calls that broker, over the routes that clients use for a single topic.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsark.dispatch.model.given_subscription import GivenSubscription
from pulsark.dispatch.peers.http_call import PeerError
from pulsark.dispatch.peers.peers import reason_in
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.records import InUseError
from pulsark.security.effects import Changed, report
from pulsark.wire.position import LATEST, Position
from pulsark.wire.topic_name import NON_PERSISTENT, TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.whereabouts import Peer

IN_MEMORY = "inMemory"
"""Selects topics in memory, even in a namespace that is hidden because it is being deleted."""
_WITHOUT_LISTS = "subscriptionBacklogSize=false"


class TopicsElsewhere:
    """Calls for topics of other brokers. They raise ``ClientError`` or ``InUseError``."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def serves(self, name: TopicName) -> bool:
        """Whether another broker serves a topic."""
        return await self._peers.knows.where(name) is not None

    async def delete(self, name: TopicName, *, force: bool) -> bool:
        """Have the topic deleted by its broker; false if no other broker serves it."""
        peer = await self._peers.knows.where(name)
        if peer is None:
            return False
        await self._ask(peer, name, "DELETE", f"{_path(name)}?force={str(force).lower()}")
        return True

    async def is_used(self, name: TopicName) -> bool:
        """Whether a topic of another broker has clients. That broker loads it to find out."""
        peer = await self._peers.knows.where(name)
        if peer is None:
            return False
        found = await self._ask(peer, name, "GET", f"{_path(name)}/stats?{_WITHOUT_LISTS}")
        consumers = (one["consumers"] for one in found["subscriptions"].values())
        return bool(found["publishers"]) or any(consumers)

    async def subscriptions(self, name: TopicName) -> list[GivenSubscription] | None:
        """The durable subscriptions of a topic; ``None`` if no other broker serves it."""
        peer = await self._peers.knows.find(name)
        if peer is None:
            return None
        found = await self._ask(peer, name, "GET", f"{_path(name)}/stats?{_WITHOUT_LISTS}")
        return [
            GivenSubscription(each, one["subscriptionProperties"], one["isReplicated"])
            for each, one in found["subscriptions"].items()
            if one["isDurable"]
        ]

    async def subscribe(self, name: TopicName, given: GivenSubscription) -> bool:
        """Create a subscription on a new partition; false if no other broker serves it."""
        peer = await self._peers.knows.find(name)
        if peer is None:
            return False
        twice = _twice(given.name)
        body = {
            "ledgerId": LATEST.ledger_id,
            "entryId": LATEST.entry_id,
            "properties": dict(given.properties),
        }
        target = f"{_path(name)}/subscription/{twice}?replicated={str(given.replicated).lower()}"
        with suppress(_ExistsError):  # an earlier attempt has created it
            await self._ask(peer, name, "PUT", target, body)
        return True

    async def subscribe_at(self, name: TopicName, subscription: str, first: Position) -> bool:
        """Create a subscription that starts at a position, unless it exists; result as above."""
        target = f"{_path(name)}/subscription/{_twice(subscription)}"
        with suppress(_ExistsError):
            done = await self._did(name, "PUT", target, _place(first))
            if done:
                report(Changed.SUBSCRIPTION_CREATED, name, subscription)
            return done
        return True

    async def acknowledge(self, name: TopicName, subscription: str, through: Position) -> bool:
        """Acknowledge everything up to a position; result as above."""
        target = f"{_path(name)}/subscription/{_twice(subscription)}/acknowledge"
        done = await self._did(name, "POST", target, _place(through))
        if done:
            report(Changed.CURSOR_MOVED, name, subscription)
        return done

    async def _did(self, name: TopicName, method: str, target: str, body: Any) -> bool:
        peer = await self._peers.knows.find(name)
        if peer is None:
            return False
        await self._ask(peer, name, method, target, body)
        return True

    async def told(self, name: TopicName, what: str) -> tuple[Any, str] | None:
        """The answer of a route for a topic that another broker serves, and that broker's id."""
        peer = await self._peers.knows.find(name)
        if peer is None:
            return None
        return await self._ask(peer, name, "GET", f"{_path(name)}/{what}"), peer.broker_id

    async def non_persistent(self, namespace: str) -> list[str]:
        """The namespace's non-persistent topics in the memory of other brokers."""
        target = f"/admin/v2/{NON_PERSISTENT}/{namespace}?{IN_MEMORY}=true"
        found: list[str] = []
        for peer in await self._peers.knows.others():
            found += await self._ask(peer, namespace, "GET", target)
        return found

    async def _ask(
        self, peer: Peer, name: TopicName | str, method: str, target: str, body: Any = None
    ) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        try:
            status, answer = await self._peers.part(peer, method, target, content)
        except PeerError as error:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"Broker {peer.broker_id}, which serves {name}, does not answer ({error}); try "
                "again in a moment",
            ) from error
        if status < 300:
            return json.loads(answer) if answer else None
        reason = f"{name}: {reason_in(answer)}"
        if status == 404:
            raise ClientError(ServerError.TopicNotFound, reason)
        if status == 405:
            raise ClientError(ServerError.NotAllowedError, reason)
        if status == 409:
            raise _ExistsError(ServerError.NotAllowedError, reason)
        if status == 412:
            raise InUseError(reason)
        raise ClientError(ServerError.ServiceNotReady, reason)


class _ExistsError(ClientError):
    """The subscription exists already."""


def _twice(subscription: str) -> str:
    return quote(quote(subscription, safe=""), safe="")


def _place(at: Position) -> dict[str, int]:
    return {"ledgerId": at.ledger_id, "entryId": at.entry_id}


def _path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"
