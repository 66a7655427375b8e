"""Turns columns of a DataFrame into messages."""

from __future__ import annotations

import base64
import difflib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.options.columns import PAYLOAD_META
from pulsark.datasource.options.errors import DataSourceError
from pulsark.rows.arrow.schema import MILLISECONDS_MAX, STRING_MAP, TIMESTAMP
from pulsark.rows.outgoing import OUTGOING_SCHEMA, outgoing_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLUMNS: Final = {
    "value": ("binary, string",),
    "key": ("string, binary",),
    "ordering_key": ("binary, string",),
    "properties": ("map<string,string>",),
    "event_time": ("timestamp, bigint (milliseconds)",),
    "deliver_at": ("timestamp, bigint (milliseconds)",),
    "partition": ("int",),
    "topic": ("string",),
}
"""Columns of a DataFrame that is written, and the types that they may have."""

_ALIASES: Final = {
    "__key": "key",
    "__ordering_key": "ordering_key",
    "__orderingkey": "ordering_key",
    "__properties": "properties",
    "__messageproperties": "properties",
    "__eventtime": "event_time",
    "__event_time": "event_time",
    "__topic": "topic",
    "__partition": "partition",
    "deliver_at_time": "deliver_at",
    "__deliver_at": "deliver_at",
    "__deliverat": "deliver_at",
}

_OF_A_READ: Final = {name.lower() for name in PAYLOAD_META}
"""What a read with fields as columns knows of a message; a write takes over what has an alias."""
_STORED: Final = {"message_id", "ledger_id", "entry_id", "publish_time"}
"""Columns that a message has once it is stored."""

_UNREAD: Final = "__valueraw"


class ColumnError(DataSourceError):
    """A DataFrame has a column that messages have not, or lacks one that they need."""


def columns_of(names: list[str]) -> dict[str, str]:
    """By meaning: the name of the column that has it; ``ColumnError``."""
    found: dict[str, str] = {}
    for name in names:
        meaning = _ALIASES.get(name.lower(), name.lower())
        if meaning not in COLUMNS and {each.lower() for each in names} >= _STORED:
            raise ColumnError(
                f"column '{name}' is the broker's to fill: these are the columns of a read. Write "
                f"some of {', '.join(COLUMNS)}. INSERT INTO such a view has all of them: use "
                'df.write.format("pulsark")'
            )
        if meaning not in COLUMNS:
            near = difflib.get_close_matches(name.lower(), [*COLUMNS, *_ALIASES], n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ColumnError(
                f"column '{name}' is unknown for a write; {hint}"
                f"Valid columns: {', '.join(COLUMNS)}. For a row of fields as a message, set "
                "option valueFormat to json or avro, or put them into one: to_json(struct(*)) AS "
                "value"
            )
        if meaning in found:
            raise ColumnError(f"columns '{found[meaning]}' and '{name}' mean the same; drop one")
        found[meaning] = name
    if "value" not in found:
        raise ColumnError("column 'value' is missing: it has the payload of a message")
    return found


def columns_beside_fields(names: list[str]) -> tuple[dict[str, str], list[str], str | None]:
    """As ``columns_of`` where columns are fields of the value, unless their names begin with "__".

    Also the names of the fields, and the column of what a read could not make fields of.
    """
    found: dict[str, str] = {}
    fields: list[str] = []
    unread = None
    for name in names:
        low = name.lower()
        if not name.startswith("__"):
            fields.append(name)
        elif low == _UNREAD:
            unread = name
        elif low in _ALIASES:
            if _ALIASES[low] in found:
                other = found[_ALIASES[low]]
                raise ColumnError(f"columns '{other}' and '{name}' mean the same; drop one")
            found[_ALIASES[low]] = name
        elif low not in _OF_A_READ:
            known = [alias for alias in _ALIASES if alias.startswith("__")]
            near = difflib.get_close_matches(low, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ColumnError(
                f"column '{name}' is unknown for a write; {hint}With valueFormat json and avro "
                "columns are fields of the value, but for those whose names begin with '__': "
                f"{', '.join(known)}"
            )
    if not fields:
        raise ColumnError("no column can be a field of the value")
    return found, fields, unread


def messages_of(
    rows: pa.RecordBatch, columns: dict[str, str], values: pa.Array | None = None
) -> pa.RecordBatch:
    """Rows of a DataFrame as messages, ``OUTGOING_SCHEMA``. ``ColumnError`` for a wrong type.

    ``values``, if there are some, stand in place of the column ``value``.
    """
    arrays = {name: pa.nulls(rows.num_rows, kind) for name, kind in _types().items()}
    schema = OUTGOING_SCHEMA
    if values is not None:
        arrays["value"] = values
        schema = outgoing_schema(values.type)
    for meaning, name in columns.items():
        if meaning in _CONVERT and (meaning != "value" or values is None):
            arrays.update(_CONVERT[meaning](rows.column(name), name))
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


def by_topic(
    rows: pa.RecordBatch, columns: dict[str, str], topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows, at least one, of each topic, in their order; all of ``topic`` if that is given."""
    if topic is not None:
        yield topic, rows
        return
    codes = topics_of(rows, columns).dictionary_encode()
    topics = codes.dictionary.to_pylist()
    for number, name in enumerate(topics):
        mask = pc.equal(codes.indices, number)
        yield name, rows if len(topics) == 1 else rows.filter(mask)


def topics_of(rows: pa.RecordBatch, columns: dict[str, str]) -> pa.Array:
    """The topic that each row names; ``ColumnError`` if one names none."""
    found = rows.column(columns["topic"])
    if not pa.types.is_string(found.type):
        raise _wrong(columns["topic"], "topic", found.type)
    if found.null_count:
        row = int(np.flatnonzero(pc.is_null(found).to_numpy(False))[0])
        raise ColumnError(
            f"column '{columns['topic']}' is null in a row (the {row + 1}. of its batch); name a "
            "topic in each, or set option 'topic'"
        )
    return found


def partitions_of(rows: pa.RecordBatch, columns: dict[str, str]) -> pa.Array | None:
    """The partitions that rows name, if there is a column for them; ``ColumnError``."""
    if "partition" not in columns:
        return None
    found = rows.column(columns["partition"])
    if not pa.types.is_integer(found.type):
        raise _wrong(columns["partition"], "partition", found.type)
    return found


def _types() -> dict[str, pa.DataType]:
    return {field.name: field.type for field in OUTGOING_SCHEMA}


def _wrong(name: str, meaning: str, kind: pa.DataType) -> ColumnError:
    return ColumnError(f"column '{name}' is {kind}, not one of: {COLUMNS[meaning][0]}")


def _bytes(meaning: str) -> Callable[[pa.Array, str], dict[str, pa.Array]]:
    def convert(column: pa.Array, name: str) -> dict[str, pa.Array]:
        if pa.types.is_binary(column.type):
            return {meaning: column}
        if pa.types.is_string(column.type):
            return {meaning: column.cast(pa.binary())}
        raise _wrong(name, meaning, column.type)

    return convert


def _key(column: pa.Array, name: str) -> dict[str, pa.Array]:
    if pa.types.is_string(column.type):
        return {"key": column}
    if not pa.types.is_binary(column.type):
        raise _wrong(name, "key", column.type)
    encoded = [None if key is None else base64.b64encode(key) for key in column.to_pylist()]
    flags = pa.repeat(pa.scalar(True), len(column))
    return {"key": pa.array(encoded, pa.binary()).cast(pa.string()), "key_base64": flags}


def _properties(column: pa.Array, name: str) -> dict[str, pa.Array]:
    kind = column.type
    if pa.types.is_null(kind):
        return {}
    if not (
        pa.types.is_map(kind)
        and pa.types.is_string(kind.key_type)
        and pa.types.is_string(kind.item_type)
    ):
        raise _wrong(name, "properties", kind)
    return {"properties": column.cast(STRING_MAP)}


def _time(meaning: str, column_name: str) -> Callable[[pa.Array, str], dict[str, pa.Array]]:
    def convert(column: pa.Array, name: str) -> dict[str, pa.Array]:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            microseconds = column.cast(TIMESTAMP).cast(pa.int64())
            milliseconds = pc.divide(microseconds, 1000)
        elif pa.types.is_int64(kind):
            milliseconds = column
        else:
            raise _wrong(name, meaning, kind)
        _check_times(milliseconds, column, name)
        return {column_name: pc.multiply(milliseconds, 1000).cast(TIMESTAMP)}

    return convert


def _check_times(milliseconds: pa.Array, column: pa.Array, name: str) -> None:
    """Raise ``ColumnError`` for a time that a message cannot have; there it would be none."""
    outside = pc.or_(pc.less(milliseconds, 1), pc.greater(milliseconds, MILLISECONDS_MAX))
    if not pc.any(outside).as_py():
        return
    row = pc.index(outside, True).as_py()
    value = column[row]
    given = value.as_py() if pa.types.is_int64(column.type) else value.cast(pa.string()).as_py()
    raise ColumnError(
        f"column '{name}' is {given} in a row (the {row + 1}. of its batch): a message can only "
        "have times after 1970-01-01 00:00:00 UTC, up to the year 9999; null is no time"
    )


_CONVERT: dict[str, Callable[[pa.Array, str], dict[str, Any]]] = {
    "value": _bytes("value"),
    "key": _key,
    "ordering_key": _bytes("ordering_key"),
    "properties": _properties,
    "event_time": _time("event_time", "event_time"),
    "deliver_at": _time("deliver_at", "deliver_at_time"),
}
