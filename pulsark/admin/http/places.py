"""Where a route is served when there are several brokers. Every route says it with ``at=``.

Where there is one broker, none of this does anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import call_of
from pulsark.admin.http.forwarding import AGAIN, Elsewhere
from pulsark.admin.http.requests import namespace_name, topic_name, unquoted
from pulsark.dispatch.peers.peers import MISDIRECTED, NOT_OWNER, Peers
from pulsark.dispatch.peers.whereabouts import Peer
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.topic_resources import PartitionedTopic
from pulsark.wire.topic_name import PERSISTENT, TopicName

if TYPE_CHECKING:
    from pulsark.admin.http.spreading import Part
    from pulsark.dispatch.broker import Broker


class Place:
    """Where a route is served."""

    def __init__(self, word: str) -> None:
        self.word = word
        """As ``tests/unit/admin/places.tsv`` has it."""

    @property
    def asks(self) -> bool:
        """Whether there is anything to ask before the route is served."""
        return type(self).settle is not Place.settle

    async def __call__(self, request: Request) -> None:
        """Returns if the request is to be served by this broker."""
        peers: Peers | None = request.app.state.broker.other_brokers()
        if peers is not None:
            await self.settle(request, peers)

    async def settle(self, request: Request, peers: Peers) -> None:
        """The same where there are several brokers."""


ANYWHERE = Place("anywhere")
"""It is about the metadata only, which all brokers have."""

HERE = Place("here")
"""It is about the broker that was asked."""


class _Owned(Place):
    """By the owner of something."""

    async def settle(self, request: Request, peers: Peers) -> None:
        look_up = peer = None
        with suppress_missing():
            look_up = await self.owner(request, peers)
            peer = None if look_up is None else await look_up()
        if peer is None or look_up is None:
            return
        if call_of(request) is not None:
            reason = "This broker does not serve it"
            raise HTTPException(MISDIRECTED, reason, {NOT_OWNER.decode(): "1"})
        if getattr(request.state, AGAIN, False):
            raise HTTPException(
                503, "The topic or bundle is moving between brokers; try again", _SOON
            )
        raise Elsewhere(peer, look_up)

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        """How to find out who serves it; ``None``: this broker does in any case."""
        raise NotImplementedError


_SOON = {"retry-after": "1"}


@contextmanager
def suppress_missing() -> Iterator[None]:
    """Ignore what is missing: the route itself reports it."""
    try:
        yield
    except ClientError as error:
        if error.code is not ServerError.TopicNotFound:
            raise


class _OwnerOfTopic(_Owned):
    """By the owner of the topic in the path. One with partitions is looked at by any broker."""

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        name = topic_in(request)
        if await partitions_of(request, name) is not None:
            return None
        return looked_up(request, peers, name)


class _OwnerOfBase(_Owned):
    """By the owner of the bundle that the name without a partition is in.

    So what is done to a topic as a whole is done by one broker. To change something it is claimed.
    """

    async def settle(self, request: Request, peers: Peers) -> None:
        await super().settle(request, peers)
        if request.method not in ("GET", "HEAD"):
            broker: Broker = request.app.state.broker
            with suppress_missing():
                await broker.ownership.own(topic_in(request).base)

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        return looked_up(request, peers, topic_in(request).base)


class _OwnerIfVolatile(_OwnerOfTopic):
    """By the owner of a topic that only memory knows; what is stored is metadata to this route."""

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        if topic_in(request).is_persistent:
            return None
        return await super().owner(request, peers)


class _OwnerOfBundle(_Owned):
    """By the owner of the bundle in the path."""

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        path = request.path_params
        namespace = namespace_name(path["tenant"], path["namespace"])
        bundle = f"{namespace}/{path['bundle'].lower()}"
        return lambda: peers.knows.where_bundle(bundle)


class _Leader(_Owned):
    """By the leader: there is one of these for all brokers."""

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        async def leader() -> Peer | None:
            found = await peers.knows.leader()
            if found is None:
                raise ClientError(ServerError.ServiceNotReady, "The brokers have no leader now")
            return None if found.broker_id == peers.knows.broker_id else found

        return leader


class _NamedBroker(_Owned):
    """By the broker whose id is the ``server`` in the path, if there is one."""

    async def owner(
        self, request: Request, peers: Peers
    ) -> Callable[[], Awaitable[Peer | None]] | None:
        wanted = unquoted(request.path_params["server"])

        async def named() -> Peer | None:
            others = await peers.knows.others()
            return next((peer for peer in others if peer.broker_id == wanted), None)

        return named


OWNER = _OwnerOfTopic("owner")
OWNER_IF_VOLATILE = _OwnerIfVolatile("owner if not persistent")
OWNER_OF_BASE = _OwnerOfBase("owner of base")
OWNER_OF_BUNDLE = _OwnerOfBundle("owner of bundle")
LEADER = _Leader("leader")
NAMED_BROKER = _NamedBroker("named broker")

Merge = Callable[["Broker", Request, "Sequence[Part]"], Response]
"""One answer of many."""


class EachPartition(_OwnerOfTopic):
    """By the owner of each partition, or of the topic if it has none."""

    def __init__(self, merge: Merge, *, method: str = "", tail: str | None = None) -> None:
        """``method`` and ``tail``: what the owners are asked, if that is another route.

        ``tail`` is what comes after the name of the topic.
        """
        super().__init__("each partition")
        self.merge = merge
        self.method = method
        self.tail = tail

    async def settle(self, request: Request, peers: Peers) -> None:
        name = topic_in(request)
        found = await partitions_of(request, name)
        if found is not None:
            raise ToPartitions(self, name, found.partitions)
        await super().settle(request, peers)


class EachBroker(Place):
    """By each broker, for what it serves."""

    def __init__(
        self, merge: Merge, *, when: Callable[[Request], bool] = lambda request: True
    ) -> None:
        """``when``: others are asked only then."""
        super().__init__("each broker")
        self.merge = merge
        self.when = when

    async def settle(self, request: Request, peers: Peers) -> None:
        if call_of(request) is None and self.when(request):
            raise ToBrokers(self)


class ToPartitions(Exception):
    """A request is to be served by the owners of partitions."""

    def __init__(self, place: EachPartition, topic: TopicName, partitions: int) -> None:
        super().__init__(str(topic))
        self.place = place
        self.topic = topic
        self.partitions = partitions


class ToBrokers(Exception):
    """A request is to be served by all brokers."""

    def __init__(self, place: EachBroker) -> None:
        super().__init__()
        self.place = place


def looked_up(
    request: Request, peers: Peers, name: TopicName
) -> Callable[[], Awaitable[Peer | None]]:
    """How to find who serves a topic. Who is called serves what nobody else does."""
    if call_of(request) is not None:
        return lambda: peers.knows.where(name)
    return lambda: peers.knows.find(name)


def topic_in(request: Request) -> TopicName:
    """The topic that the path names."""
    path = request.path_params
    domain = path.get("domain", PERSISTENT)
    return topic_name(domain, path["tenant"], path["namespace"], path["topic"])


async def partitions_of(request: Request, name: TopicName) -> PartitionedTopic | None:
    """What is known of a topic with partitions."""
    broker: Broker = request.app.state.broker
    return await broker.resources.partitioned_topics.get(name)
