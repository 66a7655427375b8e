"""What the driver hears of its streaming queries: a finished batch is acknowledged at once.

Spark tells a source that a batch is done only when it plans the next one, and ends the source's
process when the query is stopped. Between two triggers, and after the last batch, backlog would be
shown that nobody has. So the source says in its newest offset, which goes into the query's progress
and not into the checkpoint, which subscription follows it; and this moves the subscription.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.errors import DataSourceError
from pulsark.datasource.following import FOLLOWS, acknowledged_through
from pulsark.datasource.offsets import StreamOffset

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""A broker that does not answer: the source acknowledges later itself."""


class QueryListener(StreamingQueryListener):
    """Moves the subscriptions of this session's queries behind each finished batch."""

    def __init__(self, new_client: Callable[[str, float], AdminClient] = AdminClient) -> None:
        self._new_client = new_client
        self._clients: dict[str, AdminClient] = {}
        self._done: dict[tuple[str, str], Any] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is finished, its commit written."""
        for source in event.progress.sources:
            followed = _followed(source.latestOffset)
            if followed is not None and source.endOffset:
                self._acknowledge(*followed, source.endOffset)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last batch was acknowledged with its progress."""

    def _acknowledge(self, subscription: str, admin_url: str, end_offset: str) -> None:
        try:
            end = StreamOffset.from_json(json.loads(end_offset))
            admin = self._clients.get(admin_url)
            if admin is None:
                admin = self._clients[admin_url] = self._new_client(admin_url, PATIENCE_SECONDS)
            for name, offset in end.partitions.items():
                place = acknowledged_through(offset.read)
                key = name, subscription
                if place is not None and self._done.get(key) != place:
                    admin.acknowledge(name, subscription, place)
                    self._done[key] = place
        except (DataSourceError, ValueError) as error:
            log.warning("subscription %s is not moved yet: %s", subscription, error)


def _followed(latest_offset: str | None) -> tuple[str, str] | None:
    """Subscription and admin URL, if the source is ours and follows one."""
    try:
        found = json.loads(latest_offset or "")[FOLLOWS]
        return str(found["subscription"]), str(found["adminUrl"])
    except (ValueError, TypeError, KeyError):
        return None
