"""The broker's side of a table process: started at the first request, ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsark import errors
from pulsark.errors import ProcessEndedError, SlowSealError, StorageError
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.table.files.record import DataFile, SealedLedger, TableRecord
from pulsark.storage.table.process import pipe
from pulsark.storage.table.process.fair_lock import FairLock
from pulsark.storage.table.process.processors import cpu_seconds
from pulsark.storage.table.process.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from pulsark.storage.table.log.log_content import LogContent
    from pulsark.storage.table.log.log_repair import LogRepair
    from pulsark.storage.table.log.missing_statistics import MissingStatistics

log = logging.getLogger(__name__)

PROGRAM: Final = (
    sys.executable,
    "-c",
    "import os; os.setpgid(0, 0)\nfrom pulsark.storage.table.process.worker import main; main()",
)
"""Its own process group: an interrupt of the terminal is for the broker to handle, also while this
process loads its modules. Not its own session: Linux shares the processors among sessions first,
whatever is nice or idle in them."""

IDLE_SECONDS = 30.0
"""Time without work after which a process ends; the next request starts another one."""

REPLY_SECONDS = 120.0
"""Time to answer, or to take more entries, after which a process is killed."""

REPLY_RATE = 1 << 20
"""Bytes for which it has a second more, if it was told to read them by itself."""

LOOK_SECONDS = 0.1
"""Seconds between two looks at how much of a processor a process has taken."""

DESCRIPTORS: Final = 10
"""More than the start of a process takes."""

KEEPS_MEMORY: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""The environment of a process that seals: what it frees it uses again. While the kernel makes new
pages ready for it, many at a time, no other process has that processor, however patient it is."""


def memory_environment(megabytes: int) -> dict[str, str]:
    """Return the variable that tells a table process how much memory it may take."""
    return {pipe.MEMORY_VARIABLE: str(megabytes)}


Priority = Literal["patient", "normal", "urgent"]
"""How a process shares the processors: it takes what no other process wants, it goes behind
the broker, or, because callers wait for its answers, it gets its share."""

Entries = list[tuple[int, bytes]]
Piece = Entries | JournalExcerpt
"""Entries, or where the process finds them."""

Reply = tuple[dict[str, Any], Entries]


class TableProcess:
    """Requests are answered one after the other. A process that dies fails what it was asked."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: further variables of the process."""
        self._environment = environment or {}
        self.priority: Priority = "normal"
        self.on_refused: Callable[[str, int], None] = lambda table, payloads: None
        """Told of a topic's payloads that have no value because they are beyond the bounds."""
        self._busy = FairLock()
        self._overdue: Process | None = None
        """The process that was ended because it took too long."""
        self.cpu_seconds: Callable[[Process], float | None] = lambda found: cpu_seconds(found.pid)
        """Tells how much time of a processor a process has had so far."""
        self._process: Process | None = None
        self._reads = asyncio.Lock()
        self._asking: asyncio.Task[Reply] | None = None
        """The request that is read to its end; holds ``_reads``."""
        self._loaded: set[str] = set()
        """Kinds of requests for which the process has loaded what they take."""
        self._idle: asyncio.TimerHandle | None = None
        self._used_seconds = 0.0
        """Seconds of a processor that the last request with a limit took."""
        self._restarts = Restarts(_now)
        self._closed = asyncio.Event()

    async def seal(
        self,
        entries: AsyncIterator[Piece],
        partition: int,
        ledger_id: int,
        directories: Sequence[str],
        nonce: str,
        target_bytes: int,
        roots_needed: int,
        values: ValueSchemas | None = None,
        *,
        as_sent: bool = False,
        table: str = "",
        cpu_seconds_max: float | None = None,
        on_lost: Callable[[Mapping[str, int]], None] | None = None,
        on_used: Callable[[float], None] | None = None,
    ) -> list[DataFile]:
        """``seal.seal`` of entries that come in pieces, of the topic ``table``.

        ``on_used`` gets the seconds that it took of a processor, with ``cpu_seconds_max`` only.
        ``on_lost`` gets the number of messages with values that do not fit, by field.
        ``SlowSealError``: it took more than ``cpu_seconds_max`` of a processor.

        ``UnreadableExcerptError``: with entries instead of excerpts it may succeed.
        ``UnsealableError``: with fewer entries, or ``as_sent``.
        """
        request = {
            "op": "seal",
            "partition": partition,
            "ledgerId": ledger_id,
            "directories": list(directories),
            "nonce": nonce,
            "targetBytes": target_bytes,
            "rootsNeeded": roots_needed,
            "values": (values or ValueSchemas()).encode().decode(),
            "asSent": as_sent,
            "table": table,
            "cpuSecondsMax": cpu_seconds_max,
        }
        try:
            document, _ = await self._exchange(request, entries)
        finally:
            # Nothing was awaited since the exchange ended.
            used, self._used_seconds = self._used_seconds, 0.0
            if on_used is not None:
                on_used(used)
        files = [DataFile.from_json(file) for file in _checked(document)["files"]]
        if refused := document.get("refused", 0):
            self.on_refused(table, refused)
        if on_lost is not None:
            on_lost(document["lost"])
        return files

    async def read(
        self,
        directories: Sequence[str],
        ledger: SealedLedger,
        first: int,
        last: int,
        max_bytes: int,
    ) -> Entries:
        """``TableReader.read``."""
        request = {
            "op": "read",
            "directories": list(directories),
            "ledger": ledger.encode().decode(),
            "first": first,
            "last": last,
            "maxBytes": max_bytes,
        }
        document, entries = await self._read_to_its_end(request, "".join(directories[:1]))
        _checked(document)
        return entries

    async def begin(self) -> None:
        """Start the process, and have it load what reading takes, which is most of a second."""
        document, _ = await self._read_to_its_end({"op": "begin", "for": "read"})
        _checked(document)

    async def check(self, directories: Sequence[str], files: Sequence[DataFile]) -> None:
        """``check_files``: every file can be read in each directory that has it."""
        request = {
            "op": "check",
            "directories": list(directories),
            "files": [file.to_json() for file in files],
        }
        document, _ = await self._exchange(request)
        _checked(document)

    async def repair(
        self, directory: str, record: TableRecord, named: Sequence[DataFile]
    ) -> LogRepair:
        """``log_repair``."""
        request = {
            "op": "repair",
            "directory": directory,
            "record": record.encode().decode(),
            "files": [file.to_json() for file in named],
        }
        document, commit = await self._exchange(request)
        from pulsark.storage.table.log.log_repair import LogRepair  # few tables ever need it

        return LogRepair.from_json(_checked(document), commit[0][1])

    async def content(self, directory: str, record: TableRecord) -> LogContent:
        """``log_content``."""
        request = {
            "op": "content",
            "directory": directory,
            "record": record.encode().decode(),
        }
        document, _ = await self._exchange(request)
        from pulsark.storage.table.log.log_content import LogContent  # as above

        return LogContent.from_json(_checked(document))

    async def missing_statistics(self, record: TableRecord, room: int) -> MissingStatistics:
        """``missing_statistics``."""
        request = {"op": "statistics", "record": record.encode().decode(), "room": room}
        document, _ = await self._exchange(request)
        from pulsark.storage.table.log.missing_statistics import MissingStatistics  # as above

        return MissingStatistics.from_json(_checked(document))

    async def checkpoint(self, directories: Sequence[str]) -> list[int | None]:
        """``checkpoint_if_due`` of each directory; ``None`` also where it failed."""
        document, _ = await self._exchange({"op": "checkpoint", "directories": list(directories)})
        return list(_checked(document)["versions"])

    async def make_bases(
        self, directories: Sequence[str], before_ms: int, now_ms: int, least: int
    ) -> list[int | None]:
        """``log_folding``: by directory, the version of which it has a checkpoint now."""
        request = {
            "op": "bases",
            "directories": list(directories),
            "beforeMs": before_ms,
            "nowMs": now_ms,
            "least": least,
        }
        document, _ = await self._exchange(request)
        return list(_checked(document)["versions"])

    async def forget_commits(self, directories: Sequence[str], first: int, most: int) -> bool:
        """``log_folding.forget`` in each directory; whether all that was old is gone."""
        request = {"op": "forget", "directories": list(directories), "first": first, "most": most}
        document, _ = await self._exchange(request)
        return bool(_checked(document)["done"])

    async def forget(self) -> None:
        """End the process once it has nothing to do: what it keeps in memory is gone."""
        async with self._busy.held():
            self._kill()

    async def close(self) -> None:
        """End the process, and start none any more."""
        self._closed.set()
        process = self._process
        if process is not None:
            self._kill()
            await process.wait()
        if self._asking is not None:
            await asyncio.wait([self._asking])

    async def _read_to_its_end(self, request: dict[str, Any], table: str = "") -> Reply:
        """The reply to a request that changes nothing.

        A caller that is cancelled leaves, and the reply is dropped. If the process were killed
        then, a client that hangs up again and again would let all others wait for its next start.
        """
        await self._reads.acquire()
        while self._restarts.due(table) > _now():  # those who read other tables go first
            self._reads.release()
            await self._rested(table)
            await self._reads.acquire()
        self._asking = asyncio.get_running_loop().create_task(
            self._exchange(request, subject=table)
        )
        self._asking.add_done_callback(self._was_asked)
        return await asyncio.shield(self._asking)

    def _was_asked(self, asking: asyncio.Task[Reply]) -> None:
        self._asking = None
        self._reads.release()
        if not asking.cancelled():
            asking.exception()  # the caller has it, unless it left

    async def _exchange(
        self,
        request: dict[str, Any],
        entries: AsyncIterator[Piece] | None = None,
        subject: str = "",
    ) -> Reply:
        """Send a request, and the entries that belong to it; returns the reply."""
        subject = subject or request.get("table", "")
        limit = request.get("cpuSecondsMax")
        async with self._serving(request["op"], subject) as process, self._watched(process, limit):
            seconds = REPLY_SECONDS
            await _send(process, pipe.encode(request), seconds)
            if entries is not None:
                async for piece in entries:
                    await _send(process, encode_piece(piece), seconds)
                    if isinstance(piece, JournalExcerpt):
                        seconds += piece.size / REPLY_RATE
                await _send(process, pipe.encode({"op": "end"}), seconds)
            return await _reply(process, seconds)

    @contextlib.asynccontextmanager
    async def _serving(self, op: str, subject: str) -> AsyncIterator[Process]:
        """A process that waits for a request; killed if the exchange does not come to its end."""
        async with self._busy.held(subject.rpartition("/")[0]):
            if self._idle is not None:
                self._idle.cancel()
            process = await self._started(op, subject)
            try:
                yield process
            except (OSError, EOFError, TimeoutError) as e:
                self._kill()
                if self._overdue is process:  # That says nothing of the next one.
                    raise SlowSealError("sealing took too much time of a processor") from None
                self._restarts.failed(subject)
                raise ProcessEndedError(f"the table process ended: {e!r}") from None
            except BaseException:
                # An exchange that was broken off, for instance because an entry cannot be read,
                # leaves a reply that no caller expects. An error that is a reply is none here.
                self._kill()
                raise
            self._restarts.answered(subject)
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._kill)

    @contextlib.asynccontextmanager
    async def _watched(self, process: Process, limit: float | None) -> AsyncIterator[None]:
        """Kill a process that takes more than ``limit`` seconds of a processor meanwhile.

        Where the system does not tell, the time that passes counts.
        """
        if limit is None:
            yield
            return
        loop = asyncio.get_running_loop()
        begun, had_before = loop.time(), self.cpu_seconds(process)
        timer: asyncio.TimerHandle

        def used() -> float:
            had = self.cpu_seconds(process)
            if had is not None and had_before is not None:
                return had - had_before
            return loop.time() - begun

        def look() -> None:
            nonlocal timer
            if used() > limit:
                self._overdue = process
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            else:
                timer = loop.call_later(LOOK_SECONDS, look)

        timer = loop.call_later(LOOK_SECONDS, look)
        try:
            yield
        finally:
            timer.cancel()
            self._used_seconds = used()

    async def _started(self, op: str, subject: str) -> Process:
        self._check_open()
        process = self._process
        if process is None or process.returncode is not None:
            await self._rested(subject)
            try:
                _check_descriptors()
                process = self._process = await asyncio.create_subprocess_exec(
                    *PROGRAM, self.priority,
                    stdin=PIPE, stdout=PIPE,
                    env={
                        **os.environ,
                        **self._environment,
                        **({} if self.priority == "urgent" else KEEPS_MEMORY),
                    },
                )  # fmt: skip
            except OSError as e:  # no memory for it, or no free descriptor
                raise StorageError(f"cannot start a table process: {e}") from e
            self._loaded = {"begin"}
            if self._closed.is_set():
                self._kill()
                self._check_open()
        if op not in self._loaded:  # what that takes is not the request's
            await self._load(process, op, subject)
            self._loaded.add(op)
        return process

    async def _load(self, process: Process, op: str, subject: str) -> None:
        """Let a process load what a request takes: if it ends meanwhile, that is not why."""
        try:
            await _send(process, pipe.encode({"op": "begin", "for": op}), REPLY_SECONDS)
            document, _ = await _reply(process, REPLY_SECONDS)
            _checked(document)
        except (OSError, EOFError, TimeoutError, StorageError) as e:
            self._restarts.failed(subject)
            self._kill()
            raise StorageError(f"a table process ended before it was ready: {e!r}") from None
        except BaseException:
            self._kill()
            raise

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StorageError("the broker is closing")

    async def _rested(self, subject: str) -> None:
        """Return once a process may be started.

        The time counts whoever waits, so that one who does not wait for all of it is of use.
        """
        if (due := self._restarts.due(subject)) > _now():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._closed.wait()
            self._check_open()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _check_descriptors() -> None:
    """``OSError`` if there are too few: uvloop never closes those that it had before the last."""
    with contextlib.ExitStack() as taken:
        for _ in range(DESCRIPTORS):
            taken.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def encode_piece(piece: Piece) -> bytes:
    """The message with entries, or with where they are."""
    if isinstance(piece, JournalExcerpt):
        return pipe.encode({"op": "excerpt", **piece.to_json()})
    return pipe.encode({"op": "entries"}, piece)


async def _send(process: Process, message: bytes, seconds: float) -> None:
    assert process.stdin is not None
    process.stdin.write(message)
    async with asyncio.timeout(seconds):
        await process.stdin.drain()


async def _reply(process: Process, seconds: float) -> Reply:
    assert process.stdout is not None
    async with asyncio.timeout(seconds):
        return await pipe.receive(process.stdout)


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    """A reply that is no error, or the error raised."""
    if "error" not in document:
        return document
    kind = getattr(errors, document["error"], StorageError)
    if not issubclass(kind, StorageError):
        kind = StorageError
    raise kind(document["message"])
