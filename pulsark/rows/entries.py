"""Rows as entries: the inverse of a builder for a table.

An entry made from rows has other bytes than its producer sent, but clients see no difference. It
is not compressed, unless it would be too large.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.errors import CorruptEntryError
from pulsark.rows.arrow.arrays import (
    Bools,
    Ints,
    cells_of,
    grouped,
    joined,
    offsets_of,
    varints,
)
from pulsark.rows.arrow.fields import only
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import compress
from pulsark.wire.entry import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.rows.values.column import ValueColumn

COMPRESS_FROM_BYTES: Final = 1 << 20
"""Larger payloads that came compressed are compressed again, as their producer did it."""

COLUMNS: Final = (
    "entry_id", "batch_index", "batch_size", "key", "key_base64", "ordering_key", "value",
    "value_raw", "properties", "sequence_id", "event_time", "entry_meta", "message_meta",
)  # fmt: skip
"""What ``entries_of`` needs of a table."""

SCHEMA_VERSION: Final = "schema_version"
"""What it needs besides if values are typed."""

_COMPRESSION_TAG, _UNCOMPRESSED_SIZE_TAG = b"\x40", b"\x48"
_checksum_and_size = struct.Struct(">II").pack
_size = struct.Struct(">I").pack


def entries_of(
    rows: pa.RecordBatch | pa.Table, values: ValueColumn | None = None
) -> list[tuple[int, bytes]]:
    """Entry ids and entries of one ledger's rows, sorted by ``entry_id``, ``batch_index``.

    All rows of an entry must be there. ``values`` is what their file says of typed ones.
    ``CorruptEntryError`` if they cannot be an entry.
    """
    columns = list(COLUMNS if values is None else (*COLUMNS, SCHEMA_VERSION))
    if isinstance(rows, pa.Table):
        batches = rows.select(columns).combine_chunks().to_batches()
    else:
        batches = [rows.select(columns)]
    if values is not None:
        batches = [_with_payloads(batch, values) for batch in batches]
    return [pair for batch in batches if batch.num_rows for pair in _entries(batch)]


def _with_payloads(rows: pa.RecordBatch, values: ValueColumn) -> pa.RecordBatch:
    """Rows whose values are what was sent."""
    payloads = values.join(*(rows.column(n) for n in ("value", "value_raw", SCHEMA_VERSION)))
    return rows.set_column(rows.schema.get_field_index("value"), "value", payloads)


def _entries(rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    ids = rows.column("entry_id").to_numpy()
    indexes = rows.column("batch_index").to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    ends = np.append(starts[1:], len(ids))
    first_rows = rows.select(["batch_size", "entry_meta", "value", "value_raw"]).take(
        pa.array(starts)
    )
    sizes, metas, values, raws = (column.to_pylist() for column in first_rows.columns)
    if (indexes < 0).all() and len(starts) == len(ids) and None not in metas:
        yield from _alone(ids.tolist(), metas, values, raws)
        return
    in_batch = indexes >= 0
    data, offsets = _members(rows, in_batch)
    for entry_id, start, end, size, meta, value, raw in zip(
        ids[starts].tolist(), starts.tolist(), ends.tolist(), sizes, metas, values, raws,
        strict=True,
    ):  # fmt: skip
        if indexes[start] >= 0:
            if meta is None:
                raise CorruptEntryError(f"the first row of entry {entry_id} is not there")
            if end - start == size:
                payload = data[offsets[start] : offsets[end]]
            else:
                pieces = [data[offsets[row] : offsets[row + 1]] for row in range(start, end)]
                payload = _with_holes(indexes[start:end].tolist(), pieces, size)
            yield entry_id, _with_payload(meta, payload)
        elif end - start > 1:
            raise CorruptEntryError(f"entry {entry_id} has {end - start} rows for one message")
        elif meta is None:
            yield entry_id, raw
        elif raw is not None:
            yield entry_id, _entry(meta, raw)
        else:
            yield entry_id, _with_payload(meta, value or b"")


def _alone(
    ids: list[int], metas: list[bytes], values: list[bytes | None], raws: list[bytes | None]
) -> Iterator[tuple[int, bytes]]:
    """Entries with one message each. Metadata without a compression stay as they are."""
    compression = only(pb.MessageMetadata, "compression")()
    crc = google_crc32c.value
    for entry_id, meta, value, raw in zip(ids, metas, values, raws, strict=True):
        if raw is not None:
            yield entry_id, _entry(meta, raw)
            continue
        if value is None or _COMPRESSION_TAG in meta:
            compression.ParseFromString(meta)
            if value is None or compression.HasField("compression"):
                yield entry_id, _with_payload(meta, value or b"")
                continue
        body = b"%b%b%b" % (_size(len(meta)), meta, value)
        yield entry_id, b"\x0e\x01%b%b" % (_size(crc(body)), body)


def _entry(meta: bytes, payload: bytes) -> bytes:
    body = b"".join((_size(len(meta)), meta, payload))
    return b"".join((MAGIC, _size(google_crc32c.value(body)), body))


def _with_payload(meta: bytes, payload: bytes) -> bytes:
    """An entry with its metadata as they were, but for what says how it is compressed."""
    if _COMPRESSION_TAG not in meta and _UNCOMPRESSED_SIZE_TAG not in meta:
        return _entry(meta, payload)
    metadata = pb.MessageMetadata.FromString(meta)
    kind = metadata.compression
    if not kind:  # not compressed, or in a way that only clients know
        return _entry(meta, payload)
    metadata.uncompressed_size = len(payload)
    if len(payload) > COMPRESS_FROM_BYTES:
        payload = compress(kind, payload)
    else:
        metadata.ClearField("compression")
    return _entry(metadata.SerializeToString(), payload)


def _with_holes(indexes: list[int], pieces: list[bytes], size: int) -> bytes:
    """A batch in which messages are missing: for clients, compaction removed them."""
    hole = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    members = [_size(len(hole)) + hole] * size
    if len(set(indexes)) < len(indexes) or max(indexes) >= size:
        raise CorruptEntryError(f"a batch of {size} messages has the rows {indexes}")
    for index, piece in zip(indexes, pieces, strict=True):
        members[index] = piece
    return b"".join(members)


def _members(rows: pa.RecordBatch, in_batch: Bools) -> tuple[bytes, Ints]:
    """Each message of a batch as it stands in the payload, one behind the other.

    Row i's is ``data[offsets[i]:offsets[i + 1]]``; of a row outside of a batch it is empty.
    """
    offsets = np.zeros(len(in_batch) + 1, np.int64)
    if not in_batch.any():
        return b"", offsets
    if in_batch.all():
        found = _messages(rows)
        return found.buffers()[2].to_pybytes(), offsets_of(found)
    found = _messages(rows.filter(pa.array(in_batch)))
    offsets[1:][in_batch] = np.diff(offsets_of(found))
    return found.buffers()[2].to_pybytes(), np.cumsum(offsets)


def _messages(rows: pa.RecordBatch) -> pa.Array:
    count = rows.num_rows
    value, key, ordering_key = (rows.column(n) for n in ("value", "key", "ordering_key"))
    message_meta = rows.column("message_meta")
    sequence_ids = rows.column("sequence_id").to_numpy().view(np.uint64)
    event_time = rows.column("event_time")
    milliseconds = pc.fill_null(event_time.cast(pa.int64()), 0).to_numpy() // 1000
    has_value = _present(value)
    sizes = _lengths(value)
    head = [
        _properties(rows.column("properties")),
        _numbers(0x12, _lengths(key), _present(key)),
        key.cast(pa.binary()),
        _numbers(0x18, sizes),
        _numbers(0x28, milliseconds, milliseconds != 0),
        _flags(0x30, pc.fill_null(rows.column("key_base64"), False).to_numpy(False)),
        _numbers(0x3A, _lengths(ordering_key), _present(ordering_key)),
        ordering_key,
        _numbers(0x40, sequence_ids),
        _flags(0x48, ~has_value),
    ]
    metas = joined([piece for piece in head if piece is not None], count)
    if message_meta.null_count < count:
        metas = pc.coalesce(_fitting(message_meta, sizes), metas)
    big_endian = _lengths(metas).astype(">u4")
    prefix = cells_of(big_endian.view(np.uint8).reshape(-1, 4))
    return joined([prefix, metas, value], count)


def _fitting(metas: pa.Array, sizes: Ints) -> pa.Array:
    """Metadata of messages, each with the size that its value has now: a tombstone's is 0."""
    single = pb.SingleMessageMetadata()
    fitting: list[bytes | None] = []
    for meta, size in zip(metas.to_pylist(), sizes.tolist(), strict=True):
        if meta is not None:
            single.ParseFromString(meta)
            if single.payload_size != size:
                single.payload_size = size
                meta = single.SerializePartialToString()
        fitting.append(meta)
    return pa.array(fitting, pa.binary())


def _properties(column: pa.Array) -> pa.Array | None:
    """The properties of each row, serialised; ``None`` if no row has any."""
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last:
        return None
    names, values = column.keys[first:last], column.items[first:last]
    name_heads = _numbers(0x0A, _lengths(names))
    value_heads = _numbers(0x12, _lengths(values))
    sizes = _lengths(names) + _lengths(values) + _lengths(name_heads) + _lengths(value_heads)
    found = joined(
        [
            _numbers(0x0A, sizes),
            name_heads,
            names.cast(pa.binary()),
            value_heads,
            values.cast(pa.binary()),
        ],
        len(names),
    )
    return grouped(found, ends - first)


def _lengths(column: pa.Array) -> Ints:
    """Bytes of each element; 0 for null."""
    found: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return found


def _present(column: pa.Array) -> Bools:
    found: Bools = pc.is_valid(column).to_numpy(False)
    return found


def _numbers(tag: int, numbers: npt.NDArray[Any], present: Bools | None = None) -> pa.Array:
    """A field's tag and a number as protobuf writes it, on each row; nothing where absent."""
    return varints(numbers, bytes([tag]), present)


def _flags(tag: int, flags: Bools) -> pa.Array | None:
    """A field's tag and true, where it is; ``None`` if it is nowhere."""
    if not flags.any():
        return None
    return _numbers(tag, np.ones(len(flags), np.uint64), flags)
