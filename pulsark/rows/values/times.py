"""Times of a day as text, which every engine reads and sorts: ``HH:MM:SS.mmm`` or ``.mmmmmm``.

Delta and several of its readers have no type for a time without a date.
"""

from __future__ import annotations

from datetime import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.values.primitives import DAY_MICROSECONDS

if TYPE_CHECKING:
    from pulsark.rows.arrow.arrays import Ints

TIME_UNITS: Final = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
"""Microseconds of the units that Avro's timestamps have."""

DAY_TIMES: Final = {"time-millis": 1000, "time-micros": 1}
"""Microseconds of the units that Avro's times of a day have."""

_TEXT_CHARS: Final = {1000: 12, 1: 15}


def times_of_day(numbers: Ints, unit: int) -> pa.Array:
    """Return times since midnight, in units of microseconds, as text; null outside a day."""
    outside = (numbers < 0) | (numbers >= DAY_MICROSECONDS // unit)
    inside = pa.array(np.where(outside, 0, numbers), pa.int64(), mask=outside)
    if unit == 1:
        return inside.cast(pa.time64("us")).cast(pa.string())
    return inside.cast(pa.int32()).cast(pa.time32("ms")).cast(pa.string())


def time_of_day(microseconds: int, unit: int) -> str:
    """Return one such text."""
    seconds, rest = divmod(microseconds, 1_000_000)
    found = time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)
    return found.isoformat("microseconds" if unit == 1 else "milliseconds")


def since_midnight(texts: pa.Array, unit: int) -> Ints:
    """Return the inverse of ``times_of_day``; 0 for null and for any other text."""
    size = _TEXT_CHARS[unit]
    right = pc.fill_null(pc.equal(pc.binary_length(texts), size), False)
    cells = pc.if_else(right, texts, "0" * size).cast(pa.binary())
    data = np.frombuffer(b"".join(cells.to_pylist()), np.uint8).reshape(-1, size)
    digits = data.astype(np.int64) - ord("0")
    found = np.zeros(len(texts), np.int64)
    for place, weight in zip((0, 1, 3, 4, 6, 7), (36_000, 3600, 600, 60, 10, 1), strict=True):
        found += digits[:, place] * weight
    for place in range(9, size):
        found = found * 10 + digits[:, place]
    return np.where(right.to_numpy(zero_copy_only=False), found, 0)
