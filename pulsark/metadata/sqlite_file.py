"""The file of the embedded metadata store: its tables, its versions, and its checks.

Format 1 had no checksums, identity or history. In format 2, versions restarted at 0 after a
deletion. Opening such a file upgrades it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.errors import MetadataError, MetadataRefusedError
from pulsark.limits import METADATA_CHECK_SECONDS, METADATA_WAL_CHECK_BYTES_MAX
from pulsark.metadata.history import History, StoreStart
from pulsark.metadata.sqlite_tidying import let_shrink
from pulsark.metadata.wal import first_loss
from pulsark.private_files import create_secret
from pulsark.runtime import OsDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

SCHEMA_VERSION = 3
APPLICATION_ID = 0x504C534B

_NODE = """
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
_SINCE_2 = """
ALTER TABLE node ADD COLUMN crc INTEGER;
CREATE TABLE store (identity TEXT NOT NULL, last_commit INTEGER NOT NULL);
CREATE TABLE session (first_commit INTEGER PRIMARY KEY, nonce INTEGER NOT NULL);
"""
_SINCE_3 = "ALTER TABLE store ADD COLUMN first_version INTEGER NOT NULL DEFAULT 0;"
BUSY_MILLISECONDS = 5000
"""The longest wait of a transaction for another process."""

_NAMES_SHOWN = 5
_PROGRESS_STEPS = 100_000
"""Steps of SQLite's virtual machine between two checks of the time: a few milliseconds."""

WHAT_TO_DO = (
    "Restore a backup (pulsark restore BACKUP --data-dir DIR); "
    "pulsark doctor --data-dir DIR tells what is damaged"
)

_OUT_OF_REACH = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_ROOM_BYTES = 1 << 20
"""With less than this, a start may fail because there is no room."""

RESERVE_SUFFIX = "-reserve"
"""What the name of the file beside the store ends with whose blocks are freed on a full disk."""

RESERVE_BYTES_MAX = 2 << 20
"""The size of that file, or 2 % of the disk if that is less: enough for hundreds of deletions."""

GROWTH_RESERVE_BYTES_MAX = 32 << 20
"""With less free, or 2.5 % of the disk, clients can create and enlarge nothing here. It is half of
what journals keep back: the rest is for acknowledgements, deletions and the next start."""

_GROWTH_RESERVE_SHARE = 40
_RESERVE_SHARE = 50
_FREE_FOR_RESERVE = 8
"""Multiple of its size that must be free for the file to be made: publishing goes first."""

_crc32c = google_crc32c.value


def checksum(parent: str, name: str, value: bytes, version: int, ephemeral: int) -> int:
    """CRC32C of a row. It covers the path, so a value at a wrong path is detected."""
    head = f"{parent}\0{name}\0{version}\0{ephemeral}\0".encode()
    crc: int = _crc32c(head + value)
    return crc


def connect(path: str) -> sqlite3.Connection:
    """A connection without implicit transactions, which overwrites what it deletes."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def open_file(path: str, identity: str, clock: Clock, *, accept_loss: bool) -> sqlite3.Connection:
    """Check and upgrade a file, and return a connection for the writer. Blocks.

    A new file gets ``identity``. ``MetadataError`` if something is damaged. With ``accept_loss``, a
    log with a broken frame is copied aside instead, and the frames after the break are lost.
    """
    if _is_full(path):
        release_reserve(path)
    _check_log(path, accept_loss=accept_loss)
    connection: sqlite3.Connection | None = None
    try:
        create_secret(path)
        connection = connect(path)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file, before its log
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path, identity)
        _check(connection, path, clock)
        let_shrink(connection, path)
        empty_log(connection)
    except BaseException as e:
        if connection is not None:
            connection.close()
        if isinstance(e, sqlite3.Error):
            raise cannot_open(path, e) from e
        raise
    return connection


def cannot_open(path: str, error: sqlite3.Error | OSError) -> MetadataError:
    """With what to do about it."""
    problem = f"cannot open the metadata store {path}: {error}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code not in _DAMAGED and _is_full(path)):
        return MetadataError(f"{problem}. Its disk is full: make room, and start again")
    if code in _OUT_OF_REACH:
        hint = "this user may read and write it, and the process may open more files (ulimit -n)"
        return MetadataError(f"{problem}. Check that {hint}")
    if isinstance(error, OSError):
        return MetadataError(problem)
    return MetadataError(f"{problem}. {WHAT_TO_DO}")


def _is_full(path: str) -> bool:
    with contextlib.suppress(OSError):
        return OsDisk().space(os.path.dirname(path) or ".")[0] < _ROOM_BYTES
    return False


def keep_reserve(path: str) -> None:
    """Make the reserve beside the store's file, if it is missing and there is much room. Blocks."""
    reserve, directory = f"{path}{RESERVE_SUFFIX}", os.path.dirname(path) or "."
    if os.path.exists(reserve):
        return
    with contextlib.suppress(OSError):  # without it a full disk is harder to free, no more
        free, total = OsDisk().space(directory)
        size = min(RESERVE_BYTES_MAX, total // _RESERVE_SHARE)
        if free < _FREE_FOR_RESERVE * size:
            return
        fd = os.open(reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except BaseException:
            os.unlink(reserve)
            raise
        finally:
            os.close(fd)


def release_reserve(path: str) -> bool:
    """Give the blocks of the reserve back to the disk; returns whether there was one. Blocks."""
    try:
        os.unlink(f"{path}{RESERVE_SUFFIX}")
    except OSError:
        return False
    log.warning("the disk of %s is full: using the room that was reserved for this", path)
    return True


def make_room(connection: sqlite3.Connection) -> None:
    """Free room for a transaction on the store's full disk. Blocks."""
    with contextlib.suppress(sqlite3.Error):
        empty_log(connection)  # else the log keeps its greatest length
    for _, name, path in connection.execute("PRAGMA database_list"):
        if name == "main" and _is_full(path):
            release_reserve(path)


def check_growth(connection: sqlite3.Connection) -> None:
    """Raise ``MetadataRefusedError`` if the disk has no room for what clients create. Blocks."""
    for _, name, path in connection.execute("PRAGMA database_list"):
        if name == "main" and path:
            free, total = OsDisk().space(os.path.dirname(path) or ".")
            if free < min(GROWTH_RESERVE_BYTES_MAX, total // _GROWTH_RESERVE_SHARE):
                raise MetadataRefusedError(
                    f"the disk of the metadata store has {free} bytes left, which are kept for "
                    "acknowledgements and deletions: free space, then create this again"
                )


def is_full(error: BaseException | None) -> bool:
    """Return whether SQLite failed for want of room."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.Error) and code == sqlite3.SQLITE_FULL


def empty_log(connection: sqlite3.Connection) -> None:
    """Move the contents of the log into the file: a short log has little to lose."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def first_loss_in(path: str) -> int | None:
    """The offset at which the file's log is broken, if it is (``wal.first_loss``)."""
    log = f"{path}-wal"
    try:
        if os.path.getsize(log) > METADATA_WAL_CHECK_BYTES_MAX:
            return None
        with open(log, "rb") as file:
            return first_loss(file.read())
    except FileNotFoundError:
        return None


def _check_log(path: str, *, accept_loss: bool) -> None:
    log = f"{path}-wal"
    if _size(path) == 0 and _size(log) > 0:  # SQLite would consider the log stale and remove it
        trouble = f"{path} is missing or empty, but its log {log} is not: put the file back"
        rest = "without both"
    else:
        place = first_loss_in(path)
        if place is None:
            return
        trouble = f"{log} is damaged at byte {place}, and later changes follow: they would be lost"
        rest = "with what comes before"
    if not accept_loss:
        raise MetadataError(f"{trouble}. {WHAT_TO_DO}. To go on {rest}, start once with --adopt")
    import shutil  # brings compression along, which nothing else of an idle broker needs

    shutil.copyfile(log, f"{log}.damaged")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _prepare(connection: sqlite3.Connection, path: str, identity: str) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise MetadataError(f"{path} is a database, but not a metadata store")
    if version > SCHEMA_VERSION:
        raise MetadataError(
            f"{path} has format {version}; this release knows up to {SCHEMA_VERSION}"
        )
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version < 2:
            _run(connection, _SINCE_2 if tables else _NODE + _SINCE_2)
            rows = connection.execute(VALUES).fetchall()
            connection.executemany(
                "UPDATE node SET crc = ? WHERE parent = ? AND name = ?",
                ((checksum(*row[:5]), *row[:2]) for row in rows),
            )
            connection.execute("INSERT INTO store VALUES (?, 0)", (identity,))
        _run(connection, _SINCE_3)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have ended it
            connection.execute("ROLLBACK")
        raise


def _run(connection: sqlite3.Connection, statements: str) -> None:
    """Run statements in the open transaction, which ``executescript`` would end."""
    for statement in statements.split(";"):
        connection.execute(statement)


VALUES = "SELECT parent, name, value, version, ephemeral, crc FROM node WHERE value IS NOT NULL"

OLD_VALUES = "SELECT parent, name, value, version, ephemeral, 0 FROM node WHERE value IS NOT NULL"


def _check(connection: sqlite3.Connection, path: str, clock: Clock) -> None:
    """Check every page and every value, for a bounded time."""
    end = clock.monotonic() + METADATA_CHECK_SECONDS
    connection.set_progress_handler(lambda: clock.monotonic() > end, _PROGRESS_STEPS)
    wrong: list[str] = []
    try:
        wrong.extend(trouble_of(connection))
        wrong.extend(damaged_values(connection))
    except sqlite3.OperationalError as e:
        if "interrupt" not in str(e):
            raise
    finally:
        connection.set_progress_handler(None, 0)
    if wrong:
        shown = ", ".join(wrong[:_NAMES_SHOWN]) + (", ..." if len(wrong) > _NAMES_SHOWN else "")
        raise MetadataError(f"the metadata store {path} is damaged: {shown}. {WHAT_TO_DO}")


def trouble_of(connection: sqlite3.Connection) -> Iterator[str]:
    """The problems that SQLite finds in the file."""
    for (line,) in connection.execute("PRAGMA quick_check(10)"):
        if line != "ok":
            yield line


def damaged_values(connection: sqlite3.Connection) -> Iterator[str]:
    """Paths of damaged values."""
    for *row, crc in connection.execute(VALUES):
        if not is_as_written(row, crc):
            yield f"{row[0].rstrip('/')}/{row[1]}"


def is_as_written(row: list[object], crc: object) -> bool:
    """Whether a row has the checksum of ``(parent, name, value, version, ephemeral)``."""
    try:
        return checksum(*row) == crc  # type: ignore[arg-type]
    except (TypeError, UnicodeError):
        return False  # not even the types are right


def read_history(connection: sqlite3.Connection) -> tuple[str, History]:
    """The identity and history of the store."""
    row = connection.execute("SELECT identity, last_commit FROM store").fetchone()
    if row is None:
        raise MetadataError(f"the metadata store has lost its identity. {WHAT_TO_DO}")
    sessions = connection.execute("SELECT first_commit, nonce FROM session ORDER BY first_commit")
    return row[0], History(tuple(StoreStart(*session) for session in sessions), row[1])


def write_history(connection: sqlite3.Connection, history: History) -> None:
    """Replace the stored history, within a transaction."""
    connection.execute("DELETE FROM session WHERE first_commit < ?", _first(history))
    connection.execute(
        "INSERT OR REPLACE INTO session VALUES (?, ?)",
        (history.sessions[-1].first_commit, history.sessions[-1].nonce),
    )
    connection.execute("UPDATE store SET last_commit = ?", (history.last_commit,))


def _first(history: History) -> tuple[int]:
    return (history.sessions[0].first_commit,)
