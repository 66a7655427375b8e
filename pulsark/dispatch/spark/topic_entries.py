"""What Flight sends of topics: entries from the cache, the journal or the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.spark.flight_listener import TopicRange
from pulsark.errors import ClientError, ServerError
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.wire.position import Position


class FlightEntries:
    """``FlightSource`` of a broker's topics. Reading a topic counts as use."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def topic_range(self, topic: str) -> TopicRange:
        """Identity and bounds of a topic partition."""
        ledger = (await self._used(topic)).ledger
        return TopicRange(ledger.topic_id, ledger.first_position(), ledger.last_confirmed)

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a topic in ``[first, last]``, at most about ``max_bytes`` of them."""
        loaded = await self._used(topic)
        limit = loaded.own_dispatch_limit
        if limit is not None:
            max_bytes = await limit.turn(max_bytes)
            loaded = await self._used(topic)  # it may have been unloaded meanwhile
        count = _count(first, last)
        cached = loaded.entries.read_cached(first, count, max_bytes)
        if cached is not None:
            read = [(e.position, e.data) for e in cached if e.position <= last]
        else:
            stored = await loaded.ledger.read(first, count, max_bytes)
            read = [(position, data) for position, data in stored if position <= last]
        if limit is not None:
            size = sum(len(data) for _, data in read)
            limit.take(0, size, loaded.clock.monotonic())
        return read

    async def read_compacted(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        """Entries of a compacted ledger of a topic by its own ids, as they are stored."""
        found = (await self._used(topic)).ledger.compacted.retain(first.ledger_id)
        if found is None:
            raise ClientError(
                ServerError.NotAllowedError,
                f"Topic {topic} was compacted again since the query was planned: load the "
                "DataFrame anew",
            )
        return await found.stored(first.entry_id, last.entry_id, max_bytes)

    async def _used(self, topic: str) -> Topic:
        loaded = await self._topics.load(TopicName.parse(topic))
        loaded.touch()
        return loaded


def _count(first: Position, last: Position) -> int:
    if first.ledger_id == last.ledger_id:
        return max(last.entry_id - first.entry_id + 1, 0)
    return 1 << 30
