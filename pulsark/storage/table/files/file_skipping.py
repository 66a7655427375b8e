"""Columns whose statistics in the log let engines skip files. Pure.

An engine may take a column without statistics for one that has no value, and skip the file:
delta-rs does, for each column that the table's configuration does not leave out. So the
configuration names the *indexed* columns. A column is indexed only while all files of the table
have its number of nulls, and its minimum and maximum unless it is null in the whole file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.schemas.column_types import BINARY, ColumnType, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pulsark.storage.table.files.record import DataFile

STATED_COLUMNS: Final = (
    "entry_id", "batch_index", "batch_size", "key", "producer_name", "sequence_id", "publish_time",
    "event_time", "replicated_from", "deliver_at_time",
)  # fmt: skip
"""Columns beside ``value`` that files have statistics of. Engines do not agree on the order of
binary values and booleans, and a map has none."""

STATED_TYPES: Final = (
    "string", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip
"""Types that every engine orders alike and reads from JSON without loss. Numbers with a fraction
are left out: NaN is larger than all for Spark, and none of the numbers for others."""

STATED_LEAVES_MAX: Final = 32
"""Fields of ``value`` that have statistics: as many as Delta's own writers index by default."""


def indexable(value: ColumnType) -> tuple[str, ...]:
    """Return the columns that can be indexed in a table whose column ``value`` has this type."""
    if value in STATED_TYPES or (fields_of(value) and all(map(_has_ends, _types_in(value)))):
        return (*STATED_COLUMNS, "value")
    return STATED_COLUMNS


def _types_in(value: ColumnType) -> Iterator[ColumnType]:
    """Return the types of the fields of a struct, and of those of structs within it."""
    for field in fields_of(value):
        if fields_of(field["type"]):
            yield from _types_in(field["type"])
        else:
            yield field["type"]


def _has_ends(kind: ColumnType) -> bool:
    """Return whether delta-rs gives a field of a struct a minimum and a maximum.

    Polars takes the ends of a struct for those of all its fields, and fails if some lack them.
    """
    return isinstance(kind, str) and kind != BINARY


def has_statistics(file: DataFile, columns: Iterable[str]) -> bool:
    """Return whether the statistics of a file say what there is to say of all these columns."""
    nulls = file.statistics.get("nullCount", {})
    return all(column in nulls for column in columns)


def indexed_by(files: Iterable[DataFile], columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of the columns that can be indexed in a table that gets these files."""
    found = set(columns)
    for file in files:
        found = {column for column in found if _states(file, column)}
    return tuple(column for column in columns if column in found)


def configuration(indexed: Sequence[str]) -> dict[str, str]:
    """Return the properties of a Delta table that tell engines which columns are indexed."""
    if not indexed:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(indexed)}


def _states(file: DataFile, column: str) -> bool:
    nulls, lows, highs = (
        file.statistics.get(name, {}) for name in ("nullCount", "minValues", "maxValues")
    )
    return column in nulls and (nulls[column] == file.rows or (column in lows and column in highs))
