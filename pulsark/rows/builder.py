"""Entries as rows: one row per message.

Messages that cannot be read here, because they are encrypted, a chunk of a larger one or
damaged, become one row an entry: ``value`` is null and ``value_raw`` holds what was sent. A
tombstone has neither. Markers, and members of a batch that compaction removed, are no messages
and give no row; a builder for a table keeps one for each entry that has nothing else, with
``batch_size`` 0, so that no entry of a ledger is missing from it.

Clients may publish any bytes, and no entry may keep others from becoming rows. So after a failure
entries are tried one by one: the one that fails is kept as it was sent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.errors import ProtocolError
from pulsark.limits import ROW_BATCH_MESSAGES_MAX, ROW_PAYLOAD_BYTES_MAX
from pulsark.rows.arrow.arrays import MessageColumns, merge, microseconds
from pulsark.rows.arrow.schema import (
    ALL_COLUMNS,
    FILE_SCHEMA,
    MESSAGE_META,
    ROW_SCHEMA,
    TIMESTAMP,
)
from pulsark.rows.batched import Batches
from pulsark.rows.entries import entries_of
from pulsark.rows.one_by_one import PlainRows
from pulsark.rows.single import METADATA_START, Alone, AloneEntries
from pulsark.wire.compression import decompress
from pulsark.wire.entry import CHECKSUM_END, MAGIC, EntryHeader, checksum_ok, parse_entry
from pulsark.wire.text_fields import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.rows.values.column import ValueColumn
    from pulsark.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

FEW_MESSAGES = 64
"""Fewer messages of batches are read one by one: numpy has a price for each call."""

LONG_METADATA_BYTES: Final = 1024
"""Metadata of an entry that is longer counts to the size of its rows, with its copies."""

_ALL: Final = 2**31


class _Given(NamedTuple):
    """What ``add`` was called with."""

    ledger_id: int
    entry_id: int
    entry: bytes
    limits: tuple[int, int]


class RowBuilder:
    """Collects the messages of entries of one topic partition; not for several threads.

    ``finish`` gives the rows added since the last ``finish``, in the order of ``add``. ``rows``
    and ``size`` (bytes of values, and of long metadata) tell when it is time for it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str] = tuple(ROW_SCHEMA.names),
        *,
        every_entry: bool = False,
        values: ValueColumn | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._every_entry = every_entry
        self.schema = pa.schema([ALL_COLUMNS.field(name) for name in columns])
        self.values = values
        if values is not None:
            place = self.schema.get_field_index("value")
            self.schema = self.schema.set(place, pa.field("value", values.type))
        self._clear()

    @classmethod
    def for_table(cls, partition: int, values: ValueColumn | None = None) -> RowBuilder:
        """A builder of rows for the files of a table, from which entries can be made again.

        With ``values`` the column ``value`` has their type. They may be replaced by others of
        the same type between a ``finish`` and the next one.
        """
        return cls("", partition, tuple(FILE_SCHEMA.names), every_entry=True, values=values)

    def _clear(self) -> None:
        self.rows = 0
        self.size = 0
        self._batches = Batches()
        self._alone = Alone()
        self._plain = PlainRows(keep_meta=MESSAGE_META.name in self.schema.names)
        # One element an entry.
        self._entries: list[bytes] = []
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._batch_sizes: list[int | None] = []
        self._heads: list[EntryHeader | None] = []
        self._metas: list[bytes | None] = []
        self._limits: list[tuple[int, int]] = []
        self._failed: Exception | None = None
        """Why an entry could not be added; ``finish`` finds its way around it."""

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
        number = len(self._entries)
        limits = skip_through, stop_after
        try:
            self._add(ledger_id, entry_id, entry, limits)
        except Exception as e:  # noqa: BLE001 - the entry is kept as it was sent
            self._failed = e
            if len(self._entries) == number:
                self._add_entry(ledger_id, entry_id, entry, None, None, None, limits)
            self.rows += 1
            self.size += len(entry)

    def add_as_sent(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """Add an entry as one row that has nothing but its bytes."""
        self._add_entry(ledger_id, entry_id, entry, None, None, None, (-1, _ALL))
        self._add_raw(len(self._entries) - 1, None, entry)

    def _add(self, ledger_id: int, entry_id: int, entry: bytes, limits: tuple[int, int]) -> None:
        skip_through = limits[0]
        metadata = self._alone.metadata_of(entry) if skip_through < 0 else None
        if metadata is not None:
            self.size += self._alone.add(len(self._entries), entry, metadata)
            self._add_entry(ledger_id, entry_id, entry, 1, None, metadata, limits)
            self.rows += 1
            return
        head = _head(entry)
        if skip_through >= 0 and (head is None or not head.batched or _opaque(head.metadata)):
            return
        number = len(self._entries)
        meta = _raw_metadata(entry, head) if head is not None and skip_through < 0 else None
        size = head.messages if head is not None else None
        self._add_entry(ledger_id, entry_id, entry, size, head, meta, limits)
        self._add_messages(number, head, entry)

    def _add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        entry: bytes,
        batch_size: int | None,
        head: EntryHeader | None,
        meta: bytes | None,
        limits: tuple[int, int],
    ) -> None:
        if meta is not None and len(meta) > LONG_METADATA_BYTES:
            self.size += len(meta)
        self._entries.append(entry)
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._batch_sizes.append(batch_size)
        self._heads.append(head)
        self._metas.append(meta)
        self._limits.append(limits)

    def _add_messages(self, number: int, head: EntryHeader | None, entry: bytes) -> None:
        if head is None:
            self._add_raw(number, None, entry)
        elif head.marker:
            self._add_empty(number, head, entry)
        elif head.batched and not _opaque(head.metadata):
            copied = _copied_bytes(head)
            if head.messages > ROW_BATCH_MESSAGES_MAX or copied > ROW_PAYLOAD_BYTES_MAX:
                self._add_damaged(number)
                return
            if copied > LONG_METADATA_BYTES * head.messages:
                self.size += copied
            try:
                payload = _uncompressed(head, entry)
                self.rows += self._batches.add(number, head, payload, *self._limits[number])
                self.size += len(payload)
            except ProtocolError:
                self._add_damaged(number)
        else:
            self._add_alone(number, head, entry)

    def _add_alone(self, number: int, head: EntryHeader, entry: bytes) -> None:
        metadata = head.metadata
        if _opaque(metadata):
            self._add_raw(number, metadata, entry[head.payload_offset :])
            return
        try:
            payload = _uncompressed(head, entry)
        except ProtocolError:
            self._add_raw(number, metadata, entry[head.payload_offset :])
            return
        self._plain.add_whole(number, metadata, None if metadata.null_value else payload, None)
        self.rows += 1
        self.size += len(payload)

    def _add_raw(self, number: int, metadata: pb.MessageMetadata | None, raw: bytes) -> None:
        self._plain.add_whole(number, metadata, None, raw)
        self.rows += 1
        self.size += len(raw)

    def _add_damaged(self, number: int) -> None:
        """A row for a batch that cannot be taken apart, or would be too large then."""
        head = self._heads[number]
        if head is not None and self._limits[number][0] < 0:
            raw = self._entries[number][head.payload_offset :]
            self._add_raw(number, head.metadata, raw)

    def _add_empty(self, number: int, head: EntryHeader, entry: bytes) -> None:
        """A row for an entry without messages, where every entry has one."""
        if self._every_entry:
            self._batch_sizes[number] = 0
            self._add_raw(number, head.metadata, entry[head.payload_offset :])

    def _add_one_by_one(self, number: int, head: EntryHeader, payload: bytes) -> None:
        try:
            if not self._plain.add_batch(number, head, payload, *self._limits[number]):
                self._add_empty(number, head, self._entries[number])
        except ProtocolError:
            self._add_damaged(number)

    def finish(self) -> pa.RecordBatch:
        """The rows collected, with exactly ``schema``; empties the builder."""
        try:
            if self._failed is None:
                return self._finished(self.values)
        except Exception as e:  # noqa: BLE001 - the entry is kept as it was sent
            self._failed = e
        return self._finished_around()

    def _finished_around(self) -> pa.RecordBatch:
        """The rows of all entries but for those that fail: these are kept as they were sent."""
        given = [
            _Given(*each)
            for each in zip(
                self._ledger_ids, self._entry_ids, self._entries, self._limits, strict=True
            )
        ]
        kept: list[tuple[_Given, Exception]] = []
        batches = self._halved(given, kept)
        if kept:
            first, error = kept[0]
            log.warning(
                "cannot decode %d entries, "
                "keeping them as they were "
                "sent; the first one is %d:%d:"
                " %r", len(kept), first.ledger_id, first.entry_id, error,
            )  # fmt: skip
        return pa.concat_batches(batches)

    def _halved(
        self, given: Sequence[_Given], kept: list[tuple[_Given, Exception]]
    ) -> list[pa.RecordBatch]:
        self._clear()
        try:
            for each in given:
                self._add(each.ledger_id, each.entry_id, each.entry, each.limits)
            return [self._finished(self.values)]
        except Exception as e:  # noqa: BLE001 - the entry is kept as it was sent
            if len(given) == 1:
                kept.append((given[0], e))
                return [self._as_sent(given[0])]
        middle = len(given) // 2
        return [*self._halved(given[:middle], kept), *self._halved(given[middle:], kept)]

    def _as_sent(self, given: _Given) -> pa.RecordBatch:
        """One row with all bytes of an entry; none if only some of its messages are wanted."""
        self._clear()
        if given.limits[0] < 0:
            self.add_as_sent(*given[:3])
        return self._finished(None)

    def _finished(self, values: ValueColumn | None) -> pa.RecordBatch:
        parts: list[MessageColumns] = []
        alone = self._alone_columns(parts)
        rest = self._batches.batches
        if self._batches.rows >= FEW_MESSAGES:
            columns, rest = self._batches.columns()
            if columns is not None:
                parts.append(columns)
        for batch in rest:
            self._add_one_by_one(batch.entry, batch.head, batch.payload)
        if self._plain.rows or not parts:
            parts.append(self._plain.columns())
        found = merge(parts)
        rows = _Rows(found, len(self._entries), alone)
        if values is not None:
            rows.found = self._typed(rows, values)
        elif self.values is not None:
            untold = pa.nulls(rows.count, self.values.type)
            rows.found = found._replace(value=untold)
        arrays = [_BUILD[name](self, rows) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self._every_entry and values is self.values:
            self._check(batch, rows, values)
        self._clear()
        return batch

    def _check(self, batch: pa.RecordBatch, rows: _Rows, values: ValueColumn | None) -> None:
        """Rebuild the entries that were read one by one: they may hold unusual bytes."""
        entries = self._plain.entries
        if entries:
            here = np.isin(rows.found.entry, entries)
            entries_of(batch if here.all() else batch.filter(pa.array(here)), values)

    def _alone_columns(self, parts: list[MessageColumns]) -> AloneEntries | None:
        """Add the rows of messages sent alone, all at once; the irregular ones join the others."""
        columns, known, irregular = None, None, self._alone.numbers
        if len(irregular) >= FEW_MESSAGES:
            columns, known, irregular = self._alone.columns()
        for number in irregular:
            entry = self._entries[number]
            head = self._heads[number] = _head(entry)
            if head is None:
                self._batch_sizes[number] = self._metas[number] = None
            self._add_messages(number, head, entry)
        if columns is not None:
            parts.append(columns)
        return known

    def _typed(self, rows: _Rows, values: ValueColumn) -> MessageColumns:
        """The rows with typed values; of what a type does not tell, also what was sent."""
        found = rows.found
        versions = _BUILD["schema_version"](self, rows)
        value, raw = values.split(found.value, versions)
        kept = pc.is_valid(raw).to_numpy(False) & (found.batch_index.to_numpy() < 0)
        squeezed = [
            (place, sent)
            for place in np.flatnonzero(kept).tolist()
            if (sent := self._compressed(int(found.entry[place]), rows)) is not None
        ]
        if squeezed:
            # A message sent alone is kept as it was sent: compressed.
            payloads = raw.to_pylist()
            for place, sent in squeezed:
                payloads[place] = sent
            raw = pa.array(payloads, pa.binary())
        return found._replace(value=value, value_raw=pc.coalesce(found.value_raw, raw))

    def _compressed(self, number: int, rows: _Rows) -> bytes | None:
        """The payload of a message sent alone as it was sent, if that is compressed."""
        entry, head = self._entries[number], self._heads[number]
        if head is not None:
            return entry[head.payload_offset :] if head.metadata.compression else None
        if rows.known is None:
            return None
        place = int(np.searchsorted(rows.known.number, number))
        if place == len(rows.known.number) or not rows.known.compressed[place]:
            return None
        return entry[METADATA_START + len(self._metas[number] or b"") :]

    # -- columns ---------------------------------------------------------------------------

    def _message_ids(self, rows: _Rows) -> pa.Array:
        heads = [
            f"{ledger_id}:{entry_id}:{self._partition}:"
            for ledger_id, entry_id in zip(self._ledger_ids, self._entry_ids, strict=True)
        ]
        indexes = pc.cast(rows.found.batch_index, pa.string())
        return pc.binary_join_element_wise(rows.spread(heads, pa.string()), indexes, "")

    def _of_head(self, get: Callable[[EntryHeader], Any]) -> list[Any]:
        return [get(head) if head is not None else None for head in self._heads]


class _Rows:
    """The rows of a ``finish``, and how what is known of entries spreads over them."""

    def __init__(
        self, found: MessageColumns, entries: int, alone: AloneEntries | None = None
    ) -> None:
        self.found = found
        self._known = alone
        self._entries = entries
        self.count = len(found.entry)
        self._entry = found.entry
        # One row an entry, as of messages sent alone, is common and needs no copies.
        self._alone = self.count == entries and bool((found.entry == np.arange(entries)).all())

    def spread(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Values of entries as a column."""
        array = pa.array(values, kind)
        return array if self._alone else array.take(pa.array(self._entry))

    def spread_with(
        self, values: Sequence[Any], kind: pa.DataType, of_alone: pa.Array | None
    ) -> pa.Array:
        """As ``spread``; messages that were read all at once already have a column."""
        if self._known is None or of_alone is None:
            return self.spread(values, kind)
        numbers = self._known.number
        if len(numbers) == self._entries:
            return of_alone if self._alone else of_alone.take(pa.array(self._entry))
        places = np.arange(self._entries)
        places[numbers] = self._entries + np.arange(len(numbers))
        both = pa.concat_arrays([pa.array(values, kind), of_alone])
        return both.take(pa.array(places[self._entry]))

    @property
    def known(self) -> AloneEntries | None:
        """What is known of messages sent alone that were read all at once."""
        return self._known

    def first(self, values: Sequence[bytes | None]) -> pa.Array:
        """Values of entries as a column that is null but on each entry's first row."""
        if self._alone:
            return pa.array(values, pa.binary())
        later = np.zeros(self.count, np.bool_)
        later[1:] = self._entry[1:] == self._entry[:-1]
        return pa.array(values, pa.binary()).take(pa.array(self._entry, mask=later))


def _times(get: Callable[[EntryHeader], int]) -> Callable[[RowBuilder, _Rows], pa.Array]:
    def column(builder: RowBuilder, rows: _Rows) -> pa.Array:
        return rows.spread(builder._of_head(lambda head: microseconds(get(head))), TIMESTAMP)

    return column


_BUILD: Final[dict[str, Callable[[RowBuilder, _Rows], pa.Array]]] = {
    "topic": lambda b, rows: pa.repeat(pa.scalar(b._topic, pa.string()), rows.count),
    "partition": lambda b, rows: pa.repeat(pa.scalar(b._partition, pa.int32()), rows.count),
    "message_id": RowBuilder._message_ids,
    "ledger_id": lambda b, rows: rows.spread(b._ledger_ids, pa.int64()),
    "entry_id": lambda b, rows: rows.spread(b._entry_ids, pa.int64()),
    "batch_index": lambda b, rows: rows.found.batch_index,
    "batch_size": lambda b, rows: rows.spread(b._batch_sizes, pa.int32()),
    "key": lambda b, rows: rows.found.key,
    "key_base64": lambda b, rows: rows.found.key_base64,
    "ordering_key": lambda b, rows: rows.found.ordering_key,
    "value": lambda b, rows: rows.found.value,
    "value_raw": lambda b, rows: rows.found.value_raw,
    "properties": lambda b, rows: rows.found.properties,
    "producer_name": lambda b, rows: rows.spread_with(
        b._of_head(lambda head: as_text(head.producer_name)),
        pa.string(),
        rows.known and rows.known.producer_name,
    ),
    "sequence_id": lambda b, rows: rows.found.sequence_id,
    "publish_time": lambda b, rows: rows.spread_with(
        b._of_head(lambda head: microseconds(head.publish_time)),
        TIMESTAMP,
        rows.known and rows.known.publish_time,
    ),
    "event_time": lambda b, rows: rows.found.event_time,
    "schema_version": lambda b, rows: rows.spread_with(
        b._of_head(lambda head: head.metadata.schema_version or None),
        pa.binary(),
        rows.known and rows.known.schema_version,
    ),
    "replicated_from": lambda b, rows: rows.spread(
        b._of_head(lambda head: as_text(head.metadata.replicated_from) or None), pa.string()
    ),
    "deliver_at_time": _times(lambda head: head.metadata.deliver_at_time),
    "entry_meta": lambda b, rows: rows.first(b._metas),
    "message_meta": lambda b, rows: rows.found.message_meta,
}


def _head(entry: bytes) -> EntryHeader | None:
    if not checksum_ok(entry):
        return None
    try:
        return parse_entry(entry)
    except ProtocolError:
        return None


def _opaque(metadata: pb.MessageMetadata) -> bool:
    """Whether the payload cannot be read by itself: encrypted, or a chunk of a message."""
    return bool(metadata.encryption_keys) or metadata.num_chunks_from_msg > 1


def _copied_bytes(head: EntryHeader) -> int:
    """Bytes of the metadata of a batch that each of its rows gets."""
    metadata = head.metadata
    texts = (metadata.producer_name, metadata.schema_version, metadata.replicated_from)
    return head.messages * sum(map(len, texts))


def _uncompressed(head: EntryHeader, entry: bytes) -> bytes:
    payload = entry[head.payload_offset :]
    metadata = head.metadata
    if not metadata.compression:
        return payload
    return decompress(
        metadata.compression, payload, metadata.uncompressed_size, ROW_PAYLOAD_BYTES_MAX
    )


def _raw_metadata(entry: bytes, head: EntryHeader) -> bytes:
    start = CHECKSUM_END + 4 if entry[:2] == MAGIC else 4
    return entry[start : head.payload_offset]
