"""The columns of a message: in Spark, in a topic's table, and in the table's files."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STRING_MAP: Final = pa.map_(pa.string(), pa.string())

ROW_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("message_id", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("batch_size", pa.int32()),
        ("key", pa.string()),
        ("key_base64", pa.bool_()),
        ("ordering_key", pa.binary()),
        ("value", pa.binary()),
        ("value_raw", pa.binary()),
        ("properties", STRING_MAP),
        ("producer_name", pa.string()),
        ("sequence_id", pa.int64()),
        ("publish_time", TIMESTAMP),
        ("event_time", TIMESTAMP),
        ("schema_version", pa.binary()),
        ("replicated_from", pa.string()),
        ("deliver_at_time", TIMESTAMP),
        ("entry_meta", pa.binary()),
    ]
)
"""The columns of a DataFrame. ``docs/spark.md`` says what they mean."""

MESSAGE_META: Final = pa.field("message_meta", pa.binary())
"""Metadata of a message in a batch, where the other columns do not say all of it."""

ALL_COLUMNS: Final = ROW_SCHEMA.append(MESSAGE_META)

TABLE_SCHEMA: Final = pa.schema(
    [field for field in ALL_COLUMNS if field.name not in ("topic", "message_id")]
)
"""The columns of a topic's table. One table holds one topic, and the id follows from three."""

PARTITION_COLUMNS: Final = ("partition", "ledger_id")
"""Columns that are constant in a file: its path and the log have them as well."""

FILE_SCHEMA: Final = pa.schema(
    [field for field in TABLE_SCHEMA if field.name not in PARTITION_COLUMNS]
)
"""The columns that vary within a file."""


def file_schema(value: pa.DataType) -> pa.Schema:
    """The columns of a file whose values have a type of their own."""
    place = FILE_SCHEMA.get_field_index("value")
    return FILE_SCHEMA.set(place, pa.field("value", value))


MILLISECONDS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. Python and several engines know no later time; one that a
message has stays in its metadata."""
