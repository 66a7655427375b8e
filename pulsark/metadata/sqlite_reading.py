"""Reading the file of a metadata store that nobody has open, without changing it.

For tools: what is damaged is told, never raised, and as much as can be read is read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass, field

from pulsark.metadata.store import split_path


@dataclass(slots=True)
class StoreReading:
    """All values of a store, and what is wrong with it."""

    nodes: dict[str, bytes] = field(default_factory=dict)
    """By path: values that are as they were written."""
    damaged: list[str] = field(default_factory=list)
    """Paths of values that are not."""
    trouble: list[str] = field(default_factory=list)
    """What is wrong with the file as a whole."""

    @property
    def values(self) -> int:
        """Number of sound values."""
        return len(self.nodes)

    def get(self, path: str) -> bytes | None:
        """A sound value."""
        return self.nodes.get(path)

    def below(self, parent: str) -> dict[str, bytes]:
        """Names and sound values right below a path."""
        found = {}
        for path, value in self.nodes.items():
            above, name = split_path(path)
            if above == parent:
                found[name] = value
        return found


def read_store(path: str) -> StoreReading:
    """Read all of a store's file, and the write-ahead log beside it."""
    reading = StoreReading()
    if not os.path.exists(path):
        reading.trouble.append(f"{path} is not there")
        return reading
    try:
        # A connection that cannot write leaves the log as it is when it closes.
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with contextlib.closing(connection):
            _read(connection, reading)
    except sqlite3.Error as e:
        reading.trouble.append(f"{path} cannot be read: {e}")
    return reading


def _read(connection: sqlite3.Connection, reading: StoreReading) -> None:
    for (line,) in connection.execute("PRAGMA quick_check(10)"):
        if line != "ok":
            reading.trouble.append(line)
    rows = connection.execute("SELECT parent, name, value FROM node WHERE value IS NOT NULL")
    for parent, name, value in rows:
        reading.nodes[f"{parent.rstrip('/')}/{name}"] = value
