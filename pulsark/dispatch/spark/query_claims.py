"""Which Spark queries read which topics, and with which subscriptions. In memory only.

A query says so about twice a second. One that falls silent, because it was killed or its network
is gone, has lost its claims after ``QUERY_CLAIM_SECONDS``; after a restart of the broker queries
claim again what they had. A query without a subscription claims nothing of anybody: it says how far
it has read.

All queries together hold a bounded number of topics and places, and each role its share of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pulsark.errors import ClientError, ServerError
from pulsark.limits import QUERY_CLAIM_SECONDS, QUERY_TOPICS_MAX
from pulsark.rates.shares import SharedBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.runtime import Clock
    from pulsark.wire.position import Position


_QUERY_ITSELF: Final = 1
"""What a query holds beside its topics."""


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
        """By id, the one that was silent longest first."""
        self._holders: dict[tuple[str, str], Query] = {}
        self._budget = SharedBudget(QUERY_TOPICS_MAX)
        """Queries, and their topics and places, by owner."""

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
        query = self._queries.get(query_id)
        if query is not None:
            subscription = query.subscription  # a query keeps the one that it began with
        if subscription is not None:
            held = {
                topic: holder
                for topic in wanted
                if (holder := self._holders.get((topic, subscription))) is not None
                and holder.query_id != query_id
            }
            if held:
                topic = min(held)
                return held[topic], topic
        if query is None:
            self._make_room(owner, _QUERY_ITSELF + len(wanted))
            query = Query(query_id, client, subscription, self._clock.now_ms(), 0.0, owner=owner)
            self._queries[query_id] = query
        else:
            self._make_room(query.owner, len(wanted - query.topics))
        self._saw(query)
        query.topics |= wanted
        if query.subscription is not None:
            for topic in wanted:
                self._holders[topic, query.subscription] = query
        return None

    def renew(self, query_id: str, read: Mapping[str, Position] | None = None) -> bool:
        """The query runs, and has read so far; False if nothing is known of it.

        Its listener and the thread that keeps the claim say so independently, and the answer of
        the slower one may come last. So a place never moves back.
        """
        query = self.get(query_id)
        if query is None:
            return False
        if read:
            self._make_room(query.owner, len(read.keys() - query.read.keys()))
            for topic, place in read.items():
                query.read[topic] = max(place, query.read.get(topic, place))
        self._saw(query)
        return True

    def release(self, query_id: str) -> bool:
        """The query has ended; False if nothing is known of it."""
        query = self._queries.pop(query_id, None)
        if query is None:
            return False
        held = _QUERY_ITSELF + len(query.topics) + len(query.read)
        self._budget.give_back(query.owner, held)
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

    def _saw(self, query: Query) -> None:
        query.seen = self._clock.monotonic()
        self._queries[query.query_id] = self._queries.pop(query.query_id)

    def _make_room(self, owner: str | None, more: int) -> None:
        if not self._budget.take(owner, more):
            raise ClientError(
                ServerError.TooManyRequests,
                f"This role has its share of the {QUERY_TOPICS_MAX} topics that all Spark queries "
                "together may follow",
            )

    def _drop_silent(self) -> None:
        now = self._clock.monotonic()
        while self._queries:
            query = next(iter(self._queries.values()))
            if now - query.seen <= QUERY_CLAIM_SECONDS:
                return
            self.release(query.query_id)
