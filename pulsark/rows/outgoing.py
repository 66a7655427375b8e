"""Messages that were never sent, as rows of entries: what a bulk publish writes.

They are batched as a client would do it: consecutive messages become batches up to a number and a
size; a delayed message is sent alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.schema import STRING_MAP, TIMESTAMP, file_schema
from pulsark.rows.value_sizes import value_sizes
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.rows.arrow.arrays import Bools, Ints

OUTGOING_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("key_base64", pa.bool_()),
        ("ordering_key", pa.binary()),
        ("value", pa.binary()),
        ("properties", STRING_MAP),
        ("event_time", TIMESTAMP),
        ("deliver_at_time", TIMESTAMP),
    ]
)
"""A message each row. A null ``value`` is a tombstone; ``key_base64`` may be null.

Values may be structs, as the codec of a schema has them, in place of bytes.
"""

MESSAGE_BYTES: Final = 20
"""What a message takes in a batch beside key, value and properties, about."""
ENTRY_BYTES: Final = 80
"""What an entry takes beside its messages, about."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How a producer puts messages together."""

    producer_name: str
    max_messages: int = 1000
    max_bytes: int = 128 << 10
    schema_version: bytes | None = None
    names_in_values: bool = False
    """Whether values that are structs are sent with the names of their fields, as in JSON."""


class EntryRows(NamedTuple):
    """Rows of consecutive entries, with ``FILE_SCHEMA`` but for the type of values.

    ``length`` is their bytes, about.
    """

    rows: pa.RecordBatch
    entries: int
    length: int
    starts: Ints
    """First row of each entry, and the number of rows at the end."""


def outgoing_schema(value: pa.DataType) -> pa.Schema:
    """``OUTGOING_SCHEMA`` with values of a type."""
    place = OUTGOING_SCHEMA.get_field_index("value")
    return OUTGOING_SCHEMA.set(place, pa.field("value", value))


def message_sizes(messages: pa.RecordBatch, *, names_in_values: bool = False) -> Ints:
    """Bytes of each message, about."""
    sizes = np.full(messages.num_rows, MESSAGE_BYTES, np.int64)
    for name in ("key", "ordering_key", "value"):
        column = messages.column(name)
        if column.null_count < len(column):
            sizes += value_sizes(column, names=names_in_values)
    properties = messages.column("properties")
    if properties.null_count < len(properties):
        ends = _map_ends(properties)
        if ends[-1] > ends[0]:
            items = pc.add(
                pc.binary_length(properties.keys),
                pc.fill_null(pc.binary_length(properties.items), 0),
            )
            before = np.concatenate(([0], np.cumsum(items.to_numpy().astype(np.int64) + 6)))
            # Null rows may have anything behind them.
            present = pc.is_valid(properties).to_numpy(False)
            sizes += np.where(present, before[ends[1:]] - before[ends[:-1]], 0)
    return sizes


def entry_sizes(messages: pa.RecordBatch, *, names_in_values: bool = False) -> Ints:
    """Bytes of the entry of each message if it is sent alone, at most about."""
    sizes = message_sizes(messages, names_in_values=names_in_values) + ENTRY_BYTES
    for name in ("key", "ordering_key"):  # the metadata of a batch have them once more
        column = messages.column(name)
        if column.null_count < len(column):
            sizes += value_sizes(column)
    return sizes


def entry_rows(
    messages: pa.RecordBatch,
    batching: Batching,
    first_entry_id: int,
    first_sequence_id: int,
    publish_ms: int,
) -> EntryRows:
    """Messages, at least one, as rows of entries that follow each other."""
    count = messages.num_rows
    sizes = message_sizes(messages, names_in_values=batching.names_in_values)
    deliver_at = messages.column("deliver_at_time")
    alone = pc.is_valid(deliver_at).to_numpy(False)
    starts = np.array([*_cut(sizes, alone, batching), count], np.int64)
    lengths = np.diff(starts)
    entry = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    index = np.arange(count, dtype=np.int64) - starts[:-1][entry]
    sequence_ids = np.arange(first_sequence_id, first_sequence_id + count, dtype=np.int64)
    later = np.ones(count, np.bool_)
    later[starts[:-1]] = False
    metas = _metas(messages, starts, alone, batching, first_sequence_id, publish_ms)
    columns: dict[str, Any] = {
        "entry_id": pa.array(first_entry_id + entry),
        "batch_index": pa.array(np.where(alone, -1, index).astype(np.int32)),
        "batch_size": pa.array(lengths[entry].astype(np.int32)),
        "key": messages.column("key"),
        "key_base64": _key_base64(messages),
        "ordering_key": messages.column("ordering_key"),
        "value": messages.column("value"),
        "properties": _properties(messages.column("properties")),
        "producer_name": pa.repeat(pa.scalar(batching.producer_name), count),
        "sequence_id": pa.array(sequence_ids),
        "publish_time": pa.repeat(pa.scalar(publish_ms * 1000, TIMESTAMP), count),
        "event_time": messages.column("event_time"),
        "schema_version": pa.repeat(pa.scalar(batching.schema_version, pa.binary()), count),
        "deliver_at_time": deliver_at,
        "entry_meta": pa.array(metas, pa.binary()).take(pa.array(entry, mask=later)),
    }
    schema = file_schema(messages.schema.field("value").type)
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    length = int(sizes.sum()) + ENTRY_BYTES * len(lengths)
    return EntryRows(rows, len(lengths), length, starts)


def _cut(sizes: Ints, alone: Bools, batching: Batching) -> Iterator[int]:
    """Where entries begin."""
    ends = np.cumsum(sizes)
    borders = [*np.flatnonzero(alone).tolist(), len(sizes)]
    start = 0
    for border in borders:
        while start < border:
            yield start
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + batching.max_bytes, side="right"))
            start = min(max(min(end, start + batching.max_messages), start + 1), border)
        if border < len(sizes):
            yield border
            start = border + 1


def _metas(
    messages: pa.RecordBatch,
    starts: Ints,
    alone: Bools,
    batching: Batching,
    first_sequence_id: int,
    publish_ms: int,
) -> list[bytes]:
    """The metadata of each entry. A batch has the keys of its first message, as clients do it."""
    firsts = messages.take(pa.array(starts[:-1]))
    keys = firsts.column("key").to_pylist()
    base64 = firsts.column("key_base64").to_pylist()
    ordering_keys = firsts.column("ordering_key").to_pylist()
    singles = alone[starts[:-1]]
    found = []
    for number, (start, end) in enumerate(
        zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ):
        head = pb.MessageMetadata(
            producer_name=batching.producer_name,
            sequence_id=first_sequence_id + start,
            publish_time=publish_ms,
        )
        if keys[number] is not None:
            head.partition_key = keys[number]
            if base64[number]:
                head.partition_key_b64_encoded = True
        if ordering_keys[number] is not None:
            head.ordering_key = ordering_keys[number]
        if batching.schema_version is not None:
            head.schema_version = batching.schema_version
        if singles[number]:
            _complete(head, messages, start)
        else:
            head.num_messages_in_batch = end - start
        found.append(head.SerializeToString())
    return found


def _complete(head: pb.MessageMetadata, messages: pa.RecordBatch, row: int) -> None:
    """What the metadata of a message say that is sent alone."""
    head.deliver_at_time = messages.column("deliver_at_time")[row].value // 1000
    event_time = messages.column("event_time")[row]
    if event_time.is_valid:
        head.event_time = max(event_time.value // 1000, 0)
    for name, value in messages.column("properties")[row].as_py() or ():
        head.properties.add(key=name, value=value or "")
    if not messages.column("value")[row].is_valid:
        head.null_value = True


def _key_base64(messages: pa.RecordBatch) -> pa.Array:
    """Whether a key is base64; null without a key."""
    present = pc.is_valid(messages.column("key"))
    flags = pc.fill_null(messages.column("key_base64"), False)
    return pc.if_else(present, flags, pa.scalar(None, pa.bool_()))


def _properties(column: pa.Array) -> pa.Array:
    """Properties without nulls: a message without any has none, and a value that is null is ''."""
    if column.null_count == len(column):
        ends = pa.array(np.zeros(len(column) + 1, np.int32))
        return pa.MapArray.from_arrays(ends, pa.array([], pa.string()), pa.array([], pa.string()))
    ends = _map_ends(column)
    first, last = int(ends[0]), int(ends[-1])
    if column.null_count:
        # Null rows may have anything behind them.
        sizes = np.where(pc.is_valid(column).to_numpy(False), np.diff(ends), 0)
        if int(sizes.sum()) != last - first:
            column = pa.array(column.to_pylist(), STRING_MAP)
            ends = _map_ends(column)
            first, last = int(ends[0]), int(ends[-1])
    return pa.MapArray.from_arrays(
        pa.array((ends - first).astype(np.int32)),
        column.keys[first:last],
        pc.fill_null(column.items[first:last], ""),
    )


def _map_ends(column: pa.Array) -> Ints:
    ends = np.frombuffer(column.buffers()[1], np.int32)
    found: Ints = ends[column.offset :][: len(column) + 1].astype(np.int64)
    return found
