"""``spark.read``: one plan, many splits, complete or failed."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.errors import DataLossError, with_short_tracebacks
from pulsark.datasource.options.offsets import Edge
from pulsark.datasource.plan.plan import (
    Split,
    behind,
    check_available,
    comes_after,
    compacted_range,
    cut,
    cut_at_least,
    cut_rows,
    group,
    pieces,
    range_of,
    with_files,
)
from pulsark.datasource.plan.topics import (
    TopicFinder,
    ending_places,
    require_topics,
    starting_places,
)
from pulsark.datasource.plan.workers import settle
from pulsark.datasource.read.filters import Condition, RowFilter, condition, narrowed
from pulsark.datasource.read.time_travel import past_ranges
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from pulsark.datasource.admin.partitions import PartitionState
    from pulsark.datasource.options.options import Options
    from pulsark.datasource.read.layout import ColumnLayout

log = logging.getLogger(__name__)

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
"""An Arrow batch ends at the first of the two; larger ones made Spark slower."""

BATCH_FILES_BYTES = 64 << 10
STREAM_FILES_BYTES = 16 << 20
"""Smaller reads do not justify asking for the files; a stream asks seldom."""

SAMPLE_MESSAGES = 10_000
"""The number of messages counted to estimate the total."""


@dataclass
class SplitPartition(InputPartition):
    """What Spark hands from the driver to a task."""

    splits: tuple[Split, ...]


@dataclass(frozen=True)
class SplitReader:
    """Reads splits in tasks. Plain data, because it is pickled into every task."""

    options: Options
    layout: ColumnLayout
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    follows_schema: bool = False
    """Whether tasks look for columns that the query does not have: a batch has done so before."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of splits as record batches with exactly the query's columns."""
        if not isinstance(partition, SplitPartition):
            return  # Spark's stand-in for "no partitions"
        from pulsark.datasource.read.shape import Shape, schemas_of

        options = self.options
        shape = Shape(
            self.layout,
            self.columns,
            schemas_of(options),
            json_values=options.value_format == "json",
            fail_on_new_columns=self.follows_schema and options.fail_on_new_columns,
        )
        wanted = RowFilter(self.conditions)
        for split in partition.splits:
            for batch in self._rows(split, shape.stored, wanted):
                rows = wanted.apply(shape.apply(batch, split.topic))
                if rows.num_rows:
                    yield rows
        settle()

    def _rows(
        self, split: Split, columns: tuple[str, ...], wanted: RowFilter
    ) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored; of files only what may be wanted."""
        for piece, file in pieces(split):
            if file is None:
                yield from self._from_broker(piece, columns)
                continue
            from pulsark.datasource.read.file_rows import UnreadableError, file_rows

            try:
                yield from file_rows(piece, file, split.files.directories, columns, wanted)
            except UnreadableError as error:
                if split.only_files:
                    raise DataLossError(
                        f"{error}: a past version is read from the files of the table, which "
                        "tasks must reach under the broker's paths, and until they are vacuumed"
                    ) from error
                log.warning("%s; reading from the broker", error)
                yield from self._from_broker(behind(piece, error.entry_id), columns)

    def _from_broker(self, split: Split, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        from pulsark.datasource.read.entry_stream import read_entries
        from pulsark.rows import RowBuilder
        from pulsark.wire.compacted_entry import unpack

        builder = RowBuilder(split.topic, split.partition, columns)
        first = (split.spans[0].ledger_id, split.spans[0].first)
        last = (split.spans[-1].ledger_id, split.spans[-1].last)
        compacted = split.compacted
        for chunk in read_entries(
            split,
            patience_s=self.options.poll_timeout_s,
            fail_on_data_loss=self.options.fail_on_data_loss,
            find_partition=lambda: self._partition(split),
            credentials=self.options.credentials,
        ):
            for ledger_id, entry_id, entry in zip(*chunk, strict=True):
                if compacted is not None:
                    original, remains = unpack(entry)
                    within = compacted.limits(*original)
                    if within is not None:
                        builder.add(*original, remains, **within)
                else:
                    place = (ledger_id, entry_id)
                    limits = {}
                    if place == first and split.skip_through >= 0:
                        limits["skip_through"] = split.skip_through
                    if place == last and split.stop_after >= 0:
                        limits["stop_after"] = split.stop_after
                    builder.add(ledger_id, entry_id, entry, **limits)
                if builder.rows >= BATCH_ROWS or builder.size >= BATCH_BYTES:
                    yield builder.finish()
        if builder.rows:
            yield builder.finish()

    def _partition(self, split: Split) -> PartitionState | None:
        """Ask again after a failure: the topic may have moved, or lost messages."""
        with admin_of(self.options, known=True) as admin:
            states = admin.topics.partitions(TopicName.parse(split.topic))
        return next((state for state in states if state.name == split.name), None)


@with_short_tracebacks
class PulsarkReader(DataSourceReader):
    """A batch read. Constructed anew for every execution."""

    def __init__(self, options: Options, layout: ColumnLayout, columns: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(options, layout, columns)

    def partitions(self) -> list[InputPartition]:
        """The splits of everything between the starting and the ending offsets, as of now."""
        with admin_of(self._options) as admin:
            return self._planned(admin)

    def _planned(self, admin: SparkAdmin) -> list[InputPartition]:
        options = self._options
        ranges = past_ranges(options, admin) if options.is_past else self._present(admin)
        conditions = self._splits.conditions
        wanted = [part for item in ranges for part in narrowed(item, conditions)]
        return split_partitions(wanted, options, admin)

    def _present(self, admin: SparkAdmin) -> list[Split]:
        options = self._options
        states = TopicFinder(options, admin).states()
        require_topics(states, options)
        first_since = partial(admin.topics.first_since, compacted=options.read_compacted)
        starts = starting_places(
            states,
            options.starting or Edge.EARLIEST,
            first_since,
            latest_if_none=options.latest_if_none_since,
        )
        ends = ending_places(states, options.ending or Edge.LATEST, first_since)
        return [
            item
            for name, state in states.items()
            for item in available_ranges(state, starts[name], ends[name], options.fail_on_data_loss)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        return self._splits.read(partition)


class FilteringReader(PulsarkReader):
    """A batch read that applies filters of the query itself, for ``pushdown``.

    Spark 4.2 keeps what this planned for as long as the DataFrame lives, and reads the same for a
    later query of it that has no filter: so it must be asked for.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Remember what the read applies; gives the others back."""
        layout = self._splits.layout
        for each in filters:
            taken = condition(each, layout.simple_types, layout.stored)
            if taken is None:
                yield each
            else:
                conditions = (*self._splits.conditions, taken)
                self._splits = replace(self._splits, conditions=conditions)


def available_ranges(
    state: PartitionState, after: MessageId, through: MessageId, fail_on_data_loss: bool
) -> Iterator[Split]:
    """What compaction left of ``(after, through]``, and all that is behind its horizon."""
    if state.compacted is not None:
        remains = compacted_range(state, after, through)
        if remains is not None:
            yield remains
        horizon = state.compacted.horizon
        after = after if comes_after(after, horizon) else horizon
    rest = available_range(state, after, through, fail_on_data_loss)
    if rest is not None:
        yield rest


def available_range(
    state: PartitionState,
    after: MessageId,
    through: MessageId,
    fail_on_data_loss: bool,
    *,
    streaming: bool = False,
) -> Split | None:
    """The range ``(after, through]``, from the first message there is if loss is allowed."""
    try:
        check_available(state, after, through, streaming=streaming)
    except DataLossError as error:
        if fail_on_data_loss:
            raise
        log.warning("%s", error)
    return range_of(state, after, through)


def split_partitions(
    ranges: Sequence[Split],
    options: Options,
    admin: SparkAdmin,
    files_bytes: int = BATCH_FILES_BYTES,
) -> list[InputPartition]:
    """Ranges cut for Spark: ``minPartitions``, else about two tasks a core of the driver.

    Small ones are put together: a query with thousands of topics is not one of thousands of
    tasks. From ``files_bytes`` on, the files of the topics' tables are looked up.
    """
    most = options.max_records_per_partition
    wanted = options.min_partitions or 2 * (os.cpu_count() or 1)
    if options.min_partitions is not None:
        splits = cut_at_least(ranges, wanted)
    else:
        splits = cut(ranges, wanted)
    if most is not None:
        density = {_kind(item): _messages_per_entry(item, admin) for item in ranges}
        splits = cut_rows(splits, lambda item: density[_kind(item)] * item.entries, most)
    if options.read_table_files and sum(item.size for item in ranges) >= files_bytes:
        splits = _with_files(splits, admin)
    splits = [with_files(item, item.files) if item.only_files else item for item in splits]
    groups = group(splits, wanted) if most is None else [(item,) for item in splits]
    return [SplitPartition(items) for items in groups]


def _kind(item: Split) -> tuple[str, bool, bool]:
    """Entries of one kind have about as many messages."""
    return item.name, item.compacted is not None, item.only_files


def _with_files(splits: Sequence[Split], admin: SparkAdmin) -> list[Split]:
    topics: dict[str, list[Split]] = {}
    for item in splits:
        if item.compacted is None and not item.only_files:
            topics.setdefault(item.topic, []).append(item)
    found = {}
    for topic, mine in topics.items():
        # Ledgers are numbered together: one oldest number does for all partitions.
        oldest = min(item.spans[0].ledger_id for item in mine)
        partitions = max(item.partition for item in mine) + 1
        after = [oldest] * max(partitions, 1)
        found[topic] = admin.topics.table_files(TopicName.parse(topic), after)
    return [
        with_files(item, found[item.topic])
        if item.compacted is None and not item.only_files
        else item
        for item in splits
    ]


def _messages_per_entry(item: Split, admin: SparkAdmin) -> float:
    """About, from the first entries of a range."""
    if item.only_files:
        files = with_files(item, item.files).files.files.values()
        return sum(file.rows for some in files for file in some) / max(item.entries, 1)
    first, last = item.spans[0], item.spans[-1]
    after = MessageId(first.ledger_id, first.first - 1)
    through = MessageId(last.ledger_id, last.last)
    messages, counted = admin.topics.count_messages(
        item.name, after, through, SAMPLE_MESSAGES, compacted=item.compacted is not None
    )
    entries = sum(
        min(counted.entry_id, span.last) - span.first + 1
        if span.ledger_id == counted.ledger_id
        else span.entries
        for span in item.spans
        if span.ledger_id <= counted.ledger_id
    )
    return messages / max(entries, 1)
