"""Which Spark queries read which topics, and with which subscriptions. In memory only.

A query says so about twice a second. One that falls silent, because it was killed or its network
is gone, has lost its claims after ``QUERY_CLAIM_SECONDS``; after a restart of the broker queries
claim again what they had. A query without a subscription claims nothing of anybody: it says how far
it has read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import QUERY_CLAIM_SECONDS, QUERY_TOPICS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.runtime import Clock
    from pulsark.wire.position import Position


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What Spark says of a query and its last batch; rates are rows a second."""

    name: str | None
    query_id: str
    run_id: str
    batch: int
    rows_in: float
    rows_processed: float
    at_ms: int


@dataclass(slots=True)
class Query:
    """A query that runs. ``client`` is where, as it says itself; ``seen`` is monotonic."""

    query_id: str
    client: str
    subscription: str | None
    started_ms: int
    seen: float
    topics: set[str] = field(default_factory=set)
    read: dict[str, Position] = field(default_factory=dict)
    """By partition, without a subscription: the last entry that was read."""
    progress: QueryProgress | None = None
    owner: str | None = None
    """The role that claimed it, where clients log in."""


class QueryClaims:
    """All claims at one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queries: dict[str, Query] = {}
        self._holders: dict[tuple[str, str], Query] = {}
        self._known = 0
        """Topics and places of all queries."""

    def claim(
        self,
        query_id: str,
        client: str,
        subscription: str | None,
        topics: Iterable[str],
        owner: str | None = None,
    ) -> tuple[Query, str] | None:
        """Take a subscription of topics, all or none; the query that has one, and which topic."""
        self._drop_silent()
        wanted = set(topics)
        if subscription is not None:
            for topic in sorted(wanted):
                holder = self._holders.get((topic, subscription))
                if holder is not None and holder.query_id != query_id:
                    return holder, topic
        query = self._queries.get(query_id)
        self._make_room(len(wanted if query is None else wanted - query.topics))
        if query is None:
            query = Query(query_id, client, subscription, self._clock.now_ms(), 0.0, owner=owner)
            self._queries[query_id] = query
        query.seen = self._clock.monotonic()
        query.topics |= wanted
        if query.subscription is not None:
            for topic in wanted:
                self._holders[topic, query.subscription] = query
        return None

    def renew(self, query_id: str, read: Mapping[str, Position] | None = None) -> bool:
        """The query runs, and has read so far; False if nothing is known of it."""
        query = self.get(query_id)
        if query is None:
            return False
        if read:
            self._make_room(len(read.keys() - query.read.keys()))
            query.read.update(read)
        query.seen = self._clock.monotonic()
        return True

    def release(self, query_id: str) -> bool:
        """The query has ended; False if nothing is known of it."""
        query = self._queries.pop(query_id, None)
        if query is None:
            return False
        self._known -= len(query.topics) + len(query.read)
        if query.subscription is not None:
            for topic in query.topics:
                del self._holders[topic, query.subscription]
        return True

    def get(self, query_id: str) -> Query | None:
        """A query that was heard of lately."""
        self._drop_silent()
        return self._queries.get(query_id)

    def running(self) -> list[Query]:
        """The queries that were heard of lately."""
        self._drop_silent()
        return list(self._queries.values())

    def _make_room(self, more: int) -> None:
        if self._known + more > QUERY_TOPICS_MAX:
            raise ClientError(
                ServerError.TooManyRequests, f"Queries follow {QUERY_TOPICS_MAX} topics already"
            )
        self._known += more

    def _drop_silent(self) -> None:
        now = self._clock.monotonic()
        for query in list(self._queries.values()):
            if now - query.seen > QUERY_CLAIM_SECONDS:
                self.release(query.query_id)
