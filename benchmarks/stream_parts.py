"""An idle source and a sink that looks at the clock, for ``benchmarks.spark_stream``.

Spark's Python workers import this module, so that it needs nothing but pyarrow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

COLUMNS = "event_time TIMESTAMP, value BINARY"
SCHEMA = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("value", pa.binary())])


@dataclass
class Span(InputPartition):
    """Rows that were due between two numbers."""

    first: int
    end: int


class IdleReader(DataSourceStreamReader):
    """Rows at a rate, out of nothing: no broker, no file, no connection."""

    def __init__(self, rate: float, size: int) -> None:
        self._rate = rate
        self._size = size

    def initialOffset(self) -> dict[str, Any]:
        """From now on."""
        return {"row": self._due()}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """All that is due."""
        return {"row": self._due()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One."""
        return [Span(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One batch; the event time of a row is when it was due."""
        assert isinstance(partition, Span)
        numbers = range(partition.first, partition.end)
        times = pa.array([int(number / self._rate * 1e6) for number in numbers], pa.int64())
        values = pa.array([bytes(self._size)] * len(numbers), pa.binary())
        yield pa.RecordBatch.from_arrays([times.cast(SCHEMA.field(0).type), values], schema=SCHEMA)

    def _due(self) -> int:
        return int(time.time() * self._rate)


class IdleSource(DataSource):
    """``format("idle")``: options ``rate``, in rows a second, and ``size``, of a value in bytes."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "idle"

    def schema(self) -> str:
        """Those columns of a message that are compared."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The only thing it can."""
        return IdleReader(float(self.options["rate"]), int(self.options["size"]))


@dataclass
class Ages(WriterCommitMessage):
    """How old rows were when they were there, in seconds."""

    seconds: list[float]


class ClockWriter(DataSourceStreamArrowWriter):
    """Notes how old each row is when a task has it; a line of JSON for each batch."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take all rows of a task."""
        times: list[int] = []
        for batch in iterator:
            times += batch.column(0).cast(pa.int64()).to_pylist()
        now = time.time()
        return Ages([now - each / 1e6 for each in times])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A line for the batch."""
        ages = [age for each in messages if isinstance(each, Ages) for age in each.seconds]
        with Path(self._path).open("a") as file:
            file.write(json.dumps({"batch": batchId, "ages": ages}) + "\n")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was kept."""


class ClockSink(DataSource):
    """``format("clock")``: option ``file``, for the ages."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "clock"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The first column is the time that counts."""
        return ClockWriter(self.options["file"])
