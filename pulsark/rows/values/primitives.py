"""Primitive types of schemas: numbers big-endian, times as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.arrays import Bools, Ints, cells_of, text
from pulsark.rows.arrow.schema import TIMESTAMP
from pulsark.rows.values.losses import WHOLE, Losses
from pulsark.rows.values.types import arrow_type, spread, valid
from pulsark.schemas.columns import value_type
from pulsark.schemas.definition import SchemaData, SchemaType

if TYPE_CHECKING:
    from collections.abc import Callable

Cells = npt.NDArray[np.uint8]
"""Payloads of one size: one row each."""

FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""From the year 1 to 9999: engines differ in what they make of other years."""

DAY_MICROSECONDS: Final = 86_400_000_000
FIRST_MICROSECOND: Final = FIRST_DAY * DAY_MICROSECONDS
LAST_MICROSECOND: Final = (LAST_DAY + 1) * DAY_MICROSECONDS - 1

_MICROSECONDS: Final = 1_000_000


class _Fixed(NamedTuple):
    """A type with payloads of one size."""

    size: int
    read: Callable[[Cells], pa.Array]
    write: Callable[[pa.Array], Any]
    """Gets no nulls; gives numbers in the byte order of the payloads, or cells."""
    nanoseconds_at: tuple[int, int] | None = None
    """Where nanoseconds are, and how many bytes they take."""


def _number(code: str, kind: pa.DataType) -> _Fixed:
    size = np.dtype(code).itemsize

    def read(cells: Cells) -> pa.Array:
        numbers = np.ascontiguousarray(cells).view(code)[:, 0]
        return pa.array(numbers.astype(np.dtype(code).newbyteorder("=")), kind)

    return _Fixed(size, read, lambda column: column.to_numpy().astype(code))


def _longs(cells: Cells, *at: int) -> list[Ints]:
    return [np.ascontiguousarray(cells[:, i : i + 8]).view(">i8")[:, 0].astype("i8") for i in at]


def _read_milliseconds(cells: Cells) -> pa.Array:
    return timestamps(_longs(cells, 0)[0], 1000)


def timestamps(numbers: Ints, unit: int, more: Ints | int = 0) -> pa.Array:
    """Timestamps of ``numbers`` times ``unit`` microseconds, plus ``more``; null outside the years
    of four digits."""
    far = (numbers < FIRST_MICROSECOND // unit) | (numbers > LAST_MICROSECOND // unit)
    microseconds = np.where(far, 0, numbers) * unit + more
    far |= (microseconds < FIRST_MICROSECOND) | (microseconds > LAST_MICROSECOND)
    return pa.array(microseconds, pa.int64(), mask=far).cast(TIMESTAMP)


def dates(days: Ints) -> pa.Array:
    """Days since 1970; null where that is in no year of four digits."""
    far = (days < FIRST_DAY) | (days > LAST_DAY)
    return pa.array(np.where(far, 0, days).astype("i4"), pa.int32(), mask=far).cast(pa.date32())


def _microseconds(column: pa.Array) -> Ints:
    found: Ints = column.cast(pa.int64()).to_numpy()
    return found


def _read_instants(cells: Cells) -> pa.Array:
    (seconds,) = _longs(cells, 0)
    nanoseconds = np.ascontiguousarray(cells[:, 8:]).view(">i4")[:, 0].astype("i8")
    return timestamps(seconds, _MICROSECONDS, nanoseconds // 1000)


def _write_instants(column: pa.Array) -> Cells:
    microseconds = _microseconds(column)
    cells = np.empty((len(column), 12), np.uint8)
    cells[:, :8] = as_cells((microseconds // _MICROSECONDS).astype(">i8"))
    cells[:, 8:] = as_cells((microseconds % _MICROSECONDS * 1000).astype(">i4"))
    return cells


def _read_dates(cells: Cells) -> pa.Array:
    return dates(_longs(cells, 0)[0])


def _read_local_times(cells: Cells) -> pa.Array:
    days, nanoseconds = _longs(cells, 0, 8)
    return timestamps(days, DAY_MICROSECONDS, nanoseconds // 1000)


def _write_local_times(column: pa.Array) -> Cells:
    microseconds = _microseconds(column)
    cells = np.empty((len(column), 16), np.uint8)
    cells[:, :8] = as_cells((microseconds // DAY_MICROSECONDS).astype(">i8"))
    cells[:, 8:] = as_cells((microseconds % DAY_MICROSECONDS * 1000).astype(">i8"))
    return cells


def as_cells(numbers: npt.NDArray[Any]) -> Cells:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize)


_MILLISECONDS: Final = _Fixed(
    8, _read_milliseconds, lambda column: (_microseconds(column) // 1000).astype(">i8")
)

_FIXED: Final[dict[SchemaType, _Fixed]] = {
    SchemaType.BOOLEAN: _Fixed(
        1,
        lambda cells: pa.array(cells[:, 0] != 0),
        lambda column: column.to_numpy(zero_copy_only=False).astype(np.uint8),
    ),
    SchemaType.INT8: _number(">i1", pa.int8()),
    SchemaType.INT16: _number(">i2", pa.int16()),
    SchemaType.INT32: _number(">i4", pa.int32()),
    SchemaType.INT64: _number(">i8", pa.int64()),
    SchemaType.FLOAT: _number(">f4", pa.float32()),
    SchemaType.DOUBLE: _number(">f8", pa.float64()),
    SchemaType.DATE: _MILLISECONDS,
    SchemaType.TIME: _number(">i8", pa.int64()),
    SchemaType.TIMESTAMP: _MILLISECONDS,
    SchemaType.INSTANT: _Fixed(12, _read_instants, _write_instants, (8, 4)),
    SchemaType.LOCAL_DATE: _Fixed(
        8, _read_dates, lambda column: column.cast(pa.int32()).to_numpy().astype(">i8")
    ),
    SchemaType.LOCAL_TIME: _number(">i8", pa.int64()),
    SchemaType.LOCAL_DATE_TIME: _Fixed(16, _read_local_times, _write_local_times, (8, 8)),
}


class BytesCodec:
    """What has no columns of its own."""

    type = pa.binary()

    def decode(self, payloads: pa.Array, _lost: Losses) -> pa.Array:
        """Return the payloads."""
        return payloads

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads."""
        return values


class TextCodec:
    """STRING."""

    type = pa.string()

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return texts, null where a payload is not UTF-8."""
        found = text(payloads)
        if found is None:
            found = pa.array([_text(item) for item in payloads.to_pylist()], pa.string())
            lost.where(WHOLE, valid(payloads) & ~valid(found))
        return found

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads."""
        return values.cast(pa.binary())


def _text(item: bytes | None) -> str | None:
    try:
        return None if item is None else item.decode()
    except UnicodeDecodeError:
        return None


class FixedCodec:
    """Payloads of one size; others are null."""

    def __init__(self, schema: SchemaData) -> None:
        self._fixed = _FIXED[schema.type]
        self.type = arrow_type(value_type(schema))

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload has another size, or a time has no column.

        A time between two microseconds is cut, and counts as lost, too.
        """
        size = self._fixed.size
        fits = pc.fill_null(pc.equal(pc.binary_length(payloads), size), False).to_numpy(False)
        joined = b"".join(payloads.filter(pa.array(fits)).to_pylist())
        cells = np.frombuffer(joined, np.uint8).reshape(-1, size)
        found = spread(self._fixed.read(cells), fits)
        missing = valid(payloads) & ~valid(found)
        if self._fixed.nanoseconds_at is not None:
            at, width = self._fixed.nanoseconds_at
            code = f">i{width}"
            nanoseconds = np.ascontiguousarray(cells[:, at : at + width]).view(code)[:, 0]
            missing[np.flatnonzero(fits)[nanoseconds % 1000 != 0]] = True
        lost.where(WHOLE, missing)
        return found

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads."""
        where: Bools = valid(values)
        written = self._fixed.write(values.drop_null())
        return spread(cells_of(written if written.ndim > 1 else as_cells(written)), where)


def primitive_codec(schema: SchemaData) -> BytesCodec | TextCodec | FixedCodec:
    """The codec of a type without a definition; bytes for all that this module does not know."""
    if schema.type is SchemaType.STRING:
        return TextCodec()
    return FixedCodec(schema) if schema.type in _FIXED else BytesCodec()
