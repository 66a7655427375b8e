"""Avro's decimals: unscaled numbers, big-endian in two's complement, as many bytes as they need."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsark.rows.arrow.arrays import cells_of
from pulsark.rows.values.types import too_long, with_nulls
from pulsark.schemas.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from pulsark.rows.arrow.arrays import Ints
    from pulsark.schemas.avro import Fixed, Primitive

_CELL: Final = 16
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS_MAX)


def decimals(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, avro: Primitive | Fixed
) -> pa.Array:
    """What stands in ``data``, which is not empty, from ``starts`` to ``ends``, as numbers.

    Null where it is none, or has too many digits.
    """
    sizes = ends - starts
    places = ends[:, None] - _CELL + np.arange(_CELL)
    sign = np.where(data[np.minimum(starts, len(data) - 1)] >= 0x80, 0xFF, 0).astype(np.uint8)
    cells = np.where(places >= starts[:, None], data[np.maximum(places, 0)], sign[:, None])
    numbers = pa.Array.from_buffers(
        pa.decimal128(DECIMAL_DIGITS_MAX, avro.scale),
        len(cells),
        [None, pa.py_buffer(np.ascontiguousarray(cells[:, ::-1]))],
    )
    wrong = (sizes == 0) | (sizes > _CELL) | too_long(numbers, avro.precision)
    for place in np.flatnonzero(sizes > _CELL):
        # Longer ones fit as well if the bytes in front only repeat the sign.
        front = data[starts[place] : ends[place] - _CELL]
        repeats = (front == sign[place]).all() and (cells[place, 0] >= 0x80) == (sign[place] > 0)
        if repeats and not too_long(numbers[int(place) : int(place) + 1], avro.precision)[0]:
            wrong[place] = False
    return with_nulls(numbers, wrong).cast(pa.decimal128(avro.precision, avro.scale))


def decimal_bytes(column: pa.Array) -> pa.Array:
    """The inverse of ``decimals``. A null becomes some bytes."""
    if not len(column):
        return pa.array([], pa.binary())
    numbers = column.cast(pa.decimal128(DECIMAL_DIGITS_MAX, column.type.scale))
    cells = np.frombuffer(numbers.buffers()[1], np.uint8)
    cells = cells.reshape(-1, _CELL)[numbers.offset :][: len(numbers), ::-1]
    negative = cells[:, 0] >= 0x80
    # A leading byte says nothing if it only repeats the sign that the next one begins with.
    sign = np.where(negative, 0xFF, 0).astype(np.uint8)
    repeats = (cells[:, :-1] == sign[:, None]) & ((cells[:, 1:] >= 0x80) == negative[:, None])
    spare = np.cumprod(repeats, axis=1).sum(axis=1)
    used = np.arange(_CELL)[None, :] >= spare[:, None]
    ends = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(_CELL - spare, out=ends[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(ends), pa.py_buffer(cells[used])]
    )


def fixed_decimal_bytes(column: pa.Array, size: int) -> pa.Array:
    """Return numbers in so many bytes each. A null, or one that needs more, becomes some bytes."""
    numbers = column.cast(pa.decimal128(DECIMAL_DIGITS_MAX, column.type.scale))
    held = numbers.buffers()[1] if len(numbers) else b""
    cells = np.frombuffer(held, np.uint8).reshape(-1, _CELL)
    cells = cells[numbers.offset :][: len(numbers), ::-1]
    if size > _CELL:
        sign = np.where(cells[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
        cells = np.hstack([np.repeat(sign, size - _CELL, axis=1), cells])
    return cells_of(np.ascontiguousarray(cells[:, cells.shape[1] - size :]))


def decimal_of(written: bytes, avro: Primitive | Fixed) -> Decimal | None:
    """One number; ``None`` if it is none, or has too many digits."""
    number = int.from_bytes(written, "big", signed=True)
    if not written or abs(number) >= 10**avro.precision:
        return None
    return _EXACT.scaleb(Decimal(number), -avro.scale)
