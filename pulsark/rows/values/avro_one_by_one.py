"""Avro's binary encoding, message by message: schemas and messages that have no common steps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pulsark.rows.arrow.arrays import joined
from pulsark.rows.values.avro_writer import avro_pieces, nothing_of
from pulsark.rows.values.bounds import AvroShape, is_empty
from pulsark.rows.values.decimals import decimal_of
from pulsark.rows.values.losses import WHOLE, Losses, joined_path
from pulsark.rows.values.primitives import (
    DAY_MICROSECONDS,
    FIRST_DAY,
    FIRST_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
)
from pulsark.rows.values.times import DAY_TIMES, TIME_UNITS, time_of_day
from pulsark.rows.values.types import column_of, spread, valid
from pulsark.schemas.avro import Array, AvroType, Enumeration, Fixed, Map, Primitive, Record, Union
from pulsark.schemas.columns import is_decimal, member_name, members_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_VARINT_BITS_MAX: Final = 70
_KEY: Final = Primitive("string")


class _Message:
    """A payload and how far it was read. Its end raises ``EOFError``."""

    __slots__ = ("data", "lost", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.lost: list[str] = []
        """Paths of fields whose values do not fit."""

    def long(self) -> int:
        number = shift = 0
        while True:
            if self.place == len(self.data) or shift == _VARINT_BITS_MAX:
                raise EOFError
            byte = self.data[self.place]
            self.place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= 0xFFFFFFFFFFFFFFFF
                return (number >> 1) ^ -(number & 1)
            shift += 7

    def take(self, size: int) -> bytes:
        end = self.place + size
        if size < 0 or end > len(self.data):
            raise EOFError
        found = self.data[self.place : end]
        self.place = end
        return found


_Read: TypeAlias = Callable[[_Message], Any]


class AvroOneByOne:
    """Values of any schema."""

    def __init__(self, avro: AvroType, kind: pa.DataType, shape: AvroShape) -> None:
        self.type = kind
        self.bounds = shape.bounds
        self._avro = avro
        self._read = _Readings().of(avro, kind, "")

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is not a value of the schema, or more than that."""
        return self.bounds.decoded(payloads, self.decoded, lost)

    def decoded(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Decode payloads that are known to be within the bounds."""
        found: list[Any] = []
        fields: dict[str, list[int]] = {}
        for number, payload in enumerate(payloads.to_pylist()):
            value = None
            if payload is not None:
                message = _Message(payload)
                try:
                    value = self._read(message)
                    is_whole = message.place == len(payload)
                except (EOFError, ValueError, RecursionError):
                    is_whole = False
                if not is_whole:
                    value, message.lost = None, [WHOLE]
                for path in message.lost:
                    fields.setdefault(path, []).append(number)
            found.append(value)
        for path, numbers in fields.items():
            lost.add(path, np.array(numbers))
        return column_of(found, self.type)

    def encode(self, values: pa.Array) -> pa.Array:
        """Return the payloads; null for null, and for what the schema cannot hold."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        pieces = avro_pieces(self._avro, values)
        if pieces is None:
            return pa.nulls(len(values), pa.binary())
        return joined(pieces, len(values))


class _Readings:
    """Makes a function that reads one value of a type; without a column it passes over it."""

    def __init__(self) -> None:
        self._passing: dict[int, _Read] = {}
        """By the identity of a record, which may contain itself."""

    def of(self, avro: AvroType, kind: pa.DataType | None, path: str) -> _Read:
        match avro:
            case Primitive():
                return _primitive(avro, path)
            case Enumeration(symbols=symbols):
                return _enumeration(symbols, path)
            case Fixed(size=size):
                if not is_decimal(avro):
                    return lambda message: message.take(size)
                return lambda message: _decimal(message, message.take(size), avro, path)
            case Union():
                return self._union(avro, kind, path)
            case Array(items):
                of_items = self.of(items, kind and kind.value_type, f"{path}[]")
                return _array(of_items, is_empty(items))
            case Map(values):
                return _map(self.of(values, kind and kind.item_type, f"{path}[]"), path)
        return self._record(avro, kind, path)

    def _union(self, union: Union, kind: pa.DataType | None, path: str) -> _Read:
        members = members_of(union)
        branches: list[tuple[_Read, str | None]] = []
        for branch in union.branches:
            if len(members) < 2 or not any(branch is member for member in members):
                branches.append((self.of(branch, kind, path), None))
                continue
            name = member_name(members.index(branch))
            shown = kind is not None and kind.get_field_index(name) >= 0
            of_member = kind.field(name).type if kind is not None and shown else None
            inside = joined_path(path, name)
            read = self.of(branch, of_member, inside)
            branches.append((read if shown else _losing(read, inside), name))

        def read_union(message: _Message) -> Any:
            number = message.long()
            if not 0 <= number < len(branches):
                raise ValueError("no such branch")
            read, name = branches[number]
            value = read(message)
            return value if name is None else {name: value}

        return read_union

    def _record(self, record: Record, kind: pa.DataType | None, path: str) -> _Read:
        if kind is None:
            return self._passed_over(record)
        fields: list[tuple[str, _Read]] = []
        for name, field in record.fields.items():
            inside = joined_path(path, name)
            if kind.get_field_index(name) >= 0:
                fields.append((name, self.of(field.type, kind.field(name).type, inside)))
            else:
                nothing = nothing_of(field.type)
                fields.append((name, _losing(self.of(field.type, None, inside), inside, nothing)))

        def read_record(message: _Message) -> dict[str, Any]:
            return {name: read(message) for name, read in fields}

        return read_record

    def _passed_over(self, record: Record) -> _Read:
        known = self._passing.get(id(record))
        if known is not None:
            return known
        fields: list[_Read] = []

        def pass_over(message: _Message) -> None:
            for read in fields:
                read(message)

        self._passing[id(record)] = pass_over
        fields += [
            self.of(field.type, None, "")
            for field in record.fields.values()
            if not is_empty(field.type)
        ]
        return pass_over


def _losing(read: _Read, path: str, nothing: bytes | None = None) -> _Read:
    """Report what has no column, unless it is ``nothing``."""

    def passed(message: _Message) -> None:
        start, known = message.place, len(message.lost)
        read(message)
        del message.lost[known:]
        if message.data[start : message.place] != nothing:
            message.lost.append(path)

    return passed


def _primitive(avro: Primitive, path: str) -> _Read:
    match avro.kind:
        case "null":
            return lambda _message: None
        case "boolean":
            return _boolean
        case "int" | "long":
            return _integer(avro, path)
        case "float":
            return lambda message: struct.unpack("<f", message.take(4))[0]
        case "double":
            return lambda message: struct.unpack("<d", message.take(8))[0]
        case "bytes":
            if is_decimal(avro):
                return lambda message: _decimal(message, message.take(message.long()), avro, path)
            return lambda message: message.take(message.long())

    def text(message: _Message) -> str | None:
        found = message.take(message.long())
        try:
            return found.decode()
        except UnicodeDecodeError:
            message.lost.append(path)
            return None

    return text


def _boolean(message: _Message) -> bool:
    found = message.take(1)[0]
    if found > 1:
        raise ValueError("no boolean")
    return found == 1


def _integer(avro: Primitive, path: str) -> _Read:
    first, last, unit = -(1 << 63), (1 << 63) - 1, 1
    if avro.logical in TIME_UNITS:
        unit = TIME_UNITS[avro.logical]
        first, last = FIRST_MICROSECOND, LAST_MICROSECOND
    elif avro.logical in DAY_TIMES:
        unit = DAY_TIMES[avro.logical]
        first, last = 0, DAY_MICROSECONDS - 1
    elif avro.logical == "date":
        first, last = FIRST_DAY, LAST_DAY
    is_int = avro.kind == "int"
    as_text = avro.logical in DAY_TIMES

    def read(message: _Message) -> int | str | None:
        number = message.long()
        if is_int and not -(1 << 31) <= number < 1 << 31:
            raise ValueError("no int")
        number *= unit
        if not first <= number <= last:
            message.lost.append(path)
            return None
        return time_of_day(number, unit) if as_text else number

    return read


def _decimal(message: _Message, written: bytes, avro: Primitive | Fixed, path: str) -> Any:
    found = decimal_of(written, avro)
    if found is None:
        message.lost.append(path)
    return found


def _enumeration(symbols: Sequence[str], path: str) -> _Read:
    def read(message: _Message) -> str | None:
        number = message.long()
        if 0 <= number < len(symbols):
            return symbols[number]
        message.lost.append(path)
        return None

    return read


def _blocks(message: _Message, element: Callable[[], None], without_bytes: bool) -> None:
    while count := message.long():
        if count < 0:
            count = -count
            message.long()
        if without_bytes and count > len(message.data):
            raise ValueError("elements without bytes cannot be counted up")
        for _ in range(count):
            element()


def _array(read: _Read, without_bytes: bool) -> _Read:
    def read_array(message: _Message) -> list[Any]:
        found: list[Any] = []
        _blocks(message, lambda: found.append(read(message)), without_bytes)
        return found

    return read_array


def _map(read: _Read, path: str) -> _Read:
    key_of = _primitive(_KEY, path)

    def read_map(message: _Message) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        broken = False

        def entry() -> None:
            nonlocal broken
            known = len(message.lost)
            key = key_of(message)
            broken |= len(message.lost) > known
            if key in found:
                message.lost.append(path)
            found[key] = read(message)

        _blocks(message, entry, False)
        return None if broken else found

    return read_map
