"""JSON, many messages at once: read by Arrow, written from columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from pulsark.rows.values.bounds import JsonBounds, repeated_width
from pulsark.rows.values.json_form import SAMPLE, JsonForm, NamedNumber, learn_form, loaded
from pulsark.rows.values.losses import UNKNOWN, WHOLE, Losses, joined_path
from pulsark.rows.values.types import arrow_type, column_of, from_start, owners, spread, valid
from pulsark.schemas.avro import Array, AvroType, Map, Record, Union
from pulsark.schemas.columns import member_name, members_of, of_avro

if TYPE_CHECKING:
    from pulsark.rows.arrow.arrays import Bools
    from pulsark.schemas.column_types import ColumnType

_IN_JSON: Final = ("string", "boolean", "byte", "short", "integer", "long", "float", "double")
"""Types of columns that JSON has values of."""

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
        self._value = _reading(avro, self.type, "")
        self._by_arrow = _is_plain_type(avro, self.type)

    def learn(self, payloads: pa.Array) -> None:
        """Choose the form from the first messages that come."""
        if self.form is None and len(payloads):
            step = max(1, len(payloads) // SAMPLE)
            sample = payloads.take(pa.array(np.arange(0, len(payloads), step)[:SAMPLE]))
            within = self.bounds.within(sample)
            if within is not None:
                sample = sample.filter(pa.array(within))
            self.form = learn_form(self._avro, sample.drop_null().to_pylist())

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is not a JSON object. Each field is read by itself:
        what is not of its type is null."""
        return self.bounds.decoded(payloads, self._decoded, lost)

    def _decoded(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        if not self._by_arrow:
            return self._one_by_one(payloads, lost)
        whole = pc.fill_null(
            pc.and_(pc.starts_with(payloads, "{"), pc.ends_with(payloads, "}")), False
        ).to_numpy(zero_copy_only=False)
        if whole.all():
            return self._read(payloads, lost)
        rest = payloads.filter(pa.array(~whole))
        objects = self._read(
            payloads.filter(pa.array(whole)), lost.within("", np.flatnonzero(whole))
        )
        others = self._one_by_one(rest, lost.within("", np.flatnonzero(~whole)))
        return pc.coalesce(spread(objects, whole), spread(others, ~whole))

    def _read(self, payloads: pa.Array, lost: Losses) -> pa.Array:
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
                # Members that the schema does not have are read, too: they would be lost unseen.
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(list(self.type)),
                    unexpected_field_behavior="infer",
                ),
            )
        except pa.ArrowInvalid:
            table = None
        if (
            table is not None
            and table.num_rows == len(payloads)
            and _is_text(lines, table)
            and b"-NaN" not in lines  # which only Arrow takes for a number
        ):
            columns = [column.combine_chunks() for column in table.columns]
            found = pa.StructArray.from_arrays(columns, fields=list(table.schema))
            rounded = _maybe_rounded(found)
            if not rounded.any():
                return _known(found, self.type, lost)
            exact = self._one_by_one(
                payloads.filter(pa.array(rounded)), lost.within("", np.flatnonzero(rounded))
            )
            places = np.flatnonzero(~rounded)
            others = found.take(pa.array(places))
            return pc.if_else(
                pa.array(rounded),
                spread(exact, rounded),
                spread(_known(others, self.type, lost.within("", places)), ~rounded),
            )
        if len(payloads) <= FEW:
            return self._one_by_one(payloads, lost)
        half = len(payloads) // 2
        parts = [
            self._read(part, lost.within("", np.arange(start, start + len(part))))
            for start, part in ((0, payloads[:half]), (half, payloads[half:]))
        ]
        return pa.concat_arrays(parts)

    def _one_by_one(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        return _read_objects(payloads, self._value, self.type, lost)

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads in the form; null for null."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        found = _Writer(self.form or JsonForm()).text(self._avro, values, "", 0)
        return found.cast(pa.binary())


class DeclaredJson:
    """JSON of which a user has declared some members."""

    def __init__(self, kind: ColumnType, scalar: Callable[[Any, ColumnType], Any]) -> None:
        """``scalar`` reads what has no type in JSON, such as times; None if it is none of it."""
        self.type = arrow_type(kind)
        self._bounds = JsonBounds(repeated_width(self.type))
        self._value = _declared_reading(kind, scalar, "")

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is not a JSON object."""
        return self._bounds.decoded(payloads, self._decoded, lost)

    def _decoded(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        return _read_objects(payloads, self._value, self.type, lost)


def _read_objects(payloads: pa.Array, read: _Read, kind: pa.DataType, lost: Losses) -> pa.Array:
    found: list[Any] = []
    fields: dict[str, list[int]] = {}
    for number, item in enumerate(payloads.to_pylist()):
        value, missing = None, [WHOLE]
        try:
            document = None if item is None else loaded(item, _object)
            if isinstance(document, dict):
                missing = []
                value = read(document, missing)
        except (ValueError, RecursionError):
            value, missing = None, [WHOLE]
        found.append(value)
        for path in missing if item is not None else ():
            fields.setdefault(path, []).append(number)
    for path, numbers in fields.items():
        lost.add(path, np.array(numbers))
    return column_of(found, kind)


def _is_plain_type(avro: AvroType, kind: pa.DataType) -> bool:
    """Return whether Arrow reads values of a type: it knows no maps, and no unions."""
    match avro:
        case Map():
            return False
        case Union():
            members = members_of(avro)
            return len(members) == 1 and _is_plain_type(members[0], kind)
        case Array(items):
            return _is_plain_type(items, kind.value_type)
        case Record(fields=fields):
            return all(_is_plain_type(fields[each.name].type, each.type) for each in kind)
    return True


def _maybe_rounded(found: pa.Array) -> Bools:
    """Return where values have a number that Arrow may have rounded: it makes integers doubles."""
    kind = found.type
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(found, 0).to_numpy(zero_copy_only=False)
        rounded: Bools = np.abs(numbers) >= _EXACT_MAX
        return rounded
    nowhere = np.zeros(len(found), np.bool_)
    if pa.types.is_struct(kind):
        for part in found.flatten():
            nowhere |= _maybe_rounded(part)
    if pa.types.is_list(kind):
        lists = from_start(found)
        inside = _maybe_rounded(lists.values[: lists.offsets[-1].as_py()])
        if inside.any():
            nowhere[owners(lists)[inside]] = True
    return nowhere


def _known(found: pa.Array, kind: pa.DataType, lost: Losses) -> pa.Array:
    """Return what Arrow read without members that the schema does not have."""
    if found.type.equals(kind):
        return found
    if pa.types.is_struct(kind):
        parts = dict(zip(found.type.names, found.flatten(), strict=True))
        arrays = []
        for field in kind:
            inside = lost.within(field.name)
            arrays.append(_known(parts.pop(field.name), field.type, inside))
        for part in parts.values():
            lost.where(UNKNOWN, valid(part))
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.is_null(found))
    lists = from_start(found)
    inside = lost.within("[]", lambda: owners(lists))
    items = _known(lists.values[: lists.offsets[-1].as_py()], kind.value_type, inside)
    return pa.ListArray.from_arrays(lists.offsets, items, kind, mask=pc.is_null(lists))


def _is_text(lines: bytes, table: pa.Table) -> bool:
    """Return whether all texts are UTF-8: Arrow does not look."""
    if lines.isascii():
        return True
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _Repeated(dict[str, Any]):
    """An object with a member twice; the last one counts."""


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    return found if len(found) == len(members) else _Repeated(found)


def _reading(avro: AvroType, kind: pa.DataType, path: str, *, is_strict: bool = False) -> _Read:
    """Return what reads a value that is not null. Where it has another type, it is null.

    A strict one takes a number only as its type writes it.
    """
    read = partial(_reading, is_strict=is_strict)
    match avro:
        case Union():
            members = members_of(avro)
            if len(members) == 1:
                return read(members[0], kind, path)
            return _reading_of_members(members, kind, path, is_strict)
        case Record():
            inner = [
                (f.name, read(avro.fields[f.name].type, f.type, joined_path(path, f.name)))
                for f in kind
            ]
            return _reading_of_record(inner, path, joined_path(path, UNKNOWN))
        case Array(items):
            return _reading_of_list(read(items, kind.value_type, f"{path}[]"), path)
        case Map(values):
            return _reading_of_map(read(values, kind.item_type, f"{path}[]"), path)
    return _reading_of_simple(kind, path, is_strict=is_strict)


def _declared_reading(
    kind: ColumnType, scalar: Callable[[Any, ColumnType], Any], path: str
) -> _Read:
    """Return what reads values of a type that a user declared; other members do not matter."""
    if isinstance(kind, str):
        if kind in _IN_JSON:
            return _reading_of_simple(arrow_type(kind), path)

        def read(value: Any, lost: list[str]) -> Any:
            shown = scalar(value, kind)
            return lost.append(path) if shown is None else shown

        return read
    match kind["type"]:
        case "struct":
            inner = [
                (f["name"], _declared_reading(f["type"], scalar, joined_path(path, f["name"])))
                for f in kind["fields"]
            ]
            return _reading_of_record(inner, path, None)
        case "map":
            return _reading_of_map(_declared_reading(kind["valueType"], scalar, f"{path}[]"), path)
    return _reading_of_list(_declared_reading(kind["elementType"], scalar, f"{path}[]"), path)


def _reading_of_simple(kind: pa.DataType, path: str, *, is_strict: bool = False) -> _Read:
    if pa.types.is_boolean(kind):
        return _reading_if(path, lambda found: isinstance(found, bool))
    if pa.types.is_integer(kind):
        return _reading_of_integers(path, 1 << (kind.bit_width - 1), is_strict)
    if pa.types.is_floating(kind):
        return _reading_of_reals(path, _FLOAT_MAX if kind.bit_width == 32 else math.inf, is_strict)
    return _reading_if(path, lambda found: isinstance(found, str) and _is_unicode(found))


def _reading_of_list(item_of: _Read, path: str) -> _Read:
    def read(found: Any, lost: list[str]) -> Any:
        if not isinstance(found, list):
            return lost.append(path)
        return [None if item is None else item_of(item, lost) for item in found]

    return read


def _reading_of_map(value_of: _Read, path: str) -> _Read:
    def read(found: Any, lost: list[str]) -> Any:
        if not isinstance(found, dict) or not all(map(_is_unicode, found)):
            return lost.append(path)
        if isinstance(found, _Repeated):
            lost.append(path)
        return {
            key: None if value is None else value_of(value, lost) for key, value in found.items()
        }

    return read


_Read: TypeAlias = Callable[[Any, list[str]], Any]


_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_EXACT_MAX: Final = 2.0**53
"""From here on, a double may be another integer than the one that was written."""
_NAMES: Final = ("Infinity", "-Infinity", "NaN")


def _reading_of_record(fields: Sequence[tuple[str, _Read]], path: str, others: str | None) -> _Read:
    """Return what reads an object; ``others`` is the path of members that are no fields."""
    names = {name for name, _ in fields}

    def read(found: Any, lost: list[str]) -> Any:
        if not isinstance(found, dict):
            return lost.append(path)
        if others is not None and (
            isinstance(found, _Repeated)
            or any(value is not None and name not in names for name, value in found.items())
        ):
            lost.append(others)
        return {
            name: None if (value := found.get(name)) is None else inner(value, lost)
            for name, inner in fields
        }

    return read


def _reading_of_members(
    members: Sequence[AvroType], kind: pa.DataType, path: str, is_strict: bool
) -> _Read:
    """JSON does not say which type of a union a value has: it is the first one that fits.

    Those that take a number only as their type writes it are asked before all others.
    """
    readings, lenient = list[tuple[str, _Read]](), list[tuple[str, _Read]]()
    for number, member in enumerate(members):
        name = member_name(number)
        if kind.get_field_index(name) >= 0:
            inside = joined_path(path, name)
            inner_kind = kind.field(name).type
            readings.append((name, _reading(member, inner_kind, inside, is_strict=True)))
            if not is_strict:  # else each level of unions would double the readers
                lenient.append((name, _reading(member, inner_kind, inside)))

    def read(found: Any, lost: list[str]) -> Any:
        for name, inner in (*readings, *lenient):
            missing: list[str] = []
            value = inner(found, missing)
            if value is not None and not missing:
                return {name: value}
        return lost.append(path)

    return read


def _reading_if(path: str, fits: Callable[[Any], bool]) -> _Read:
    return lambda found, lost: found if fits(found) else lost.append(path)


def _reading_of_integers(path: str, end: int, is_strict: bool) -> _Read:
    """Return what reads integers, also those written as ``7.0``, as Jackson does."""

    def read(found: Any, lost: list[str]) -> Any:
        if isinstance(found, float) and not is_strict:
            found = int(found) if abs(found) < _EXACT_MAX and found.is_integer() else None
        return found if type(found) is int and -end <= found < end else lost.append(path)

    return read


def _reading_of_reals(path: str, most: float, is_strict: bool) -> _Read:
    """Return what reads numbers; Jackson writes those that JSON has no digits for as texts."""

    def read(found: Any, lost: list[str]) -> Any:
        if isinstance(found, str) and found in _NAMES and not is_strict:
            return float(found)
        if isinstance(found, NamedNumber):
            return float(found)
        if isinstance(found, float) and abs(found) <= most:
            return found if not math.isinf(found) else lost.append(path)
        if type(found) is int and abs(found) < 1 << 1023 and float(found) == found:
            return float(found) if abs(found) <= most else lost.append(path)
        return lost.append(path)

    return read


def _is_unicode(text: str) -> bool:
    """Return whether a text has no half of a pair of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Writer:
    """Values as texts: one column of them becomes one column of JSON."""

    def __init__(self, form: JsonForm) -> None:
        self._form = form

    def text(self, avro: AvroType, values: pa.Array, path: str, depth: int) -> pa.Array:
        """JSON of each value; null for null."""
        match avro:
            case Union():
                members = members_of(avro)
                if len(members) == 1:
                    return self.text(members[0], values, path, depth)
                names = dict(zip(values.type.names, values.flatten(), strict=True))
                texts = [
                    self.text(member, names[member_name(number)], path, depth)
                    for number, member in enumerate(members)
                    if member_name(number) in names
                ]
                return pc.coalesce(*texts)
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
    """The shortest text that is the number, or its name, as Python and many others write it."""
    codes = values.view(pa.int64()).dictionary_encode()
    numbers = codes.dictionary.view(pa.float64()).to_pylist()
    return pa.array([json.dumps(number) for number in numbers], pa.string()).take(codes.indices)


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
