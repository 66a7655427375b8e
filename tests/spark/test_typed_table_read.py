"""Spark reads the typed table of a topic with plain Delta, while it grows and its schema does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2

from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from tests.support.protobuf_messages import (
    STRING,
    F,
    class_of,
    file,
    many,
    message,
    native,
    one,
)
from tests.support.tables import NOW, GrowingTable
from tests.support.typed_values import encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTACHES, MESSAGES = 12, 50
VERSIONS = [bytes(7) + bytes([n]) for n in range(2)]


def message_file(version: int) -> Any:
    fields = [one("n", 1, F.TYPE_INT64), one("carrier", 2, STRING, proto3_optional=True)]
    fields[1].oneof_index = 0
    if version:
        fields += [one("place", 3, "Place"), many("tags", 4, STRING)]
    choice = descriptor_pb2.OneofDescriptorProto(name="_carrier")
    return file(
        message("R", *fields, oneof_decl=[choice]), message("Place", one("x", 1, F.TYPE_DOUBLE))
    )


def schema(kind: SchemaType, version: int) -> SchemaData:
    if kind is SchemaType.PROTOBUF_NATIVE:
        return native(message_file(version))
    return SchemaData(kind, json.dumps(definition(version)).encode())


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


def payload(kind: SchemaType, n: int, version: int) -> bytes:
    if kind is SchemaType.JSON:
        return json.dumps(value(n, version)).encode()
    if kind is SchemaType.PROTOBUF_NATIVE:
        found = class_of(message_file(version))(n=n, carrier="UA" if n % 2 else None)
        if version:
            found.place.x = n / 2
            found.tags.extend(["a", "b"])
        return bytes(found.SerializeToString())
    return encoded(definition(version), value(n, version))[0]


def batch(kind: SchemaType, number: int, version: int) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW)
    head.schema_version = VERSIONS[version]
    first = number * MESSAGES
    return build_batch(
        head,
        [
            (pb.SingleMessageMetadata(payload_size=0), payload(kind, n, version))
            for n in range(first, first + MESSAGES)
        ],
    )


def grow(table: GrowingTable, kind: SchemaType, first: int, last: int, version: int) -> None:
    schemas = [(VERSIONS[n], schema(kind, n)) for n in range(version + 1)]
    for number in range(first, last):
        table.attach_entries([batch(kind, number, version)], number, schemas)


@pytest.mark.parametrize("kind", [SchemaType.JSON, SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE])
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
