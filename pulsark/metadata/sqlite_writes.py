"""The transactions of the embedded metadata store on its file. All of this blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import Any

from pulsark.errors import (
    BadVersionError,
    CorruptMetadataError,
    MetadataError,
    MetadataRefusedError,
    OutcomeUnknownError,
)
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.paths import (
    CLUSTERS,
    CONFIGURATION,
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    POLICIES,
    RESOURCE_GROUPS,
    SCHEMAS,
    TOPIC_POLICIES,
)
from pulsark.metadata.sqlite_file import (
    WHAT_TO_DO,
    check_growth,
    checksum,
    is_as_written,
    is_full,
    make_room,
)
from pulsark.metadata.store import ABSENT, check_version, split_path, wrong_kind

GET = (
    "SELECT value, version, ephemeral, crc FROM node"
    " WHERE parent = ? AND name = ? AND value IS NOT NULL"
)

_FILLED_BY_CLIENTS = tuple(
    f"{root}/"
    for root in (
        CLUSTERS,
        POLICIES,
        CONFIGURATION,
        RESOURCE_GROUPS,
        PARTITIONED_TOPICS,
        TOPIC_POLICIES,
        MANAGED_LEDGERS,
        SCHEMAS,
    )
)
_GROWTH_BYTES = 1024
"""A value may always become larger by so much: somebody may have to shorten a retention."""

_Row = tuple[bytes, int, int, int]
Operation = Callable[[sqlite3.Connection], Any]


def checked(path: str, row: _Row) -> _Row:
    """``(value, version, ephemeral, crc)`` of a path; ``CorruptMetadataError`` if damaged."""
    value, version, ephemeral, crc = row
    parent, name = split_path(path)
    if not is_as_written([parent, name, value, version, ephemeral], crc):
        raise CorruptMetadataError(f"the value of {path} is damaged. {WHAT_TO_DO}")
    return row


def transaction(
    connection: sqlite3.Connection,
    operations: Sequence[Operation],
    before: Operation = lambda connection: None,
) -> list[Any]:
    """Run operations in one transaction. An operation's ``MetadataError`` is its result.

    A ``MetadataError`` of ``before``, or any error that is raised, concerns all of them. Operations
    check before they change anything, so a failed one leaves no trace. On a full disk the
    transaction is tried once more, in the room that is kept for it.
    """
    try:
        return _attempt(connection, operations, before)
    except MetadataError as e:
        # SQLite writes the end of a transaction last: one that lacked room is not there.
        if not is_full(e.__cause__):
            raise
        make_room(connection)
    return _attempt(connection, operations, before)


def _attempt(
    connection: sqlite3.Connection, operations: Sequence[Operation], before: Operation
) -> list[Any]:
    results: list[Any] = []
    committing = False
    try:
        connection.execute("BEGIN IMMEDIATE")
        before(connection)
        connection.execute("UPDATE store SET last_commit = last_commit + 1")
        for operation in operations:
            try:
                results.append(operation(connection))
            except MetadataError as e:
                results.append(e)
        committing = True
        connection.execute("COMMIT")
    except BaseException as e:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if not isinstance(e, sqlite3.Error):
            raise
        if committing:  # the writes may be there when the file is opened again
            raise OutcomeUnknownError(f"the metadata store failed: {e}") from e
        raise MetadataRefusedError(f"the metadata store failed, and wrote nothing: {e}") from e
    return results


def commit(connection: sqlite3.Connection, changes: Sequence[Change], session: int) -> list[int]:
    """Make changes that passed ``check_changes``; returns the new versions.

    The session owns the ephemeral values among them.
    """
    rows = [_current(connection, change, session) for change in changes]
    if any(map(_fills_the_disk, repeat(connection), changes, rows)):
        check_growth(connection)
    return [
        _make(connection, change, row, session) for change, row in zip(changes, rows, strict=True)
    ]


def _fills_the_disk(
    connection: sqlite3.Connection, change: Change, row: tuple[int, int] | None
) -> bool:
    """Return whether a change makes what clients create, or makes it clearly larger."""
    if not isinstance(change, Put) or not change.path.startswith(_FILLED_BY_CLIENTS):
        return False
    if row is None or len(change.value) <= _GROWTH_BYTES:
        return row is None
    where = split_path(change.path)
    query = "SELECT length(value) FROM node WHERE parent = ? AND name = ?"
    (before,) = connection.execute(query, where).fetchone()
    return len(change.value) > int(before) + _GROWTH_BYTES


def _make(
    connection: sqlite3.Connection, change: Change, row: tuple[int, int] | None, session: int
) -> int:
    if isinstance(change, Check):
        return change.expected_version
    if isinstance(change, Put):
        return _put(connection, change, row, session if change.ephemeral else 0)
    assert row is not None
    _delete(connection, change.path, row[0])
    return ABSENT


def _put(
    connection: sqlite3.Connection, change: Put, row: tuple[int, int] | None, ephemeral: int
) -> int:
    parent, name = split_path(change.path)
    if row is None:
        _link(connection, parent)
        (version,) = connection.execute("SELECT first_version FROM store").fetchone()
        crc = checksum(parent, name, change.value, version, ephemeral)
        connection.execute(
            "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " value = excluded.value, version = excluded.version, ephemeral = excluded.ephemeral,"
            " crc = excluded.crc",
            (parent, name, change.value, version, ephemeral, crc),
        )
        return int(version)
    version = row[0] + 1
    crc = checksum(parent, name, change.value, version, ephemeral)
    connection.execute(
        "UPDATE node SET value = ?, version = ?, crc = ? WHERE parent = ? AND name = ?",
        (change.value, version, crc, parent, name),
    )
    return version


def _delete(connection: sqlite3.Connection, path: str, version: int) -> None:
    parent, name = split_path(path)
    # The path must never have this version again with another value.
    connection.execute("UPDATE store SET first_version = max(first_version, ?)", (version + 1,))
    connection.execute(
        "UPDATE node SET value = NULL, version = 0, ephemeral = 0, crc = NULL"
        " WHERE parent = ? AND name = ?",
        (parent, name),
    )
    _unlink(connection, path)


def next_id(connection: sqlite3.Connection, path: str, session: int) -> int:
    """Raise the counter at a path, and return its old value."""
    parent, name = split_path(path)
    row = connection.execute(GET, (parent, name)).fetchone()
    number = 0 if row is None else int(checked(path, row)[0])
    commit(connection, (Put(path, b"%d" % (number + 1)),), session)
    return number


def end_sessions(connection: sqlite3.Connection, going_on: Collection[int] = ()) -> list[str]:
    """Remove the ephemeral values of all sessions except ``going_on``; returns their paths."""
    rows = connection.execute(
        "SELECT parent, name, version, ephemeral FROM node WHERE ephemeral"
    ).fetchall()
    ended = [(f"{row[0].rstrip('/')}/{row[1]}", row[2]) for row in rows if row[3] not in going_on]
    for path, version in ended:
        _delete(connection, path, version)
    return [path for path, _ in ended]


def _current(
    connection: sqlite3.Connection, change: Change, session: int
) -> tuple[int, int] | None:
    """``(version, ephemeral)`` of the present value, after checking the change against it."""
    path, expected = change.path, change.expected_version
    row: tuple[int, int] | None = connection.execute(
        "SELECT version, ephemeral FROM node WHERE parent = ? AND name = ? AND value IS NOT NULL",
        split_path(path),
    ).fetchone()
    check_version(path, ABSENT if row is None else row[0], expected)
    if row is None and isinstance(change, Delete):
        raise BadVersionError(path, "does not exist")
    mine = session if isinstance(change, Put) and change.ephemeral else 0
    if row is not None and isinstance(change, Put) and row[1] != mine:
        raise wrong_kind(path, ephemeral=bool(row[1]))
    return row


def _link(connection: sqlite3.Connection, path: str) -> None:
    """Create rows for ``path`` and its ancestors."""
    while path != "/":
        parent, name = split_path(path)
        cursor = connection.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, NULL, 0, 0, NULL)", (parent, name)
        )
        if cursor.rowcount == 0:
            return
        path = parent


def _unlink(connection: sqlite3.Connection, path: str) -> None:
    """Remove the rows of ``path`` and its ancestors that have neither value nor children."""
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
