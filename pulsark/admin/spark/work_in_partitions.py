"""What is done to each partition of a topic by itself, by whichever broker owns it.

The broker that is asked does its own part and begins the others' where they belong, as work under
an id: a call that is lost is made again, and is about the same work.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsark.dispatch.peers.http_call import PeerError
from pulsark.dispatch.peers.peers import reason_in
from pulsark.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.whereabouts import Peer
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.wire.topic_name import TopicName

ASK_SECONDS = 0.5
"""So often another broker is asked how far it is."""

FAILURES_MAX = 20
"""So often in a row it may give no answer."""


async def in_all_partitions(
    broker: Broker,
    names: Sequence[TopicName],
    ident: str,
    body: dict[str, Any],
    here: Callable[[list[Topic]], Awaitable[Any]],
) -> list[Any]:
    """What came of it at each broker; ``StorageError``: not all is done.

    ``here`` does it to partitions of this broker; others are sent ``body`` for theirs.
    """
    peers = broker.other_brokers()
    mine: list[TopicName] = []
    theirs: dict[str, tuple[Peer, list[TopicName]]] = {}
    for name in names:
        peer = None if peers is None else await peers.knows.find(name)
        if peer is None:
            mine.append(name)
        else:
            theirs.setdefault(peer.broker_id, (peer, []))[1].append(name)

    async def do_here() -> Any:
        return await here([await loaded(broker, name) for name in mine])

    parts: list[Awaitable[Any]] = [do_here()] if mine else []
    for peer, some in theirs.values():
        assert peers is not None
        parts.append(_there(peers, peer, ident, {**body, "partitions": list(map(str, some))}, some))
    # All have come to an end, also if one of them fails.
    found = await asyncio.gather(*parts, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


async def loaded(broker: Broker, name: TopicName) -> Topic:
    """A partition, or a topic without any."""
    return await broker.topics.load(name, create=name.partition >= 0)


async def _there(
    peers: Peers, peer: Peer, ident: str, body: dict[str, Any], names: Sequence[TopicName]
) -> Any:
    base = names[0].base
    local = quote(base.local, safe="")
    path = f"/admin/v2/{base.domain}/{base.namespace_name}/{local}/table/part/{quote(ident)}"
    failures = 0
    while True:
        try:
            status, answer = await peers.part(peer, "POST", path, json.dumps(body).encode())
        except PeerError as error:
            status, answer = 503, str(error).encode()
        if status < 300:
            failures = 0
            found = json.loads(answer)
            if found["status"] == "SUCCESS":
                return found["result"]
            if found["status"] == "ERROR":
                raise StorageError(f"the broker {peer.broker_id}: {found['error']}")
        else:
            failures += 1
            if failures == FAILURES_MAX:
                raise StorageError(f"the broker {peer.broker_id}: {reason_in(answer)}; do it again")
        await asyncio.sleep(ASK_SECONDS)
