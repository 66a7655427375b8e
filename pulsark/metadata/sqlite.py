"""The embedded metadata store: one SQLite file, one process.

Reads run on the event loop (a few microseconds from the page cache). Writes run in a worker:
whatever was asked for while the last transaction was synced goes into the next one, so the
loop never waits for the disk and many writers share a sync. The journal is a write-ahead log
with ``synchronous=FULL``: a write that returned survives a power cut.

A node is a row ``(parent, name)``; parents have rows without a value, so the children of a
path are one range of the primary key however many nodes there are. The caller holds the lock
of the data directory: a second process on the same file would end this one's session.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

from pulsark.errors import BadVersionError, MetadataError
from pulsark.metadata.store import (
    ABSENT,
    ANY_VERSION,
    Versioned,
    check_parent,
    check_value,
    split_path,
)
from pulsark.metadata.watches import Watches
from pulsark.runtime import Runtime, Worker, run_in_worker

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x504C534B

_SCHEMA = """
CREATE TABLE node (
  parent TEXT NOT NULL,
  name TEXT NOT NULL,
  value BLOB,
  version INTEGER NOT NULL,
  ephemeral INTEGER NOT NULL,
  PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX ephemeral_node ON node (parent, name) WHERE ephemeral;
"""
_GET = "SELECT value, version FROM node WHERE parent = ? AND name = ? AND value IS NOT NULL"
_CHILDREN = "SELECT name FROM node WHERE parent = ? ORDER BY name"

_Operation = Callable[[sqlite3.Connection], Any]
_Request = tuple[_Operation, "asyncio.Future[Any]"]


class SqliteMetadataStore:
    """See ``open``."""

    def __init__(self, reader: sqlite3.Connection, writer: sqlite3.Connection, worker: Worker):
        self._reader = reader
        self._writer = writer
        self._worker = worker
        self._watches = Watches()
        self._waiting: list[_Request] = []
        self._writing: list[_Request] = []
        self._closed = False

    @classmethod
    async def open(cls, path: str, runtime: Runtime) -> SqliteMetadataStore:
        """Open or create the file, and end what is left of the session before.

        Raises ``MetadataError`` if it is not such a file, or one of a newer release.
        """
        worker = runtime.new_worker("metadata")
        try:
            writer = await run_in_worker(worker, lambda: _open_writer(path))
        except BaseException:
            worker.close()
            raise
        try:
            reader = _connect(path)
        except BaseException:
            await run_in_worker(worker, writer.close)
            worker.close()
            raise
        return cls(reader, writer, worker)

    async def get(self, path: str) -> Versioned | None:
        parent, name = split_path(path)
        row = self._read(_GET, (parent, name)).fetchone()
        return None if row is None else Versioned(row[0], row[1])

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int = ANY_VERSION,
        *,
        ephemeral: bool = False,
    ) -> int:
        split_path(path)
        check_value(path, value)
        version: int = await self._write(
            lambda connection: _put(connection, path, value, expected_version, ephemeral)
        )
        self._watches.tell(path)
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        split_path(path)
        await self._write(lambda connection: _delete(connection, path, expected_version))
        self._watches.tell(path)

    async def children(self, path: str) -> list[str]:
        check_parent(path)
        return [row[0] for row in self._read(_CHILDREN, (path,))]

    async def next_id(self, path: str) -> int:
        split_path(path)
        number: int = await self._write(lambda connection: _next_id(connection, path))
        return number

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        check_parent(prefix)
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        if self._closed:
            return
        closing = self._write(_end_session)
        self._closed = True
        try:
            await closing
        finally:
            self._reader.close()
            await run_in_worker(self._worker, self._writer.close)
            self._worker.close()

    def _read(self, statement: str, parameters: tuple[str, ...]) -> sqlite3.Cursor:
        if self._closed:
            raise MetadataError("the metadata store is closed")
        try:
            return self._reader.execute(statement, parameters)
        except sqlite3.Error as e:
            raise MetadataError(f"the metadata store failed: {e}") from e

    def _write(self, operation: _Operation) -> asyncio.Future[Any]:
        if self._closed:
            raise MetadataError("the metadata store is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        self._start_writing()
        return future

    def _start_writing(self) -> None:
        if self._writing or not self._waiting:
            return
        self._writing, self._waiting = self._waiting, []
        operations = [operation for operation, _ in self._writing]
        self._worker.submit(lambda: _transaction(self._writer, operations), self._written)

    def _written(self, results: list[Any] | None, error: BaseException | None) -> None:
        requests, self._writing = self._writing, []
        for index, (_, future) in enumerate(requests):
            if future.cancelled():
                continue
            if results is None:
                future.set_exception(_as_metadata_error(error))
            elif isinstance(results[index], MetadataError):
                future.set_exception(results[index])
            else:
                future.set_result(results[index])
        self._start_writing()


def _as_metadata_error(error: BaseException | None) -> BaseException:
    if isinstance(error, sqlite3.Error):
        failure = MetadataError(f"the metadata store failed: {error}")
        failure.__cause__ = error
        return failure
    return error if error is not None else MetadataError("the metadata store failed")


def _connect(path: str) -> sqlite3.Connection:
    # isolation_level None: transactions are begun and ended here, not by the module.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def _open_writer(path: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path)
        _transaction(connection, [_end_session])
    except BaseException as e:
        if connection is not None:
            connection.close()
        if isinstance(e, sqlite3.Error):
            raise MetadataError(f"cannot open the metadata store {path}: {e}") from e
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID};"
            f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    elif application != _APPLICATION_ID:
        raise MetadataError(f"{path} is a database, but not a metadata store")
    elif version > SCHEMA_VERSION:
        raise MetadataError(
            f"{path} has format {version}; this release knows up to {SCHEMA_VERSION}"
        )


def _transaction(connection: sqlite3.Connection, operations: list[_Operation]) -> list[Any]:
    """Run all in one transaction. An operation's ``MetadataError`` is its result.

    Operations check before they change anything, so one that fails leaves no trace.
    """
    results: list[Any] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
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


def _put(
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
        connection.execute(
            "INSERT INTO node VALUES (?, ?, ?, 0, ?) ON CONFLICT DO UPDATE SET"
            " value = excluded.value, version = 0, ephemeral = excluded.ephemeral",
            (parent, name, value, int(ephemeral)),
        )
        return 0
    version, was_ephemeral = row
    if bool(was_ephemeral) != ephemeral:
        raise MetadataError(f"{path} is {'ephemeral' if was_ephemeral else 'not ephemeral'}")
    connection.execute(
        "UPDATE node SET value = ?, version = ? WHERE parent = ? AND name = ?",
        (value, version + 1, parent, name),
    )
    return version + 1


def _delete(connection: sqlite3.Connection, path: str, expected_version: int) -> None:
    parent, name = split_path(path)
    if _current(connection, path, parent, name, expected_version) is None:
        raise BadVersionError(f"{path} does not exist")
    connection.execute(
        "UPDATE node SET value = NULL, version = 0, ephemeral = 0 WHERE parent = ? AND name = ?",
        (parent, name),
    )
    _unlink(connection, path)


def _next_id(connection: sqlite3.Connection, path: str) -> int:
    parent, name = split_path(path)
    row = connection.execute(_GET, (parent, name)).fetchone()
    number = 0 if row is None else int(row[0])
    _put(connection, path, b"%d" % (number + 1), ANY_VERSION, ephemeral=False)
    return number


def _end_session(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT parent, name FROM node WHERE ephemeral").fetchall()
    for parent, name in rows:
        _delete(connection, f"{parent.rstrip('/')}/{name}", ANY_VERSION)


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
            "INSERT OR IGNORE INTO node VALUES (?, ?, NULL, 0, 0)", (parent, name)
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
