"""The embedded metadata store: one SQLite file, one process.

Reads run on the event loop, and take a few microseconds from the page cache. Writes run in a
worker, so the loop never waits for the disk. Writes that are requested during a transaction share
the next one and its sync. SQLite uses a write-ahead log with ``synchronous=FULL``: a write that
returned survives a power cut. ``sqlite_tidying`` keeps the files small. ``sqlite_shared`` is the
store of several processes on one file.

A node is a row ``(parent, name)``. Parents have rows without a value, so the children of a path are
one range of the primary key. A checksum covers a value, its path and its version. The caller holds
the lock of the data directory: a second process on the same file would end this one's session.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.changes import Change, Check, check_changes
from pulsark.metadata.history import NONCE_BITS
from pulsark.metadata.session import Session
from pulsark.metadata.single_writes import SingleWrites
from pulsark.metadata.sqlite_file import (
    BUSY_MILLISECONDS,
    cannot_open,
    connect,
    empty_log,
    open_file,
    read_history,
    write_history,
)
from pulsark.metadata.sqlite_sessions import check_alone
from pulsark.metadata.sqlite_tidying import STEP_SECONDS, TIDY_SECONDS, tidy
from pulsark.metadata.sqlite_writes import (
    GET,
    Operation,
    checked,
    commit,
    end_sessions,
    next_id,
    transaction,
)
from pulsark.metadata.store import (
    Versioned,
    check_page,
    check_parent,
    split_path,
)
from pulsark.metadata.watches import Watches
from pulsark.runtime import Runtime, Worker, run_in_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 30.0

_CHILDREN_AT_ONCE = 4000
"""Names read in one turn of the event loop: a few milliseconds."""
_CHILDREN = "SELECT name FROM node WHERE parent = ? AND name > ? ORDER BY name LIMIT ?"


@dataclass(slots=True)
class _Request:
    operation: Operation
    future: asyncio.Future[Any]
    since: float
    """Time of the event loop."""
    changed: Sequence[str]
    """Paths that whoever watches them is told of."""


class SqliteMetadataStore(SingleWrites):
    """See ``open``."""

    def __init__(
        self,
        reader: sqlite3.Connection,
        writer: sqlite3.Connection,
        worker: Worker,
        runtime: Runtime,
        timeout_seconds: float,
    ):
        self._reader = reader
        self._writer = writer
        self._worker = worker
        self._runtime = runtime
        self.identity, self._history = read_history(reader)
        self._session = self._history.sessions[-1].first_commit
        """The number of this session, which marks its ephemeral values."""
        self.session = Session(runtime.clock)
        self._watches = Watches()
        self._listeners: list[Callable[[int], None]] = []
        self._waiting: list[_Request] = []
        self._writing: list[_Request] = []
        self._look: asyncio.TimerHandle | None = None
        """The timer that checks for overdue writes."""
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._tidying: asyncio.TimerHandle | None = None
        self._tidy_in(TIDY_SECONDS)

    @classmethod
    async def open(
        cls,
        path: str,
        runtime: Runtime,
        *,
        accept_loss: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> SqliteMetadataStore:
        """Open or create the file, and end the session before.

        ``MetadataError`` if the file is damaged, of a newer release, or not a metadata store. With
        ``accept_loss`` a damaged write-ahead log is not an error. A write has an outcome within
        about ``timeout_seconds``.
        """
        worker = runtime.new_worker("metadata")
        identity = f"{runtime.rng.getrandbits(128):032x}"
        nonce = runtime.rng.getrandbits(NONCE_BITS)

        def open_writer() -> sqlite3.Connection:
            check_alone(path)
            writer = open_file(path, identity, runtime.clock, accept_loss=accept_loss)
            try:
                _, history = read_history(writer)
                history = history.with_session(nonce)
                begin = partial(write_history, history=history)
                transaction(writer, [begin, end_sessions])
            except BaseException:
                writer.close()
                raise
            return writer

        try:
            writer = await run_in_worker(worker, open_writer)
        except BaseException as e:
            worker.close()
            if isinstance(e, sqlite3.Error):
                raise cannot_open(path, e) from e
            raise
        try:
            return cls(connect(path), writer, worker, runtime, timeout_seconds)
        except BaseException as e:
            await run_in_worker(worker, writer.close)
            worker.close()
            if isinstance(e, sqlite3.Error):
                raise cannot_open(path, e) from e
            raise

    @property
    def mark(self) -> int:
        return self._history.mark

    def knows(self, mark: int) -> bool:
        return self._history.knows(mark)

    def on_commit(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    async def adopt(self, marks: Iterable[int]) -> None:
        nonce = self._runtime.rng.getrandbits(NONCE_BITS)
        history = self._history.with_session(nonce, marks)
        await self._write(lambda connection: write_history(connection, history))
        self._history = history

    async def get(self, path: str) -> Versioned | None:
        parent, name = split_path(path)
        row = self._read(GET, (parent, name)).fetchone()
        return None if row is None else Versioned(*checked(path, row)[:2])

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        check_changes(changes)
        changed = [change.path for change in changes if not isinstance(change, Check)]
        versions: list[int] = await self._write(self._commit(changes), changed)
        return versions

    def _commit(self, changes: Sequence[Change]) -> Operation:
        return lambda connection: commit(connection, changes, self._session)

    async def children(self, path: str) -> list[str]:
        check_parent(path)
        found: list[str] = []
        rows = self._read(_CHILDREN, (path, "", _CHILDREN_AT_ONCE)).fetchall()
        while rows:
            found += [name for (name,) in rows]
            if len(rows) < _CHILDREN_AT_ONCE:
                break
            await asyncio.sleep(0)  # names that are added or removed meanwhile may be missed
            rows = self._read(_CHILDREN, (path, found[-1], _CHILDREN_AT_ONCE)).fetchall()
        return found

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        check_page(path, limit)
        return [name for (name,) in self._read(_CHILDREN, (path, after, limit))]

    async def next_id(self, path: str) -> int:
        split_path(path)
        number: int = await self._write(lambda connection: next_id(connection, path, self._session))
        return number

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        check_parent(prefix)
        return self._watches.add(prefix, changed, missed)

    async def close(self) -> None:
        if self._closed:
            return
        closing = self._write(self._end)
        self._closed = True
        try:
            await closing
        except MetadataError as e:  # the next session ends this one
            log.warning("cannot end the session of the metadata store in order: %s", e)
        finally:
            if self._look is not None:
                self._look.cancel()
            if self._tidying is not None:
                self._tidying.cancel()
            self.session.end()
            self._reader.close()
            await run_in_worker(self._worker, self._close_writer)
            self._worker.close()

    def _read(self, statement: str, parameters: tuple[str | int, ...]) -> sqlite3.Cursor:
        if self._closed:
            raise MetadataRefusedError("the metadata store is closed")
        try:
            return self._reader.execute(statement, parameters)
        except sqlite3.Error as e:
            raise MetadataError(f"the metadata store failed: {e}") from e

    def _write(self, operation: Operation, changed: Sequence[str] = ()) -> asyncio.Future[Any]:
        if self._closed:
            raise MetadataRefusedError("the metadata store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Request(operation, future, loop.time(), changed))
        self._start_writing()
        return future

    def _start_writing(self) -> None:
        if self._writing or not self._waiting:
            return
        self._writing, self._waiting = self._waiting, []
        operations = [request.operation for request in self._writing]
        self._worker.submit(partial(self._transact, operations), self._written)
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(self._timeout_seconds / 4, self._look_at_times)

    def _look_at_times(self) -> None:
        """Give up writes that take too long."""
        self._look = None
        if not self._writing:
            return
        loop = asyncio.get_running_loop()
        late = loop.time() - self._timeout_seconds
        trouble = f"the metadata store has not answered for {self._timeout_seconds:g} s"
        for request in self._writing:
            if request.since <= late and not request.future.done():
                request.future.set_exception(OutcomeUnknownError(trouble))
        for request in self._waiting:
            if request.since <= late and not request.future.done():
                request.future.set_exception(
                    MetadataRefusedError(f"{trouble}; nothing was written")
                )
        self._waiting = [request for request in self._waiting if request.since > late]
        self._look = loop.call_later(self._timeout_seconds / 4, self._look_at_times)

    def _written(self, results: list[Any] | None, error: BaseException | None) -> None:
        requests, self._writing = self._writing, []
        if results is not None:
            self._committed(results)
            self._tidy_in(TIDY_SECONDS)
        for index, request in enumerate(requests):
            if results is None:
                outcome = error or OutcomeUnknownError("the metadata store failed")
            else:
                outcome = results[index]
            self._answer(request, outcome)
        self._start_writing()

    def _answer(self, request: _Request, outcome: Any) -> None:
        future, failed = request.future, isinstance(outcome, BaseException)
        if future.done():
            pass  # cancelled, or told that it took too long, but made all the same
        elif failed:
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        if not failed:
            for path in request.changed:
                self._watches.tell(path)

    def _transact(self, operations: list[Operation]) -> list[Any]:
        return transaction(self._writer, operations)

    def _tidy_in(self, seconds: float) -> None:
        """Tidy the files after this time, unless that is to happen already."""
        if self._tidying is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._tidying = loop.call_later(seconds, self._worker.submit, self._tidy, self._tidied)

    def _tidy(self) -> bool:
        return tidy(self._writer, BUSY_MILLISECONDS)

    def _tidied(self, done: bool | None, error: BaseException | None) -> None:
        self._tidying = None
        if error is not None:  # the disk is full, for example
            self._tidy_in(TIDY_SECONDS)
        elif not done:
            self._tidy_in(STEP_SECONDS)

    def _end(self, connection: sqlite3.Connection) -> None:
        end_sessions(connection)

    def _committed(self, results: list[Any]) -> None:
        """Count the transaction before its changes become visible."""
        history = self._history
        self._history = history.at(history.last_commit + 1)
        self._tell_mark()

    def _close_writer(self) -> None:
        try:
            empty_log(self._writer)
        except sqlite3.Error as e:  # what the log has is durable where it is
            log.warning("cannot empty the log of the metadata store: %s", e)
        finally:
            self._writer.close()

    def _tell_mark(self) -> None:
        for listener in self._listeners:
            listener(self._history.mark)
