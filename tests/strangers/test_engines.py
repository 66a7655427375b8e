"""Every engine reads a topic's table alike: with a filter it finds what the full read has.

An engine skips files by the statistics in the log. Each filter here runs for itself, so that each
one may skip files, and its count is compared with that of the table read as a whole.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    Double,
    Float,
    Integer,
    Long,
    Record,
    String,
)
from pyspark.sql import DataFrame

import pulsark
from pulsark.admin_client.client import AdminClient
from pulsark.runtime import OsDisk
from pulsark.storage.table.log.delta_log import DeltaLog
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.tables import GrowingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Inner(Record):  # type: ignore[misc]
    city = String()
    population = Long()


class Plain(Record):  # type: ignore[misc]
    number = Integer()
    name = String()
    ratio = Double()
    small = Float()
    good = Boolean()
    place = Inner()


class Nested(Record):  # type: ignore[misc]
    number = Integer()
    name = String()
    ratio = Double()
    place = Inner()
    tags = Array(String())
    data = Bytes()


MAX = chr(0x10FFFF)

SCANS_PER_JOB = 12


def messages(kind: type[Record]) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """What goes into one file each: keys and values, with and without nulls, in ranges apart."""

    def reading(
        number: int | None, name: str | None, ratio: float | None, *, city: str = ""
    ) -> Any:
        place = Inner(city=city, population=number) if city else None
        found = {"number": number, "name": name, "ratio": ratio, "place": place}
        if kind is Plain:
            return Plain(**found, small=ratio, good=None if number is None else number > 0)
        return Nested(**found, tags=["t"], data=name.encode() if name else None)

    yield [
        (reading(i, f"name {i}", i / 4, city="Paris"), {"partition_key": key})
        for i, key in enumerate(["ABI", "ABJ", "B", "ABI"])
    ]
    yield [(reading(None, None, None), {}) for _ in range(2)]
    yield [
        (reading(-5, "ü" * 40, float("nan"), city="Ürümqi"), {"partition_key": "k" * 40}),
        (reading(5, "x" * 33 + MAX, -0.0), {"partition_key": MAX * 40, "event_timestamp": 1}),
        (reading(2**31 - 1, "", float("inf"), city="z" * 50), {"partition_key": "a" * 5000}),
    ]
    yield [
        (reading(100, "name 1", 0.0, city="Aachen"), {"partition_key": "ABK"}),
        (
            reading(101, "zebra", float("-inf")),
            {"ordering_key": "o", "event_timestamp": 1_700_000_000_123, "properties": {"p": "1"}},
        ),
    ]


@pytest.fixture(scope="module", params=[Plain, pytest.param(Nested, marks=pytest.mark.strangers)])
def table(shared_standalone: Standalone, request: pytest.FixtureRequest) -> str:
    """The directory of a table whose files have ranges apart."""
    topic = f"persistent://public/default/engines-{request.param.__name__}"
    addresses = {"serviceUrl": shared_standalone.service_url, "adminUrl": shared_standalone.web_url}
    admin = AdminClient(shared_standalone.web_url)
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic, schema=AvroSchema(request.param))
        for some in messages(request.param):
            for value, options in some:
                producer.send(value, **options)
            admin.call("POST", f"/{topic.replace('://', '/')}/seal")
    return pulsark.table(topic, **addresses)


class Filter(NamedTuple):
    """One condition on a column, or on a field within one."""

    path: tuple[str, ...]
    op: str
    value: Any = None
    kind: pa.DataType | None = None

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.op} {self.value!r}"

    @property
    def is_plain(self) -> bool:
        """Whether pandas' triples can say it."""
        return len(self.path) == 1 and self.op in ("=", "!=", "<", ">=", "in")


def filters(full: pa.Table, samples: int) -> Iterator[Filter]:
    """Equality, ranges, nulls, IN and LIKE on every column and field."""
    for path, kind in leaves(full.schema):
        yield Filter(path, "is null")
        yield Filter(path, "is not null")
        if pa.types.is_nested(kind):
            continue
        column = full.column(path[0]).combine_chunks()
        for name in path[1:]:
            column = pc.struct_field(column, name)
        values = [v for v in column.drop_null().unique().to_pylist() if v == v]
        values.sort()
        some = values[:: max(1, len(values) // samples)][: samples - 1] + values[-1:]
        for value in some:
            for op in ("=", "!=", "<", ">="):
                if not (op in ("<", ">=") and pa.types.is_boolean(kind)):
                    yield Filter(path, op, value, kind)
        if some:
            yield Filter(path, "in", some, kind)
        if some and pa.types.is_string(kind):
            yield Filter(path, "like", some[0][:2], kind)
            yield Filter(path, "like", "no such", kind)


def leaves(schema: pa.Schema | pa.StructType) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for field in schema:
        if pa.types.is_struct(field.type):
            for path, kind in leaves(field.type):
                yield (field.name, *path), kind
        else:
            yield (field.name,), field.type


def arrow(one: Filter) -> Any:
    field = ds.field(*one.path)
    match one.op:
        case "is null":
            return field.is_null()
        case "is not null":
            return field.is_valid()
        case "in":
            return field.isin(pa.array(one.value, one.kind))
        case "like":
            return pc.starts_with(field, one.value)
    value = pa.scalar(one.value, one.kind)
    found = {"=": field == value, "!=": field != value, "<": field < value, ">=": field >= value}
    return found[one.op]


def polars(one: Filter) -> pl.Expr:
    column = pl.col(one.path[0])
    for name in one.path[1:]:
        column = column.struct.field(name)
    match one.op:
        case "is null":
            return column.is_null()
        case "is not null":
            return column.is_not_null()
        case "in":
            return column.is_in(one.value)
        case "like":
            return column.str.starts_with(one.value)
    value = pl.lit(one.value)
    found = {
        "=": column == value, "!=": column != value, "<": column < value, ">=": column >= value,
    }  # fmt: skip
    return found[one.op]


def sql(one: Filter, literal: Callable[[Any], str]) -> str:
    column = ".".join(one.path)
    match one.op:
        case "is null" | "is not null":
            return f"{column} {one.op}"
        case "in":
            return f"{column} in ({', '.join(map(literal, one.value))})"
        case "like":
            return f"{column} like {literal(one.value + '%')}"
    return f"{column} {one.op} {literal(one.value)}"


def literal_of(value: Any, time: str, binary: str) -> str:
    match value:
        case bool() | int():
            return str(value)
        case float():
            return f"cast('{value}' as double)"
        case bytes():
            return binary.format(value.hex())
        case datetime():
            return f"cast('{value.isoformat()}' as {time})"
    return "'" + str(value).replace("'", "''") + "'"


def in_duckdb(value: Any) -> str:
    return literal_of(value, "timestamptz", "unhex('{}')")


def in_spark(value: Any) -> str:
    return literal_of(value, "timestamp", "X'{}'")


Count = Callable[[Filter], int]


def counts(directory: str, full: pa.Table) -> Iterator[tuple[str, Count, Count]]:
    """By engine, how it counts over the table, and over a copy in memory without statistics."""
    found = DeltaTable(directory)
    dataset, copy = found.to_pyarrow_dataset(), ds.dataset(full)
    yield (
        "pyarrow",
        lambda one: dataset.filter(arrow(one)).count_rows(),
        lambda one: copy.filter(arrow(one)).count_rows(),
    )
    columns = [name for name in full.column_names if name not in ("properties", "value")]
    in_memory = full.select(columns)
    connection = duckdb.connect()
    connection.register("over_dataset", dataset)
    connection.register("in_memory", full)
    files = ", ".join(f"'{uri}'" for uri in found.file_uris())
    over_files = f"read_parquet([{files}], hive_partitioning = true, union_by_name = true)"

    def by_duckdb(source: str) -> Count:
        def count(one: Filter) -> int:
            query = f"select count(*) from {source} where {sql(one, in_duckdb)}"
            (number,) = connection.execute(query).fetchone() or (-1,)
            return int(number)

        return count

    yield "duckdb over the dataset", by_duckdb("over_dataset"), by_duckdb("in_memory")
    yield "duckdb over the files", by_duckdb(over_files), by_duckdb("in_memory")
    frame = pl.from_arrow(full)
    assert isinstance(frame, pl.DataFrame)
    yield (
        "polars",
        lambda one: pl.scan_delta(directory).filter(polars(one)).select(pl.len()).collect().item(),
        lambda one: frame.filter(polars(one)).height,
    )
    plain = ds.dataset(in_memory)
    yield (
        "pandas",
        lambda one: len(
            found.to_pandas(columns=columns[:1], filters=[(one.path[0], one.op, one.value)])
        ),
        lambda one: plain.filter(arrow(one)).count_rows(),
    )


def differing(directory: str, full: pa.Table, wanted: list[Filter]) -> list[str]:
    """Filters with which an engine does not find what the full read has."""
    wrong = []
    for engine, over_table, in_memory in counts(directory, full):
        for one in wanted:
            if engine != "pandas" or one.is_plain:
                found, expected = over_table(one), in_memory(one)
                if found != expected:
                    wrong.append(f"{engine}: {one}: {found} of {expected}")
    return wrong


def test_every_engine_finds_with_a_filter_what_the_full_read_has(table: str) -> None:
    full = DeltaTable(table).to_pyarrow_table()
    assert full.num_rows == 11
    wanted = list(filters(full, 3))
    assert len({one.path for one in wanted}) > 25
    found = differing(table, full, wanted)
    assert not found, "\n".join(one[:300] for one in found)


def _has_zero(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_zero, value))
    return isinstance(value, float) and value == 0


def spark_differs(spark: SparkSession, directory: str, wanted: list[Filter]) -> list[str]:
    """List filters with which Spark does not find what the full read has.

    Each filter has a scan of the table to itself. Some scans share a job, which saves minutes.
    Zeros are left out: Spark loses rows of any Parquet file, also of its own, if it is asked for
    0.0 and all zeros of the file are -0.0, or the other way round (it looks into dictionaries).
    """
    wanted = [one for one in wanted if not _has_zero(one.value)]
    whole = spark.read.format("delta").load(directory)
    copy = spark.createDataFrame(whole.collect(), whole.schema)
    wheres = [sql(one, in_spark) for one in wanted]
    wrong = []
    for begin in range(0, len(wheres), SCANS_PER_JOB):
        some = wheres[begin : begin + SCANS_PER_JOB]
        scans = [
            whole.where(where).selectExpr(f"{place} as place", "count(*) as found")
            for place, where in enumerate(some)
        ]
        found = {row.place: row.found for row in functools.reduce(DataFrame.union, scans).collect()}
        (expected,) = copy.selectExpr(*(f"count_if({where})" for where in some)).collect()
        wrong += [
            f"{where}: {found[place]} of {expected[place]}"
            for place, where in enumerate(some)
            if found[place] != expected[place]
        ]
    return wrong


@pytest.mark.spark
def test_spark_finds_with_a_filter_what_the_full_read_has(table: str, spark: SparkSession) -> None:
    full = DeltaTable(table).to_pyarrow_table()
    paths = [("key",), ("event_time",), ("value", "ratio"), ("value", "place", "city")]
    wanted = [one for one in filters(full, 2) if one.path in paths]
    assert spark_differs(spark, table, wanted) == []


@pytest.mark.spark
@pytest.mark.strangers
def test_spark_filters_every_column(table: str, spark: SparkSession) -> None:
    full = DeltaTable(table).to_pyarrow_table()
    assert spark_differs(spark, table, list(filters(full, 3))) == []


def test_files_are_skipped_by_key(table: str) -> None:
    dataset = DeltaTable(table).to_pyarrow_dataset()
    assert len(list(dataset.get_fragments())) == 4
    assert len(list(dataset.get_fragments(filter=ds.field("key") == "ABK"))) < 4
    assert DeltaTable(table).history()[0]["operation"] == "WRITE"


def test_files_have_field_ids_and_both_partition_columns(table: str) -> None:
    found: list[dict[str, int]] = []
    for uri in DeltaTable(table).file_uris():
        file = pq.ParquetFile(uri)
        assert {"partition", "ledger_id"} <= set(file.schema_arrow.names)
        parts = file.read(columns=["partition", "ledger_id"]).to_pylist()
        assert {tuple(part.values()) for part in parts} == {(-1, int(_ledger_of(uri)))}
        found.append(dict(_field_ids(file.schema_arrow)))
        assert len(set(found[-1].values())) == len(found[-1])
    assert all(ids == found[0] for ids in found)
    assert found[0]["properties.value"] > 20


def _ledger_of(uri: str) -> str:
    return uri.partition("ledger_id=")[2].partition("/")[0]


def _field_ids(fields: Any, above: str = "") -> Iterator[tuple[str, int]]:
    for field in fields:
        path = f"{above}{field.name}"
        yield path, int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        if pa.types.is_struct(kind):
            yield from _field_ids(kind, f"{path}.")
        elif pa.types.is_map(kind):
            yield from _field_ids([kind.key_field, kind.item_field], f"{path}.")
        elif pa.types.is_list(kind):
            yield from _field_ids([kind.value_field], f"{path}.")


@pytest.mark.spark
@pytest.mark.strangers
def test_a_delta_stream_has_each_row_once_whatever_is_done_to_the_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = GrowingTable(tmp_path / "root")
    table.attach(0, 5, 0, 10)
    table.attach(0, 5, 10, 10)

    def rows(**options: str) -> tuple[int, int]:
        """What a stream has read when it goes on, and how many of these rows are different."""
        place = tmp_path / "-".join(["stream", *options])
        stream = spark.readStream.format("delta").options(**options).load(table.directory)
        query = (
            stream.select("ledger_id", "entry_id", "batch_index", "batch_size")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "rows"))
        )
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(place / "rows"))
        return found.count(), found.distinct().count()

    def whole() -> int:
        return int(spark.read.format("delta").load(table.directory).count())

    assert rows() == rows(ignoreDeletes="true") == (40, 40)
    table.rewrite(5)
    table.attach(0, 7, 0, 5)
    assert rows() == rows(ignoreDeletes="true") == (50, 50) == (whole(), whole())
    # As a log lacks a file that the table has: a repair brings no row twice.
    path = DeltaTable(table.directory).file_uris()[0].removeprefix(f"{table.directory}/")
    gone = {"remove": {"path": path, "dataChange": False, "deletionTimestamp": 1}}
    log = DeltaLog(OsDisk(), table.directory)
    log.write(log.versions()[-1] + 1, json.dumps(gone).encode() + b"\n")
    table.repair()
    table.state()
    table.attach(0, 7, 5, 5)
    assert rows() == rows(ignoreDeletes="true") == (60, 60) == (whole(), whole())
    table.rewrite(7, erased=[3, 4])
    table.remove(5)
    table.attach(0, 9, 0, 5)
    assert rows(ignoreDeletes="true") == (70, 70), "what was read before, and what is new"
    with pytest.raises(Exception, match="DELTA_SOURCE_IGNORE_DELETE"):
        rows()
    described = spark.sql(f"DESCRIBE HISTORY delta.`{table.directory}`").collect()
    assert [row["operation"] for row in described][:4] == ["WRITE", "DELETE", "DELETE", "WRITE"]
    assert described[1]["operationMetrics"]["numDeletedRows"] == "40"
    assert {"OPTIMIZE", "COMPUTE STATS", "RESTORE"} <= {row["operation"] for row in described}
    history = DeltaTable(table.directory).history()
    assert history[1]["operationMetrics"]["numRemovedFiles"] == "1"
