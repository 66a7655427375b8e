"""Which Spark queries follow their streams with which subscriptions. In memory only.

A query says so about twice a second. One that falls silent, because it was killed or its network
is gone, has lost its claims after ``QUERY_CLAIM_SECONDS``; after a restart of the broker queries
claim again what they had.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pulsark.errors import ClientError, ServerError
from pulsark.limits import QUERY_CLAIM_SECONDS, QUERY_TOPICS_MAX
from pulsark.runtime import Clock


@dataclass(slots=True)
class Query:
    """A query that runs. ``client`` is where, as it says itself; ``seen`` is monotonic."""

    query_id: str
    client: str
    subscription: str
    started_ms: int
    seen: float
    topics: set[str] = field(default_factory=set)


class QueryClaims:
    """All claims at one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queries: dict[str, Query] = {}
        self._holders: dict[tuple[str, str], Query] = {}

    def claim(
        self, query_id: str, client: str, subscription: str, topics: Iterable[str]
    ) -> tuple[Query, str] | None:
        """Take a subscription of topics, all or none; the query that has one, and which topic."""
        self._drop_silent()
        wanted = set(topics)
        for topic in sorted(wanted):
            holder = self._holders.get((topic, subscription))
            if holder is not None and holder.query_id != query_id:
                return holder, topic
        if len(self._holders) + len(wanted) > QUERY_TOPICS_MAX:
            raise ClientError(
                ServerError.TooManyRequests, f"Queries follow {QUERY_TOPICS_MAX} topics already"
            )
        query = self._queries.get(query_id)
        if query is None:
            query = Query(query_id, client, subscription, self._clock.now_ms(), 0.0)
            self._queries[query_id] = query
        query.seen = self._clock.monotonic()
        query.topics |= wanted
        for topic in wanted:
            self._holders[topic, query.subscription] = query
        return None

    def renew(self, query_id: str) -> bool:
        """The query runs; False if nothing is known of it."""
        self._drop_silent()
        query = self._queries.get(query_id)
        if query is None:
            return False
        query.seen = self._clock.monotonic()
        return True

    def release(self, query_id: str) -> bool:
        """The query has ended; False if nothing is known of it."""
        query = self._queries.pop(query_id, None)
        if query is None:
            return False
        for topic in query.topics:
            del self._holders[topic, query.subscription]
        return True

    def running(self) -> list[Query]:
        """The queries that were heard of lately."""
        self._drop_silent()
        return list(self._queries.values())

    def _drop_silent(self) -> None:
        now = self._clock.monotonic()
        for query in list(self._queries.values()):
            if now - query.seen > QUERY_CLAIM_SECONDS:
                self.release(query.query_id)
