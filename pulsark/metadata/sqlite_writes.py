"""What a transaction of the embedded metadata store does to its file. All of it blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataError
from pulsark.metadata.sqlite_file import WHAT_TO_DO, checksum, is_as_written
from pulsark.metadata.store import ABSENT, ANY_VERSION, split_path

GET = (
    "SELECT value, version, ephemeral, crc FROM node"
    " WHERE parent = ? AND name = ? AND value IS NOT NULL"
)

_Row = tuple[bytes, int, int, int]
Operation = Callable[[sqlite3.Connection], Any]


def checked(path: str, row: _Row) -> _Row:
    """``(value, version, ephemeral, crc)`` of a path, if they are as they were written."""
    value, version, ephemeral, crc = row
    parent, name = split_path(path)
    if not is_as_written([parent, name, value, version, ephemeral], crc):
        raise CorruptMetadataError(f"the value of {path} is damaged. {WHAT_TO_DO}")
    return row


def transaction(
    connection: sqlite3.Connection, operations: Sequence[Operation], commit: int
) -> list[Any]:
    """Run all in one transaction of this number. An operation's ``MetadataError`` is its result.

    Operations check before they change anything, so one that fails leaves no trace.
    """
    results: list[Any] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("UPDATE store SET last_commit = ?", (commit,))
        for operation in operations:
            try:
                results.append(operation(connection))
            except MetadataError as e:
                results.append(e)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return results


def put(
    connection: sqlite3.Connection,
    path: str,
    value: bytes,
    expected_version: int,
    ephemeral: bool,
) -> int:
    parent, name = split_path(path)
    row = _current(connection, path, parent, name, expected_version)
    if row is None:
        _link(connection, parent)
        (version,) = connection.execute("SELECT first_version FROM store").fetchone()
        crc = checksum(parent, name, value, version, int(ephemeral))
        connection.execute(
            "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " value = excluded.value, version = excluded.version, ephemeral = excluded.ephemeral,"
            " crc = excluded.crc",
            (parent, name, value, version, int(ephemeral), crc),
        )
        return int(version)
    version, was_ephemeral = row
    if bool(was_ephemeral) != ephemeral:
        raise MetadataError(f"{path} is {'ephemeral' if was_ephemeral else 'not ephemeral'}")
    crc = checksum(parent, name, value, version + 1, was_ephemeral)
    connection.execute(
        "UPDATE node SET value = ?, version = ?, crc = ? WHERE parent = ? AND name = ?",
        (value, version + 1, crc, parent, name),
    )
    return version + 1


def delete(connection: sqlite3.Connection, path: str, expected_version: int) -> None:
    parent, name = split_path(path)
    row = _current(connection, path, parent, name, expected_version)
    if row is None:
        raise BadVersionError(f"{path} does not exist")
    # Whoever knows this version must not meet it again on another value of the path.
    connection.execute("UPDATE store SET first_version = max(first_version, ?)", (row[0] + 1,))
    connection.execute(
        "UPDATE node SET value = NULL, version = 0, ephemeral = 0, crc = NULL"
        " WHERE parent = ? AND name = ?",
        (parent, name),
    )
    _unlink(connection, path)


def next_id(connection: sqlite3.Connection, path: str) -> int:
    parent, name = split_path(path)
    row = connection.execute(GET, (parent, name)).fetchone()
    number = 0 if row is None else int(checked(path, row)[0])
    put(connection, path, b"%d" % (number + 1), ANY_VERSION, ephemeral=False)
    return number


def end_session(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT parent, name FROM node WHERE ephemeral").fetchall()
    for parent, name in rows:
        delete(connection, f"{parent.rstrip('/')}/{name}", ANY_VERSION)


def _current(
    connection: sqlite3.Connection, path: str, parent: str, name: str, expected_version: int
) -> tuple[int, int] | None:
    """``(version, ephemeral)`` of an existing value, after comparing the version."""
    row: tuple[int, int] | None = connection.execute(
        "SELECT version, ephemeral FROM node WHERE parent = ? AND name = ? AND value IS NOT NULL",
        (parent, name),
    ).fetchone()
    version = ABSENT if row is None else row[0]
    if expected_version not in (ANY_VERSION, version):
        raise BadVersionError(f"{path} is at version {version}, not {expected_version}")
    return row


def _link(connection: sqlite3.Connection, path: str) -> None:
    """Make rows for ``path`` and what is above it."""
    while path != "/":
        parent, name = split_path(path)
        cursor = connection.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, NULL, 0, 0, NULL)", (parent, name)
        )
        if cursor.rowcount == 0:
            return
        path = parent


def _unlink(connection: sqlite3.Connection, path: str) -> None:
    """Remove the rows of ``path`` and above that have neither value nor children."""
    while path != "/":
        parent, name = split_path(path)
        cursor = connection.execute(
            "DELETE FROM node WHERE parent = ? AND name = ? AND value IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM node WHERE parent = ?)",
            (parent, name, path),
        )
        if cursor.rowcount == 0:
            return
        path = parent
