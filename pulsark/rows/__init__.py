"""Messages as Arrow rows, and rows as entries again.

``RowBuilder`` turns entries into Arrow record batches, one row per message. ``entries_of`` is its
inverse for rows with the columns of a topic's table: clients cannot tell the result from the
original. ``docs/formats/table.md`` describes each column.

Imports pyarrow and numpy: a broker must not import it at its start.
"""

from pulsark.rows.arrow.schema import (
    FILE_SCHEMA,
    ROW_SCHEMA,
    TABLE_SCHEMA,
    TIMESTAMP,
    file_schema,
)
from pulsark.rows.builder import RowBuilder
from pulsark.rows.entries import entries_of

__all__ = [
    "FILE_SCHEMA",
    "ROW_SCHEMA",
    "TABLE_SCHEMA",
    "TIMESTAMP",
    "RowBuilder",
    "entries_of",
    "file_schema",
]
