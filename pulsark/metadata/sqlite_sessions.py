"""Sessions of several processes of one machine on the file of the embedded metadata store.

Each session has a row in the store, and a file with a lock and a deadline. The process holds the
lock until it dies, so others notice its death at once. A process that is paused, or whose event
loop is blocked, keeps the lock; its session may be ended after the deadline, which each sign of
life postpones. The row decides whether a session lives: each of the session's transactions checks
it, and others delete it in a transaction, after a last look at the deadline.

Signs of life are no transactions, so they work while no process can write: a process that is paused
within a transaction blocks all others. It is killed after its deadline. Transactions queue by a
lock on another file, because SQLite alone would make each process retry at growing intervals.

Each change is recorded in the store, so that other processes can call their watches. All of this
blocks.
"""

from __future__ import annotations

import math
import os
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, MetadataRefusedError
from pulsark.file_locks import holding, lock_file
from pulsark.limits import METADATA_CHANGES_KEPT
from pulsark.metadata.sqlite_file import (
    SCHEMA_VERSION,
    connect,
    open_file,
    read_history,
    write_history,
)
from pulsark.metadata.sqlite_writes import end_sessions

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pulsark.runtime import Clock

OPENING: Final = "OPENING"
WRITING: Final = "WRITING"
_TRIM_EACH: Final = 256
_SIGN: Final = struct.Struct("<dq")

_TABLES = """
CREATE TABLE IF NOT EXISTS live (session INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS change (
  number INTEGER PRIMARY KEY, session INTEGER NOT NULL, path TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """A new session."""

    writer: sqlite3.Connection
    session: int
    lock: int
    writing: int
    """The descriptor whose lock the writing process holds."""
    last_change: int


def sessions_directory(path: str) -> str:
    """The directory with the sessions' locks."""
    return f"{path}-sessions"


def join(path: str, identity: str, nonce: int, clock: Clock, seconds: float) -> Joined:
    """Begin a session on a file that others may use. Only the first session checks the file."""
    directory = sessions_directory(path)
    os.makedirs(directory, exist_ok=True)
    opening = lock_file(os.path.join(directory, OPENING), create=True, wait=True)
    assert opening is not None
    try:
        others = set(living(path))
        if others:
            writer = connect(path)
            writer.execute("PRAGMA synchronous = FULL")
            (version,) = writer.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise MetadataError(f"{path} has format {version}, and is used by another release")
        else:
            writer = open_file(path, identity, clock, accept_loss=False)
        writing = os.open(os.path.join(directory, WRITING), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            with holding(writing):
                session, lock, last_change = _begin(
                    writer, directory, nonce, others, clock.monotonic() + seconds
                )
        except BaseException:
            os.close(writing)
            writer.close()
            raise
        return Joined(writer, session, lock, writing, last_change)
    finally:
        os.close(opening)


def living(path: str) -> Iterator[int]:
    """Sessions whose processes are alive."""
    directory = sessions_directory(path)
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.isdigit():
            lock = lock_file(os.path.join(directory, name))
            if lock is not None:
                os.close(lock)
            elif os.path.exists(os.path.join(directory, name)):
                yield int(name)


def _begin(
    writer: sqlite3.Connection, directory: str, nonce: int, others: Collection[int], until: float
) -> tuple[int, int, int]:
    """The number of the new session, its lock, and the last change before it."""
    for statement in _TABLES.split(";"):
        writer.execute(statement)
    writer.execute("BEGIN IMMEDIATE")
    lock = None
    try:
        _, history = read_history(writer)
        history = history.with_session(nonce)
        write_history(writer, history)
        session = history.last_commit
        lock = lock_file(os.path.join(directory, str(session)), create=True)
        if lock is None:
            raise MetadataError(f"session {session} of the metadata store is another process's")
        give_sign(lock, until)
        writer.execute("INSERT INTO live VALUES (?)", (session,))
        rows = writer.execute("SELECT session FROM live").fetchall()
        gone = {row[0] for row in rows} - {session, *others}
        writer.executemany("DELETE FROM live WHERE session = ?", [(each,) for each in gone])
        note_changes(writer, 0, end_sessions(writer, {session, *others}))
        last = _last_change(writer)
        writer.execute("COMMIT")
    except BaseException:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        if lock is not None:
            os.close(lock)
        raise
    for each in gone:
        remove_lock(directory, each)
    return session, lock, last


def give_sign(lock: int, until: float) -> None:
    """Give a sign of life: the session must not be ended before this time."""
    os.pwrite(lock, _SIGN.pack(until, os.getpid()), 0)


def last_sign(directory: str, session: int) -> tuple[float, int]:
    """A session's deadline and process. Without a file it may be ended at any time."""
    before = b""
    while True:
        try:
            with open(os.path.join(directory, str(session)), "rb", buffering=0) as file:
                found = file.read(_SIGN.size)
        except FileNotFoundError:
            return -math.inf, 0
        if len(found) == _SIGN.size and found == before:  # never half of one and half of the next
            until, pid = _SIGN.unpack(found)
            return float(until), int(pid)
        before = found


def stop_process(directory: str, session: int, now: float) -> bool:
    """Kill the process of a session after its deadline; false if there is no such process.

    The process must have this very file open, so another process with its id is safe.
    """
    path = os.path.realpath(os.path.join(directory, str(session)))
    try:
        until, pid = last_sign(directory, session)
        opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        if until >= now or pid == os.getpid() or path not in opened:
            return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def remove_lock(directory: str, session: int) -> None:
    """Remove the file of a session that is over."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, str(session)))


def check_lives(connection: sqlite3.Connection, session: int) -> None:
    """``MetadataRefusedError`` if a session is over."""
    if not connection.execute("SELECT 1 FROM live WHERE session = ?", (session,)).fetchone():
        raise MetadataRefusedError("the session of the metadata store has ended")


def end_session(
    connection: sqlite3.Connection, directory: str, session: int, now: float = math.inf
) -> bool:
    """End a session after its deadline; returns whether it is over now."""
    try:
        if last_sign(directory, session)[0] >= now:
            return False
    except OSError:  # no free descriptor, for example: others write in this transaction, too
        return False
    cursor = connection.execute("DELETE FROM live WHERE session = ?", (session,))
    if cursor.rowcount:
        going_on = {each for (each,) in connection.execute("SELECT session FROM live")}
        note_changes(connection, 0, end_sessions(connection, going_on))
    return True


def note_changes(connection: sqlite3.Connection, session: int, paths: Iterable[str]) -> None:
    """Record a session's changes for other processes; 0 stands for no session."""
    for path in paths:
        cursor = connection.execute(
            "INSERT INTO change (session, path) VALUES (?, ?)", (session, path)
        )
        number = cursor.lastrowid or 0
        if number % _TRIM_EACH == 0:
            connection.execute(
                "DELETE FROM change WHERE number <= ?", (number - METADATA_CHANGES_KEPT,)
            )


def _last_change(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM change").fetchone()
    return int(number)


def changes_after(
    connection: sqlite3.Connection, number: int, limit: int
) -> Sequence[tuple[int, int, str]]:
    """Number, session and path of the next changes."""
    return connection.execute(
        "SELECT number, session, path FROM change WHERE number > ? ORDER BY number LIMIT ?",
        (number, limit),
    ).fetchall()


def check_alone(path: str) -> None:
    """Raise ``MetadataError`` if other processes have sessions on the file."""
    if others := list(living(path)):
        raise MetadataError(f"{path} is used by {len(others)} other processes: stop them first")
