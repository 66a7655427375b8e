"""Sessions of several processes of one machine on the file of the embedded metadata store.

Each has a row, and a file with a lock and a time: if it gives no sign of life before, it may be
ended from then on. The lock ends with the process, however that ends: so others notice a death at
once. A process that is stopped, or whose event loop stands still, keeps its lock; for it the time
counts. The row decides: every transaction of a session looks whether it is still there, and others
delete it in one of theirs, after a last look at the time.

Signs of life are no transactions. So they tell who lives even while nobody can write: a process
that is stopped within a transaction keeps all others from it. Once its time is over, it is killed.
Transactions take turns by the lock of a file: SQLite alone would let each process wait and look
again, ever more slowly, while others write.

What a session changes is noted in the store, so that others can tell their watches. All blocks.
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
from pulsark.limits import METADATA_CHANGES_KEPT
from pulsark.metadata.sqlite_file import (
    SCHEMA_VERSION,
    connect,
    open_file,
    read_history,
    write_history,
)
from pulsark.metadata.sqlite_writes import end_sessions
from pulsark.runtime import holding, lock_file

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
    """What a new session has."""

    writer: sqlite3.Connection
    session: int
    lock: int
    writing: int
    """Its lock is held by the process that writes."""
    last_change: int


def sessions_directory(path: str) -> str:
    """Where the locks of the sessions on a store's file are."""
    return f"{path}-sessions"


def join(path: str, identity: str, nonce: int, clock: Clock, seconds: float) -> Joined:
    """Begin a session on a file that others may use. Only the first one checks the whole file."""
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
    """Sessions whose processes live."""
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
    """The process that has this lock lives, and is not to be ended before that time."""
    os.pwrite(lock, _SIGN.pack(until, os.getpid()), 0)


def last_sign(directory: str, session: int) -> tuple[float, int]:
    """When a session may be ended, and its process. One without a file may be at any time."""
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
    """Kill the process of a session whose time is over; whether it was found.

    Only one of this machine that has the very file open, so never a stranger of the same number.
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
    """The file of a session that is over."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, str(session)))


def check_lives(connection: sqlite3.Connection, session: int) -> None:
    """``MetadataRefusedError`` if a session is over."""
    if not connection.execute("SELECT 1 FROM live WHERE session = ?", (session,)).fetchone():
        raise MetadataRefusedError("the session of the metadata store has ended")


def end_session(
    connection: sqlite3.Connection, directory: str, session: int, now: float = math.inf
) -> bool:
    """End a session whose time is over; whether it is over now."""
    if last_sign(directory, session)[0] >= now:
        return False
    cursor = connection.execute("DELETE FROM live WHERE session = ?", (session,))
    if cursor.rowcount:
        going_on = {each for (each,) in connection.execute("SELECT session FROM live")}
        note_changes(connection, 0, end_sessions(connection, going_on))
    return True


def note_changes(connection: sqlite3.Connection, session: int, paths: Iterable[str]) -> None:
    """Record for other processes what a session changed; 0 stands for no session."""
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
    """``MetadataError`` if processes have sessions on a file that one process is to have alone."""
    if others := list(living(path)):
        raise MetadataError(f"{path} is used by {len(others)} other processes: stop them first")
