"""The columns of a message in Spark: names, types, meaning.

The same columns as ``rows.ROW_SCHEMA``, spelled in Spark's types,
because the planning process must not import pyarrow only to tell a schema.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


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

PAYLOAD_META = {
    "__topic": "topic",
    "__partition": "partition",
    "__messageId": "message_id",
    "__ledgerId": "ledger_id",
    "__entryId": "entry_id",
    "__batchIndex": "batch_index",
    "__key": "key",
    "__publishTime": "publish_time",
    "__eventTime": "event_time",
    "__messageProperties": "properties",
    "__producerName": "producer_name",
    "__sequenceId": "sequence_id",
    "__schemaVersion": "schema_version",
    "__valueRaw": "value_raw",
}
"""Beside the fields of a payload: what is known of its message, and where that is stored."""


def unknown_column(name: str, known: Iterable[str]) -> str:
    """What to say of a column that is none of those known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"column '{name}' is unknown; {hint}Valid columns: {', '.join(names)}"
