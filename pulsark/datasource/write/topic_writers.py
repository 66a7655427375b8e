"""The files that a task writes: one ledger per topic and partition of its rows."""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.admin.client import admin_of
from pulsark.datasource.options.errors import DataSourceError
from pulsark.datasource.plan.topics import topic_names
from pulsark.datasource.write.outgoing import by_topic, messages_of, partitions_of
from pulsark.datasource.write.routing import Router, named_places
from pulsark.rows.outgoing import Batching, entry_sizes, message_sizes
from pulsark.runtime import SystemClock
from pulsark.storage.roots.root_files import in_object_store
from pulsark.storage.roots.task_files import HOW_TO_REACH, task_files
from pulsark.storage.table.staging.bulk_writer import BulkWriter, StagingArea, values_said

if TYPE_CHECKING:
    from pulsark.datasource.write.typed_values import TypedValues, ValuesOf
    from pulsark.datasource.write.write_options import WriteOptions

ENCODED_GROWTH_MAX = 8
"""How many times larger structs may become when they are encoded: texts in JSON, for instance."""

COLLECTED_BYTES_MAX = 128 << 20
"""The limit of messages in a task's memory, for all topics and partitions."""


@dataclass(frozen=True)
class StagedTopic:
    """What a task wrote for one topic."""

    topic: str
    topic_id: str
    partitions: int
    value: Any
    """The type that the files have in their column ``value``."""
    directories: tuple[str, ...]
    directories_needed: int
    files_max: int
    """Files that one publish may have."""
    ledgers: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Batch:
    """What a task is part of. ``again``: it may have been published before."""

    ident: str
    number: int
    task: int
    again: bool


class TopicWriters:
    """The files of one task, for all its topics. ``columns``: by meaning, the name of a column."""

    def __init__(
        self, options: WriteOptions, columns: dict[str, str], values_of: ValuesOf, batch: Batch
    ) -> None:
        self._options = options
        self._columns = columns
        self._values_of = values_of
        self._batch = batch
        self._admin = admin_of(options, known=True)
        self._topics: dict[str, _TopicWriter | None] = {}
        """By the name in the rows; ``None``: this batch is already published there."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows, at least one; ``DataSourceError``."""
        for topic, mine in by_topic(rows, self._columns, self._options.topic):
            self._add(topic, mine)

    def _add(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic not in self._topics:
            self._topics[topic] = self._open(topic)
        writer = self._topics[topic]
        if writer is not None:
            writer.add(rows)
        open_writers = [w for w in self._topics.values() if w is not None]
        while sum(w.collected_bytes for w in open_writers) > COLLECTED_BYTES_MAX:
            max(open_writers, key=lambda w: w.collected_bytes).flush()

    def _open(self, topic: str) -> _TopicWriter | None:
        (name,) = topic_names([topic])
        options, batch = self._options, self._batch
        if options.create_topic and options.topic is None:
            self._admin.topics.create(name, options.num_partitions)
        if options.topic is None:
            # No schema for a topic that does not exist.
            self._admin.bulk_publish.staging(name, with_schema=True)
        values = self._values_of(self._admin, name)
        staging = self._admin.bulk_publish.staging(name, with_schema=values is not None)
        if batch.again and self._admin.bulk_publish.is_published(name, batch.ident, batch.number):
            return None
        return _TopicWriter(str(name), staging, options, self._columns, values, batch)

    def finish(self) -> tuple[StagedTopic, ...]:
        """Write all, durably; what is to be published."""
        found: dict[str, StagedTopic] = {}
        for writer in self._topics.values():
            if writer is not None:
                staged = writer.finish()
                before = found.get(staged.topic)
                if before is not None:  # one topic under two spellings of its name
                    staged = replace(staged, ledgers=before.ledgers + staged.ledgers)
                found[staged.topic] = staged
        return tuple(staged for staged in found.values() if staged.ledgers)

    def abandon(self) -> None:
        """Delete what was written."""
        for writer in self._topics.values():
            if writer is not None:
                writer.abandon()

    def close(self) -> None:
        """Drop the connection to the broker."""
        self._admin.close()


class _TopicWriter:
    """The files of one task for one topic: a ledger for each partition that gets something."""

    def __init__(
        self,
        topic: str,
        staging: dict[str, Any],
        options: WriteOptions,
        columns: dict[str, str],
        values: TypedValues | None,
        batch: Batch,
    ) -> None:
        self._topic = topic
        self._staging = staging
        self._columns = columns
        self._values = values
        self._count = int(staging["partitions"])
        # A broker of an earlier release does not tell.
        self._entry_bytes_max: int = staging.get("entryBytesMax", sys.maxsize)
        # Half of it leaves room for the metadata of a batch, which repeat the first key.
        room = self._entry_bytes_max // (2 if values is None else ENCODED_GROWTH_MAX)
        self._batching = Batching(
            f"pulsark.bulk.{batch.ident}-{batch.number}-{batch.task}",
            options.batching_max_messages,
            min(options.batching_max_bytes, room),
            values.version if values is not None else None,
            names_in_values=values is not None and values.names_its_fields,
        )
        self._router = Router(
            self._count, options.hashing_scheme, batch.task, options.batching_max_messages
        )
        self._nonce = uuid.uuid4().hex
        self._column = values_said(staging["values"])
        self._writers: dict[int, BulkWriter] = {}
        self._directories = tuple(staging["directories"])
        _check_reachable(topic, self._directories, int(staging["directoriesNeeded"]))

    @property
    def collected_bytes(self) -> int:
        return sum(writer.collected_bytes for writer in self._writers.values())

    def flush(self) -> None:
        max(self._writers.values(), key=lambda writer: writer.collected_bytes).flush()

    def add(self, rows: pa.RecordBatch) -> None:
        values = self._values.of(rows) if self._values is not None else None
        messages = messages_of(rows, self._columns, values)
        self._check_sizes(messages)
        named = named_places(partitions_of(rows, self._columns), self._count, self._topic)
        if self._count <= 1:
            self._to(-1 if self._count == 0 else 0, messages)
            return
        places = pa.array(self._router.route(messages.column("key"), named))
        for partition in places.unique().to_pylist():
            self._to(partition, messages.filter(pc.equal(places, partition)))

    def _check_sizes(self, messages: pa.RecordBatch) -> None:
        """Raise ``DataSourceError`` for a message that no client could receive."""
        most = self._entry_bytes_max
        sizes = entry_sizes(messages, names_in_values=self._batching.names_in_values)
        if self._values is not None:
            large = np.flatnonzero(sizes > most // ENCODED_GROWTH_MAX)
            if not len(large):
                return
            some = messages.take(pa.array(large))
            place = some.schema.get_field_index("value")
            payloads = self._values.payloads(some.column("value"))
            sizes[large] = entry_sizes(some.set_column(place, "value", payloads))
        row = int(sizes.argmax())
        if sizes[row] > most:
            raise DataSourceError(
                f"a row (the {row + 1}. of its batch) makes a message of {sizes[row]} bytes, and "
                f"{self._topic} takes {most} at most, with key and properties: make the value "
                "smaller, or raise maxMessageSize of the broker or of the topic"
            )

    def _to(self, partition: int, messages: pa.RecordBatch) -> None:
        writer = self._writers.get(partition)
        if writer is None:
            place = StagingArea(
                self._directories,
                int(self._staging["directoriesNeeded"]),
                int(self._staging["timeMs"]),
                f"{self._nonce}p{partition + 1}",
            )
            writer = self._writers[partition] = BulkWriter(
                place,
                partition,
                self._batching,
                task_files(),
                SystemClock().now_ms,
                values=self._column,
            )
        value = messages.column("value")
        if self._values is not None and not writer.takes_structs(value.type):
            # The table has no column for them, so they are payloads from the start.
            place_of_value = messages.schema.get_field_index("value")
            messages = messages.set_column(place_of_value, "value", self._values.payloads(value))
        sizes = message_sizes(messages, names_in_values=self._batching.names_in_values)
        writer.add(messages, int(sizes.sum()))

    def finish(self) -> StagedTopic:
        ledgers = [writer.finish() for _, writer in sorted(self._writers.items())]
        return StagedTopic(
            self._topic,
            str(self._staging["topicId"]),
            self._count,
            self._staging["values"]["type"],
            self._directories,
            int(self._staging["directoriesNeeded"]),
            int(self._staging["filesMax"]),
            tuple(ledger.to_json() for ledger in ledgers if ledger is not None),
        )

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def _check_reachable(topic: str, directories: tuple[str, ...], needed: int) -> None:
    problems: list[str] = []
    there = [directory for directory in directories if _is_reachable(directory, problems)]
    if problems and len(there) < needed:
        raise DataSourceError(
            f"the storage root of {topic} cannot be reached from this executor: {problems[0]}; "
            f"{HOW_TO_REACH}. Or set option delivery to at-least-once, which goes through the "
            "broker"
        )
    if len(there) < needed:
        missing = sorted(set(directories) - set(there))
        raise DataSourceError(
            f"the storage root of {topic} cannot be reached from this executor: there is no "
            f"directory {missing[0]}. Mount the broker's storage roots here under the same path, "
            "or set option delivery to at-least-once, which goes through the broker"
        )


def _is_reachable(directory: str, problems: list[str]) -> bool:
    if not in_object_store(directory):
        return os.path.isdir(directory)
    try:
        task_files().list(directory)
    except OSError as error:
        problems.append(str(error))
        return False
    return True
