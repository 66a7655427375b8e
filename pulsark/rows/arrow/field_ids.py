"""Field ids of the columns of a table's Parquet files.

Readers of Iceberg find columns by id and not by name. A column of the table has its place in
``TABLE_SCHEMA`` as id; whatever is inside a column has an id that its path alone decides. So every
process that writes files uses the same ids without asking, and a type that gets more fields, at any
depth, changes the id of none.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from pulsark.rows.arrow.schema import TABLE_SCHEMA

FIELD_ID_KEY: Final = b"PARQUET:field_id"
"""Under this key of a field's metadata pyarrow keeps its id."""

_NESTED_IDS: Final = range(1_000, 2_147_483_000)
"""Ids of fields inside a column. Smaller ones are for columns; Iceberg keeps larger ones for
itself."""


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a file with the id of each of its fields, at any depth."""
    used: set[int] = set()
    columns = [
        _identified(column, TABLE_SCHEMA.get_field_index(column.name) + 1, (column.name,), used)
        for column in schema
    ]
    return pa.schema(columns, metadata=schema.metadata)


def _identified(field: pa.Field, field_id: int, path: tuple[str, ...], used: set[int]) -> pa.Field:
    def inner(child: pa.Field, name: str) -> pa.Field:
        below = (*path, name)
        return _identified(child, _nested_id(below, used), below, used)

    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([inner(child, child.name) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(inner(kind.key_field, "key"), inner(kind.item_field, "value"))
    elif pa.types.is_list(kind):
        kind = pa.list_(inner(kind.value_field, "element"))
    metadata = {**(field.metadata or {}), FIELD_ID_KEY: str(field_id).encode()}
    return pa.field(field.name, kind, field.nullable, metadata)


def _nested_id(path: tuple[str, ...], used: set[int]) -> int:
    """Return the id of a path. Of two paths with one hash, the later one takes the next id."""
    size = len(_NESTED_IDS)
    place = zlib.crc32("\0".join(path).encode()) % size
    while _NESTED_IDS[place] in used:
        place = (place + 1) % size
    used.add(_NESTED_IDS[place])
    return _NESTED_IDS[place]
