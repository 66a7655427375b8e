"""Places in a topic as users write them and as checkpoints keep them.

A checkpoint keeps, per topic partition, the last message that was read (``MessageId``; exclusive
start, inclusive end), so a range is ``(start, end]``. Users name messages: ``startingOffsets``
the first one to read, ``endingOffsets`` the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from pulsark.datasource.options.errors import DataSourceError, OptionError
from pulsark.wire.message_id import MessageId

VERSION = 1


class Edge(Enum):
    """An end of a topic."""

    EARLIEST = "earliest"
    LATEST = "latest"


NOTHING = MessageId(-1, -1)
"""Nothing was read yet, and the topic had no ledger either."""


class Moment(NamedTuple):
    """The first message that was published at a time or later."""

    ms: int


Point = Edge | MessageId | Moment
StartingPoint = Edge | Moment | Mapping[str, Mapping[int, Point]]
"""One for all, or per topic (as written by the user) and partition (-1: no partitions)."""


def parse_point(option: str, text: str) -> StartingPoint:
    """Read ``startingOffsets`` or ``endingOffsets``; ``OptionError``."""
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return Edge(word.lower())
    try:
        topics = json.loads(word)
    except ValueError:
        topics = None
    if not isinstance(topics, dict) or not topics:
        raise OptionError(
            f"option '{option}': '{text}' is neither earliest, latest nor JSON like "
            '{"topic": {"0": "ledger:entry"}}'
        )
    return {
        topic: _partitions(option, topic, value, _edge_or_place) for topic, value in topics.items()
    }


def parse_moments(option: str, text: str) -> StartingPoint:
    """Read ``startingOffsetsByTimestamp``: times in milliseconds in place of ids."""
    try:
        topics = json.loads(text)
    except ValueError:
        topics = None
    if not isinstance(topics, dict) or not topics:
        raise OptionError(
            f"option '{option}': '{text}' is not JSON like "
            '{"topic": {"0": 1700000000000}}, in milliseconds'
        )
    return {topic: _partitions(option, topic, value, _moment) for topic, value in topics.items()}


def _partitions(
    option: str, topic: str, value: Any, point: Callable[[Any], Point]
) -> dict[int, Point]:
    if not isinstance(value, dict):
        value = {"-1": value}
    found: dict[int, Point] = {}
    for partition, given in value.items():
        where = f"option '{option}': topic '{topic}', partition '{partition}'"
        if not re.fullmatch(r"-1|\d{1,6}", partition):
            raise OptionError(f"{where}: a partition is a number, or -1 for a topic without any")
        try:
            found[int(partition)] = point(given)
        except ValueError as error:
            raise OptionError(f"{where}: {error}") from None
    if not found:
        raise OptionError(f"option '{option}': topic '{topic}' needs an object of partitions")
    return found


def _edge_or_place(given: Any) -> Point:
    if given in (-2, -1) and not isinstance(given, bool):
        return Edge.EARLIEST if given == -2 else Edge.LATEST  # as Kafka's source says it
    if not isinstance(given, str):
        raise ValueError('write the message id as text, "ledger:entry", or -2 or -1')
    if given.lower() in ("earliest", "latest"):
        return Edge(given.lower())
    return MessageId.parse(given)._replace(partition=-1)  # the key says which partition


def _moment(given: Any) -> Point:
    text = str(given)
    if isinstance(given, bool) or not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(f"'{text}' is not a time in milliseconds since 1970")
    return Moment(int(text))


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """How far one topic partition was read.

    ``topic_id`` tells a topic that was created again from the one that was read. ``since`` is
    the exclusive start of a partition that appeared while the query ran: the start offset of
    that batch does not know it yet.
    """

    topic_id: str
    read: MessageId
    since: MessageId | None = None


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Offsets of all topic partitions of a query, by partition name, sorted by it."""

    partitions: Mapping[str, PartitionOffset]

    def to_json(self) -> dict[str, Any]:
        """The dictionary that goes into Spark's checkpoint; equal offsets give equal text."""
        return {
            "version": VERSION,
            "partitions": {
                name: {"topicId": offset.topic_id, "read": str(offset.read)}
                | ({"since": str(offset.since)} if offset.since is not None else {})
                for name, offset in sorted(self.partitions.items())
            },
        }

    def start_of(self, name: str, end: PartitionOffset) -> MessageId:
        """The message before the first one of a batch that begins here and ends at ``end``."""
        begin = self.partitions.get(name)
        if begin is not None and begin.topic_id == end.topic_id:
            return begin.read
        if end.since is None:
            raise DataSourceError(f"the checkpoint does not say where {name} starts")
        return end.since

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamOffset:
        """Read what ``to_json`` wrote; ``DataSourceError`` for anything else."""
        if data.get("version") != VERSION:
            raise DataSourceError(
                f"the checkpoint's offsets have version {data.get('version')!r}, this Pulsark "
                f"reads version {VERSION}; use a matching Pulsark or a new checkpoint"
            )
        try:
            return cls(
                {
                    name: PartitionOffset(
                        offset["topicId"],
                        MessageId.parse(offset["read"]),
                        MessageId.parse(offset["since"]) if "since" in offset else None,
                    )
                    for name, offset in data["partitions"].items()
                }
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataSourceError(f"the checkpoint's offsets are damaged: {error}") from error
