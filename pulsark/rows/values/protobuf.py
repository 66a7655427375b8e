"""Protobuf messages, all at once.

Field by field, numpy reads what encoders usually write: fields in ascending order, each once,
numbers together or apart as the definition says it. Whatever else is allowed goes through protobuf
itself, message by message, which writes it in that way; it can be read then.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pulsark.rows.arrow.arrays import (
    Bools,
    Ints,
    cells_of,
    ends_of,
    from_zigzag,
    grouped,
    joined,
    not_text,
    offsets_of,
    repeated_names,
    slices,
    text,
    to_zigzag,
    varints,
)
from pulsark.rows.arrow.fields import PADDING, Fields, tag_of
from pulsark.rows.arrow.fields import varints as read_varints
from pulsark.rows.values.bounds import ProtobufBounds
from pulsark.rows.values.losses import UNKNOWN, WHOLE, Losses, joined_path
from pulsark.rows.values.primitives import as_cells
from pulsark.rows.values.types import arrow_type, from_start, spread, valid, with_nulls
from pulsark.schemas.columns import of_protobuf

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.schemas.protobuf import Field, Message

SAMPLE: Final = 64
"""Messages from which it is learned how numbers are written, where no definition says so."""

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED: Final = {
    "fixed32": "<u4", "sfixed32": "<i4", "float": "<f4",
    "fixed64": "<u8", "sfixed64": "<i8", "double": "<f8",
}  # fmt: skip
_WIRE_TYPES: Final = {
    **{k: _EIGHT_BYTES if code[-1] == "8" else _FOUR_BYTES for k, code in _FIXED.items()},
    **dict.fromkeys(("string", "bytes", "message", "map"), _BYTES),
}
_LOW: Final = np.uint64(0xFFFFFFFF)
_TOO_LARGE: Final = np.uint64(1 << 63)

Numbers = npt.NDArray[np.uint64]


class ProtobufCodec:
    """Values of a message. ``packed`` says how repeated numbers are written where the definition
    does not."""

    def __init__(self, message: Message, packed: bool | None = None) -> None:
        self.type = arrow_type(of_protobuf(message))
        self.packed = packed
        self._message = message
        self.bounds = ProtobufBounds(message, self.type)
        self._to_learn = any(field.packed is None for field in message.fields)

    def learn(self, payloads: pa.Array) -> None:
        """Find out from the first messages how repeated numbers are written."""
        if not self._to_learn or self.packed is not None or not len(payloads):
            return
        sample = payloads.drop_null()[:SAMPLE]
        equal: Counter[bool] = Counter()
        for packed in (True, False):
            codec = ProtobufCodec(self._message, packed)
            again = codec.encode(codec.decode(sample, Losses(len(sample))))
            equal[packed] = pc.sum(pc.equal(again, sample)).as_py() or 0
        self.packed = equal[True] >= equal[False]

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is not a message of the type."""
        present = valid(payloads)
        if not present.all():
            inner = lost.within("", np.flatnonzero(present))
            return spread(self.decode(payloads.drop_null(), inner), present)
        return self.bounds.decoded(payloads, self._decoded, lost)

    def _decoded(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        found, bad = self._read(payloads, lost, np.arange(len(payloads)))
        if not bad.any():
            return found
        # What protobuf writes of the others is in the form that can be read.
        numbers = np.flatnonzero(bad)
        rewritten = [self._rewritten(each) for each in payloads.take(pa.array(numbers)).to_pylist()]
        readable = np.array([each is not None for each, _ in rewritten])
        unknown = np.array([has_unknown for _, has_unknown in rewritten])
        again, still_bad = self._read(
            pa.array([each for each, _ in rewritten if each is not None], pa.binary()),
            lost,
            numbers[readable],
        )
        places = np.arange(len(payloads))
        taken = np.zeros(len(rewritten), np.int64)
        taken[readable] = len(payloads) + np.arange(len(again))
        places[bad] = taken
        unreadable = ~readable
        unreadable[readable] = still_bad
        lost.add(WHOLE, numbers[unreadable])
        lost.add(UNKNOWN, numbers[unknown & ~unreadable])
        mask = np.zeros(len(payloads), np.bool_)
        mask[bad] = unreadable
        return pa.concat_arrays([found, again]).take(pa.array(places, mask=mask))

    def _read(self, payloads: pa.Array, lost: Losses, numbers: Ints) -> tuple[pa.Array, Bools]:
        """Return values, and where they are not what a payload says."""
        if not len(payloads):
            return pa.nulls(0, self.type), np.zeros(0, np.bool_)
        offsets = offsets_of(payloads)
        held = payloads.buffers()[2]
        raw = (held.to_pybytes() if held is not None else b"") + PADDING
        reader = _Reader(raw, bool(self.packed))
        rows = np.arange(len(payloads))
        found, bad = reader.message(self._message, self.type, offsets[:-1], offsets[1:], rows, "")
        for path, places in reader.lost:
            lost.add(path, numbers[places[~bad[places]]])
        return found, bad

    def _rewritten(self, payload: bytes) -> tuple[bytes | None, bool]:
        """Return a payload as protobuf writes it, and whether it has fields that are unknown."""
        parsed = self._dynamic()
        try:
            parsed.ParseFromString(payload)
            size = parsed.ByteSize()
            parsed.DiscardUnknownFields()
            return bytes(parsed.SerializeToString(deterministic=True)), parsed.ByteSize() < size
        except (DecodeError, ValueError):
            return None, False

    @cached_property
    def _dynamic(self) -> Callable[[], Any]:
        """The class of messages with the fields that are shown, and no others."""
        name = "pulsark.values.Value"
        file = descriptor_pb2.FileDescriptorProto(
            name="pulsark/values.proto", package="pulsark.values", syntax="proto2"
        )
        _describe(self._message, file.message_type.add(name="Value"), name, bool(self.packed))
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        found: Callable[[], Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        return found

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads; null for null."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        return _Writer(bool(self.packed)).message(self._message, values)


def _is_packed(field: Field, otherwise: bool) -> bool:
    return otherwise if field.packed is None else field.packed


def _by_number(message: Message) -> list[Field]:
    return sorted(message.fields, key=lambda field: field.number)


def _describe(message: Message, target: Any, path: str, packed: bool) -> None:
    """The descriptor of a message: its texts are bytes, so that each can be judged by itself."""
    proto = descriptor_pb2.FieldDescriptorProto
    oneofs: dict[str, int] = {}
    for field in message.fields:
        one = target.field.add(name=f"f{field.number}", number=field.number)
        one.label = proto.LABEL_REPEATED if field.repeated else proto.LABEL_OPTIONAL
        if field.oneof:
            if field.oneof not in oneofs:
                oneofs[field.oneof] = len(oneofs)
                target.oneof_decl.add(name=f"o{len(oneofs)}")
            one.oneof_index = oneofs[field.oneof]
        if field.message is not None:
            name = f"F{field.number}Entry"
            inner = target.nested_type.add(name=name)
            _describe(field.message, inner, f"{path}.{name}", packed)
            one.type = proto.TYPE_MESSAGE
            one.type_name = f".{path}.{name}"
            if field.kind == "map":
                inner.options.map_entry = True
                for entry, plain in zip(inner.field, ("key", "value"), strict=True):
                    entry.name = plain
                if field.message.fields[0].kind == "string":
                    inner.field[0].type = proto.TYPE_STRING
        else:
            kind = {"string": "bytes", "enum": "int32"}.get(field.kind, field.kind)
            one.type = proto.Type.Value(f"TYPE_{kind.upper()}")
        if _is_packed(field, packed):
            one.options.packed = True


# -- reading -----------------------------------------------------------------------------------


class _Reader:
    """Payloads that stand in one piece of memory."""

    def __init__(self, raw: bytes, packed: bool) -> None:
        self._packed = packed
        self._buffer = pa.py_buffer(raw)
        self._data = np.frombuffer(raw, np.uint8)
        self.lost: list[tuple[str, Ints]] = []
        """Paths of fields with values that have no column, and their rows."""

    def message(
        self,
        message: Message,
        kind: pa.StructType,
        starts: Ints,
        ends: Ints,
        rows: Ints,
        path: str,
    ) -> tuple[pa.Array, Bools]:
        """Return messages at these places, and which of them are not read to their end.

        ``rows`` are the numbers of the payloads that the messages belong to.
        """
        fields = Fields(self._data, starts, ends)
        columns: dict[str, pa.Array] = {}
        chosen: dict[str, Ints] = {}
        for field in _by_number(message):
            inside = joined_path(path, field.name)
            column = self._field(fields, field, kind.field(field.name).type, rows, inside)
            columns[field.name] = column
            if field.oneof:
                chosen[field.oneof] = chosen.get(field.oneof, 0) + valid(column).astype(np.int64)
        bad = fields.bad | (fields.position != ends)
        for counts in chosen.values():
            bad |= counts > 1
        found = [columns[field.name] for field in message.fields]
        return pa.StructArray.from_arrays(found, fields=list(kind)), bad

    def _shown(self, column: pa.Array, absent: Bools | None, rows: Ints, path: str) -> pa.Array:
        """Report where a column is null although there is a value."""
        if column.null_count:
            missing = ~valid(column)
            missing = missing if absent is None else missing & ~absent
            if missing.any():
                self.lost.append((path, rows[missing]))
        return column

    def _field(
        self, fields: Fields, field: Field, kind: pa.DataType, rows: Ints, path: str
    ) -> pa.Array:
        """Return the values of the next field; ``fields.bad`` where they are none."""
        if field.kind == "map":
            return self._map(fields, field, kind, rows, f"{path}[]")
        if field.repeated:
            return self._list(fields, field, kind, rows, f"{path}[]")
        wire_type = _WIRE_TYPES.get(field.kind, _VARINT)
        tag = tag_of(field.number, wire_type)
        if wire_type == _VARINT:
            present, numbers = fields.number(tag)
            absent = ~present if field.presence else None
            return self._shown(_integers(field, numbers, absent), absent, rows, path)
        if wire_type != _BYTES:
            present, places = fields.fixed(tag)
            cells = np.zeros((len(present), int(_FIXED[field.kind][-1])), np.uint8)
            cells[present] = self._cells(places, cells.shape[1])
            absent = ~present if field.presence else None
            return self._shown(_fixed(field, cells, absent), absent, rows, path)
        present, starts, ends = fields.bytes(tag)
        places = np.flatnonzero(present)
        pieces = self._pieces(fields, field, kind, starts, ends, places, rows, path)
        found = spread(pieces, present)
        if field.presence or present.all():
            return found
        nothing = pa.scalar("" if field.kind == "string" else b"", kind)
        return pc.if_else(pa.array(present), found, nothing)

    def _pieces(
        self,
        fields: Fields,
        field: Field,
        kind: pa.DataType,
        starts: Ints,
        ends: Ints,
        places: Ints,
        rows: Ints,
        path: str,
    ) -> pa.Array:
        """Return texts, bytes or messages, which belong to the messages at ``places``."""
        if field.message is not None:
            found, bad = self.message(field.message, kind, starts, ends, rows[places], path)
            fields.bad[places[bad]] = True
            return found
        found = slices(self._buffer, starts, ends)
        if field.kind != "string":
            return found
        shown = text(found)
        if shown is None:
            shown = text(with_nulls(found, not_text(found)))
            shown = self._shown(shown, None, rows[places], path)
        return shown

    def _list(
        self, fields: Fields, field: Field, kind: pa.DataType, rows: Ints, path: str
    ) -> pa.Array:
        wire_type = _WIRE_TYPES.get(field.kind, _VARINT)
        if _is_packed(field, self._packed):
            counts, starts = self._packed_places(fields, field, wire_type)
            ends = starts
        else:
            counts, starts, ends = fields.all(tag_of(field.number, wire_type))
        places = np.repeat(np.arange(len(counts)), counts)
        if wire_type == _BYTES:
            found = self._pieces(fields, field, kind.value_type, starts, ends, places, rows, path)
        else:
            if wire_type == _VARINT:
                found = _integers(field, read_varints(self._data, starts)[0], None)
            else:
                size = int(_FIXED[field.kind][-1])
                found = _fixed(field, self._cells(starts, size), None)
            found = self._shown(found, None, rows[places], path)
        return pa.ListArray.from_arrays(ends_of(counts), found, kind)

    def _packed_places(self, fields: Fields, field: Field, wire_type: int) -> tuple[Ints, Ints]:
        """How many numbers stand together in each message, and where each is."""
        present, starts, ends = fields.bytes(tag_of(field.number, _BYTES))
        counts = np.zeros(len(present), np.int64)
        lengths = ends - starts
        first = np.cumsum(lengths) - lengths
        if wire_type != _VARINT:
            size = int(_FIXED[field.kind][-1])
            fields.bad[np.flatnonzero(present)[lengths % size != 0]] = True
            numbers = lengths // size
            within = np.arange(int(numbers.sum())) - np.repeat(
                np.cumsum(numbers) - numbers, numbers
            )
            counts[present] = numbers
            return counts, np.repeat(starts, numbers) + within * size
        places = np.arange(int(lengths.sum())) + np.repeat(starts - first, lengths)
        last = self._data[places] < 0x80
        begins = np.ones(len(places), np.bool_)
        begins[1:] = last[:-1]
        # Each message begins a number, whatever the one before it ends with.
        begins[first[lengths > 0]] = True
        unfinished = (lengths > 0) & ~last[np.minimum(first + lengths, len(last)) - 1]
        fields.bad[np.flatnonzero(present)[unfinished]] = True
        before = np.concatenate(([0], np.cumsum(begins)))
        counts[present] = before[first + lengths] - before[first]
        return counts, places[begins]

    def _map(
        self, fields: Fields, field: Field, kind: pa.DataType, rows: Ints, path: str
    ) -> pa.Array:
        assert field.message is not None
        key_field, value_field = field.message.fields
        counts, starts, ends = fields.all(tag_of(field.number, _BYTES))
        entries = Fields(self._data, starts, ends)
        inside = np.repeat(rows, counts)
        keys = self._field(entries, key_field, kind.key_type, inside, path)
        after_key = entries.position.copy()
        values = self._field(entries, value_field, kind.item_type, inside, path)
        bad = entries.bad | (entries.position != ends)
        bad |= (after_key == starts) | (entries.position == after_key)
        if keys.null_count:
            bad |= ~valid(keys)
            keys = pc.fill_null(keys, "" if pa.types.is_string(keys.type) else 0)
        offsets = ends_of(counts)
        fields.bad[np.repeat(np.arange(len(counts)), counts)[bad]] = True
        fields.bad |= repeated_names(keys, offsets.to_numpy())
        return pa.MapArray.from_arrays(offsets, keys, values, kind)

    def _cells(self, places: Ints, size: int) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(self._data[places[:, None] + np.arange(size)])


def _integers(field: Field, numbers: Numbers, absent: Bools | None) -> pa.Array:
    """What stands in a payload as a number, as the type of a field has it."""
    match field.kind:
        case "bool":
            return pa.array(numbers != 0, mask=absent)
        case "int32":
            return pa.array(numbers.view(np.int64).astype(np.int32), mask=absent)
        case "uint32":
            return pa.array((numbers & _LOW).view(np.int64), mask=absent)
        case "sint32":
            return pa.array(from_zigzag(numbers & _LOW).astype(np.int32), mask=absent)
        case "int64":
            return pa.array(numbers.view(np.int64), mask=absent)
        case "sint64":
            return pa.array(from_zigzag(numbers), mask=absent)
        case "uint64":
            return _unsigned(numbers, absent)
    # An enum; a number without a name is null.
    names = sorted(field.symbols.items())
    known = np.array([number for number, _ in names], np.int64)
    wanted = numbers.view(np.int64).astype(np.int32).astype(np.int64)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    unknown = known[places] != wanted
    if absent is not None:
        unknown |= absent
    return pa.array([name for _, name in names], pa.string()).take(pa.array(places, mask=unknown))


def _unsigned(numbers: Numbers, absent: Bools | None) -> pa.Array:
    """Numbers of 64 bits without a sign: null where a column has no place for them."""
    large = numbers >= _TOO_LARGE
    return pa.array(numbers.view(np.int64), mask=large if absent is None else large | absent)


def _fixed(field: Field, cells: npt.NDArray[np.uint8], absent: Bools | None) -> pa.Array:
    numbers = cells.view(_FIXED[field.kind])[:, 0]
    if field.kind == "fixed64":
        return _unsigned(numbers, absent)
    if field.kind == "fixed32":
        numbers = numbers.astype(np.int64)
    return pa.array(numbers, mask=absent)


# -- writing -----------------------------------------------------------------------------------


class _Writer:
    def __init__(self, packed: bool) -> None:
        self._packed = packed

    def message(self, message: Message, values: pa.Array) -> pa.Array:
        """Payloads of values, none of which is null."""
        names = [field.name for field in message.fields]
        columns = dict(zip(names, values.flatten(), strict=True))
        pieces: list[pa.Array] = []
        for field in _by_number(message):
            pieces += self._field(field, columns[field.name])
        return joined(pieces, len(values))

    def _field(self, field: Field, values: pa.Array) -> list[pa.Array]:
        """What stands in each payload of a field; nothing where it is absent."""
        if field.repeated:
            return self._repeated(field, values)
        return self._one(field, values, valid(values), zeros=field.presence)

    def _one(
        self, field: Field, values: pa.Array, present: Bools, zeros: bool, tagged: bool = True
    ) -> list[pa.Array]:
        """One value on each row where it is ``present``, and where it is zero only if ``zeros``."""
        wire_type = _WIRE_TYPES.get(field.kind, _VARINT)
        tag = _bytes_of(tag_of(field.number, wire_type)) if tagged else b""
        if wire_type == _VARINT:
            numbers = _raw(field, values)
            return [varints(numbers, tag, present if zeros else present & (numbers != 0))]
        if wire_type != _BYTES:
            numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
            cells = as_cells(numbers.astype(_FIXED[field.kind]))
            here = present if zeros else present & cells.any(axis=1)
            prefix = np.frombuffer(tag, np.uint8)
            return [cells_of(np.hstack([np.tile(prefix, (len(cells), 1)), cells]), here)]
        if field.message is not None:
            values = spread(self.message(field.message, values.drop_null()), valid(values))
        sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()
        here = present if zeros else present & (sizes > 0)
        return [varints(sizes, tag, here), values.cast(pa.binary())]

    def _repeated(self, field: Field, values: pa.Array) -> list[pa.Array]:
        present = valid(values)
        lists = from_start(values.drop_null())
        offsets = lists.offsets.to_numpy()
        count = int(offsets[-1]) if len(offsets) else 0
        packed = _is_packed(field, self._packed)
        if field.kind == "map":
            elements = self._entries(field, lists, count)
        else:
            flat = lists.values[:count]
            everywhere = np.ones(count, np.bool_)
            pieces = self._one(field, flat, everywhere, zeros=True, tagged=not packed)
            elements = joined(pieces, count)
        found = grouped(elements, offsets) if len(offsets) else joined((), 0)
        if not packed:
            return [spread(found, present)]
        sizes = pc.binary_length(found).to_numpy()
        tag = _bytes_of(tag_of(field.number, _BYTES))
        together = joined([varints(sizes, tag, sizes > 0), found], len(found))
        return [spread(together, present)]

    def _entries(self, field: Field, maps: Any, count: int) -> pa.Array:
        """Keys and values, each pair as a message."""
        assert field.message is not None
        everywhere = np.ones(count, np.bool_)
        pieces: list[pa.Array] = []
        for part, column in zip(field.message.fields, (maps.keys, maps.items), strict=True):
            pieces += self._one(part, column[:count], everywhere, zeros=True)
        found = joined(pieces, count)
        tag = _bytes_of(tag_of(field.number, _BYTES))
        return joined([varints(pc.binary_length(found).to_numpy(), tag), found], count)


def _bytes_of(tag: int) -> bytes:
    return tag.to_bytes((tag.bit_length() + 7) // 8, "little")


def _raw(field: Field, values: pa.Array) -> Numbers:
    """Numbers as they stand in a payload; 0 for null."""
    if field.kind == "enum":
        names = {name: number for number, name in field.symbols.items()}
        known: Any = np.array([*names.values()], np.int64)
        places = pc.index_in(values, pa.array(list(names), pa.string()))
        numbers = np.where(valid(places), known[pc.fill_null(places, 0).to_numpy()], 0)
    elif field.kind == "bool":
        numbers = pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if field.kind == "sint32":
        return to_zigzag(numbers) & _LOW
    if field.kind == "sint64":
        return to_zigzag(numbers)
    found: Numbers = numbers.view(np.uint64)
    return found
