"""``df.write`` and ``df.writeStream``: rows become messages.

Exactly once: each task writes its rows as files of ledgers next to the topic's table, on every
storage root; the driver's commit publishes those of all tasks at once, under the id of the query
and the number of the batch, so that a batch that is done again is done once. Nothing of a job
that fails is ever visible.

A topic of several is published whole, too, but one after the other.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.errors import DataSourceError, OptionError
from pulsark.datasource.outgoing import columns_of, messages_of, topics_of
from pulsark.datasource.routing import Router
from pulsark.datasource.sending import Sender
from pulsark.datasource.topics import topic_names
from pulsark.datasource.workers import settle
from pulsark.datasource.write_options import WriteOptions
from pulsark.runtime import OsDisk, SystemClock
from pulsark.storage.rows.outgoing import Batching, message_sizes
from pulsark.storage.table.bulk_writer import BulkWriter, Place, values_said
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLLECTED_BYTES_MAX = 128 << 20
"""Of messages that a task has in memory, for all topics and partitions."""

FILES_WITH_STATISTICS_MAX = 500
"""Of more files the broker would drop them, and requests would be large."""


@dataclass(frozen=True)
class StagedTopic:
    """What a task wrote for one topic."""

    topic: str
    topic_id: str
    partitions: int
    value: Any
    """The type that the files have in their column ``value``."""
    directories: tuple[str, ...]
    ledgers: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task tells the driver."""

    task: int
    ident: str
    staged: tuple[StagedTopic, ...]


@dataclass(frozen=True)
class Sink:
    """One write, or one streaming query; goes to the tasks as it is."""

    options: WriteOptions
    columns: dict[str, str]
    """By meaning: the name of the column."""
    ident: str
    """Of a batch write; a streaming query brings its own."""

    def admin(self, *, known: bool = True) -> AdminClient:
        """To the broker; ``known`` once it has answered this write, in whatever process."""
        return AdminClient(self.options.admin_url, self.options.poll_timeout_s, known=known)

    def prepare(self) -> None:
        """What is done once, before any task: the topic is there, and can be written to."""
        if self.options.topic is None:
            return
        (name,) = topic_names([self.options.topic])
        admin = self.admin(known=False)
        try:
            if self.options.create_topic:
                admin.create_topic(name, self.options.num_partitions)
            if self.options.exactly_once:
                admin.staging(name)
        finally:
            admin.close()

    def write(
        self, batches: Iterator[pa.RecordBatch], ident: str, number: int, *, again: bool
    ) -> TaskResult:
        """A task. ``again``: this batch may have been published before."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        if not self.options.exactly_once:
            sender = Sender(self.options, self.columns)
            sender.send(batches)
            settle()
            return TaskResult(task, ident, ())
        writers = _TopicWriters(self, ident, number, task, again)
        try:
            for batch in batches:
                if batch.num_rows:
                    writers.add(batch)
            result = TaskResult(task, ident, writers.finish())
            settle()
            return result
        except BaseException:
            writers.abandon()
            raise
        finally:
            writers.close()

    def commit(self, messages: list[Any], number: int) -> None:
        """On the driver: publish what the tasks wrote."""
        results = sorted(_results(messages), key=lambda result: result.task)
        topics: dict[str, list[StagedTopic]] = defaultdict(list)
        for result in results:
            for staged in result.staged:
                topics[staged.topic].append(staged)
        if not topics:
            return
        admin = self.admin()
        try:
            for topic in sorted(topics):
                body = _together(topic, topics[topic])
                admin.publish(TopicName.parse(topic), results[0].ident, number, body)
        finally:
            admin.close()

    def abort(self, messages: list[Any]) -> None:
        """On the driver: delete what the tasks wrote, as far as it can be reached."""
        disk = OsDisk()
        for result in _results(messages):
            for staged in result.staged:
                for directory in staged.directories:
                    for ledger in staged.ledgers:
                        for file in ledger["files"]:
                            if os.path.isdir(directory):
                                disk.remove(f"{directory}/{file['path']}")


def _results(messages: list[Any]) -> list[TaskResult]:
    return [message for message in messages if isinstance(message, TaskResult)]


def _together(topic: str, staged: list[StagedTopic]) -> dict[str, Any]:
    """What all tasks wrote for a topic, as one publish."""
    first = staged[0]
    for other in staged:
        if (other.topic_id, other.partitions, other.value) != (
            first.topic_id, first.partitions, first.value,
        ):  # fmt: skip
            raise DataSourceError(f"{topic} was changed during the write; run it again")
    ledgers = [ledger for one in staged for ledger in one.ledgers]
    if sum(len(ledger["files"]) for ledger in ledgers) > FILES_WITH_STATISTICS_MAX:
        ledgers = [
            {**ledger, "files": [{**file, "stats": {}} for file in ledger["files"]]}
            for ledger in ledgers
        ]
    return {
        "topicId": first.topic_id,
        "partitions": first.partitions,
        "value": first.value,
        "ledgers": ledgers,
    }


def sink_for(raw: Mapping[str, str], schema: StructType, overwrite: bool) -> Sink:
    """Check options and columns; ``OptionError``, ``ColumnError``."""
    if overwrite:
        raise OptionError(
            "a topic can only be appended to: set .mode('append') for a batch, "
            ".outputMode('append') for a stream"
        )
    options = WriteOptions.parse(raw)
    columns = columns_of(schema.fieldNames())
    if options.topic is None and "topic" not in columns:
        raise OptionError("set option 'topic', or name the topic of each row in a column 'topic'")
    if options.topic is not None:
        columns.pop("topic", None)
        topic_names([options.topic])
    ident = options.txn[0] if options.txn is not None else f"batch-{uuid.uuid4().hex}"
    sink = Sink(options, columns, ident)
    sink.prepare()
    return sink


class _TopicWriters:
    """The files of one task, for all its topics."""

    def __init__(self, sink: Sink, ident: str, number: int, task: int, again: bool) -> None:
        self._sink = sink
        self._ident = ident
        self._number = number
        self._task = task
        self._again = again
        self._admin = sink.admin()
        self._topics: dict[str, _TopicWriter | None] = {}
        """By name as the rows have it; ``None``: what goes there is there already."""

    def add(self, rows: pa.RecordBatch) -> None:
        messages = messages_of(rows, self._sink.columns)
        if self._sink.options.topic is not None:
            self._add(self._sink.options.topic, messages)
            return
        codes = topics_of(rows, self._sink.columns).dictionary_encode()
        for number, topic in enumerate(codes.dictionary.to_pylist()):
            mask = pa.compute.equal(codes.indices, number)
            self._add(topic, messages.filter(mask))

    def _add(self, topic: str, messages: pa.RecordBatch) -> None:
        if topic not in self._topics:
            self._topics[topic] = self._open(topic)
        writer = self._topics[topic]
        if writer is not None:
            writer.add(messages)
        open_writers = [w for w in self._topics.values() if w is not None]
        while sum(w.collected_bytes for w in open_writers) > COLLECTED_BYTES_MAX:
            max(open_writers, key=lambda w: w.collected_bytes).flush()

    def _open(self, topic: str) -> _TopicWriter | None:
        (name,) = topic_names([topic])
        options = self._sink.options
        if options.create_topic and options.topic is None:
            self._admin.create_topic(name, options.num_partitions)
        staging = self._admin.staging(name)
        if self._again and self._admin.is_published(name, self._ident, self._number):
            return None
        producer = f"pulsark.bulk.{self._ident}-{self._number}-{self._task}"
        return _TopicWriter(str(name), staging, options, producer, self._task)

    def finish(self) -> tuple[StagedTopic, ...]:
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
        for writer in self._topics.values():
            if writer is not None:
                writer.abandon()

    def close(self) -> None:
        self._admin.close()


class _TopicWriter:
    """The files of one task for one topic: a ledger for each partition that gets something."""

    def __init__(
        self, topic: str, staging: dict[str, Any], options: WriteOptions, producer: str, task: int
    ) -> None:
        self._topic = topic
        self._staging = staging
        self._count = int(staging["partitions"])
        self._batching = Batching(
            producer, options.batching_max_messages, options.batching_max_bytes
        )
        self._router = Router(
            self._count, options.hashing_scheme, task, options.batching_max_messages
        )
        self._nonce = uuid.uuid4().hex
        self._values = values_said(staging["values"])
        self._writers: dict[int, BulkWriter] = {}
        self._directories = tuple(staging["directories"])
        _check_reachable(topic, self._directories, int(staging["directoriesNeeded"]))

    @property
    def collected_bytes(self) -> int:
        return sum(writer.collected_bytes for writer in self._writers.values())

    def flush(self) -> None:
        max(self._writers.values(), key=lambda writer: writer.collected_bytes).flush()

    def add(self, messages: pa.RecordBatch) -> None:
        if self._count <= 1:
            self._to(-1 if self._count == 0 else 0, messages)
            return
        places = pa.array(self._router.route(messages.column("key")))
        for partition in places.unique().to_pylist():
            self._to(partition, messages.filter(pa.compute.equal(places, partition)))

    def _to(self, partition: int, messages: pa.RecordBatch) -> None:
        writer = self._writers.get(partition)
        if writer is None:
            place = Place(
                self._directories,
                int(self._staging["directoriesNeeded"]),
                int(self._staging["timeMs"]),
                f"{self._nonce}p{partition + 1}",
            )
            writer = self._writers[partition] = BulkWriter(
                place,
                partition,
                self._batching,
                OsDisk(),
                SystemClock().now_ms,
                values=self._values,
            )
        writer.add(messages, int(message_sizes(messages).sum()))

    def finish(self) -> StagedTopic:
        ledgers = [writer.finish() for _, writer in sorted(self._writers.items())]
        return StagedTopic(
            self._topic,
            str(self._staging["topicId"]),
            self._count,
            self._staging["values"]["type"],
            self._directories,
            tuple(ledger.to_json() for ledger in ledgers if ledger is not None),
        )

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()


def _check_reachable(topic: str, directories: tuple[str, ...], needed: int) -> None:
    there = [directory for directory in directories if os.path.isdir(directory)]
    if len(there) < needed:
        missing = sorted(set(directories) - set(there))
        raise DataSourceError(
            f"the storage root of {topic} cannot be reached from this executor: there is no "
            f"directory {missing[0]}. Mount the broker's storage roots here under the same path, "
            "or set option delivery to at-least-once, which goes through the broker"
        )


class PulsarkWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def _number(self) -> int:
        txn = self._sink.options.txn
        return txn[1] if txn is not None else 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows."""
        again = self._sink.options.txn is not None
        return self._sink.write(iterator, self._sink.ident, self._number, again=again)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self._sink.commit(messages, self._number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task or the commit failed."""
        self._sink.abort(messages)


class PulsarkStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, sink: Sink) -> None:
        if sink.options.txn is not None:
            raise OptionError("option 'txnAppId' is for a batch: a stream has ids of its own")
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows of one batch."""
        context = TaskContext.get()
        assert context is not None
        ident = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        if ident is None or number is None:
            raise DataSourceError("Spark does not say which query and batch this is")
        return self._sink.write(iterator, ident, int(number), again=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done."""
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task or the commit failed; Spark runs the batch again, or stops."""
        self._sink.abort(messages)
