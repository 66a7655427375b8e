"""Which payloads may be decoded: bounds on depth and on the number of values.

Producers choose both the schema and the bytes. A recursive record makes a parser recurse once per
byte, types that share each other make a kilobyte expand to millions of values, and an empty object
of two bytes fills a cell in each of a thousand columns. So a payload is measured against its schema
before any parser gets it. Most payloads are too short to be harmful: their length alone decides,
for all at once. The others are walked with an explicit stack and counters.

The measure depends on nothing but schema and payload: the table and Spark decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pulsark.limits import (
    EMPTY_ITEMS_MAX,
    VALUE_CELLS_FREE,
    VALUE_CELLS_MAX,
    VALUE_CELLS_PER_BYTE,
    VALUE_DEPTH_MAX,
    VALUE_ITEMS_MAX,
)
from pulsark.rows.arrow.arrays import offsets_of
from pulsark.rows.values.losses import WHOLE, Losses
from pulsark.rows.values.types import spread
from pulsark.schemas.avro import Array, AvroType, Fixed, Map, Primitive, Record, Union

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.rows.arrow.arrays import Bools, Ints
    from pulsark.schemas.protobuf import Field, Message

_VARINT_BYTES_MAX: Final = 10
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}

Decode: TypeAlias = Callable[[pa.Array, Losses], pa.Array]


class Bounds:
    """Decides which payloads of one schema are decoded, and counts the others."""

    def __init__(self, harmless_bytes: int, is_within: Callable[[bytes], bool]) -> None:
        """``is_within`` decides about a payload of more than ``harmless_bytes``."""
        self._harmless_bytes = harmless_bytes
        self._is_within = is_within
        self.refused = 0
        """Payloads that were beyond the bounds so far."""

    def decoded(self, payloads: pa.Array, decode: Decode, lost: Losses) -> pa.Array:
        """Decode payloads. Those beyond the bounds become null."""
        within = self.within(payloads)
        if within is None:
            return decode(payloads, lost)
        self.refused += int((~within).sum())
        lost.where(WHOLE, ~within)
        inner = lost.within("", np.flatnonzero(within))
        return spread(decode(payloads.filter(pa.array(within)), inner), within)

    def within(self, payloads: pa.Array) -> Bools | None:
        """Return where payloads are within the bounds; None if all are."""
        sizes = np.diff(offsets_of(payloads))
        if sizes.max(initial=0) <= self._harmless_bytes:
            return None
        found = np.ones(len(payloads), np.bool_)
        for place in self._suspicious(payloads, np.flatnonzero(sizes > self._harmless_bytes)):
            payload = payloads[int(place)].as_py()
            found[place] = payload is None or self._is_within(payload)
        return None if found.all() else found

    def _suspicious(self, _payloads: pa.Array, long: Ints) -> Ints:
        """Return those of the ``long`` payloads that have to be walked."""
        return long


# -- Avro --------------------------------------------------------------------------------------

_NUMBER, _FIXED, _BYTES, _RECORD, _UNION, _BLOCKS, _NEXT_BLOCK, _EMPTY = range(8)
_FIXED_OR_NUMBER: Final = _FIXED
_FEW_NUMBERS: Final = 16
"""Up to so many numbers are read one by one: numpy takes longer to begin."""
_MANY: Final = VALUE_ITEMS_MAX + 1


@dataclass(slots=True, eq=False)
class _Step:
    """How to walk over a value of one type."""

    kind: int
    items: int = 1
    """What a value counts, with the values without bytes in it."""
    size: int = 0
    """Bytes of a ``_FIXED`` one."""
    numbers: int = 1
    """How many numbers a ``_NUMBER`` one is: a record of nothing else is one step."""
    height: int = 0
    """How deep records are nested in a ``_FIXED`` or a ``_NUMBER`` one."""
    parts: Sequence[_Step] = ()
    """Fields of a record, branches of a union, or what each element of an array or a map has."""
    then: _Step | None = None
    """What follows the elements of a block."""


class AvroShape:
    """What values of an Avro type can look like."""

    def __init__(self, avro: AvroType) -> None:
        self._types = _reachable(avro)
        self._empty = self._without_bytes()
        records = [each for each in self._types if isinstance(each, Record)]
        direct = {
            record: [part for part in _parts(record) if isinstance(part, Record)]
            for record in records
        }
        order = _inner_first(direct)
        finite = set(order)
        counts = _EmptyItems(self._empty, order)
        everything = _inner_first({each: list(_parts(each)) for each in self._types})
        self.is_recursive = len(everything) < len(self._types)
        self.depth = _depth(everything)
        """Deepest nesting of records, arrays and maps; means nothing for a recursive type."""
        self._steps = self._compiled(counts, {each for each in records if each not in finite})
        for record in order:
            _join(self._steps[record])
        self._root = self._steps.get(avro)
        may_be_short = (
            len(order) < len(records)
            or counts.most > EMPTY_ITEMS_MAX
            or any(_elements(each) in self._empty for each in self._types)
        )
        harmless = -1 if may_be_short else self._harmless_bytes(_depth(order), counts.most)
        self.bounds = Bounds(harmless, self._is_within)

    def is_empty(self, avro: AvroType) -> bool:
        """Return whether values of a type take no bytes."""
        return avro in self._empty

    def _without_bytes(self) -> set[AvroType]:
        """Return the types without bytes. A record counts unless a field of it takes some."""
        users: dict[AvroType, list[Record]] = {}
        for each in self._types:
            if isinstance(each, Record):
                for part in _parts(each):
                    users.setdefault(part, []).append(each)
        with_bytes: set[AvroType] = set()
        new: list[AvroType] = [
            each for each in self._types if not isinstance(each, Record) and _takes_bytes(each)
        ]
        while new:
            found = new.pop()
            if found not in with_bytes:
                with_bytes.add(found)
                new.extend(users.get(found, ()))
        return set(self._types) - with_bytes

    def _harmless_bytes(self, records: int, empty_items: int) -> int:
        """Return a length up to which no payload can reach a bound.

        Each value that is no record takes a byte. Before it, a walk enters at most a chain of
        ``records``, each with its empty values.
        """
        longest = VALUE_ITEMS_MAX // ((1 + records) * (1 + empty_items))
        if self.is_recursive or self.depth > VALUE_DEPTH_MAX:
            longest = min(longest, VALUE_DEPTH_MAX // (1 + records))
        return longest

    def _compiled(self, counts: _EmptyItems, infinite: set[AvroType]) -> dict[AvroType, _Step]:
        """Return how to walk over each type. No value of an ``infinite`` one comes to its end."""
        steps: dict[AvroType, _Step] = {each: _Step(_NUMBER) for each in self._types}
        for avro, step in steps.items():
            match avro:
                case _ if avro in infinite:
                    step.items = VALUE_ITEMS_MAX + 1
                case _ if avro in self._empty:
                    step.kind, step.items = _EMPTY, counts.of(avro)
                case Primitive(kind) if kind in _SIZES:
                    step.kind, step.size = _FIXED, _SIZES[kind]
                case Primitive("bytes" | "string"):
                    step.kind = _BYTES
                case Fixed(size=size):
                    step.kind, step.size = _FIXED, size
                case Record():
                    step.kind = _RECORD
                    # Empty fields are counted with the record, and not walked over.
                    step.items = 1 + sum(map(counts.of, _parts(avro)))
                    step.parts = [steps[each] for each in _parts(avro) if each not in self._empty]
                case Union(branches):
                    step.kind = _UNION
                    step.parts = [steps[each] for each in branches]
                case Array(items):
                    _as_blocks(step, [steps[items]])
                case Map(values):
                    _as_blocks(step, [_Step(_BYTES), steps[values]])
        return steps

    def _is_within(self, data: bytes) -> bool:
        assert self._root is not None
        return _AvroWalk(data).is_within(self._root)


class _AvroWalk:
    """A walk over the values of one payload."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._end = len(data)
        self._items = 0
        self._inside: list[Iterator[_Step]] = []
        """What is still to come in the records, arrays and maps around, the innermost last."""

    def is_within(self, step: _Step) -> bool:
        """Return whether the data are one value within the bounds, and nothing more."""
        following: _Step | None = step
        while following is not None:
            self._items += following.items
            following = self._over(following) or self._next()
            if self._position > self._end or self._items > VALUE_ITEMS_MAX:
                return False
        return self._position == self._end

    def _next(self) -> _Step | None:
        while self._inside:
            found = next(self._inside[-1], None)
            if found is not None:
                return found
            self._inside.pop()
        return None

    def _over(self, step: _Step) -> _Step | None:
        """Go over a value, or up to what it contains; returns the branch of a union."""
        kind = step.kind
        if self._items > VALUE_ITEMS_MAX:
            self._fail()
        elif kind <= _FIXED_OR_NUMBER:
            self._over_many(step, 1)
        elif kind == _RECORD:
            self._enter(iter(step.parts))
        elif kind != _EMPTY:
            number = self._number()
            if kind == _UNION:
                return self._branch(step, number)
            if kind == _BYTES:
                self._skip(number)
            else:
                self._block(step, number)
        return None

    def _over_many(self, step: _Step, count: int) -> None:
        """Go over ``count`` values of one step that have no choice in them."""
        if len(self._inside) + step.height > VALUE_DEPTH_MAX:
            self._fail()
        elif step.kind == _FIXED:
            self._position += count * step.size
        else:
            self._skip_numbers(count * step.numbers)

    def _branch(self, union: _Step, number: int) -> _Step | None:
        if 0 <= number < len(union.parts):
            return union.parts[number]
        self._fail()
        return None

    def _block(self, step: _Step, number: int) -> None:
        """Enter a block of an array or a map."""
        if step.kind == _NEXT_BLOCK:
            self._inside.pop()
        if number < 0:
            number = -number
            self._number()
        takes_bytes = any(part.kind != _EMPTY for part in step.parts)
        if number > (self._end - self._position if takes_bytes else VALUE_ITEMS_MAX):
            self._fail()
        elif number:
            assert step.then is not None
            first = step.parts[0]
            if len(step.parts) == 1 and first.kind <= _FIXED_OR_NUMBER:
                self._items += number * first.items
                self._enter(iter((step.then,)))
                if self._items <= VALUE_ITEMS_MAX:
                    self._over_many(first, number)
                return
            elements = chain.from_iterable(repeat(step.parts, number))
            self._enter(chain(elements, (step.then,)))

    def _enter(self, parts: Iterator[_Step]) -> None:
        if len(self._inside) == VALUE_DEPTH_MAX:
            self._fail()
        self._inside.append(parts)

    def _number(self) -> int:
        number, self._position = _varint(self._data, self._position, self._end)
        return (number >> 1) ^ -(number & 1)

    def _skip_numbers(self, count: int) -> None:
        if count <= _FEW_NUMBERS:
            for _ in range(count):
                self._number()
            return
        size = min(count * _VARINT_BYTES_MAX, self._end - self._position)
        if size < count:
            self._fail()
            return
        ends = np.flatnonzero(np.frombuffer(self._data, np.uint8, size, self._position) < 0x80)
        ends = ends[:count]
        if len(ends) < count or np.diff(ends, prepend=-1).max() > _VARINT_BYTES_MAX:
            self._fail()
        else:
            self._position += int(ends[-1]) + 1

    def _skip(self, size: int) -> None:
        if size < 0:
            self._fail()
        else:
            self._position += size

    def _fail(self) -> None:
        self._position = self._end + 1


class _EmptyItems:
    """What values without bytes count: themselves and those within them."""

    def __init__(self, empty: set[AvroType], inner_first: Sequence[AvroType]) -> None:
        # Records that the order lacks contain themselves.
        self._of = {each: 1 if not isinstance(each, Record) else _MANY for each in empty}
        self.most = 0
        """In one record, or one branch of a union."""
        for record in inner_first:
            inside = min(sum(map(self.of, _parts(record))), _MANY)
            self.most = max(self.most, inside)
            if record in empty:
                self._of[record] = min(1 + inside, _MANY)
        self.most = max(self.most, *self._of.values(), 0)

    def of(self, avro: AvroType) -> int:
        """Return what a value counts; 0 for one with bytes."""
        return self._of.get(avro, 0)


def _elements(avro: AvroType) -> AvroType | None:
    return avro.items if isinstance(avro, Array) else None


def _join(record: _Step) -> None:
    """Make one step of a record whose fields are numbers only, or have one size each.

    The fields that are records have been joined before.
    """
    kinds = {part.kind for part in record.parts}
    if record.kind != _RECORD or len(kinds) != 1 or not kinds <= {_NUMBER, _FIXED}:
        return
    (record.kind,) = kinds
    record.items += sum(part.items for part in record.parts)
    record.size = sum(part.size for part in record.parts)
    record.numbers = sum(part.numbers for part in record.parts)
    record.height = 1 + max(part.height for part in record.parts)


def _as_blocks(step: _Step, parts: Sequence[_Step]) -> None:
    step.kind, step.parts = _BLOCKS, parts
    step.then = _Step(_NEXT_BLOCK, 0, parts=parts)
    step.then.then = step.then


def is_empty(avro: AvroType) -> bool:
    """Return whether values of a type take no bytes. ``AvroShape`` knows it of all its types."""
    seen: set[AvroType] = set()
    new = [avro]
    while new:
        each = new.pop()
        if isinstance(each, Record):
            if each not in seen:
                seen.add(each)
                new.extend(_parts(each))
        elif _takes_bytes(each):
            return False
    return True


def _takes_bytes(avro: AvroType) -> bool:
    """Return whether values of a type that is no record take bytes."""
    if isinstance(avro, Fixed):
        return avro.size > 0
    return str(avro) != "null"


def _parts(avro: AvroType) -> Iterator[AvroType]:
    """Return the types directly within a type."""
    match avro:
        case Array(items):
            yield items
        case Map(values):
            yield values
        case Union(branches):
            yield from branches
        case Record():
            for field in avro.fields.values():
                yield field.type


def _reachable(avro: AvroType) -> list[AvroType]:
    found: dict[AvroType, None] = {}
    new = [avro]
    while new:
        each = new.pop()
        if each not in found:
            found[each] = None
            new.extend(_parts(each))
    return list(found)


def _inner_first(inside: Mapping[Any, Sequence[Any]]) -> list[Any]:
    """Return types in an order in which each follows those within it. It lacks types that contain
    themselves, and all around them."""
    waits = {each: len(parts) for each, parts in inside.items()}
    users: dict[Any, list[Any]] = {}
    for each, parts in inside.items():
        for part in parts:
            users.setdefault(part, []).append(each)
    ready = [each for each, count in waits.items() if not count]
    order = []
    while ready:
        found = ready.pop()
        order.append(found)
        for user in users.get(found, ()):
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return order


def _depth(inner_first: Sequence[Any]) -> int:
    """Return the deepest nesting of records, arrays and maps among types."""
    depths: dict[Any, int] = {}
    for each in inner_first:
        here = isinstance(each, Record | Array | Map)
        depths[each] = here + max((depths.get(part, 0) for part in _parts(each)), default=0)
    return max(depths.values(), default=0)


# -- JSON --------------------------------------------------------------------------------------


class JsonBounds(Bounds):
    """Bounds of JSON texts; ``width`` is the number of columns of the widest repeated record."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._openings_max = min(VALUE_DEPTH_MAX, VALUE_CELLS_FREE // max(width, 1))
        super().__init__(min(VALUE_DEPTH_MAX, self._openings_max), self._check)

    def _suspicious(self, payloads: pa.Array, long: Ints) -> Ints:
        """Return payloads with many brackets, or so long that they may have too many values."""
        offsets = offsets_of(payloads)
        held = payloads.buffers()[2]
        data = np.frombuffer(held, np.uint8)[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        sizes = np.diff(offsets)
        places = np.concatenate(
            [
                np.flatnonzero((data[start : start + _PIECE_BYTES] & _OPENING_MASK) == _OPENING)
                + start
                for start in range(0, len(data), _PIECE_BYTES)
            ]
        )
        most = self._openings_max
        found: Ints = long[sizes[long] > VALUE_ITEMS_MAX]
        last, first = places[most:], places[: max(len(places) - most, 0)]
        near = last - first < sizes.max()
        if near.any():
            owners = np.searchsorted(offsets, last[near], "right") - 1
            found = np.union1d(found, owners[first[near] >= offsets[owners]])
        return found

    def _check(self, text: bytes) -> bool:
        depth, values, objects = json_shape(text)
        cells = objects * self._width
        return (
            depth <= VALUE_DEPTH_MAX
            and values <= VALUE_ITEMS_MAX
            and cells <= _cells_allowed(len(text))
        )


_OPENING_MASK: Final = 0xDF
_OPENING: Final = ord("[")
"""What an opening bracket is under the mask, and an opening brace."""
_PIECE_BYTES: Final = 64 << 10
"""Bytes that are searched at a time: they stay in the processor's cache."""
_STEP_BYTES: Final = 1 << 20
"""Bytes of a text that are measured at a time: numbers of eight bytes for each are held."""


def json_shape(text: bytes) -> tuple[int, int, int]:
    """Return the deepest nesting of a JSON text, and at most how many values and objects it has."""
    depth = deepest = values = objects = 0
    in_text, escaped = False, False
    whole = np.frombuffer(text, np.uint8)
    for start in range(0, len(text), _STEP_BYTES):
        data = whole[start : start + _STEP_BYTES]
        outside, in_text, escaped = _outside_texts(data, in_text, escaped)
        opening = ((data & _OPENING_MASK) == _OPENING) & outside
        closing = ((data & _OPENING_MASK) == ord("]")) & outside
        levels = depth + np.cumsum(opening.astype(np.int64) - closing)
        deepest = max(deepest, int(levels.max()))
        depth = int(levels[-1])
        values += int(opening.sum()) + int(((data == ord(",")) & outside).sum())
        objects += int(((data == ord("{")) & opening).sum())
    return deepest, values + 1, objects


def _outside_texts(data: Any, in_text: bool, escaped: bool) -> tuple[Bools, bool, bool]:
    """Return which bytes are in no text between quotes, and the state behind them."""
    quotes = np.flatnonzero(data == ord('"'))
    others = np.flatnonzero(data != ord("\\"))
    before = np.searchsorted(others, quotes) - 1
    # Backslashes right before each quote; those at the start continue the ones before it.
    run = quotes - 1 - np.where(before >= 0, others[before] if len(others) else -1, -1)
    run = run + ((before < 0) & escaped)
    real = quotes[run % 2 == 0]
    toggles = np.zeros(len(data), np.int8)
    toggles[real] = 1
    inside = (np.cumsum(toggles, dtype=np.int64) + in_text) % 2 == 1
    tail = len(data) - 1 - (int(others[-1]) if len(others) else -1)
    odd = (tail + (escaped if not len(others) else 0)) % 2 == 1
    return ~inside, bool(inside[-1]), odd


def _cells_allowed(size: int) -> int:
    return min(VALUE_CELLS_PER_BYTE * size + VALUE_CELLS_FREE, VALUE_CELLS_MAX)


def repeated_width(kind: pa.DataType, repeated: bool = False) -> int:
    """Return the number of columns in the widest record within an array or a map."""
    if pa.types.is_struct(kind):
        inner = max((repeated_width(field.type, repeated) for field in kind), default=0)
        return max(inner, _columns(kind)) if repeated else inner
    if pa.types.is_map(kind):
        return repeated_width(kind.item_type, True)
    return repeated_width(kind.value_type, True) if pa.types.is_list(kind) else 0


def _columns(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_columns(field.type) for field in kind)
    if pa.types.is_map(kind):
        return 1 + _columns(kind.item_type)
    return 1 + _columns(kind.value_type) if pa.types.is_list(kind) else 1


# -- Protobuf ----------------------------------------------------------------------------------

_VARINT, _EIGHT_BYTES, _DELIMITED, _GROUP, _END_GROUP, _FOUR_BYTES = range(6)
_FIXED_SIZES: Final = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_NO_FIELDS: Final[dict[int, _ProtobufStep]] = {}


@dataclass(slots=True, eq=False)
class _ProtobufStep:
    """How to walk over a field."""

    is_number: bool
    """Whether bytes in its place are numbers behind each other."""
    fields: dict[int, _ProtobufStep] | None = None
    """Those of its message, by their numbers."""
    cells: int = 0
    """Columns that a message fills."""


class ProtobufBounds(Bounds):
    """Bounds of messages whose values have a type."""

    def __init__(self, message: Message, kind: pa.DataType) -> None:
        self._fields = _steps_of(message, kind)
        # The shortest message within another one is a tag and a length.
        harmless = 2 * VALUE_CELLS_FREE // max(repeated_width(kind), 1)
        super().__init__(min(VALUE_ITEMS_MAX, harmless), self._check)

    def _check(self, data: bytes) -> bool:
        return _ProtobufWalk(data, self._fields).is_within()


class _ProtobufWalk:
    """A walk over the fields of one payload."""

    def __init__(self, data: bytes, fields: dict[int, _ProtobufStep]) -> None:
        self._data = data
        self._position = self._items = self._cells = 0
        self._fields = fields
        self._end = len(data)
        """Where the message ends that the walk is in, or the message around its group."""
        self._is_group = False
        self._around: list[tuple[dict[int, _ProtobufStep], int, bool]] = []

    def is_within(self) -> bool:
        """Return whether the data are a message within the bounds."""
        allowed = _cells_allowed(len(self._data))
        while True:
            while self._position == self._end and not self._is_group:
                if not self._around:
                    return True
                self._leave()
            self._items += 1
            self._field()
            if self._position > self._end:
                return False
            if self._items > VALUE_ITEMS_MAX or self._cells > allowed:
                return False

    def _field(self) -> None:
        tag = self._number()
        wire_type = tag & 7
        if wire_type == _DELIMITED:
            self._delimited(self._fields.get(tag >> 3))
        elif wire_type == _GROUP:
            self._enter(_NO_FIELDS, self._end, is_group=True)
        elif wire_type == _END_GROUP and self._is_group:
            self._leave()
        elif wire_type == _VARINT:
            self._number()
        else:
            self._position += _FIXED_SIZES.get(wire_type, len(self._data) + 1)

    def _delimited(self, step: _ProtobufStep | None) -> None:
        size = self._number()
        if step is not None and step.fields is not None and size <= self._end - self._position:
            self._cells += step.cells
            self._enter(step.fields, self._position + size, is_group=False)
            return
        if step is not None and step.is_number and size <= self._end - self._position:
            inside = np.frombuffer(self._data, np.uint8, size, self._position)
            self._items += int((inside < 0x80).sum())
        self._position += size

    def _enter(self, fields: dict[int, _ProtobufStep], end: int, *, is_group: bool) -> None:
        if len(self._around) == VALUE_DEPTH_MAX:
            self._position = len(self._data) + 1
            return
        self._around.append((self._fields, self._end, self._is_group))
        self._fields, self._end, self._is_group = fields, end, is_group

    def _leave(self) -> None:
        self._fields, self._end, self._is_group = self._around.pop()

    def _number(self) -> int:
        number, self._position = _varint(self._data, self._position, self._end)
        return number


def _steps_of(message: Message, kind: pa.DataType) -> dict[int, _ProtobufStep]:
    return {field.number: _step_of(field, kind.field(field.name).type) for field in message.fields}


def _step_of(field: Field, kind: pa.DataType) -> _ProtobufStep:
    if field.message is None:
        return _ProtobufStep(field.repeated and field.kind not in ("string", "bytes"))
    if field.kind == "map":
        kind = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    elif field.repeated:
        kind = kind.value_type
    return _ProtobufStep(False, _steps_of(field.message, kind), _columns(kind))


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a number and the place behind it; behind the end if it does not end there."""
    number = shift = 0
    while position < end and shift < 7 * _VARINT_BYTES_MAX:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    return 0, end + 1
