"""Topics that other brokers serve, as one works on them as a part of something larger.

A topic with partitions, or a namespace, is worked on by one broker; what is in the memory of others
it has them do, over the routes that clients have for a single topic.
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
from pulsark.wire.position import LATEST, Position
from pulsark.wire.topic_name import NON_PERSISTENT, TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.whereabouts import Peer

IN_MEMORY = "inMemory"
"""Brokers ask for these topics alone, also of a namespace that is hidden because it is to go."""
_WITHOUT_LISTS = "subscriptionBacklogSize=false"


class TopicsElsewhere:
    """Those that other brokers serve. Whatever fails is a ``ClientError``, or ``InUseError``."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def serves(self, name: TopicName) -> bool:
        """Whether another broker does."""
        return await self._peers.knows.where(name) is not None

    async def delete(self, name: TopicName, *, force: bool) -> bool:
        """Have a topic deleted; whether another broker serves it."""
        peer = await self._peers.knows.where(name)
        if peer is None:
            return False
        await self._ask(peer, name, "DELETE", f"{_path(name)}?force={str(force).lower()}")
        return True

    async def is_used(self, name: TopicName) -> bool:
        """Whether another broker has clients on a topic. It loads the topic for that."""
        peer = await self._peers.knows.where(name)
        if peer is None:
            return False
        found = await self._ask(peer, name, "GET", f"{_path(name)}/stats?{_WITHOUT_LISTS}")
        consumers = (one["consumers"] for one in found["subscriptions"].values())
        return bool(found["publishers"]) or any(consumers)

    async def subscriptions(self, name: TopicName) -> list[GivenSubscription] | None:
        """The durable subscriptions of a topic; ``None``: no other broker serves it."""
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
        """Make a subscription of a partition that is to be; whether another broker serves it."""
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
        with suppress(_ExistsError):  # of an attempt before this one
            await self._ask(peer, name, "PUT", target, body)
        return True

    async def subscribe_at(self, name: TopicName, subscription: str, first: Position) -> bool:
        """Make a subscription that receives this position next, unless it is there; as above."""
        target = f"{_path(name)}/subscription/{_twice(subscription)}"
        with suppress(_ExistsError):
            return await self._did(name, "PUT", target, _place(first))
        return True

    async def acknowledge(self, name: TopicName, subscription: str, through: Position) -> bool:
        """Acknowledge everything up to a position; as above."""
        target = f"{_path(name)}/subscription/{_twice(subscription)}/acknowledge"
        return await self._did(name, "POST", target, _place(through))

    async def _did(self, name: TopicName, method: str, target: str, body: Any) -> bool:
        peer = await self._peers.knows.find(name)
        if peer is None:
            return False
        await self._ask(peer, name, method, target, body)
        return True

    async def told(self, name: TopicName, what: str) -> tuple[Any, str] | None:
        """What a route says of a topic that another broker serves, and the id of that broker."""
        peer = await self._peers.knows.find(name)
        if peer is None:
            return None
        return await self._ask(peer, name, "GET", f"{_path(name)}/{what}"), peer.broker_id

    async def non_persistent(self, namespace: str) -> list[str]:
        """The non-persistent topics of a namespace that other brokers have in memory."""
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
        if status == 409:
            raise _ExistsError(ServerError.NotAllowedError, reason)
        if status == 412:
            raise InUseError(reason)
        raise ClientError(ServerError.ServiceNotReady, reason)


class _ExistsError(ClientError):
    """What was to be made is there."""


def _twice(subscription: str) -> str:
    return quote(quote(subscription, safe=""), safe="")


def _place(at: Position) -> dict[str, int]:
    return {"ledgerId": at.ledger_id, "entryId": at.entry_id}


def _path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"
