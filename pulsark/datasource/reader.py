"""``spark.read``: one plan, many splits, complete or failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.errors import DataLossError
from pulsark.datasource.offsets import Edge, Place
from pulsark.datasource.options import Options
from pulsark.datasource.plan import (
    PartitionState,
    Split,
    check_available,
    cut,
    cut_at_least,
    range_of,
)
from pulsark.datasource.topics import (
    TopicFinder,
    ending_places,
    require_topics,
    starting_places,
)
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
"""An Arrow batch ends at the first of the two; larger ones made Spark slower."""


@dataclass
class SplitPartition(InputPartition):
    """What Spark hands from the driver to a task."""

    split: Split


@dataclass(frozen=True)
class SplitReader:
    """Reads splits in tasks. Plain data, because it is pickled into every task."""

    options: Options
    columns: tuple[str, ...]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split as record batches with exactly the query's columns."""
        if not isinstance(partition, SplitPartition):
            return  # Spark's stand-in for "no partitions"
        from pulsark.datasource.entry_stream import read_entries
        from pulsark.storage.rows import RowBuilder

        split = partition.split
        builder = RowBuilder(split.topic, split.partition, self.columns)
        first = (split.segments[0].ledger_id, split.segments[0].first)
        last = (split.segments[-1].ledger_id, split.segments[-1].last)
        for chunk in read_entries(
            split,
            patience_s=self.options.poll_timeout_s,
            fail_on_data_loss=self.options.fail_on_data_loss,
            find_flight_url=lambda: self._flight_url(split),
        ):
            for ledger_id, entry_id, entry in zip(*chunk, strict=True):
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

    def _flight_url(self, split: Split) -> str:
        """Asked for again after a failure: the topic may have moved to another broker."""
        admin = AdminClient(self.options.admin_url, self.options.poll_timeout_s)
        try:
            for state in admin.partitions(TopicName.parse(split.topic)):
                if state.name == split.name:
                    return state.flight_url
        finally:
            admin.close()
        return split.flight_url


class PulsarkReader(DataSourceReader):
    """A batch read. Constructed anew for every execution."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(options, columns)

    def partitions(self) -> list[InputPartition]:
        """The splits of everything between the starting and the ending offsets, as of now."""
        admin = AdminClient(self._options.admin_url, self._options.poll_timeout_s)
        try:
            states = TopicFinder(self._options, admin).states()
        finally:
            admin.close()
        require_topics(states, self._options)
        starts = starting_places(states, self._options.starting or Edge.EARLIEST)
        ends = ending_places(states, self._options.ending or Edge.LATEST)
        ranges = [
            available_range(state, starts[name], ends[name], self._options.fail_on_data_loss)
            for name, state in states.items()
        ]
        return split_partitions([item for item in ranges if item is not None], self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        return self._splits.read(partition)


def available_range(
    state: PartitionState,
    after: Place,
    through: Place,
    fail_on_data_loss: bool,
) -> Split | None:
    """The range ``(after, through]``, from the first message there is if loss is allowed."""
    try:
        check_available(state, after, through)
    except DataLossError as error:
        if fail_on_data_loss:
            raise
        log.warning("%s", error)
    return range_of(state, after, through)


def split_partitions(ranges: Sequence[Split], options: Options) -> list[InputPartition]:
    """Ranges cut for Spark: ``minPartitions``, else about two tasks a core of the driver."""
    if options.min_partitions is not None:
        splits = cut_at_least(ranges, options.min_partitions)
    else:
        splits = cut(ranges, 2 * (os.cpu_count() or 1))
    return [SplitPartition(split) for split in splits]
