"""Statistics of a Parquet file as a Delta log has them, from what its footer says.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsark.storage.table.files.file_skipping import STATED_COLUMNS, STATED_LEAVES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow.parquet as pq

    from pulsark.storage.table.files.record import Statistics

STRING_PREFIX: Final = 32
"""Characters of a string that statistics have, as in those of Delta's own writers."""

STRING_PREFIX_MAX: Final = 256
"""Characters of a maximum that cannot be cut earlier; a longer one is not stated."""

_LAST_CHARACTER: Final = chr(0x10FFFF)
_EPOCH: Final = datetime(1970, 1, 1)
_UNITS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of the units of timestamps."""
_TIMES: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""Microseconds since the epoch that have an ISO form: those of the years 1 to 9999."""


class Leaf(NamedTuple):
    """A column of a Parquet file that holds one value of a row."""

    path: tuple[str, ...]
    kind: pa.DataType
    place: int
    """Its number among all columns of the file."""


def file_statistics(
    footer: pq.FileMetaData, schema: pa.Schema, column_of: Callable[[int, Leaf], pa.Array]
) -> Statistics:
    """Return the statistics of a file.

    ``column_of`` reads a column of a row group. It is called where the footer leaves out a minimum
    because it is long.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in schema.names:
        if column == "value" and _is_plain(schema.field(column).type):
            # An engine must be able to tell a struct without statistics from a null.
            lows[column], highs[column], nulls[column] = {}, {}, {}
    for leaf in _stated_leaves(schema):
        found = _range_of(footer, leaf, column_of)
        if found is None:
            continue
        _put(nulls, leaf.path, found.nulls)
        if found.low is not None and found.high is not None:
            _put(lows, leaf.path, found.low)
            _put(highs, leaf.path, found.high)
    return {"minValues": lows, "maxValues": highs, "nullCount": nulls}


class _Range(NamedTuple):
    nulls: int
    low: Any
    """As JSON has it, and not above any value; ``None`` if that cannot be said."""
    high: Any
    """Not below any value."""


def _stated_leaves(schema: pa.Schema) -> Iterator[Leaf]:
    of_value = 0
    for leaf in leaves_of(schema):
        if leaf.path[0] == "value":
            if len(leaf.path) > 1 and not _is_plain(schema.field("value").type):
                continue
            of_value += 1
            if of_value <= STATED_LEAVES_MAX:
                yield leaf
        elif leaf.path[0] in STATED_COLUMNS:
            yield leaf


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether all in a struct are values of which engines keep minimum and maximum."""
    inner = (
        (pa.types.is_struct(field.type) and _is_plain(field.type))
        or not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type))
        for field in (kind if pa.types.is_struct(kind) else ())
    )
    return pa.types.is_struct(kind) and all(inner)


def leaves_of(schema: pa.Schema) -> Iterator[Leaf]:
    """Return the leaves of a file's columns, but for those within lists and maps."""
    place = 0
    for column in schema:
        for path, kind, repeated in _walk(column, ()):
            if not repeated:
                yield Leaf(path, kind, place)
            place += 1


def _walk(
    field: pa.Field, above: tuple[str, ...], repeated: bool = False
) -> Iterator[tuple[tuple[str, ...], pa.DataType, bool]]:
    kind, path = field.type, (*above, field.name)
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _walk(child, path, repeated)
    elif pa.types.is_map(kind):
        yield from _walk(kind.key_field, path, True)
        yield from _walk(kind.item_field, path, True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _walk(kind.value_field, path, True)
    else:
        yield path, kind, repeated


def _range_of(
    footer: pq.FileMetaData, leaf: Leaf, column_of: Callable[[int, Leaf], pa.Array]
) -> _Range | None:
    """Return what is known of a leaf in the whole file; ``None`` if its nulls are not counted."""
    shown = _form_of(leaf.kind)
    nulls, low, high = 0, None, None
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found = group.column(leaf.place).statistics
        if found is None or not found.has_null_count:
            return None
        nulls += found.null_count
        if shown is None or found.null_count == group.num_rows:
            continue
        if found.has_min_max:
            least, most = found.min_raw, found.max_raw
        else:
            ends = pc.min_max(_plain(column_of(number, leaf)))
            least, most = ends["min"].as_py(), ends["max"].as_py()
        low = least if low is None else min(low, least)
        high = most if high is None else max(high, most)
    if shown is None or low is None or high is None:
        return _Range(nulls, None, None)
    return _Range(nulls, shown(low, False), shown(high, True))


def _plain(values: pa.Array) -> pa.Array:
    """Return values as a footer has them: strings as bytes."""
    return values.cast(pa.binary()) if pa.types.is_string(values.type) else values


def _form_of(kind: pa.DataType) -> Callable[[Any, bool], Any] | None:
    """Return how a minimum (``False``) or maximum is written; ``None`` if the type has none."""
    if pa.types.is_signed_integer(kind):
        return lambda value, _: int(value)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value, up: truncated(bytes(value).decode(), up=up)
    if pa.types.is_date32(kind):
        return lambda value, _: _day(value)
    if pa.types.is_timestamp(kind) and kind.unit in _UNITS:
        unit, zone = _UNITS[kind.unit], "" if kind.tz is None else "Z"
        return lambda value, _: _time(value * unit, zone)
    return None


def truncated(text: str, *, up: bool) -> str | None:
    """Cut a string so that the result is not above it, or with ``up`` not below it.

    ``None``: there is no such string of a length that is worth stating.
    """
    if len(text) <= STRING_PREFIX:
        return text
    if not up:
        return text[:STRING_PREFIX]
    for end in range(STRING_PREFIX, min(len(text), STRING_PREFIX_MAX)):
        if text[end] < _LAST_CHARACTER:
            return text[:end] + _LAST_CHARACTER
    return text if len(text) <= STRING_PREFIX_MAX else None


def _day(days: int) -> str | None:
    """Return a date in ISO form; ``None`` outside the years 1 to 9999."""
    if days * 86_400_000_000 not in _TIMES:
        return None
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _time(microseconds: int, zone: str) -> str | None:
    """Return a time in ISO form: readers take numbers in place of times for wrong ones."""
    if microseconds not in _TIMES:
        return None
    time = _EPOCH + timedelta(microseconds=microseconds)
    return f"{time.isoformat(timespec='microseconds')}{zone}"


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value
