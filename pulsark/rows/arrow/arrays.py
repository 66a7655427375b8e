"""Arrow arrays from positions and from lists, in as few passes as possible."""

from __future__ import annotations

import base64
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.schema import MILLISECONDS_MAX, TIMESTAMP
from pulsark.wire.text_fields import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SMALL_PROPERTY_COUNT = 8


class MessageColumns(NamedTuple):
    """What differs from message to message; arrays of one length, one element a row.

    ``entry`` is the number of the entry within its builder.
    """

    entry: Ints
    batch_index: pa.Array
    key: pa.Array
    key_base64: pa.Array
    ordering_key: pa.Array
    value: pa.Array
    value_raw: pa.Array
    properties: pa.Array
    sequence_id: pa.Array
    event_time: pa.Array
    message_meta: pa.Array


def merge(parts: Sequence[MessageColumns]) -> MessageColumns:
    """All rows, by entry; the rows of one entry are in one part, in order."""
    entry = np.concatenate([part.entry for part in parts])
    if len(parts) == 1 and (entry[1:] >= entry[:-1]).all():
        return parts[0]
    order = np.argsort(entry, kind="stable")
    places = pa.array(order)
    columns = zip(*(part[1:] for part in parts), strict=True)
    return MessageColumns(entry[order], *(pa.concat_arrays(c).take(places) for c in columns))


def slices(data: pa.Buffer, starts: Ints, ends: Ints, present: Bools | None = None) -> pa.Array:
    """Pieces of a buffer as a binary column; pieces ascend, and may touch.

    With ``present``, which has as many true values as there are pieces, one element each, and
    null where it is false.
    """
    count = len(starts)
    borders = np.empty(2 * count, np.int32)
    borders[0::2], borders[1::2] = starts, ends
    if not count:
        return pa.nulls(0 if present is None else len(present), pa.binary())
    # What lies between two pieces is an element too, which the take leaves out.
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), data]
    )
    if present is None:
        return both.take(pa.array(np.arange(0, 2 * count, 2)))
    places = (np.cumsum(present) - 1) * 2
    return both.take(pa.array(places, mask=~present))


def text(column: pa.Array) -> pa.Array | None:
    """A binary column as text; ``None`` if some of it is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def not_text(column: pa.Array) -> Bools:
    """Where a binary column is not UTF-8."""
    return np.array([_is_broken(item) for item in column.to_pylist()], np.bool_)


def _is_broken(item: bytes | None) -> bool:
    try:
        if item is not None:
            item.decode()
    except UnicodeDecodeError:
        return True
    return False


def binary(values: list[bytes | None]) -> pa.Array:
    """A binary column; without nulls by one copy of the bytes."""
    if None in values:
        return pa.array(values, pa.binary())
    ends = np.zeros(len(values) + 1, np.int32)
    ends[1:] = list(accumulate(map(len, values)))  # type: ignore[arg-type]
    data = b"".join(values)  # type: ignore[arg-type]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def strings(values: Iterable[str]) -> pa.Array:
    """A text column; what is not UTF-8 (``bytes`` then) gets replacement characters."""
    values = list(values)
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError):
        return pa.array([as_text(value) for value in values], pa.string())


def keys(values: list[str | None], flags: list[bool]) -> tuple[pa.Array, pa.Array]:
    """Keys and whether they are base64. What is not UTF-8 (``bytes`` then) becomes base64."""
    if not all(key is None or isinstance(key, str) for key in values):
        for i, key in enumerate(values):
            if isinstance(key, bytes):
                values[i] = base64.b64encode(key).decode()
                flags[i] = True
    shown = [None if key is None else flag for key, flag in zip(values, flags, strict=True)]
    return pa.array(values, pa.string()), pa.array(shown, pa.bool_())


def varints(
    numbers: npt.NDArray[Any], prefix: bytes = b"", present: Bools | None = None
) -> pa.Array:
    """Numbers of no sign as protobuf and Avro write them, each behind a prefix; nothing where
    not ``present``."""
    rest = numbers.astype(np.uint64)
    head = len(prefix)
    most = int(rest.max(initial=0))
    width = max(1, -(-most.bit_length() // 7))
    cells = np.empty((len(rest), head + width), np.uint8)
    cells[:, :head] = np.frombuffer(prefix, np.uint8)
    if width == 1:
        cells[:, head] = rest
        return cells_of(cells, present)
    used = np.ones(cells.shape, np.bool_)
    for place in range(head, head + width):
        cells[:, place] = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest >>= np.uint64(7)
        if place + 1 < head + width:
            more = rest != 0
            cells[:, place] |= more.astype(np.uint8) << 7
            used[:, place + 1] = more
    if present is not None:
        used &= present[:, None]
    ends = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(used.sum(axis=1), out=ends[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(ends), pa.py_buffer(cells[used])]
    )


def to_zigzag(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Numbers with a sign as those without one, as protobuf and Avro have them."""
    signed = numbers.astype(np.int64)
    found: npt.NDArray[np.uint64] = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    return found


def from_zigzag(numbers: npt.NDArray[np.uint64]) -> Ints:
    """The inverse."""
    one = np.uint64(1)
    found: Ints = (numbers >> one).view(np.int64) ^ -(numbers & one).view(np.int64)
    return found


def ends_of(counts: Ints) -> pa.Array:
    """The offsets of lists with these numbers of elements."""
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.array(ends)


def cells_of(cells: npt.NDArray[np.uint8], present: Bools | None = None) -> pa.Array:
    """Rows of bytes as a binary column; nothing where not ``present``."""
    count, size = cells.shape
    ends = np.arange(count + 1, dtype=np.int32) * size
    if present is not None and not present.all():
        np.cumsum(present * np.int32(size), out=ends[1:])
        cells = cells[present]
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(cells))]
    )


def offsets_of(column: pa.Array) -> Ints:
    """Where the elements of a binary column begin and end in its data."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    found: Ints = offsets[column.offset :][: len(column) + 1].astype(np.int64)
    return found


def joined(pieces: Sequence[pa.Array], count: int) -> pa.Array:
    """The pieces of each of ``count`` rows, concatenated; null adds nothing."""
    if not pieces:
        return pa.array([b""] * count, pa.binary())
    if len(pieces) == 1 and not pieces[0].null_count:
        return pieces[0]
    return pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


def grouped(elements: pa.Array, ends: npt.NDArray[Any]) -> pa.Array:
    """Elements, none of them null, put together: row i has those from ``ends[i]`` on."""
    if not len(elements):
        return joined((), len(ends) - 1)
    borders = offsets_of(elements)[ends].astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(borders), elements.buffers()[2]]
    )


def microseconds(milliseconds: int) -> int | None:
    """A time for Arrow; 0 and what no clock can show mean that there is none."""
    return milliseconds * 1000 if 0 < milliseconds <= MILLISECONDS_MAX else None


def times(milliseconds: npt.NDArray[np.uint64]) -> pa.Array:
    """A column of timestamps from milliseconds."""
    if not milliseconds.any():
        return pa.nulls(len(milliseconds), TIMESTAMP)
    absent = (milliseconds == 0) | (milliseconds > MILLISECONDS_MAX)
    shown = np.where(absent, 0, milliseconds).astype(np.int64) * 1000
    return pa.array(shown, TIMESTAMP, mask=absent)


def repeated_names(names: pa.Array, ends: npt.NDArray[Any]) -> Bools:
    """Rows that have a property twice. Row i's names are ``names[ends[i]:ends[i + 1]]``."""
    counts = np.diff(ends)
    result = np.zeros(len(counts), np.bool_)
    most = int(counts.max(initial=0))
    if most < 2:
        return result
    codes = names.dictionary_encode()
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    places = codes.indices.to_numpy().astype(np.int64)
    if most <= SMALL_PROPERTY_COUNT:
        for distance in range(1, most):
            same = (rows[distance:] == rows[:-distance]) & (places[distance:] == places[:-distance])
            result[rows[distance:][same]] = True
        return result
    pairs = np.sort(rows * len(codes.dictionary) + places)
    again = pairs[1:][pairs[1:] == pairs[:-1]]
    result[again // len(codes.dictionary)] = True
    return result


def last_wins(
    names: pa.Array, values: pa.Array, ends: npt.NDArray[np.int32]
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int32]]:
    """Properties as clients see them: of equal names the last one counts."""
    name_list, value_list = names.to_pylist(), values.to_pylist()
    rows = [
        dict(zip(name_list[start:end], value_list[start:end], strict=True))
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    new_ends = np.zeros_like(ends)
    new_ends[1:] = list(accumulate(map(len, rows)))
    flat = [item for row in rows for item in row.items()]
    return strings(name for name, _ in flat), strings(value for _, value in flat), new_ends
