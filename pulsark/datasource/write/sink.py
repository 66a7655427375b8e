"""``df.write`` and ``df.writeStream``: rows become messages.

Exactly once: each task writes its rows as files of ledgers next to the topic's table, on every
storage root; the driver's commit publishes those of all tasks at once, under the id of the query
and the number of the batch, so that a repeated batch is published once. A failed job publishes
nothing.

Several topics are published one after the other, each as a whole.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.errors import DataSourceError, OptionError
from pulsark.datasource.plan.topics import topic_names
from pulsark.datasource.plan.workers import settle
from pulsark.datasource.write.outgoing import columns_beside_fields, columns_of
from pulsark.datasource.write.sending import RowSender
from pulsark.datasource.write.topic_writers import Batch, StagedTopic, TopicWriters
from pulsark.datasource.write.typed_values import TopicSchema, TypedValues, ValueForm, register
from pulsark.datasource.write.write_options import RAW, WriteOptions
from pulsark.schemas.column_types import fields_of
from pulsark.schemas.definition import SchemaType
from pulsark.storage.roots.root_files import in_object_store
from pulsark.storage.roots.task_files import task_files
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

FILES_WITH_STATISTICS_MAX = 500
"""With more files the broker would drop statistics, and requests would be large."""


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
    """The id of a batch write; a streaming query brings its own."""
    form: ValueForm | None = None
    """What values are made of; ``None``: the column ``value`` has payloads."""
    schema: TopicSchema | None = None
    """The schema of the option ``topic``'s topic. If rows name topics, tasks find the schemas."""

    def admin(self, *, known: bool = True) -> SparkAdmin:
        """To the broker; ``known`` once it has answered this write, in whatever process."""
        return admin_of(self.options, known=known)

    def prepared(self) -> Sink:
        """Once, before any task: make sure that the topic exists and accepts the rows."""
        if self.options.topic is None:
            return self
        (name,) = topic_names([self.options.topic])
        with self.admin(known=False) as admin:
            if self.options.create_topic:
                admin.topics.create(name, self.options.num_partitions)
            if self.options.exactly_once:
                admin.bulk_publish.staging(name, with_schema=self.form is not None)
            else:
                admin.topics.partitions(name)
            if self.form is None:
                return self
            return replace(self, schema=register(admin, name, self.form))

    def topic_values(self, admin: SparkAdmin, topic: TopicName) -> TypedValues | None:
        """What makes values for a topic, in a task; ``None``: the rows have payloads."""
        if self.form is None:
            return None
        return TypedValues(self.form, self.schema or register(admin, topic, self.form))

    def write(
        self, batches: Iterator[pa.RecordBatch], ident: str, number: int, *, again: bool
    ) -> TaskResult:
        """A task. ``again``: this batch may have been published before."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        if not self.options.exactly_once:
            sender = RowSender(self.options, self.columns, self.topic_values)
            sender.send(batches)
            settle()
            return TaskResult(task, ident, ())
        writers = TopicWriters(
            self.options, self.columns, self.topic_values, Batch(ident, number, task, again)
        )
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
        with self.admin() as admin:
            bodies = {topic: _together(topic, topics[topic]) for topic in sorted(topics)}
            for place, (topic, body) in enumerate(bodies.items()):
                try:
                    name, ident = TopicName.parse(topic), results[0].ident
                    admin.bulk_publish.publish(name, ident, number, body)
                except DataSourceError as error:
                    raise _partly(error, list(bodies), place) from None

    def abort(self, messages: list[Any]) -> None:
        """On the driver: delete the tasks' files that it can reach."""
        files = task_files()
        for result in _results(messages):
            for staged in result.staged:
                for directory in staged.directories:
                    for ledger in staged.ledgers:
                        for file in ledger["files"]:
                            if in_object_store(directory) or os.path.isdir(directory):
                                files.remove(f"{directory}/{file['path']}")


def _partly(error: DataSourceError, topics: list[str], place: int) -> DataSourceError:
    """What went wrong with one of several topics, which are published in their order."""
    if len(topics) == 1:
        return error
    done = ", ".join(topics[:place]) or "none"
    return DataSourceError(
        f"{str(error).removeprefix('pulsark: ')}; published before: {done}; not published: "
        f"{', '.join(topics[place:])}. A stream that is started again, or a write with the same "
        "txnAppId and txnVersion, publishes what is left, each topic once"
    )


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
    columns, form = _columns_of(options, schema)
    if options.topic is None and "topic" not in columns:
        raise OptionError("set option 'topic', or name the topic of each row in a column 'topic'")
    if options.topic is not None:
        columns.pop("topic", None)
        topic_names([options.topic])
    ident = options.txn[0] if options.txn is not None else f"batch-{uuid.uuid4().hex}"
    return Sink(options, columns, ident, form).prepared()


def _columns_of(
    options: WriteOptions, schema: StructType
) -> tuple[dict[str, str], ValueForm | None]:
    """By meaning: the name of a column; and what values are made of."""
    kinds = {field["name"]: field for field in schema.jsonValue()["fields"]}
    value = next((name for name in kinds if name.lower() == "value"), None)
    struct = value is not None and fields_of(kinds[value]["type"])
    if options.value_format == RAW:
        if struct:
            raise OptionError(
                f"column '{value}' is a struct: set option 'valueFormat' to avro or json"
            )
        return columns_of(schema.fieldNames()), None
    schema_type = SchemaType[options.value_format.upper()]
    if struct:
        assert value is not None
        form = ValueForm(schema_type, kinds[value]["type"], value)
        return columns_of(schema.fieldNames()), form
    columns, fields, unread = columns_beside_fields(schema.fieldNames())
    kind = {"type": "struct", "fields": [kinds[name] for name in fields]}
    return columns, ValueForm(schema_type, kind, None, unread)


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
