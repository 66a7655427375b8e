"""The embedded metadata store for several processes of one machine, on one file.

Reads are as fast as in the store of one process. Each process polls for changes of others every few
milliseconds. In the same way it notices that another process has died or is silent, and ends that
process's session. See ``sqlite_sessions`` and ``session``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sqlite3
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import MetadataRefusedError
from pulsark.file_locks import holding, lock_file
from pulsark.metadata.changes import Check
from pulsark.metadata.history import NONCE_BITS
from pulsark.metadata.session import SIGNS_A_DEADLINE, Session
from pulsark.metadata.sqlite import DEFAULT_TIMEOUT_SECONDS, SqliteMetadataStore
from pulsark.metadata.sqlite_file import cannot_open, connect, read_history
from pulsark.metadata.sqlite_sessions import (
    Joined,
    changes_after,
    check_lives,
    end_session,
    give_sign,
    join,
    last_sign,
    note_changes,
    remove_lock,
    sessions_directory,
    stop_process,
)
from pulsark.metadata.sqlite_writes import commit, transaction
from pulsark.runtime import Runtime, Worker, run_in_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.sqlite_writes import Operation

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
LOOKS_A_DEATH: Final = 5
"""Every fifth poll also tries the locks of other processes."""
CHANGES_A_LOOK: Final = 1000
IN_THE_WAY_SECONDS: Final = 2.0


class SharedSqliteMetadataStore(SqliteMetadataStore):
    """One session. See ``join``."""

    def __init__(
        self,
        path: str,
        joined: Joined,
        worker: Worker,
        runtime: Runtime,
        timeout_seconds: float,
        session_seconds: float,
    ) -> None:
        super().__init__(connect(path), joined.writer, worker, runtime, timeout_seconds)
        self._session = joined.session
        self._lock = joined.lock
        self._writing_lock = joined.writing
        self._directory = sessions_directory(path)
        self.session = Session(runtime.clock, session_seconds)
        self._last_change = joined.last_change
        self._data_version = -1
        self._looks = 0
        self._ending: dict[int, float] = {}
        """When this process began to end another's session."""
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_soon(self._look_at_others), loop.call_soon(self._give_sign)]

    @classmethod
    async def join(
        cls,
        path: str,
        runtime: Runtime,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        session_seconds: float = 10.0,
    ) -> SharedSqliteMetadataStore:
        """Begin a session on a file, which is created if missing. Raises ``MetadataError``.

        Other processes end the session if it is silent for ``session_seconds``.
        """
        worker = runtime.new_worker("metadata")
        identity = f"{runtime.rng.getrandbits(128):032x}"
        nonce = runtime.rng.getrandbits(NONCE_BITS)
        try:
            joined = await run_in_worker(
                worker, lambda: join(path, identity, nonce, runtime.clock, session_seconds)
            )
            return cls(path, joined, worker, runtime, timeout_seconds, session_seconds)
        except BaseException as e:
            worker.close()
            if isinstance(e, (sqlite3.Error, OSError)):
                raise cannot_open(path, e) from e
            raise

    @property
    def mark(self) -> int:
        """The mark of the last change by any process."""
        if not self._closed:
            with suppress(sqlite3.Error):  # then the last known mark is returned
                self._note_position(*_where_it_is(self._reader))
        return super().mark

    def knows(self, mark: int) -> bool:
        self._history = read_history(self._reader)[1]
        return super().knows(mark)

    def _commit(self, changes: Sequence[Change]) -> Operation:
        changed = [change.path for change in changes if not isinstance(change, Check)]

        def made(connection: sqlite3.Connection) -> list[int]:
            versions = commit(connection, changes, self._session)
            note_changes(connection, self._session, changed)
            return versions

        return made

    def _read(self, statement: str, parameters: tuple[str | int, ...]) -> sqlite3.Cursor:
        if self.session.has_ended:
            raise MetadataRefusedError("the session of the metadata store has ended")
        return super()._read(statement, parameters)

    def _transact(self, operations: list[Operation]) -> list[Any]:
        with holding(self._writing_lock):
            return transaction(
                self._writer,
                [*operations, _where_it_is],
                before=partial(check_lives, session=self._session),
            )

    def _tidy(self) -> bool:
        with holding(self._writing_lock):
            return super()._tidy()

    def _committed(self, results: list[Any]) -> None:
        self._note_position(*results.pop())
        self._tell_mark()

    def _note_position(self, last_commit: int, newest: int) -> None:
        if newest != self._history.sessions[-1].first_commit:
            self._history = read_history(self._reader)[1]
        self._history = self._history.at(max(last_commit, self._history.last_commit))

    def _written(self, results: list[Any] | None, error: BaseException | None) -> None:
        super()._written(results, error)
        if isinstance(error, MetadataRefusedError) and not self._closed:
            self._find_out()

    # -- signs of life ---

    def _give_sign(self) -> None:
        if self._closed or self.session.has_ended:
            return
        loop = asyncio.get_running_loop()
        self._timers[1] = loop.call_later(
            self.session.timeout_seconds / SIGNS_A_DEADLINE, self._give_sign
        )
        was_sure, now = self.session.is_sure, self._runtime.clock.monotonic()
        give_sign(self._lock, now + self.session.timeout_seconds)
        if was_sure:  # no process can have ended the session, and each sees this sign first
            self.session.heard(now)
            return
        # The sign came late. A transaction after it shows whether it came too late.
        proof = self._write(_nothing)
        proof.add_done_callback(partial(self._proved, now))

    def _proved(self, sent_at: float, proof: asyncio.Future[Any]) -> None:
        if not proof.cancelled() and proof.exception() is None:
            self.session.heard(sent_at)

    def _find_out(self) -> None:
        """Whether the session is over."""
        try:
            check_lives(self._reader, self._session)
        except MetadataRefusedError:
            self.session.end()
        except sqlite3.Error:
            return  # the next write will show it

    # -- other processes ---

    def _look_at_others(self) -> None:
        if self._closed or self.session.has_ended:
            return
        self._looks += 1
        try:
            (data_version,) = self._reader.execute("PRAGMA data_version").fetchone()
            if data_version != self._data_version:
                self._data_version = data_version
                self._note_position(*_where_it_is(self._reader))
                self._tell_mark()
                self._tell_changes()
            if self._looks % LOOKS_A_DEATH == 0:
                self._look_for_ended()
        except (sqlite3.Error, OSError):  # no free descriptor, for example
            self._data_version = -1
        self._timers[0] = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_at_others)

    def _tell_changes(self) -> None:
        rows = changes_after(self._reader, self._last_change, CHANGES_A_LOOK)
        if not rows:
            return
        if rows[0][0] > self._last_change + 1:
            self._watches.tell_missed()
        self._last_change = rows[-1][0]
        for _, session, path in rows:
            if session != self._session:
                self._watches.tell(path)
        if len(rows) == CHANGES_A_LOOK:
            self._data_version = -1  # there may be more changes

    def _look_for_ended(self) -> None:
        self._find_out()
        now = self._runtime.clock.monotonic()
        rows = self._reader.execute("SELECT session FROM live").fetchall()
        for (session,) in rows:
            if session == self._session:
                continue
            if session in self._ending:
                self._stop_if_in_the_way(session, now)
                continue
            lock = lock_file(os.path.join(self._directory, str(session)))
            if lock is not None:
                self._end_other(session, math.inf, lock)
            elif last_sign(self._directory, session)[0] < now:
                self._end_other(session, now, None)

    def _end_other(self, session: int, now: float, lock: int | None) -> None:
        """End a session. If its lock is free, its process is dead; otherwise it was silent."""
        self._ending[session] = self._runtime.clock.monotonic()
        ended = self._write(
            lambda connection: end_session(connection, self._directory, session, now)
        )

        def done(future: asyncio.Future[Any]) -> None:
            self._ending.pop(session, None)
            over = not future.cancelled() and not future.exception() and future.result()
            if lock is not None:
                if over:
                    remove_lock(self._directory, session)
                os.close(lock)

        ended.add_done_callback(done)

    def _stop_if_in_the_way(self, session: int, now: float) -> None:
        """Kill a process that is past its deadline and blocks the end of its session."""
        if now - self._ending[session] > IN_THE_WAY_SECONDS and stop_process(
            self._directory, session, now
        ):
            log.error(
                "killed a process that held the metadata store's lock and was silent for too long"
            )

    # -- the end ---

    def _end(self, connection: sqlite3.Connection) -> None:
        end_session(connection, self._directory, self._session)

    async def close(self) -> None:
        if self._closed:
            return
        for timer in self._timers:
            timer.cancel()
        try:
            with suppress(MetadataRefusedError):  # the session is over already
                await super().close()
        finally:
            remove_lock(self._directory, self._session)
            os.close(self._lock)
            os.close(self._writing_lock)

    def _close_writer(self) -> None:
        self._writer.close()  # the last connection moves the log's contents into the file


def _nothing(connection: sqlite3.Connection) -> None:
    """Do nothing but run a transaction."""


def _where_it_is(connection: sqlite3.Connection) -> tuple[int, int]:
    """The numbers of this transaction and of the newest session."""
    row: tuple[int, int] = connection.execute(
        "SELECT last_commit, (SELECT max(first_commit) FROM session) FROM store"
    ).fetchone()
    return row
