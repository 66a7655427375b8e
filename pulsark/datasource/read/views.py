"""Topics, cursors and their clients as tables: ``spark.read`` with the option ``view``.

A row is the state when the task asks the broker; each row is of one moment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.columns import Column, unknown_column
from pulsark.datasource.options.errors import OptionError, TopicNotFoundError, with_short_tracebacks
from pulsark.datasource.plan.topics import topic_names, topics_matching
from pulsark.wire.ack_set import bit_indexes
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from pulsark.datasource.options.options import Options

TOPICS_PER_TASK = 50
"""Fewer topics are not worth a task of their own."""

_TOPIC = Column("topic", "string", "full name of the topic, without the partition")
_PARTITION = Column("partition", "int", "partition of the topic, -1 if it has none")
_SUBSCRIPTION = Column("subscription", "string", "name of the subscription")
_CLIENT = (
    Column("address", "string", "address of the client"),
    Column("client_version", "string", "what the client calls itself"),
    Column("metadata", "map<string,string>", "what the client says of itself"),
    Column("messages_per_second", "double", "rate over the last minute"),
    Column("bytes_per_second", "double", "rate over the last minute"),
    Column("connected_at", "timestamp", "since when"),
)

_RUN = ("ledger_id", "first_entry_id", "last_entry_id")

VIEWS: Mapping[str, tuple[Column, ...]] = {
    "topics": (
        _TOPIC,
        _PARTITION,
        Column("tenant", "string", "tenant of the topic"),
        Column("namespace", "string", "namespace, without the tenant"),
        Column("first_message_id", "string", "ledger:entry of the first entry; null without one"),
        Column("last_message_id", "string", "ledger:entry of the last entry; null without one"),
        Column("entries", "bigint", "entries that are there"),
        Column("bytes", "bigint", "bytes of the entries"),
        Column("ledgers", "int", "ledgers that are there"),
        Column("subscriptions", "int", "subscriptions, durable or not"),
        Column("producers", "int", "producers connected"),
        Column("schema_type", "string", "type of the newest schema; null without one"),
        Column("retention_minutes", "bigint", "how long acknowledged messages stay, -1 for ever"),
        Column("retention_mb", "bigint", "how many of them stay, -1 for all"),
        Column("terminated", "boolean", "whether nothing can be published any more"),
        Column("properties", "map<string,string>", "properties of the topic"),
        Column("created_at", "timestamp", "when the topic was made"),
        Column("last_publish_time", "timestamp", "publish time of the last entry"),
    ),
    "cursors": (
        _TOPIC,
        _PARTITION,
        _SUBSCRIPTION,
        Column("type", "string", "type of its last consumers; null if there never was one"),
        Column("durable", "boolean", "whether it outlives its consumers"),
        Column("mark_delete_message_id", "string", "ledger:entry up to which all is acknowledged"),
        Column("read_message_id", "string", "ledger:entry of what is delivered next"),
        Column(
            "unacked",
            "array<struct<ledger_id:bigint,first_entry_id:bigint,last_entry_id:bigint,"
            "batch_indexes:array<int>>>",
            "all that is not acknowledged; of a batch that is in part, the indexes that are left",
        ),
        Column("backlog", "bigint", "entries that are not acknowledged"),
        Column("unacked_messages", "bigint", "messages delivered to consumers connected now"),
        Column("consumers", "int", "consumers connected"),
        Column("last_ack_time", "timestamp", "last acknowledgement since the topic was loaded"),
        Column("properties", "map<string,string>", "properties of the subscription"),
    ),
    "cursor_history": (
        _TOPIC,
        _PARTITION,
        _SUBSCRIPTION,
        Column("time", "timestamp", "when the change was written"),
        Column(
            "change",
            "string",
            "known (so it was at first), created, acknowledged, seek, properties, deleted",
        ),
        Column("mark_delete_message_id", "string", "ledger:entry up to which all is acknowledged"),
        Column("acked_entries", "bigint", "entries above it that the change acknowledged"),
    ),
    "backlog": (
        _TOPIC,
        _PARTITION,
        _SUBSCRIPTION,
        Column("backlog_entries", "bigint", "entries that are not acknowledged"),
        Column("backlog_bytes", "bigint", "their bytes, about"),
        Column("oldest_unacked_time", "timestamp", "publish time of the oldest of them"),
        Column("lag_seconds", "double", "how long ago that was; 0 without backlog"),
    ),
    "schemas": (
        _TOPIC,
        Column("version", "bigint", "version, from 0"),
        Column("type", "string", "AVRO, JSON, STRING, ..."),
        Column("definition", "string", "the schema's definition"),
        Column("properties", "map<string,string>", "properties of the schema"),
        Column("created_at", "timestamp", "when it was registered"),
    ),
    "producers": (
        _TOPIC,
        _PARTITION,
        Column("producer_name", "string", "name of the producer"),
        Column("access_mode", "string", "Shared, Exclusive, ..."),
        *_CLIENT,
    ),
    "consumers": (
        _TOPIC,
        _PARTITION,
        _SUBSCRIPTION,
        Column("consumer_name", "string", "name of the consumer"),
        Column("unacked_messages", "bigint", "messages delivered and not acknowledged"),
        Column("available_permits", "bigint", "messages that it can take now"),
        Column("last_ack_time", "timestamp", "its last acknowledgement"),
        *_CLIENT,
    ),
    "ledgers": (
        _TOPIC,
        _PARTITION,
        Column("ledger_id", "bigint", "id of the ledger"),
        Column("entries", "bigint", "entries, up to the last confirmed one"),
        Column("bytes", "bigint", "bytes of the entries"),
        Column("open", "boolean", "whether it still grows"),
        Column("changed_at", "timestamp", "when it was closed, or made as long as it is open"),
    ),
}


def view_ddl(view: str, names: Sequence[str] | None) -> str:
    """The schema of a view's columns, all for ``None``; ``OptionError``."""
    columns = {column.name: column for column in VIEWS[view]}
    for name in names or ():
        if name not in columns:
            raise OptionError(f"option 'columns': {unknown_column(name, columns)}")
    chosen = columns if names is None else names
    return ", ".join(f"`{name}` {columns[name].type}" for name in chosen)


@dataclass
class TopicsPartition(InputPartition):
    """Topics that one task asks for. ``listed``: one that is gone meanwhile is no error."""

    topics: tuple[str, ...]
    listed: bool


@with_short_tracebacks
class ViewReader(DataSourceReader):
    """A batch read of a view. Plain data, because it is pickled into every task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        known = {column.name: column.type for column in VIEWS[options.view]}
        for name in schema.fieldNames():
            if name not in known:
                raise OptionError(f"schema: {unknown_column(name, known)}")
        self._options = options
        self._columns = [(name, known[name] == "timestamp") for name in schema.fieldNames()]

    def partitions(self) -> list[InputPartition]:
        """The topics, shared by some tasks."""
        options = self._options
        listed = not options.topics
        if listed:
            with admin_of(options) as admin:
                topics = topics_matching(admin, options.topics_pattern, options.namespace)
        else:
            topics = topic_names(options.topics)
        tasks = options.min_partitions or 2 * (os.cpu_count() or 1)
        size = max(-(-len(topics) // tasks), 1 if options.min_partitions else TOPICS_PER_TASK)
        return [
            TopicsPartition(tuple(map(str, topics[start : start + size])), listed)
            for start in range(0, len(topics), size)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of some topics."""
        if not isinstance(partition, TopicsPartition):
            return  # Spark's stand-in for "no partitions"
        with admin_of(self._options) as admin:
            for topic in partition.topics:
                for row in self._rows(admin, topic, listed=partition.listed):
                    yield tuple(_cell(row[name], time) for name, time in self._columns)

    def _rows(self, admin: SparkAdmin, topic: str, *, listed: bool) -> list[dict[str, Any]]:
        try:
            options = self._options
            return admin.topics.view(TopicName.parse(topic), options.view, options.as_of_ms)
        except TopicNotFoundError:
            if listed:
                return []
            raise


def _cell(value: Any, is_time: bool) -> Any:
    if is_time and value is not None:
        return datetime.fromtimestamp(value / 1000, UTC)
    if isinstance(value, list):  # of structs, which are tuples in rows
        return [(*(item[name] for name in _RUN), _left_of(item)) for item in value]
    return value


def _left_of(run: dict[str, Any]) -> list[int] | None:
    """The messages left of a batch in part; an older broker has no masks."""
    if "batch_mask" not in run:
        indexes: list[int] | None = run["batch_indexes"]
        return indexes
    mask = run["batch_mask"]
    return None if mask is None else bit_indexes(int(mask, 16))
