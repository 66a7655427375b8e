"""How fast messages become rows, and rows entries: messages a second of CPU time.

    python -m benchmarks.rows [--messages N] [--batch N] [--check]

100-byte messages with a key and two properties, in batches of 1000, as a client sends them; and
the same sent alone, also compressed. Then flights, of 8 fields, as JSON, Avro and Protobuf whose
values get types. ``--check`` ends with status 1 below the goals for bytes: 500,000 into rows and
250,000 out of rows; sent alone 400,000 each way; typed ones 100,000 each way.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pulsark.rows import RowBuilder, entries_of
from pulsark.rows.values import ValueColumn
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.compression import compress
from pulsark.wire.entry import build_entry

ROWS_GOAL, ENTRIES_GOAL, ALONE_GOAL, TYPED_GOAL = 500_000, 250_000, 400_000, 100_000
ROUNDS = 5
NOW = 1_700_000_000_000


def _fill(message: Any, i: int) -> Any:
    message.partition_key = f"key-{i % 1000}"
    message.properties.add(key="origin", value="JFK")
    message.properties.add(key="trace", value=f"{i:012x}")
    return message


VERSION = bytes(8)


def _metadata(i: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="bench-1", sequence_id=i, publish_time=NOW + i, schema_version=VERSION
    )


def _bytes(i: int) -> bytes:
    return bytes(range(100))


def batches(messages: int, size: int, value: Callable[[int], bytes] = _bytes) -> list[bytes]:
    """Entries of ``size`` messages each."""
    return [
        build_batch(
            _metadata(start),
            [
                (_fill(pb.SingleMessageMetadata(payload_size=0, sequence_id=i), i), value(i))
                for i in range(start, start + size)
            ],
        )
        for start in range(0, messages, size)
    ]


FIELDS = {
    "carrier": "string", "flight": "int", "tailnum": "string", "origin": "string",
    "dest": "string", "dep_delay": "int", "arr_delay": "int", "distance": "int",
}  # fmt: skip
DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": ["null", kind]} for name, kind in FIELDS.items()],
}


def _flight(i: int) -> dict[str, Any]:
    return {
        "carrier": ("UA", "AA", "DL")[i % 3],
        "flight": i % 7000,
        "tailnum": f"N{i % 4000}UA",
        "origin": "JFK",
        "dest": ("LAX", "SFO")[i % 2],
        "dep_delay": i % 90 - 20,
        "arr_delay": None if i % 50 == 0 else i % 100 - 30,
        "distance": 500 + i % 2000,
    }


def _avro(i: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, PARSED, _flight(i))
    return stream.getvalue()


PARSED = fastavro.parse_schema(json.loads(json.dumps(DEFINITION)))


def _message_file() -> Any:
    """The flights as a Protobuf message."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="b", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate(FIELDS.items(), 1):
        code = kinds.TYPE_STRING if kind == "string" else kinds.TYPE_SINT32
        message.field.add(name=name, number=number, type=code, label=kinds.LABEL_OPTIONAL)
    legs = message.field.add(name="legs", number=9, type=kinds.TYPE_INT32)
    legs.label = kinds.LABEL_REPEATED
    return file


def _nested(i: int) -> dict[str, Any]:
    """A flight with a list and a map."""
    more = {f"seat{k}": i % 300 + k for k in range(i % 4)}
    return {**_flight(i), "tags": ["delayed", "full", f"gate{i % 40}"][: i % 4], "seats": more}


NESTED_DEFINITION = {
    **DEFINITION,
    "fields": [
        *DEFINITION["fields"],
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
    ],
}
NESTED_PARSED = fastavro.parse_schema(json.loads(json.dumps(NESTED_DEFINITION)))


def _avro_with_lists(i: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, NESTED_PARSED, _nested(i))
    return stream.getvalue()


def _of_avro(kind: SchemaType, definition: Any) -> SchemaData:
    return SchemaData(kind, json.dumps(definition).encode())


def _of_protobuf() -> SchemaData:
    files = descriptor_pb2.FileDescriptorSet(file=[_message_file()]).SerializeToString()
    definition = {
        "fileDescriptorSet": base64.b64encode(files).decode(),
        "rootMessageTypeName": "b.Flight",
        "rootFileDescriptorName": "f.proto",
    }
    return SchemaData(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode())


def _protobuf() -> Callable[[int], bytes]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_message_file())
    build = message_factory.GetMessageClass(pool.FindMessageTypeByName("b.Flight"))

    def value(i: int) -> bytes:
        return bytes(build(**_flight(i), legs=range(i % 4)).SerializeToString())

    return value


TYPED: dict[str, tuple[SchemaData, Callable[[int], bytes]]] = {
    "JSON as Python writes it": (
        _of_avro(SchemaType.JSON, DEFINITION),
        lambda i: json.dumps(_flight(i), indent=True).encode(),
    ),
    "JSON without spaces": (
        _of_avro(SchemaType.JSON, DEFINITION),
        lambda i: json.dumps(_flight(i), separators=(",", ":")).encode(),
    ),
    "Avro": (_of_avro(SchemaType.AVRO, DEFINITION), _avro),
    "Avro with a list and a map": (
        _of_avro(SchemaType.AVRO, NESTED_DEFINITION),
        _avro_with_lists,
    ),
    "Protobuf": (_of_protobuf(), _protobuf()),
}


def alone(messages: int, kind: pb.CompressionType = pb.NONE) -> list[bytes]:
    """Entries of one message each."""
    return [_alone(_fill(_metadata(i), i), bytes(range(100)), kind) for i in range(messages)]


def _alone(head: pb.MessageMetadata, value: bytes, kind: pb.CompressionType) -> bytes:
    if kind:
        head.compression, head.uncompressed_size = kind, len(value)
    return build_entry(head, compress(kind, value))


def best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(
    entries: list[bytes], messages: int, values: ValueColumn | None = None
) -> tuple[float, float]:
    """Messages a second into rows and out of them."""

    def rows() -> Any:
        builder = RowBuilder.for_table(0, values)
        for entry_id, entry in enumerate(entries):
            builder.add(1, entry_id, entry)
        return builder.finish()

    table = rows()
    assert table.num_rows == messages
    assert values is None or table["value_raw"].null_count == messages
    return messages / best(rows), messages / best(lambda: entries_of(table, values))


def main() -> int:
    arguments = argparse.ArgumentParser(description="How fast messages become rows and entries")
    arguments.add_argument("--messages", type=int, default=20_000)
    arguments.add_argument("--batch", type=int, default=1000)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    into, out = measure(batches(options.messages, options.batch), options.messages)
    print(f"batches of {options.batch}: {into:,.0f} messages/s into rows, {out:,.0f} out of rows")
    lone = measure(alone(options.messages), options.messages)
    print(f"sent alone: {lone[0]:,.0f} messages/s into rows, {lone[1]:,.0f} out of rows")
    for kind in (pb.LZ4, pb.ZSTD):
        squeezed = measure(alone(options.messages, kind), options.messages)
        name = pb.CompressionType.Name(kind)
        print(
            f"{name} alone: {squeezed[0]:,.0f} messages/s into rows, {squeezed[1]:,.0f} out of rows"
        )
    slowest = float("inf")
    for name, (schema, value) in TYPED.items():
        column = ValueColumn(ValueSchemas.next(None, [(VERSION, schema)]))
        entries = batches(options.messages, options.batch, value)
        typed = measure(entries, options.messages, column)
        print(f"{name}: {typed[0]:,.0f} messages/s into rows, {typed[1]:,.0f} out of rows")
        slowest = min(slowest, *typed)
    slow = slowest < TYPED_GOAL
    slow |= into < ROWS_GOAL or out < ENTRIES_GOAL or min(lone) < ALONE_GOAL
    return int(options.check and slow)


if __name__ == "__main__":
    sys.exit(main())
