"""What is done to all partitions of a topic at once, so only where one broker has all of them."""

from __future__ import annotations

from pulsark.admin.pulsar.partitioned import leaves
from pulsark.dispatch.broker import Broker
from pulsark.errors import ClientError, ServerError
from pulsark.wire.topic_name import TopicName


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
