"""Reads messages one by one: those sent alone, unreadable ones, and unusual batches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.rows.arrow.arrays import (
    MessageColumns,
    binary,
    keys,
    last_wins,
    repeated_names,
    strings,
    times,
)
from pulsark.rows.arrow.schema import MILLISECONDS_MAX
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.wire.entry import EntryHeader

_message_size = struct.Struct(">I").unpack_from


class PlainRows:
    """Collects rows in lists.

    With ``keep_meta``, ``message_meta`` has the metadata of each message in a batch that the
    other columns do not tell in full.
    """

    def __init__(self, keep_meta: bool) -> None:
        self._keep_meta = keep_meta
        self._single = pb.SingleMessageMetadata()
        self._entries: list[int] = []
        self._indexes: list[int] = []
        # Keys and properties are bytes where they are not UTF-8.
        self._keys: list[str | None] = []
        self._base64: list[bool] = []
        self._ordering_keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._raws: list[bytes | None] = []
        self._sequence_ids: list[int] = []
        self._event_times: list[int] = []
        self._message_metas: list[bytes | None] = []
        # Properties of all rows one after the other; row i's end at _property_ends[i].
        self._property_names: list[str] = []
        self._property_values: list[str] = []
        self._property_ends: list[int] = []
        # Rows of which only the position is known.
        self._unknown: list[int] = []

    @property
    def rows(self) -> int:
        """Rows so far."""
        return len(self._entries)

    @property
    def entries(self) -> list[int]:
        """By row: the number of its entry."""
        return self._entries

    def add_whole(
        self,
        entry: int,
        metadata: pb.MessageMetadata | None,
        value: bytes | None,
        raw: bytes | None,
    ) -> None:
        """One row for an entry."""
        key, is_base64 = None, False
        if metadata is None:
            self._unknown.append(len(self._entries))
        else:
            if metadata.HasField("partition_key") and not metadata.null_partition_key:
                key, is_base64 = metadata.partition_key, metadata.partition_key_b64_encoded
            for item in metadata.properties:
                self._property_names.append(item.key)
                self._property_values.append(item.value)
        has_ordering_key = metadata is not None and metadata.HasField("ordering_key")
        self._entries.append(entry)
        self._indexes.append(-1)
        self._keys.append(key)
        self._base64.append(is_base64)
        self._ordering_keys.append(
            metadata.ordering_key if metadata is not None and has_ordering_key else None
        )
        self._values.append(value)
        self._raws.append(raw)
        self._sequence_ids.append(metadata.sequence_id if metadata else 0)
        self._event_times.append(metadata.event_time if metadata else 0)
        self._message_metas.append(None)
        self._property_ends.append(len(self._property_names))

    def add_batch(
        self, entry: int, head: EntryHeader, payload: bytes, skip_through: int, stop_after: int
    ) -> int:
        """A row for each message but those that compaction removed; returns their number.

        ``ProtocolError`` if the batch is damaged; then nothing was added.
        """
        lists: tuple[list[Any], ...] = (
            self._entries, self._indexes, self._keys, self._base64, self._ordering_keys,
            self._values, self._raws, self._sequence_ids, self._event_times,
            self._message_metas, self._property_names, self._property_values,
            self._property_ends,
        )  # fmt: skip
        lengths = [len(column) for column in lists]
        try:
            self._add_batch(entry, head, payload, skip_through, stop_after)
        except (ProtocolError, DecodeError, struct.error) as e:
            for column, length in zip(lists, lengths, strict=True):
                del column[length:]
            raise ProtocolError(f"A damaged batch: {e}") from None
        return len(self._entries) - lengths[0]

    def _add_batch(
        self, entry: int, head: EntryHeader, payload: bytes, skip_through: int, stop_after: int
    ) -> None:
        single = self._single
        end = 0
        for index in range(min(head.messages, stop_after + 1)):
            start = end + 4
            middle = start + _message_size(payload, end)[0]
            single.ParseFromString(payload[start:middle])
            end = middle + single.payload_size
            if single.payload_size < 0 or end > len(payload):
                raise ProtocolError("A message that is larger than its batch")
            if index <= skip_through or single.compacted_out:
                continue
            names, values = self._property_names, self._property_values
            first = len(names)
            for item in single.properties:
                names.append(item.key)
                values.append(item.value)
            told = not self._keep_meta or _is_told(single, names[first:], values[first:])
            self._message_metas.append(None if told else payload[start:middle])
            self._property_ends.append(len(names))
            has_key = single.HasField("partition_key") and not single.null_partition_key
            self._entries.append(entry)
            self._indexes.append(index)
            self._keys.append(single.partition_key if has_key else None)
            self._base64.append(has_key and single.partition_key_b64_encoded)
            self._ordering_keys.append(
                single.ordering_key if single.HasField("ordering_key") else None
            )
            self._values.append(None if single.null_value else payload[middle:end])
            self._raws.append(None)
            has_sequence_id = single.HasField("sequence_id")
            self._sequence_ids.append(single.sequence_id if has_sequence_id else head.sequence_id)
            self._event_times.append(single.event_time)

    def columns(self) -> MessageColumns:
        """The rows."""
        key, key_base64 = keys(self._keys, self._base64)
        return MessageColumns(
            entry=np.array(self._entries, np.int64),
            batch_index=pa.array(self._indexes, pa.int32()),
            key=key,
            key_base64=key_base64,
            ordering_key=pa.array(self._ordering_keys, pa.binary()),
            value=binary(self._values),
            value_raw=pa.array(self._raws, pa.binary()),
            properties=self._properties(),
            sequence_id=self._sequence_column(),
            event_time=times(np.array(self._event_times, np.uint64)),
            message_meta=pa.array(self._message_metas, pa.binary()),
        )

    def _properties(self) -> pa.Array:
        ends = np.zeros(self.rows + 1, np.int32)
        ends[1:] = self._property_ends
        names, values = strings(self._property_names), strings(self._property_values)
        if repeated_names(names, ends).any():
            names, values, ends = last_wins(names, values, ends)
        return pa.MapArray.from_arrays(pa.array(ends), names, values)

    def _sequence_column(self) -> pa.Array:
        ids = np.array(self._sequence_ids, np.uint64).view(np.int64)
        if not self._unknown:
            return pa.array(ids)
        mask = np.zeros(self.rows, np.bool_)
        mask[self._unknown] = True
        return pa.array(ids, mask=mask)


def _is_told(single: pb.SingleMessageMetadata, names: list[str], values: list[str]) -> bool:
    """Whether the columns hold all that a client can see of a message's metadata.

    Drops the message's unknown fields: no later code reads them.
    """
    if not single.IsInitialized():
        return False  # such a message cannot even be measured
    has_key = single.HasField("partition_key")
    if (
        single.null_partition_key
        or (single.partition_key_b64_encoded and not has_key)
        or single.event_time > MILLISECONDS_MAX
        or not isinstance(single.partition_key, str)
        or len(set(names)) < len(names)
        or not all(isinstance(item, str) for item in names)
        or not all(isinstance(item, str) for item in values)
    ):
        return False
    size = single.ByteSize()
    single.DiscardUnknownFields()
    return single.ByteSize() == size
