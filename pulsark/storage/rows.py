"""Entries as rows: one row a message, with the columns of a topic's table.

``RowBuilder`` takes entries as they were sent and gives a pyarrow record batch. Only the
columns asked for are built. Messages that cannot be read here, because they are encrypted, a
chunk of a larger one or damaged, become one row an entry: ``value`` is null and ``value_raw``
holds what was sent. A tombstone has neither. Markers and members that compaction removed give
no row.

Imports pyarrow and numpy: never import it where a broker starts.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import decompress
from pulsark.wire.entry import CHECKSUM_END, MAGIC, EntryHeader, checksum_ok, parse_entry
from pulsark.wire.text_fields import as_text

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STRING_MAP: Final = pa.map_(pa.string(), pa.string())

ROW_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("message_id", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("batch_size", pa.int32()),
        ("key", pa.string()),
        ("key_base64", pa.bool_()),
        ("ordering_key", pa.binary()),
        ("value", pa.binary()),
        ("value_raw", pa.binary()),
        ("properties", STRING_MAP),
        ("producer_name", pa.string()),
        ("sequence_id", pa.int64()),
        ("publish_time", TIMESTAMP),
        ("event_time", TIMESTAMP),
        ("schema_version", pa.binary()),
        ("replicated_from", pa.string()),
        ("deliver_at_time", TIMESTAMP),
        ("entry_meta", pa.binary()),
    ]
)
"""Every column that ``RowBuilder`` can build. ``docs/spark.md`` says what they mean."""

UNCOMPRESSED_BYTES_MAX = 256 << 20
"""A payload that claims to become larger is kept as it was sent."""

_MILLISECONDS_MAX = (2**63 - 1) // 1000
_ALL = 2**31
_message_size = struct.Struct(">I").unpack_from


class RowBuilder:
    """Collects the messages of entries of one topic partition; not for several threads.

    ``finish`` gives the rows added since the last ``finish``. ``rows`` and ``size`` (bytes of
    values) tell when it is time for it.
    """

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str] = tuple(ROW_SCHEMA.names)
    ) -> None:
        self._topic = topic
        self._partition = partition
        self.schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        self._single = pb.SingleMessageMetadata()
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.size = 0
        # One element an entry.
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._batch_sizes: list[int | None] = []
        self._heads: list[EntryHeader | None] = []
        self._metas: list[bytes | None] = []
        self._counts: list[int] = []
        # One element a row. Keys are bytes where they are not UTF-8.
        self._indexes: list[int] = []
        self._keys: list[str | None] = []
        self._base64: list[bool] = []
        self._ordering_keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._raws: list[bytes | None] = []
        self._sequence_ids: list[int] = []
        self._event_times: list[int] = []
        # Properties of all rows one after the other; row i's end at _property_ends[i].
        self._property_keys: list[str] = []
        self._property_values: list[str] = []
        self._property_ends: list[int] = []
        # Rows of which nothing but their place is known.
        self._unknown: list[int] = []

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        entry: bytes,
        skip_through: int = -1,
        stop_after: int = _ALL,
    ) -> None:
        """Add the messages of an entry with ``skip_through`` < batch index <= ``stop_after``.

        A message that is not in a batch counts as index 0 for this.
        """
        before = len(self._values)
        head = _head(entry)
        if head is None:
            if skip_through < 0:
                self._unknown.append(before)
                self._add_row(None, entry)
        elif head.marker:
            return
        elif head.batched and not _opaque(head.metadata):
            self._add_batch(head, entry, skip_through, stop_after)
        elif skip_through < 0:
            self._add_alone(head, entry)
        count = len(self._values) - before
        if not count:
            return
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._batch_sizes.append(head.messages if head is not None else None)
        self._heads.append(head)
        from_start = head is not None and skip_through < 0
        self._metas.append(_raw_metadata(entry, head) if head and from_start else None)
        self._counts.append(count)
        self.rows += count

    def _add_batch(
        self, head: EntryHeader, entry: bytes, skip_through: int, stop_after: int
    ) -> None:
        lists: tuple[list[Any], ...] = (
            self._indexes, self._keys, self._base64, self._ordering_keys, self._values,
            self._raws, self._sequence_ids, self._event_times, self._property_keys,
            self._property_values, self._property_ends,
        )  # fmt: skip
        lengths = [len(column) for column in lists]
        try:
            payload = _uncompressed(head, entry)
            self._decode(head, payload, skip_through, stop_after)
            self.size += len(payload)
        except (ProtocolError, DecodeError, struct.error):
            for column, length in zip(lists, lengths, strict=True):
                del column[length:]
            if skip_through < 0:
                self._add_row(head.metadata, entry[head.payload_offset :])

    def _decode(
        self, head: EntryHeader, payload: bytes, skip_through: int, stop_after: int
    ) -> None:
        """Append the messages of a batch; raises if the batch is damaged, half done.

        The hot loop: everything it touches is a local, and the protobuf object is reused.
        """
        single = self._single
        parse = single.ParseFromString
        entry_sequence_id = head.sequence_id
        add_index, add_value = self._indexes.append, self._values.append
        add_key, add_base64 = self._keys.append, self._base64.append
        add_ordering_key = self._ordering_keys.append
        add_sequence_id = self._sequence_ids.append
        add_event_time = self._event_times.append
        add_property_end = self._property_ends.append
        property_keys, property_values = self._property_keys, self._property_values
        end = 0
        total = len(payload)
        stop = min(head.messages, stop_after + 1)
        for index in range(stop):
            start = end + 4
            middle = start + _message_size(payload, end)[0]
            parse(payload[start:middle])
            size = single.payload_size
            end = middle + size
            if size < 0 or end > total:
                raise ProtocolError("A message that is larger than its batch")
            if index <= skip_through or single.compacted_out:
                continue
            add_index(index)
            add_value(None if single.null_value else payload[middle:end])
            if single.HasField("partition_key") and not single.null_partition_key:
                add_key(single.partition_key)
                add_base64(single.partition_key_b64_encoded)
            else:
                add_key(None)
                add_base64(False)
            add_ordering_key(single.ordering_key or None)
            sequence_id = single.sequence_id
            if not sequence_id and not single.HasField("sequence_id"):
                sequence_id = entry_sequence_id
            add_sequence_id(sequence_id)
            add_event_time(single.event_time)
            properties = single.properties
            if properties:
                for item in properties:
                    property_keys.append(item.key)
                    property_values.append(item.value)
            add_property_end(len(property_keys))
        self._raws.extend([None] * (len(self._values) - len(self._raws)))

    def _add_alone(self, head: EntryHeader, entry: bytes) -> None:
        metadata = head.metadata
        if _opaque(metadata):
            self._add_row(metadata, entry[head.payload_offset :])
            return
        try:
            payload = _uncompressed(head, entry)
        except ProtocolError:
            self._add_row(metadata, entry[head.payload_offset :])
            return
        self._add_row(metadata, None)
        if not metadata.null_value:
            self._values[-1] = payload
            self.size += len(payload)

    def _add_row(self, metadata: pb.MessageMetadata | None, raw: bytes | None) -> None:
        """A row for a whole entry, without a value."""
        key, is_base64 = None, False
        if metadata is not None:
            if metadata.HasField("partition_key") and not metadata.null_partition_key:
                key, is_base64 = metadata.partition_key, metadata.partition_key_b64_encoded
            for item in metadata.properties:
                self._property_keys.append(item.key)
                self._property_values.append(item.value)
        self._indexes.append(-1)
        self._keys.append(key)
        self._base64.append(is_base64)
        self._ordering_keys.append((metadata.ordering_key or None) if metadata else None)
        self._values.append(None)
        self._raws.append(raw)
        self._sequence_ids.append(metadata.sequence_id if metadata else 0)
        self._event_times.append(metadata.event_time if metadata else 0)
        self._property_ends.append(len(self._property_keys))
        self.size += len(raw) if raw is not None else 0

    def finish(self) -> pa.RecordBatch:
        """The rows collected, with exactly ``schema``; empties the builder."""
        repeat = np.repeat(np.arange(len(self._counts), dtype=np.int32), self._counts)
        arrays = [_BUILD[name](self, repeat) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._clear()
        return batch

    # -- columns ---------------------------------------------------------------------------

    def _topics(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic, pa.string()), self.rows)

    def _partitions(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        return pa.repeat(pa.scalar(self._partition, pa.int32()), self.rows)

    def _message_ids(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        heads = [
            f"{ledger_id}:{entry_id}:{self._partition}:"
            for ledger_id, entry_id in zip(self._ledger_ids, self._entry_ids, strict=True)
        ]
        indexes = pc.cast(pa.array(self._indexes, pa.int32()), pa.string())
        return pc.binary_join_element_wise(_take(heads, pa.string(), repeat), indexes, "")

    def _key_column(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        if not all(key is None or isinstance(key, str) for key in self._keys):
            for i, key in enumerate(self._keys):
                if isinstance(key, bytes):
                    self._keys[i] = base64.b64encode(key).decode()
                    self._base64[i] = True
        return pa.array(self._keys, pa.string())

    def _base64_column(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        flags = [
            None if key is None else flag or not isinstance(key, str)
            for key, flag in zip(self._keys, self._base64, strict=True)
        ]
        return pa.array(flags, pa.bool_())

    def _property_column(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        ends = np.zeros(self.rows + 1, np.int32)
        ends[1:] = self._property_ends
        keys, values = _strings(self._property_keys), _strings(self._property_values)
        if _has_duplicates(keys, ends):
            keys, values, ends = _last_wins(keys, values, ends)
        return pa.MapArray.from_arrays(pa.array(ends), keys, values)

    def _sequence_column(self, repeat: npt.NDArray[np.int32]) -> pa.Array:
        ids = np.array(self._sequence_ids, np.uint64).view(np.int64)
        if not self._unknown:
            return pa.array(ids)
        mask = np.zeros(self.rows, np.bool_)
        mask[self._unknown] = True
        return pa.array(ids, mask=mask)

    def _of_head(self, get: Callable[[EntryHeader], Any]) -> list[Any]:
        return [get(head) if head is not None else None for head in self._heads]


Column = Callable[[RowBuilder, "npt.NDArray[np.int32]"], pa.Array]

_BUILD: dict[str, Column] = {
    "topic": RowBuilder._topics,
    "partition": RowBuilder._partitions,
    "message_id": RowBuilder._message_ids,
    "ledger_id": lambda b, repeat: _take(b._ledger_ids, pa.int64(), repeat),
    "entry_id": lambda b, repeat: _take(b._entry_ids, pa.int64(), repeat),
    "batch_index": lambda b, repeat: pa.array(np.array(b._indexes, np.int32)),
    "batch_size": lambda b, repeat: _take(b._batch_sizes, pa.int32(), repeat),
    "key": RowBuilder._key_column,
    "key_base64": RowBuilder._base64_column,
    "ordering_key": lambda b, repeat: pa.array(b._ordering_keys, pa.binary()),
    "value": lambda b, repeat: _binary(b._values),
    "value_raw": lambda b, repeat: pa.array(b._raws, pa.binary()),
    "properties": RowBuilder._property_column,
    "producer_name": lambda b, repeat: _take(
        b._of_head(lambda head: as_text(head.producer_name)), pa.string(), repeat
    ),
    "sequence_id": RowBuilder._sequence_column,
    "publish_time": lambda b, repeat: _take(
        b._of_head(lambda head: _microseconds(head.publish_time)), TIMESTAMP, repeat
    ),
    "event_time": lambda b, repeat: _times(b._event_times),
    "schema_version": lambda b, repeat: _take(
        b._of_head(lambda head: head.metadata.schema_version or None), pa.binary(), repeat
    ),
    "replicated_from": lambda b, repeat: _take(
        b._of_head(lambda head: as_text(head.metadata.replicated_from) or None),
        pa.string(),
        repeat,
    ),
    "deliver_at_time": lambda b, repeat: _take(
        b._of_head(lambda head: _microseconds(head.metadata.deliver_at_time)), TIMESTAMP, repeat
    ),
    "entry_meta": lambda b, repeat: _first_of_entry(b._metas, repeat),
}


def _head(entry: bytes) -> EntryHeader | None:
    if not checksum_ok(entry):
        return None
    try:
        return parse_entry(entry)
    except ProtocolError:
        return None


def _opaque(metadata: pb.MessageMetadata) -> bool:
    """Whether the payload says nothing by itself: encrypted, or a piece of a message."""
    return bool(metadata.encryption_keys) or metadata.num_chunks_from_msg > 1


def _uncompressed(head: EntryHeader, entry: bytes) -> bytes:
    payload = entry[head.payload_offset :]
    metadata = head.metadata
    if not metadata.compression:
        return payload
    return decompress(
        metadata.compression, payload, metadata.uncompressed_size, UNCOMPRESSED_BYTES_MAX
    )


def _raw_metadata(entry: bytes, head: EntryHeader) -> bytes:
    start = CHECKSUM_END + 4 if entry[:2] == MAGIC else 4
    return entry[start : head.payload_offset]


def _take(values: Sequence[Any], kind: pa.DataType, repeat: npt.NDArray[np.int32]) -> pa.Array:
    """Values of entries as a column of rows."""
    array = pa.array(values, kind)
    if len(repeat) == len(values):
        return array  # one row an entry
    return array.take(pa.array(repeat))


def _first_of_entry(values: list[bytes | None], repeat: npt.NDArray[np.int32]) -> pa.Array:
    """Values of entries as a column that is null but on each entry's first row."""
    if len(repeat) == len(values):
        return pa.array(values, pa.binary())
    later = np.zeros(len(repeat), np.bool_)
    later[1:] = repeat[1:] == repeat[:-1]
    return pa.array(values, pa.binary()).take(pa.array(repeat, mask=later))


def _binary(values: list[bytes | None]) -> pa.Array:
    """A binary column; without nulls by one copy of the bytes."""
    if None in values:
        return pa.array(values, pa.binary())
    ends = np.zeros(len(values) + 1, np.int32)
    ends[1:] = list(accumulate(map(len, values)))  # type: ignore[arg-type]
    data = b"".join(values)  # type: ignore[arg-type]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def _strings(values: Iterable[str]) -> pa.Array:
    """A text column; what is not UTF-8 (``bytes`` then) gets replacement characters."""
    values = list(values)
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError):
        return pa.array([as_text(value) for value in values], pa.string())


def _microseconds(milliseconds: int) -> int | None:
    """A time for Arrow; 0 and what no clock can show mean that there is none."""
    return milliseconds * 1000 if 0 < milliseconds <= _MILLISECONDS_MAX else None


def _times(milliseconds: list[int]) -> pa.Array:
    if not any(milliseconds):
        return pa.nulls(len(milliseconds), TIMESTAMP)
    times = np.array(milliseconds, np.uint64)
    absent = (times == 0) | (times > _MILLISECONDS_MAX)
    times[absent] = 0
    return pa.array(times.astype(np.int64) * 1000, TIMESTAMP, mask=absent)


def _has_duplicates(keys: pa.Array, ends: npt.NDArray[np.int32]) -> bool:
    """Whether a row has a property twice."""
    counts = np.diff(ends)
    if not (counts > 1).any():
        return False
    codes = keys.dictionary_encode()
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    pairs = rows * len(codes.dictionary) + codes.indices.to_numpy()
    return len(np.unique(pairs)) < len(pairs)


def _last_wins(
    keys: pa.Array, values: pa.Array, ends: npt.NDArray[np.int32]
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int32]]:
    """Properties as clients see them: of equal names the last one counts."""
    key_list, value_list = keys.to_pylist(), values.to_pylist()
    rows = [
        dict(zip(key_list[start:end], value_list[start:end], strict=True))
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    new_ends = np.zeros_like(ends)
    new_ends[1:] = list(accumulate(map(len, rows)))
    flat = [item for row in rows for item in row.items()]
    return _strings(key for key, _ in flat), _strings(value for _, value in flat), new_ends
