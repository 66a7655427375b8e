"""What subscriptions had acknowledged at a past time, or why that is not known."""

from __future__ import annotations

from datetime import UTC, datetime

from pulsark.admin.http.errors import fail
from pulsark.dispatch.topic.topic import Topic
from pulsark.storage.cursor.history import NoHistoryError, PastCursor


async def past_cursors(topic: Topic, at_ms: int) -> dict[str, PastCursor]:
    """The durable subscriptions of a topic at a time (ms since the epoch); 412."""
    try:
        return await topic.cursors.at(at_ms)
    except NoHistoryError as error:
        since = topic.cursors.known_since
        if since is None:
            known = "there is none yet, or the settings cursorHistoryMinutes, cursorHistoryMaxMB"
            raise fail(412, f"{error}: {known} keep none") from None
        first = datetime.fromtimestamp(since / 1000, UTC).isoformat(timespec="milliseconds")
        raise fail(412, f"{error}: it is known since {first}") from None
