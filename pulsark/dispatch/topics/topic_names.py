"""Full names of topics: who may publish, and lists of them."""

from __future__ import annotations

from heapq import merge
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_NAMES_PER_TURN
from pulsark.metadata.resources import AUDIT_TOPIC, is_system_topic

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName


def check_clients_may_publish(name: TopicName) -> None:
    """Raise ``ClientError`` if only the broker publishes to a topic, whoever has which right."""
    if str(name) == AUDIT_TOPIC:
        raise ClientError(ServerError.AuthorizationError, f"Only the broker publishes to {name}")


async def in_order(names: list[str], *, include_system: bool) -> list[str]:
    """Each of these names once, sorted."""
    starts = range(0, len(names), TOPIC_NAMES_PER_TURN)
    parts = [
        sorted(names[start : start + TOPIC_NAMES_PER_TURN]) async for start in in_turns(starts, 1)
    ]
    # As a store lists them they are in order already, but for partitions.
    in_a_row = all(before[-1] <= after[0] for before, after in pairwise(parts))
    found: list[str] = []
    last = ""
    ordered = chain.from_iterable(parts) if in_a_row else merge(*parts)
    async for name in in_turns(ordered, TOPIC_NAMES_PER_TURN):
        if name != last and (include_system or not is_system_topic(name)):
            found.append(name)
        last = name
    return found
