"""The columns of a message in Spark: names, types, meaning.

The same columns as ``storage.rows.ROW_SCHEMA``, spelled in Spark's types,
because the planning process must not import pyarrow only to tell a schema.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pulsark.datasource.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pulsark.datasource.options import Options


class Column(NamedTuple):
    """A column: its type in Spark's DDL and what it holds."""

    name: str
    type: str
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("topic", "string", "full name of the topic, without the partition"),
    Column("partition", "int", "partition of the topic, -1 if it has none"),
    Column("message_id", "string", "ledger:entry:partition:batch, as clients print it"),
    Column("ledger_id", "bigint", "ledger that holds the message"),
    Column("entry_id", "bigint", "entry in the ledger"),
    Column("batch_index", "int", "place in the producer's batch, -1 for a message sent alone"),
    Column("batch_size", "int", "messages in the entry"),
    Column("key", "string", "key; binary keys in base64"),
    Column("key_base64", "boolean", "whether key is base64 of a binary key; null without a key"),
    Column("ordering_key", "binary", "ordering key"),
    Column("value", "binary", "payload; null for a tombstone and for what cannot be read"),
    Column(
        "value_raw", "binary", "payload as it was sent, if encrypted, a chunk or damaged; else null"
    ),
    Column("properties", "map<string,string>", "properties of the message"),
    Column("producer_name", "string", "name of the producer"),
    Column("sequence_id", "bigint", "sequence number given by the producer"),
    Column("publish_time", "timestamp", "producer's clock when the entry was sent"),
    Column("event_time", "timestamp", "event time, if the producer set one"),
    Column("schema_version", "binary", "version of the topic's schema"),
    Column("replicated_from", "string", "cluster that the message was replicated from"),
    Column("deliver_at_time", "timestamp", "when a delayed message is due"),
    Column("entry_meta", "binary", "metadata of the entry as sent, on its first row"),
)

_TYPES = {column.name: column.type for column in COLUMNS}


def column_types(options: Options) -> dict[str, str]:
    """The columns of a query in Spark's types, in order: what may be chosen, and the default."""
    types = dict(_TYPES)
    if options.value_format == "string":
        types["value"] = "string"
    if not options.include_properties:
        del types["properties"]
    return types


def spark_schema(names: Iterable[str] | None, types: Mapping[str, str] = _TYPES) -> StructType:
    """The schema of the columns named, in that order; all for ``None``. ``OptionError``."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    wanted = list(types if names is None else names)
    for name in wanted:
        if name not in types:
            raise OptionError(f"option 'columns': {unknown_column(name, types)}")
    kinds = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "boolean": BooleanType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(name, kinds[types[name]]) for name in wanted])


def check_schema(schema: StructType, types: Mapping[str, str] = _TYPES) -> None:
    """``OptionError`` unless a schema that the user gave is a subset of the columns."""
    for field in schema.fields:
        if field.name not in types:
            raise OptionError(f"schema: {unknown_column(field.name, types)}")
        expected = spark_schema([field.name], types)[field.name]
        if field.dataType != expected.dataType:
            raise OptionError(
                f"schema: column '{field.name}' is {types[field.name]}, "
                f"not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise OptionError(f"schema: column '{field.name}' must be nullable")


def unknown_column(name: str, known: Iterable[str]) -> str:
    """What to say of a column that is none of those known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"column '{name}' is unknown; {hint}Valid columns: {', '.join(names)}"
