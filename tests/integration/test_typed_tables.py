"""Other engines read the typed table of a topic without Pulsark, while it is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pulsar
import pytest
from deltalake import DeltaTable
from pulsar.schema import AvroSchema, Boolean, Float, Integer, JsonSchema, Record, String

from tests.support.hurried import HURRIED
from tests.support.python_client import connect
from tests.support.seal_contract import NoSpark, run_job
from tests.support.standalone import Standalone

SETTINGS = {
    **HURRIED,
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "40",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
WAIT_SECONDS = 60.0


def flight(version: int) -> type[Record]:
    """The record of a schema's version; the second has two fields more."""

    class Flight(Record):  # type: ignore[misc]
        n = Integer(required=True)
        carrier = String()
        delay = Float()
        if version > 1:
            late = Boolean(required_default=True)
            note = String(required_default=True)

    return Flight


def sent(version: int, n: int) -> dict[str, Any]:
    fields = {"n": n, "carrier": "UA" if n % 3 else None, "delay": n / 4}
    return fields | ({"late": n % 2 == 0, "note": f"n{n}"} if version > 1 else {})


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", env=SETTINGS) as process:
        yield process


def publish(
    standalone: Standalone,
    schema: Any,
    version: int,
    first: int,
    count: int,
    pause: float = 0.0,
) -> None:
    record = flight(version)
    client = connect(standalone)
    producer = client.create_producer(
        "t", schema=schema(record), batching_enabled=True, batching_max_messages=9
    )
    for n in range(first, first + count):
        producer.send_async(record(**sent(version, n)), None)
        if pause and n % 25 == 0:
            producer.flush()
            time.sleep(pause)
    producer.flush()
    client.close()


def directory(standalone: Standalone) -> str:
    root = standalone.data_dir / "bookies" / "bookie-1" / "ledgers" / "table"
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        for log in root.glob("*/*/*/_delta_log"):
            if (log / f"{1:020d}.json").exists():
                return str(log.parent)
        assert time.monotonic() < deadline, "no table"
        time.sleep(0.1)


def by_polars(table: str) -> list[int]:
    rows = pl.scan_delta(table).select(pl.col("value").struct.field("n")).collect()
    return rows["n"].to_list()


def by_duckdb(table: str) -> list[int]:
    files = DeltaTable(table).file_uris()
    found = duckdb.execute(
        "SELECT value.n FROM read_parquet(?, hive_partitioning = true, union_by_name = true)",
        [files],
    ).fetchall()
    return [row[0] for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("schema", [JsonSchema, pytest.param(AvroSchema, marks=pytest.mark.chaos)])
def test_each_read_is_a_beginning_of_the_topic(standalone: Standalone, schema: Any) -> None:
    some_was_read = threading.Event()

    def write() -> None:
        publish(standalone, schema, 1, 0, 1000, 0.1)
        some_was_read.wait(WAIT_SECONDS)
        publish(standalone, schema, 1, 1000, 500, 0.1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        table = directory(standalone)
        lengths = {0}
        deadline = time.monotonic() + WAIT_SECONDS
        while max(lengths) < 1500:
            assert time.monotonic() < deadline, lengths
            for read in (by_polars, by_duckdb):
                found = read(table)
                assert sorted(found) == list(range(len(found)))
                assert len(found) >= max(lengths)
                lengths.add(len(found))
            if max(lengths) > 0:
                some_was_read.set()
            time.sleep(0.05)
        assert len(lengths) > 2, "it was not read while it was written"
    finally:
        some_was_read.set()
        writer.join()


@pytest.mark.parametrize("schema", [pytest.param(JsonSchema, marks=pytest.mark.chaos), AvroSchema])
def test_fields_that_are_added_later_are_null_before(standalone: Standalone, schema: Any) -> None:
    publish(standalone, schema, 1, 0, 100)
    table = directory(standalone)
    wait_for(lambda: len(by_polars(table)) == 100)
    publish(standalone, schema, 2, 100, 100)
    wait_for(lambda: len(by_polars(table)) == 200)
    rows = pl.scan_delta(table).select("value", "value_raw").collect()
    assert rows["value_raw"].null_count() == 200, "what was sent can be told from the columns"
    none = {"late": None, "note": None}
    expected = [sent(1, n) | none for n in range(100)] + [sent(2, n) for n in range(100, 200)]
    assert sorted(rows["value"].to_list(), key=lambda value: value["n"]) == expected
    files = DeltaTable(table).file_uris()
    found = duckdb.execute(
        "SELECT count(*), count(value.carrier), sum(value.delay), count(value.note) FROM "
        "read_parquet(?, hive_partitioning = true, union_by_name = true)",
        [files],
    ).fetchone()
    assert found == (200, 133, sum(n / 4 for n in range(200)), 100)
    dataset = DeltaTable(table).to_pyarrow_dataset()
    assert dataset.schema.field("value").type.get_field_index("note") >= 0
    assert consumed(standalone, schema, 200) == [
        *(sent(1, n) for n in range(100)),
        *(sent(2, n) for n in range(100, 200)),
    ]


def test_a_job_writes_the_same_types(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", env=SETTINGS | {"PULSARK_sealByJobs": "true"}) as broker:
        for version in (1, 2):
            publish(broker, AvroSchema, version, 100 * version, 100)
            assert run_job(broker, "t", NoSpark()) == 0
        rows = pl.scan_delta(directory(broker)).select("value", "value_raw").collect()
    assert rows["value_raw"].null_count() == 200
    none = {"late": None, "note": None}
    assert sorted(rows["value"].to_list(), key=lambda value: value["n"]) == [
        *(sent(1, n) | none for n in range(100, 200)),
        *(sent(2, n) for n in range(200, 300)),
    ]


def consumed(standalone: Standalone, schema: Any, count: int) -> list[dict[str, Any]]:
    """The messages as a client's schema reads them, from the table for the most part."""
    client = connect(standalone)
    consumer = client.subscribe(
        "t", "s", schema=schema(flight(2)), initial_position=pulsar.InitialPosition.Earliest
    )
    found = []
    for _ in range(count):
        value = consumer.receive(60_000).value()
        version = 1 if value.n < 100 else 2  # what a client makes of missing fields is its own
        found.append({name: getattr(value, name) for name in sent(version, 0)})
    client.close()
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
