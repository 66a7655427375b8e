"""Spark reads the typed table of a topic with plain Delta, while it grows and its schema does."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from tests.support.tables import NOW, GrowingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTACHES, MESSAGES = 12, 50
VERSIONS = [bytes(7) + bytes([n]) for n in range(2)]


def definition(version: int) -> dict[str, Any]:
    fields = [{"name": "n", "type": "long"}, {"name": "carrier", "type": ["null", "string"]}]
    if version:
        inner = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}
        fields.append({"name": "place", "type": ["null", inner], "default": None})
        fields.append({"name": "tags", "type": {"type": "array", "items": "string"}, "default": []})
    return {"type": "record", "name": "Flight", "fields": fields}


def value(n: int, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {"n": n, "carrier": "UA" if n % 2 else None}
    return found | ({"place": {"x": n / 2}, "tags": ["a", "b"]} if version else {})


def encoded(kind: SchemaType, n: int, version: int) -> bytes:
    if kind is SchemaType.JSON:
        return json.dumps(value(n, version)).encode()
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, definition(version), value(n, version))
    return stream.getvalue()


def batch(kind: SchemaType, number: int, version: int) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW)
    head.schema_version = VERSIONS[version]
    first = number * MESSAGES
    return build_batch(
        head,
        [
            (pb.SingleMessageMetadata(payload_size=0), encoded(kind, n, version))
            for n in range(first, first + MESSAGES)
        ],
    )


def grow(table: GrowingTable, kind: SchemaType, first: int, last: int, version: int) -> None:
    schemas = [
        (VERSIONS[n], SchemaData(kind, json.dumps(definition(n)).encode()))
        for n in range(version + 1)
    ]
    for number in range(first, last):
        table.attach_entries([batch(kind, number, version)], number, schemas)


@pytest.mark.parametrize("kind", [SchemaType.JSON, SchemaType.AVRO])
def test_each_read_is_a_beginning_and_later_fields_are_null_before(
    spark: SparkSession, tmp_path: Path, kind: SchemaType
) -> None:
    table = GrowingTable(tmp_path)
    grow(table, kind, 0, 1, 0)
    writer = threading.Thread(target=grow, args=(table, kind, 1, ATTACHES, 0))
    writer.start()
    counts = [0]
    try:
        while counts[-1] < ATTACHES * MESSAGES:
            rows = spark.read.format("delta").load(table.directory).select("value.n").collect()
            assert sorted(row.n for row in rows) == list(range(len(rows)))
            assert len(rows) >= counts[-1]
            counts.append(len(rows))
    finally:
        writer.join()
    grow(table, kind, ATTACHES, ATTACHES + 1, 1)
    found = spark.read.format("delta").load(table.directory)
    assert found.where("value_raw IS NOT NULL").count() == 0
    old = found.where(f"value.n < {ATTACHES * MESSAGES}")
    assert old.where("value.place IS NULL AND value.tags IS NULL").count() == ATTACHES * MESSAGES
    new = found.where("value.place.x IS NOT NULL AND value.tags[1] = 'b'")
    assert new.count() == MESSAGES
    n = ATTACHES * MESSAGES + 1
    row = new.where(f"value.n = {n}").select("value.*").first()
    assert row is not None
    assert row.asDict(recursive=True) == value(n, 1)
