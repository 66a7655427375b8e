"""Protobuf messages as a typed table: any engine reads it, consumers get what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pulsar
import pytest
from deltalake import DeltaTable

from tests.integration.test_typed_tables import SETTINGS, directory, wait_for
from tests.support.protobuf_messages import (
    INT32,
    STRING,
    F,
    ProtobufSchema,
    class_of,
    entry,
    enumeration,
    file,
    many,
    message,
    native,
    one,
)
from tests.support.python_client import connect
from tests.support.standalone import Standalone

COUNT = 100


def definition(version: int) -> Any:
    """The second version has two fields more, one of them within."""
    place = [one("lat", 1, F.TYPE_DOUBLE), *([one("name", 2, STRING)] if version > 1 else [])]
    return file(
        message(
            "R", one("n", 1), one("carrier", 2, STRING), one("status", 3, "E"),
            one("at", 4, "Place"), many("tags", 5, STRING), many("seats", 6, "R.SeatsEntry"),
            *([one("note", 7, STRING)] if version > 1 else []),
            nested=[entry("SeatsEntry", STRING, INT32)],
        ),
        message("Place", *place),
        enums=[enumeration("E", ON_TIME=0, LATE=1)],
    )  # fmt: skip


def payload(version: int, n: int) -> bytes:
    value = class_of(definition(version))(n=n, carrier="UA", status=n % 2, tags=["a", "b"][: n % 3])
    value.at.lat = n / 2
    value.seats["1A"] = n
    if version > 1:
        value.note, value.at.name = f"n{n}", "JFK"
    return bytes(value.SerializeToString())


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", env=SETTINGS) as process:
        yield process


def publish(standalone: Standalone, version: int, first: int) -> None:
    client = connect(standalone)
    schema = ProtobufSchema(native(definition(version)))
    producer = client.create_producer("t", schema=schema, batching_max_messages=9)
    for n in range(first, first + COUNT):
        producer.send_async(payload(version, n), None)
    producer.flush()
    client.close()


def test_messages_of_two_versions_are_columns(standalone: Standalone) -> None:
    publish(standalone, 1, 0)
    table = directory(standalone)
    wait_for(lambda: len(pl.read_delta(table)) == COUNT)
    publish(standalone, 2, COUNT)
    wait_for(lambda: len(pl.read_delta(table)) == 2 * COUNT)
    rows = pl.read_delta(table).sort("entry_id", "batch_index")
    assert rows["value_raw"].null_count() == 2 * COUNT, "what was sent follows from the columns"
    values = sorted(rows["value"].to_list(), key=lambda value: int(value["n"]))
    for n, value in enumerate(values):
        later = n >= COUNT
        assert value == {
            "n": n,
            "carrier": "UA",
            "status": "LATE" if n % 2 else "ON_TIME",
            "at": {"lat": n / 2, "name": "JFK" if later else None},
            "tags": ["a", "b"][: n % 3],
            "seats": {"1A": n},
            "note": f"n{n}" if later else None,
        }
    found = duckdb.execute(
        "SELECT count(*), sum(value.at.lat), count(value.note), sum(value.seats['1A']), "
        "sum(len(value.tags)), count(*) FILTER (value.status = 'LATE') FROM "
        "read_parquet(?, hive_partitioning = true, union_by_name = true)",
        [DeltaTable(table).file_uris()],
    ).fetchone()
    total = sum(range(2 * COUNT))
    assert found == (200, total / 2, 100, total, sum(n % 3 for n in range(200)), 100)
    client = connect(standalone)
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    sent = [payload(1 + n // COUNT, n) for n in range(2 * COUNT)]
    assert [consumer.receive(60_000).data() for _ in sent] == sent
    client.close()
