"""Reads the file of a metadata store that no process has open, without changing it.

For tools: damage is reported, never raised, and everything readable is read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass, field

from pulsark.errors import MetadataError
from pulsark.metadata.history import History
from pulsark.metadata.sqlite_file import (
    OLD_VALUES,
    VALUES,
    first_loss_in,
    is_as_written,
    read_history,
    trouble_of,
)
from pulsark.metadata.store import split_path


@dataclass(slots=True)
class StoreReading:
    """All values of a store, and its damage."""

    nodes: dict[str, bytes] = field(default_factory=dict)
    """Sound values by path."""
    damaged: list[str] = field(default_factory=list)
    """Paths of damaged values."""
    trouble: list[str] = field(default_factory=list)
    """Problems of the file as a whole."""

    identity: str = ""
    """Empty before format 2."""
    history: History = field(default_factory=lambda: History((), 0))

    @property
    def values(self) -> int:
        """The number of sound values."""
        return len(self.nodes)

    def get(self, path: str) -> bytes | None:
        """A sound value."""
        return self.nodes.get(path)

    def below(self, parent: str) -> dict[str, bytes]:
        """Names and sound values of the children of a path."""
        found = {}
        for path, value in self.nodes.items():
            above, name = split_path(path)
            if above == parent:
                found[name] = value
        return found


def read_store(path: str) -> StoreReading:
    """Read a store's file and its write-ahead log."""
    reading = StoreReading()
    if not os.path.exists(path):
        reading.trouble.append(f"{path} is not there")
        return reading
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        if os.path.exists(name) and not os.path.isfile(name):  # SQLite would wait for a pipe
            reading.trouble.append(f"{name} is not a plain file: put the file itself there")
    if reading.trouble:
        return reading
    try:
        # A read-only connection leaves the log unchanged when it closes.
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with contextlib.closing(connection):
            _read(connection, reading)
    except (sqlite3.Error, MetadataError) as e:
        reading.trouble.append(f"{path} cannot be read: {e}")
    if (place := first_loss_in(path)) is not None:
        reading.trouble.append(
            f"{path}-wal is damaged at byte {place}, and later changes follow: they cannot be read"
        )
    return reading


def _read(connection: sqlite3.Connection, reading: StoreReading) -> None:
    reading.trouble.extend(trouble_of(connection))
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version >= 2:
        reading.identity, reading.history = read_history(connection)
    for *row, crc in connection.execute(VALUES if version >= 2 else OLD_VALUES):
        path = f"{row[0].rstrip('/')}/{row[1]}"
        if version >= 2 and not is_as_written(row, crc):
            reading.damaged.append(path)
        else:
            reading.nodes[path] = row[2]
