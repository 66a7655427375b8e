"""JSON, many messages at once: read by Arrow, written from columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from pulsark.rows.values.bounds import JsonBounds, repeated_width
from pulsark.rows.values.json_form import SAMPLE, JsonForm, learn_form, loaded
from pulsark.rows.values.types import arrow_type, column_of, from_start, spread, valid
from pulsark.schemas.avro import Array, AvroType, Map, Primitive, Record, Union
from pulsark.schemas.columns import branch_of, of_avro

if TYPE_CHECKING:
    from pulsark.rows.arrow.arrays import Bools

FEW: Final = 16
"""Fewer messages than these are read one by one when one among them cannot be read."""

_ESCAPED: Final = np.zeros(256, np.bool_)
"""Bytes that some form escapes in a text."""
_ESCAPED[:0x20] = _ESCAPED[0x7F:] = True
_ESCAPED[[ord('"'), ord("\\")]] = True


class JsonCodec:
    """JSON of a record. The form is learned from the first messages, unless it is given."""

    def __init__(self, avro: Record, form: JsonForm | None = None) -> None:
        found = of_avro(avro, as_json=True)
        assert found is not None
        self._avro = avro
        self.form = form
        self.type = arrow_type(found)
        self.bounds = JsonBounds(repeated_width(self.type))
        self._value = _reading(avro, self.type)
        self._by_arrow = not _has_map(self.type)

    def learn(self, payloads: pa.Array) -> None:
        """Choose the form from the first messages that come."""
        if self.form is None and len(payloads):
            step = max(1, len(payloads) // SAMPLE)
            sample = payloads.take(pa.array(np.arange(0, len(payloads), step)[:SAMPLE]))
            within = self.bounds.within(sample)
            if within is not None:
                sample = sample.filter(pa.array(within))
            self.form = learn_form(self._avro, sample.drop_null().to_pylist())

    def decode(self, payloads: pa.Array) -> pa.Array:
        """Null where a payload is not JSON of the schema. Unknown members are passed over."""
        return self.bounds.decoded(payloads, self._decoded)

    def _decoded(self, payloads: pa.Array) -> pa.Array:
        if not self._by_arrow:
            return self._one_by_one(payloads)
        whole = pc.fill_null(
            pc.and_(pc.starts_with(payloads, "{"), pc.ends_with(payloads, "}")), False
        ).to_numpy(zero_copy_only=False)
        if whole.all():
            return self._read(payloads)
        rest = payloads.filter(pa.array(~whole))
        return pc.coalesce(
            spread(self._read(payloads.filter(pa.array(whole))), whole),
            spread(self._one_by_one(rest), ~whole),
        )

    def _read(self, payloads: pa.Array) -> pa.Array:
        """Read payloads that begin and end with a brace."""
        if not len(payloads):
            return pa.nulls(0, self.type)
        # Within a text there are no line ends. So each line begins and ends an object, and if
        # there are as many objects as lines, each line is one.
        lines = b"\n".join(payloads.to_pylist())
        if lines.count(b"\n") >= len(payloads):
            lines = b"\n".join(item.replace(b"\n", b" ") for item in payloads.to_pylist())
        try:
            table = arrow_json.read_json(
                pa.BufferReader(lines),
                read_options=arrow_json.ReadOptions(
                    use_threads=False, block_size=max(len(lines) + 1, 1 << 16)
                ),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(list(self.type)),
                    unexpected_field_behavior="ignore",
                ),
            )
        except pa.ArrowInvalid:
            table = None
        if table is not None and table.num_rows == len(payloads):
            columns = [column.combine_chunks() for column in table.columns]
            return pa.StructArray.from_arrays(columns, fields=list(self.type))
        if len(payloads) <= FEW:
            return self._one_by_one(payloads)
        half = len(payloads) // 2
        return pa.concat_arrays([self._read(payloads[:half]), self._read(payloads[half:])])

    def _one_by_one(self, payloads: pa.Array) -> pa.Array:
        found: list[Any] = []
        for item in payloads.to_pylist():
            try:
                value = None if item is None else loaded(item)
                found.append(None if value is None else self._value(value))
            except (ValueError, OverflowError, RecursionError):
                found.append(None)
        return column_of(found, self.type)

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads in the form; null for null."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        found = _Writer(self.form or JsonForm()).text(self._avro, values, "", 0)
        return found.cast(pa.binary())


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    return bool(pa.types.is_map(kind))


def _reading(avro: AvroType, kind: pa.DataType) -> _Read:
    """From what JSON says to what Arrow takes; raises ``ValueError`` if it is none of the type."""
    match avro:
        case Union():
            branch = branch_of(avro)
            assert branch is not None
            return _reading(branch, kind)
        case Record():
            return _reading_of_record(
                [(field.name, _reading(avro.fields[field.name].type, field.type)) for field in kind]
            )
        case Array(items):
            item_of = _reading(items, kind.value_type)
            return lambda found: [
                None if item is None else item_of(item) for item in _checked(found, list)
            ]
        case Map(values):
            value_of = _reading(values, kind.item_type)
            return lambda found: {
                _text(key): None if value is None else value_of(value)
                for key, value in _checked(found, dict).items()
            }
        case Primitive("boolean"):
            return lambda found: _checked(found, bool)
        case Primitive("int" | "long"):
            return _reading_of_integers(kind.bit_width)
        case Primitive("float" | "double"):
            return _real
    return _text


_Read: TypeAlias = Callable[[Any], Any]


def _reading_of_record(fields: Sequence[tuple[str, _Read]]) -> _Read:
    def read(found: Any) -> dict[str, Any]:
        _checked(found, dict)
        return {
            name: None if (value := found.get(name)) is None else inner(value)
            for name, inner in fields
        }

    return read


def _reading_of_integers(bits: int) -> _Read:
    end = 1 << (bits - 1)

    def read(found: Any) -> int:
        if isinstance(found, bool) or not isinstance(found, int) or not -end <= found < end:
            raise ValueError(f"{found!r:.50} is no integer of {bits} bits")
        return found

    return read


def _real(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{found!r:.50} is no number")
    try:
        return float(found)
    except OverflowError:  # Arrow, which reads messages together, has no error for it
        return math.inf if found > 0 else -math.inf


def _checked(found: Any, kind: type) -> Any:
    if not isinstance(found, kind):
        raise ValueError(f"{found!r:.50} is no {kind.__name__}")
    return found


def _text(found: Any) -> str:
    _checked(found, str).encode()  # half of a pair of characters is no text
    return str(found)


class _Writer:
    """Values as texts: one column of them becomes one column of JSON."""

    def __init__(self, form: JsonForm) -> None:
        self._form = form

    def text(self, avro: AvroType, values: pa.Array, path: str, depth: int) -> pa.Array:
        """JSON of each value; null for null."""
        match avro:
            case Union():
                branch = branch_of(avro)
                assert branch is not None
                return self.text(branch, values, path, depth)
            case Record():
                return self._record(avro, values, path, depth)
            case Array(items):
                return self._array(items, values, path, depth)
            case Map(items):
                return self._map(items, values, path, depth)
        if pa.types.is_boolean(values.type):
            return pc.if_else(values, "true", "false")
        if pa.types.is_integer(values.type):
            return values.cast(pa.string())
        if pa.types.is_floating(values.type):
            return _doubles(values)
        return self._quoted(values)

    def _record(self, record: Record, values: pa.Array, path: str, depth: int) -> pa.Array:
        present = valid(values)
        if not present.all():
            return spread(self._record(record, values.drop_null(), path, depth), present)
        form, kind = self._form, values.type
        line = form.line(depth + 1)
        pieces: list[Any] = ["{"]
        before: Bools | bool = False
        """Whether some member stands before this one."""
        for name in form.fields(record, path):
            if kind.get_field_index(name) < 0:
                continue
            avro = record.fields[name].type
            text = self.text(avro, values.field(name), f"{path}.{name}", depth + 1)
            if form.nulls:
                text = pc.fill_null(text, "null")
            key = f"{line}{json.dumps(name, ensure_ascii=form.ascii)}{form.key_separator}"
            with_comma = form.item_separator + key
            if before is True or before is False:
                prefix: Any = with_comma if before else key
            else:
                prefix = pc.if_else(pa.array(before), with_comma, key)
            if text.null_count:
                pieces.append(_join([prefix, text], "emit_null"))
                before = before is True or (
                    valid(text) if before is False else before | valid(text)
                )
            else:
                pieces += [prefix, text]
                before = True
        pieces.append(f"{form.line(depth)}}}")
        return _joined(pieces, len(values))

    def _array(self, items: AvroType, values: pa.Array, path: str, depth: int) -> pa.Array:
        present, lists = valid(values), from_start(values.drop_null())
        texts = self.text(items, lists.flatten(), f"{path}[]", depth + 1)
        return spread(self._list(pc.fill_null(texts, "null"), lists, depth, "[]"), present)

    def _map(self, items: AvroType, values: pa.Array, path: str, depth: int) -> pa.Array:
        present, maps = valid(values), from_start(values.drop_null())
        count = maps.offsets[-1].as_py()
        texts = self.text(items, maps.items[:count], f"{path}[]", depth + 1)
        keys = self._quoted(maps.keys[:count])
        members = _joined([keys, self._form.key_separator, pc.fill_null(texts, "null")], count)
        return spread(self._list(members, maps, depth, "{}"), present)

    def _list(self, texts: pa.Array, lists: Any, depth: int, braces: str) -> pa.Array:
        """Elements that were taken from lists or maps, put between braces list by list."""
        form, line = self._form, self._form.line(depth + 1)
        joined = pc.binary_join(
            pa.ListArray.from_arrays(lists.offsets, texts), f"{form.item_separator}{line}"
        )
        opening, closing = braces[0], braces[1]
        some = _joined([f"{opening}{line}", joined, f"{form.line(depth)}{closing}"], len(lists))
        return pc.if_else(pa.array(np.diff(lists.offsets.to_numpy()) > 0), some, braces)

    def _quoted(self, values: pa.Array) -> pa.Array:
        if _is_plain(values):
            return _join(['"', values, '"'], "emit_null")
        codes = values.dictionary_encode()
        texts = [
            json.dumps(text, ensure_ascii=self._form.ascii) for text in codes.dictionary.to_pylist()
        ]
        return pa.array(texts, pa.string()).take(codes.indices)


def _is_plain(values: pa.Array) -> bool:
    """Whether no form escapes anything of these texts."""
    data = values.buffers()[2]
    if data is None or not len(values):
        return True
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[len(values)]]
    return not _ESCAPED[used].any()


def _doubles(values: pa.Array) -> pa.Array:
    """The shortest text that is the number, as Python and many others write it."""
    codes = values.view(pa.int64()).dictionary_encode()
    numbers = codes.dictionary.view(pa.float64()).to_pylist()
    return pa.array([repr(number) for number in numbers], pa.string()).take(codes.indices)


def _joined(pieces: Sequence[Any], count: int) -> pa.Array:
    """Texts and columns of them behind each other; null is nothing."""
    if all(isinstance(piece, str) for piece in pieces):
        return pa.repeat(pa.scalar("".join(pieces)), count)
    return _join(pieces, "replace")


def _join(pieces: Sequence[Any], nulls: str) -> pa.Array:
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return pc.binary_join_element_wise(*merged, "", null_handling=nulls, null_replacement="")
