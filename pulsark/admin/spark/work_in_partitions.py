"""What is done to each partition of a topic by itself, by whichever broker owns it.

The broker that is asked does its own part and begins the others' where they belong, as work under
an id: a call that is lost is made again, and is about the same work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.tables.table_calls import worked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.peers.whereabouts import Peer
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.wire.topic_name import TopicName


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
        what = {**body, "partitions": list(map(str, some))}
        parts.append(worked(peers, peer, some[0].base, ident, what))
    # All have come to an end, also if one of them fails.
    found = await asyncio.gather(*parts, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


async def loaded(broker: Broker, name: TopicName) -> Topic:
    """A partition, or a topic without any."""
    return await broker.topics.load(name, create=name.partition >= 0)
