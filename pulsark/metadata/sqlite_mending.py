"""Removes a damaged value from the file of a metadata store that no process has open."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from pulsark.errors import MetadataError
from pulsark.metadata.sqlite_file import VALUES, connect, is_as_written

if TYPE_CHECKING:
    from collections.abc import Callable


def take_damaged_value(file: str, path: str, keep: Callable[[bytes], None]) -> bool:
    """Remove a damaged value, after ``keep`` has stored its bytes.

    False if there is no damaged value at ``path``. ``MetadataError`` if the file cannot be changed.
    """
    try:
        with contextlib.closing(connect(file)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            for *row, crc in connection.execute(VALUES).fetchall():
                parent, name, value = row[:3]
                if f"{parent.rstrip('/')}/{name}" != path or is_as_written(row, crc):
                    continue
                keep(value if isinstance(value, bytes) else str(value).encode())
                # The row stays, because it may have children.
                connection.execute(
                    "UPDATE node SET value = NULL, version = 0, ephemeral = 0, crc = NULL"
                    " WHERE parent = ? AND name = ?",
                    (parent, name),
                )
                return True
            return False
    except sqlite3.Error as e:
        raise MetadataError(f"{file} cannot be changed: {e}") from e
