"""Messages whose values do not fit a table's columns: counted, and warned of once for each field.

Their payloads are in ``value_raw``. The counts begin with the process, and are kept for the topics
that were sealed last.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

LOST_TOPICS_MAX: Final = 2000
"""Topics with counts. Beyond, the one that lost values the longest ago is forgotten."""

LOST_FIELDS_MAX: Final = 200
"""Fields with a count of their own for each topic."""

_OTHERS: Final = "..."


class LostValues:
    """Counts by topic or partition, and by the path of the field; an empty path is the whole."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add(self, name: TopicName, partition: int, lost: Mapping[str, int]) -> None:
        """Count messages that were sealed."""
        if not lost:
            return
        topic = str(name) if partition < 0 else f"{name}-partition-{partition}"
        counts = self._counts.pop(topic, Counter())
        self._counts[topic] = counts
        for path, count in lost.items():
            if path not in counts and len(counts) >= LOST_FIELDS_MAX:
                path = _OTHERS
            if path not in counts:
                log.warning(
                    "%s: values do not fit the table's columns (%s); they are null there, and "
                    "value_raw has their payloads. The topic's statistics count them",
                    topic, f"field {path!r}" if path else "the value as a whole",
                )  # fmt: skip
            counts[path] += count
        while len(self._counts) > LOST_TOPICS_MAX:
            del self._counts[next(iter(self._counts))]

    def of(self, topic: TopicName) -> Mapping[str, int]:
        """Return the counts of a topic or partition."""
        return self._counts.get(str(topic), {})
