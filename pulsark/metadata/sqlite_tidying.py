"""Keeps the embedded metadata store's files small, and free of values that were replaced.

A store that is written to is tidied soon after, step by step, each in one transaction of bounded
size. Values may hold keys of messages, which an erasure takes away. ``secure_delete`` overwrites
them in the file; the write-ahead log keeps them until it is truncated. Free pages at the end of the
file go back to the disk, if the file has ``auto_vacuum=INCREMENTAL``.

A new file has it. An older one gets it at a start, which rewrites its values once. The start waits
for this, so they must take ``REWRITTEN_BYTES_MAX`` at most, and the disk must have room. A larger
file stays as it is until somebody stops Pulsark and runs
``sqlite3 metadata.db 'PRAGMA auto_vacuum=INCREMENTAL; VACUUM'``. All of this blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from typing import Final

from pulsark.runtime import OsDisk

log = logging.getLogger(__name__)

TIDY_SECONDS: Final = 5.0
"""Longest time from a write until the store tidies; a replaced value stays in its log as long."""

STEP_SECONDS: Final = 0.1
"""Seconds between two steps: other writes go in between."""

STEP_PAGES: Final = 64
"""Pages of 4 KiB that one step gives back: some 20 ms among 100,000 free pages, and the sync."""

FREE_PAGES_KEPT: Final = 256
"""Free pages that a file keeps for its next values."""

REWRITTEN_BYTES_MAX: Final = 64 << 20
"""Most bytes of values in an old file that a start rewrites: about a second."""

_REWRITE_ROOM: Final = 3
"""Multiple of these bytes that the disk must have free: for the log, the file and a rest."""

_WAIT_MILLISECONDS: Final = 20
"""Longest wait for readers in other processes before the log is left for the next step."""

_INCREMENTAL: Final = 2


def tidy(connection: sqlite3.Connection, busy_milliseconds: int) -> bool:
    """Do one step; returns whether everything is done.

    The connection waits ``busy_milliseconds`` for others again afterwards.
    """
    if _free_pages(connection) > FREE_PAGES_KEPT and _shrinks(connection):
        # ``execute`` would stop after the first page.
        connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")
        if _free_pages(connection) > FREE_PAGES_KEPT:
            return False
    connection.execute(f"PRAGMA busy_timeout = {_WAIT_MILLISECONDS}")
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {busy_milliseconds}")
    return not busy


def let_shrink(connection: sqlite3.Connection, path: str) -> None:
    """Rewrite the file of an earlier release, if that is cheap, so that ``tidy`` can shrink it."""
    if _shrinks(connection):
        return
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    used = (pages - _free_pages(connection)) * page_bytes
    if used > REWRITTEN_BYTES_MAX:
        log.info("%s is too large to be rewritten at a start: it keeps its size", path)
        return
    with contextlib.suppress(OSError, sqlite3.Error):  # the next start tries again
        if OsDisk().space(os.path.dirname(path) or ".")[0] >= _REWRITE_ROOM * used:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")


def _free_pages(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages)


def _shrinks(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA auto_vacuum").fetchone() == (_INCREMENTAL,))
