"""Streaming queries: what each reads, the subscription that it follows, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.limits import PLANNED_TOPICS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.admin_client.client import AdminClient
    from pulsark.wire.message_id import MessageId


@dataclass(frozen=True, slots=True)
class QueryCalls:
    """Claims of queries at the broker, by the query's id."""

    _client: AdminClient

    def claim(
        self, query: str, client: str, subscription: str | None, topics: Sequence[str]
    ) -> str | None:
        """Say what a query reads and take its subscription; returns who else has it, if any."""
        body = {"client": client, "subscription": subscription, "topics": list(topics)}
        answer = self._client.request("PUT", _path(query), body)
        if answer.status == 409:
            return answer.reason
        self._client.value_of(answer, f"subscription {subscription}")
        return None

    def renew(self, query: str, read: Mapping[str, MessageId] | None = None) -> bool:
        """Keep what a query has claimed, and say how far it has read.

        Returns False if the broker does not know the query.
        """
        return self._in_parts("POST", query, "", read or {}) is not None

    def create_subscriptions(self, query: str, first: Mapping[str, MessageId]) -> list[str] | None:
        """Make the subscription of a query where it is missing, to receive these messages next.

        Returns the partitions that do not exist; ``None`` if the broker does not know the query.
        """
        return self._in_parts("PUT", query, "/subscriptions", first)

    def acknowledge(self, query: str, through: Mapping[str, MessageId]) -> list[str] | None:
        """Acknowledge everything up to these entries for a query.

        Returns the partitions without its subscription; ``None`` if the broker does not know it.
        """
        return self._in_parts("POST", query, "/acknowledge", through)

    def report(self, query: str, progress: Mapping[str, Any]) -> None:
        """Pass on what Spark says of the last batch, if the broker knows the query."""
        self._unless_unknown("PUT", query, "/progress", dict(progress))

    def release(self, query: str) -> None:
        """Give back all that a query has claimed."""
        self._unless_unknown("DELETE", query)

    def _in_parts(
        self, method: str, query: str, path: str, places: Mapping[str, MessageId]
    ) -> list[str] | None:
        """One request for every ``PLANNED_TOPICS_MAX`` partitions, and at least one."""
        missing: list[str] = []
        items = list(places.items())
        for start in range(0, len(items) or 1, PLANNED_TOPICS_MAX):
            some = items[start : start + PLANNED_TOPICS_MAX]
            positions = {name: place.position.to_json() for name, place in some}
            found = self._unless_unknown(method, query, path, {"positions": positions})
            if found is None:
                return None
            missing += found.get("missing", ())
        return missing

    def _unless_unknown(
        self, method: str, query: str, path: str = "", body: Any = None
    ) -> dict[str, Any] | None:
        """The answer to a call; ``None`` if the broker does not know the query."""
        answer = self._client.request(method, _path(query) + path, body)
        if answer.status == 404:
            return None
        return self._client.value_of(answer, f"query {query}") or {}


def _path(query: str) -> str:
    return f"/spark-queries/{query}"
