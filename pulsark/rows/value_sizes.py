"""The approximate encoded size of values, by which batches are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pulsark.rows.arrow.arrays import Ints

_NUMBER_BYTES: Final = 5
"""A number or a time, in either encoding: most are small."""
_MEMBER_BYTES: Final = 4
"""Quotes, a colon and a comma around the name of a field."""


def value_sizes(column: Any, *, names: bool = False) -> Ints:
    """Bytes of each value, none of null. ``names``: those of fields are sent, too."""
    count = len(column)
    kind = column.type
    if pa.types.is_struct(kind):
        sizes = np.zeros(count, np.int64)
        for place, field in enumerate(kind):
            sizes += value_sizes(column.field(place), names=names) + 1
            if names:
                sizes += len(field.name) + _MEMBER_BYTES
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = column.values if pa.types.is_list(kind) else column.items
        items = value_sizes(inner, names=names) + 1
        if pa.types.is_map(kind):
            items += value_sizes(column.keys) + (_MEMBER_BYTES if names else 1)
        before = np.concatenate(([0], np.cumsum(items)))
        offsets = column.offsets.to_numpy()
        sizes = before[offsets[1:]] - before[offsets[:-1]] + 1
    elif _has_length(kind):
        sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    else:
        sizes = np.full(count, _NUMBER_BYTES if kind.bit_width > 8 else 1, np.int64)
    if column.null_count:
        sizes = np.where(pc.is_valid(column).to_numpy(False), sizes, 0)
    return sizes


def _has_length(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))
