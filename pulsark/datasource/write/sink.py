"""``df.write`` and ``df.writeStream``: rows become messages.

Exactly once: each task writes its rows as files of ledgers next to the topic's table, on every
storage root; the driver's commit publishes those of all tasks at once, under the id of the query
and the number of the batch, so that a repeated batch is published once. A failed job publishes
nothing.

Several topics are published one after the other, each as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.errors import DataSourceError, OptionError, with_short_tracebacks
from pulsark.datasource.plan.topics import topic_names
from pulsark.datasource.plan.workers import settle
from pulsark.datasource.write.outgoing import columns_beside_fields, columns_of
from pulsark.datasource.write.routing import scheme_in_use
from pulsark.datasource.write.sending import RowSender
from pulsark.datasource.write.topic_writers import Batch, StagedTopic, TopicWriters
from pulsark.datasource.write.typed_values import TopicSchema, TypedValues, ValueForm, register
from pulsark.datasource.write.write_options import AUTO_HASHING, RAW, WriteOptions
from pulsark.errors import StorageError
from pulsark.schemas.column_types import fields_of
from pulsark.schemas.definition import SchemaType
from pulsark.storage.roots.root_files import in_object_store
from pulsark.storage.roots.task_files import task_files
from pulsark.storage.table.staging.staged_ledger import StagedLedger
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

FILES_WITH_STATISTICS_MAX = 500
"""With more files the broker would drop statistics, and requests would be large."""

STATISTICS_BYTES_MAX = 512 * 1024
"""Of files with their statistics; a body may have 1 MiB, and quotes in texts take two bytes."""

_MERGES_AT_ONCE = 4


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
            if self.options.hashing_scheme == AUTO_HASHING:
                found = scheme_in_use(admin.topics.partitions(name), self.options, admin)
                log.info("%s: keys have partitions by %s", name, found)
                self = replace(self, options=replace(self.options, hashing_scheme=found))
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
        publishes = [_Publish(topic, topics[topic]) for topic in sorted(topics)]
        ident = results[0].ident
        with self.admin() as admin:
            try:
                for publish in publishes:
                    publish.merge(lambda name: admin.bulk_publish.is_published(name, ident, number))
                for place, publish in enumerate(publishes):
                    if publish.is_done:
                        continue
                    try:
                        admin.bulk_publish.publish(publish.name, ident, number, publish.body())
                    except DataSourceError as error:
                        raise _partly(error, sorted(topics), place) from None
            except BaseException:
                for publish in publishes:
                    publish.remove_merged()
                raise
            for publish in publishes:
                publish.remove_sources()

    def abort(self, messages: list[Any]) -> None:
        """On the driver: delete the tasks' files that it can reach."""
        for result in _results(messages):
            for staged in result.staged:
                _remove(staged.directories, map(StagedLedger.from_json, staged.ledgers))


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


def _remove(directories: Iterable[str], ledgers: Iterable[StagedLedger]) -> None:
    """Delete staged files as far as this process can reach them; the broker deletes old ones."""
    reached = [each for each in directories if in_object_store(each) or os.path.isdir(each)]
    for ledger in ledgers:
        for file in ledger.files:
            for directory in reached:
                try:
                    task_files().remove(f"{directory}/{file.path}")
                except OSError as error:
                    log.warning("staged file %s stays for now: %s", file.path, error)


class _Publish:
    """What all tasks wrote for one topic, as one publish."""

    def __init__(self, topic: str, staged: list[StagedTopic]) -> None:
        first = staged[0]
        for other in staged:
            if (other.topic_id, other.partitions, other.value) != (
                first.topic_id, first.partitions, first.value,
            ):  # fmt: skip
                raise DataSourceError(f"{topic} was changed during the write; run it again")
        self.name = TopicName.parse(topic)
        self._first = first
        found = [StagedLedger.from_json(ledger) for one in staged for ledger in one.ledgers]
        # The order of the tasks stays within each partition.
        self._ledgers = sorted(found, key=lambda ledger: ledger.partition)
        self._sources: list[StagedLedger] = []
        self._merged: list[StagedLedger] = []
        self.is_done = False
        """Whether it was published before."""

    @property
    def _files(self) -> int:
        return sum(len(ledger.files) for ledger in self._ledgers)

    def merge(self, is_published: Callable[[TopicName], bool]) -> None:
        """Make few files of many, as far as that is cheap or the broker takes no more."""
        if self._files <= FILES_WITH_STATISTICS_MAX:
            return
        from pulsark.storage.table.staging.staged_merge import merge_ledgers, plan_merges

        first, most = self._first, self._first.files_max
        try:
            runs = plan_merges(self._ledgers, min(FILES_WITH_STATISTICS_MAX, most), most)
            merge = partial(
                merge_ledgers,
                directories=first.directories,
                needed=first.directories_needed,
                disk=task_files(),
            )
            with ThreadPoolExecutor(_MERGES_AT_ONCE, "merge") as threads:
                done = [
                    (run, threads.submit(merge, run)) if len(run) > 1 else (run, None)
                    for run in runs
                ]
            ledgers: list[StagedLedger] = []
            for run, made in done:
                ledgers += run if made is None else made.result()
        except (StorageError, OSError) as error:
            if is_published(self.name):
                self.is_done = True
                return
            if self._files > most:
                raise DataSourceError(
                    f"{self.name}: {self._files} files are too many for one publish, and the "
                    f"driver cannot merge them: {error}"
                ) from None
            log.warning("%s: publishing without merging files: %s", self.name, error)
            return
        kept = {id(ledger) for ledger in ledgers}
        before = {id(ledger) for ledger in self._ledgers}
        self._sources = [ledger for ledger in self._ledgers if id(ledger) not in kept]
        self._merged = [ledger for ledger in ledgers if id(ledger) not in before]
        self._ledgers = ledgers

    def body(self) -> dict[str, Any]:
        """What the broker is asked to publish."""
        ledgers = [ledger.to_json() for ledger in self._ledgers]
        # As texts, because the values of thousands are more than a body may have.
        texts = [[_text(file) for file in ledger["files"]] for ledger in ledgers]
        size = sum(len(text) for some in texts for text in some)
        if self._files > FILES_WITH_STATISTICS_MAX or size > STATISTICS_BYTES_MAX:
            texts = [
                [_text({**file, "stats": {}}) for file in ledger["files"]] for ledger in ledgers
            ]
        for ledger, files in zip(ledgers, texts, strict=True):
            ledger["files"] = files
        return {
            "topicId": self._first.topic_id,
            "partitions": self._first.partitions,
            "value": self._first.value,
            "ledgers": ledgers,
        }

    def remove_merged(self) -> None:
        """Forget what was merged: it is not published."""
        _remove(self._first.directories, self._merged)

    def remove_sources(self) -> None:
        """Forget what was merged into others, which are published."""
        _remove(self._first.directories, self._sources)


def _text(file: dict[str, Any]) -> str:
    return json.dumps(file, separators=(",", ":"))


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


@with_short_tracebacks
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


@with_short_tracebacks
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
