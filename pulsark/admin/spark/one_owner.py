"""What is done to all partitions of a topic at once, so only where one broker has all of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pulsark.admin.pulsar.partitioned import leaves
from pulsark.dispatch.broker import Broker
from pulsark.errors import ClientError, ServerError, StorageError
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pulsark.metadata.changes import Check


async def check_here(broker: Broker, topic: TopicName, what: str) -> list[TopicName]:
    """The partitions of a topic, which are all this broker's, or are so from now on.

    ``ClientError``: another one has some of them. It is said at once, and clearly: half of it done
    would be worse, and to try again does not help.
    """
    names = await leaves(broker, topic.base)
    peers = broker.other_brokers()
    for name in names if peers is not None else ():
        assert peers is not None
        peer = await peers.knows.where(name)
        if peer is not None:
            raise ClientError(
                ServerError.NotAllowedError,
                f"{what} needs all partitions of {topic.base} at one broker, and {peer.broker_id} "
                f"has {name}: start the standalone with --brokers 1 for it",
            )
        await broker.ownership.own(name)
    return names


@asynccontextmanager
async def all_here(broker: Broker, topic: TopicName, what: str) -> AsyncIterator[None]:
    """The same, and they stay here until the end: if one does not, it ends with an error."""
    names = await check_here(broker, topic, what)
    if broker.other_brokers() is None:
        yield
        return
    before = await _claims(broker, names)
    yield
    if before != await _claims(broker, names):
        raise StorageError(
            f"{what}: a partition of {topic.base} moved to another broker meanwhile; try again"
        )


async def _claims(broker: Broker, names: Iterable[TopicName]) -> list[Check | None]:
    ownership = broker.ownership
    return [ownership.guard_of(await ownership.bundle_named(name)) for name in names]
