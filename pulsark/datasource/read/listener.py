"""A listener on the driver that acknowledges a finished batch at once.

Spark tells a source that a batch is done only when it plans the next one, and ends the source's
process when the query is stopped. Between two triggers, and after the last batch, the subscription
would show a false backlog. So the source puts its identity at the broker into its newest offset,
which goes into the query's progress and not into the checkpoint; the listener moves the
subscription, and sends the query's progress to the broker.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from pulsark.datasource.admin.client import SparkAdmin, admin_by_environment
from pulsark.datasource.options.errors import DataSourceError
from pulsark.datasource.options.offsets import StreamOffset
from pulsark.datasource.read.following import FOLLOWS, read_through

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.wire.message_id import MessageId

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""A broker that does not answer: the source acknowledges later itself."""


class QueryListener(StreamingQueryListener):
    """Moves the subscriptions of this session's queries behind each finished batch, and reports."""

    def __init__(
        self, new_client: Callable[[str, float], SparkAdmin] = admin_by_environment
    ) -> None:
        self._new_client = new_client
        self._clients: dict[str, SparkAdmin] = {}
        self._done: dict[str, dict[str, MessageId]] = {}
        """By query as the broker knows it: up to where its subscription is moved."""
        self._queries: dict[str, dict[str, str]] = {}
        """By run of a query in Spark: its queries as brokers know them, with their addresses."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is finished, its commit written."""
        progress = event.progress
        for source in progress.sources:
            followed = _followed(source.latestOffset)
            if followed is None:
                continue
            try:
                self._queries.setdefault(str(progress.runId), {})[followed.query] = followed.url
                admin = self._client(followed.url)
                if source.endOffset:
                    end = StreamOffset.from_json(json.loads(source.endOffset))
                    self._finished(admin, followed, end)
                admin.queries.report(followed.query, _said(progress))
            except (DataSourceError, ValueError) as error:
                log.warning("cannot tell the broker about query %s: %s", progress.id, error)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last batch was acknowledged with its progress; others may have the subscription."""
        for query, url in self._queries.pop(str(event.runId), {}).items():
            self._done.pop(query, None)
            try:
                self._client(url).queries.release(query)
            except DataSourceError as error:
                log.warning("%s", error)  # it runs out by itself

    def _client(self, url: str) -> SparkAdmin:
        admin = self._clients.get(url)
        if admin is None:
            admin = self._clients[url] = self._new_client(url, PATIENCE_SECONDS)
        return admin

    def _finished(self, admin: SparkAdmin, followed: _Followed, end: StreamOffset) -> None:
        done = self._done.setdefault(followed.query, {})
        moved = {
            name: place
            for name, offset in end.partitions.items()
            if done.get(name) != (place := read_through(offset.read))
        }
        if followed.subscription is None:
            known = admin.queries.renew(followed.query, moved)
        else:
            whole = {name: place for name, place in moved.items() if place.entry_id >= 0}
            # What the broker has not got, the source acknowledges later itself.
            known = not whole or admin.queries.acknowledge(followed.query, whole) is not None
        if known:
            done |= moved


class _Followed(NamedTuple):
    url: str
    query: str
    subscription: str | None


def _followed(latest_offset: str | None) -> _Followed | None:
    """How a broker knows the query, if the source is ours."""
    try:
        found = json.loads(latest_offset or "")[FOLLOWS]
        return _Followed(str(found["adminUrl"]), str(found["query"]), found["subscription"])
    except (ValueError, TypeError, KeyError):
        return None


def _said(progress: StreamingQueryProgress) -> dict[str, Any]:
    return {
        "name": progress.name,
        "id": str(progress.id),
        "runId": str(progress.runId),
        "batchId": progress.batchId,
        "inputRowsPerSecond": _known(progress.inputRowsPerSecond),
        "processedRowsPerSecond": _known(progress.processedRowsPerSecond),
    }


def _known(rate: float | None) -> float | None:
    """JSON has no word for what is not a number."""
    return rate if rate is not None and math.isfinite(rate) else None
