"""Messages as rows, and rows as the entries they came from.

``RowBuilder`` takes entries as they were sent and gives Arrow record batches, one row a message.
``entries_of`` is its inverse for rows with the columns of a topic's table: what it gives, no
client can tell from the original. ``docs/formats/table.md`` says what each column holds.

Imports pyarrow and numpy: never import it where a broker starts.
"""

from pulsark.storage.rows.builder import RowBuilder
from pulsark.storage.rows.entries import entries_of
from pulsark.storage.rows.schema import (
    FILE_SCHEMA,
    ROW_SCHEMA,
    TABLE_SCHEMA,
    TIMESTAMP,
    file_schema,
)

__all__ = [
    "FILE_SCHEMA",
    "ROW_SCHEMA",
    "TABLE_SCHEMA",
    "TIMESTAMP",
    "RowBuilder",
    "entries_of",
    "file_schema",
]
