"""The table process: seals and reads for a broker, which has neither pyarrow nor the time.

Its argument is its priority. Requests come on standard input and are answered on standard output,
one after the other, as ``pipe`` says. It ends when its input does.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

from pulsark.errors import PulsarkError, StorageError
from pulsark.log_format import start_logging
from pulsark.runtime import Disk, OsDisk
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.roots.any_root import files_here
from pulsark.storage.table.files.record import DataFile, SealedLedger, TableRecord
from pulsark.storage.table.log.log_content import log_content
from pulsark.storage.table.log.log_repair import log_repair
from pulsark.storage.table.process import pipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.process.block_cache import Blocks
    from pulsark.storage.table.process.pipe import BlockingReader

log = logging.getLogger(__name__)

NICENESS = 10
"""The niceness of a process that is not urgent: publishing goes before sealing."""

Reply = tuple[dict[str, Any], list[tuple[int, bytes]]]


class TableWorker:
    """Answers requests."""

    def __init__(self, journals: Disk, files: RootFiles | None = None) -> None:
        """``files``: those of storage roots, if these are not all on the disk of the journals."""
        self._journals = journals
        self._disk: RootFiles = files or journals
        self._readers: dict[tuple[str, ...], Any] = {}
        self._groups: Blocks[str] | None = None
        self._ahead = ThreadPoolExecutor(1, "read-ahead")

    def answer(self, request: dict[str, Any], stream: BlockingReader) -> Reply:
        """The reply to a request; an error is one, too."""
        try:
            return self._do(request, stream)
        except PulsarkError as e:
            return {"error": type(e).__name__, "message": str(e)}, []
        except OSError as e:
            full = e.errno in (errno.ENOSPC, errno.EDQUOT)
            return {"error": "StorageFullError" if full else "StorageError", "message": str(e)}, []
        except Exception as e:
            log.warning("a request to %s failed", request.get("op"), exc_info=True)
            kind = "UnsealableError" if request.get("op") == "seal" else "StorageError"
            return {"error": kind, "message": f"a defect of Pulsark: {e!r}"}, []

    def _do(self, request: dict[str, Any], stream: BlockingReader) -> Reply:
        match request["op"]:
            case "seal":
                return self._seal(request, stream)
            case "begin":
                return self._begin(request["for"])
            case "read":
                return self._read(request)
            case "check":
                return self._check(request)
            case "checkpoint":
                return self._checkpoint(request)
            case "bases":
                return self._bases(request)
            case "forget":
                return self._forget_commits(request)
            case "repair":
                return self._repair(request)
            case "statistics":
                return self._statistics(request)
            case "content":
                record = TableRecord.decode("the request", request["record"].encode())
                return log_content(self._disk, request["directory"], record).to_json(), []
            case op:
                raise StorageError(f"unknown request {op!r}")

    def _seal(self, request: dict[str, Any], stream: BlockingReader) -> Reply:
        from pulsark.storage.table.files.seal import seal

        pieces = _pieces(stream)
        refused: list[int] = []
        lost: Counter[str] = Counter()
        entries = chain.from_iterable(_entries_of(*piece, self._journals) for piece in pieces)
        try:
            files = seal(
                entries,
                request["partition"],
                request["ledgerId"],
                request["directories"],
                self._disk,
                request["nonce"],
                target_bytes=request["targetBytes"],
                roots_needed=request["rootsNeeded"],
                values=ValueSchemas.decode(request["values"]),
                as_sent=request.get("asSent", False),
                on_refused=refused.append,
                lost=lost,
            )
        finally:
            for _ in pieces:
                pass  # what is still on its way is not the next request
        return {
            "files": [file.to_json() for file in files],
            "refused": sum(refused),
            "lost": lost,
        }, []

    def _begin(self, op: str) -> Reply:
        """Load what requests take, before the first one comes."""
        if op == "seal":
            import cramjam  # noqa: F401
            import lz4.block  # noqa: F401
            import pyarrow as pa

            import pulsark.storage.table.files.seal

            pa.array(())  # looks for pandas, whose import takes as long as sealing a megabyte
        elif op == "read":
            import pulsark.storage.table.process.reader  # noqa: F401
        return {}, []

    def _read(self, request: dict[str, Any]) -> Reply:
        from pulsark.storage.table.process.reader import TableReader, row_groups

        if self._groups is None:
            self._groups = row_groups()
        directories = tuple(request["directories"])
        reader = self._readers.get(directories)
        if reader is None:
            reader = self._readers[directories] = TableReader(
                directories, self._disk, self._ahead, self._groups
            )
            while len(self._readers) > READERS_MAX:
                self._readers.pop(next(iter(self._readers))).close()
        ledger = SealedLedger.decode("the request", request["ledger"].encode())
        found = reader.read(ledger, request["first"], request["last"], request["maxBytes"])
        return {}, found

    def _check(self, request: dict[str, Any]) -> Reply:
        from pulsark.storage.table.process.reader import check_files

        files = [DataFile.from_json(file) for file in request["files"]]
        check_files(self._disk, request["directories"], files)
        return {}, []

    def _bases(self, request: dict[str, Any]) -> Reply:
        from deltalake.exceptions import DeltaError

        from pulsark.storage.table.log.folding import base_due, make_base

        version: int | None = None
        made = []
        for directory in request["directories"]:
            try:
                if version is None:
                    version = base_due(
                        self._disk,
                        directory,
                        request["beforeMs"],
                        request["nowMs"],
                        request["least"],
                    )
                if version is not None:
                    make_base(self._disk, directory, version)
                made.append(version)
            except (OSError, DeltaError, StorageError) as e:
                log.warning("%s: cannot fold its log yet: %s", directory, e)
                made.append(None)
        return {"versions": made}, []

    def _forget_commits(self, request: dict[str, Any]) -> Reply:
        from pulsark.storage.table.log.folding import forget

        done = True
        for directory in request["directories"]:
            try:
                done &= forget(self._disk, directory, request["first"], request["most"])
            except OSError as e:
                log.warning("%s: cannot delete old commits yet: %s", directory, e)
        return {"done": done}, []

    def _repair(self, request: dict[str, Any]) -> Reply:
        record = TableRecord.decode("the request", request["record"].encode())
        named = [DataFile.from_json(file) for file in request["files"]]
        found = log_repair(self._disk, request["directory"], record, named)
        return found.to_json(), [(0, found.commit)]

    def _statistics(self, request: dict[str, Any]) -> Reply:
        from pulsark.storage.table.log.missing_statistics import missing_statistics

        record = TableRecord.decode("the request", request["record"].encode())
        return missing_statistics(self._disk, record, request["room"]).to_json(), []

    def _checkpoint(self, request: dict[str, Any]) -> Reply:
        from deltalake.exceptions import DeltaError

        from pulsark.storage.table.log.checkpoint import checkpoint_if_due

        written = []
        for directory in request["directories"]:
            try:
                written.append(checkpoint_if_due(self._disk, directory))
            except (OSError, DeltaError) as e:
                log.warning("%s: cannot write the checkpoint of its log yet: %s", directory, e)
                written.append(None)
        return {"versions": written}, []


READERS_MAX = 64
"""Tables that are kept open."""


def _pieces(stream: BlockingReader) -> Iterator[pipe.Message]:
    """Messages until the sender says that these were all; ``StorageError`` if it is gone."""
    while (message := pipe.read(stream)) is not None:
        if message[0]["op"] == "end":
            return
        yield message
    raise StorageError("the broker is gone")


def _entries_of(
    document: dict[str, Any], entries: list[tuple[int, bytes]], disk: Disk
) -> Iterable[tuple[int, bytes]]:
    """What came with a message, or lies where it says."""
    if document["op"] == "excerpt":
        return JournalExcerpt.from_json(document).entries(disk)
    return entries


def take_place(priority: str) -> None:
    """Share the processors as the priority says, where the system has that: a sandbox may not."""
    with contextlib.suppress(OSError):
        if priority != "urgent":
            os.nice(NICENESS)
        if priority == "patient" and sys.platform == "linux":
            # Others that wake up have the processor at once, and not after a few milliseconds.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def limit_memory(megabytes: int) -> None:
    """Let allocations beyond a limit fail, and the kernel end this process before any other.

    The limit is for data: libraries reserve far more addresses than they use.
    """
    wanted = megabytes << 20
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or wanted < most:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def main() -> None:
    """Serve standard input."""
    start_logging("WARNING", "text")
    take_place(sys.argv[1])
    if pipe.MEMORY_VARIABLE in os.environ:
        limit_memory(int(os.environ[pipe.MEMORY_VARIABLE]))
    replies = sys.stdout.buffer
    sys.stdout = sys.stderr
    worker = TableWorker(OsDisk(), files_here(os.environ))
    while (message := pipe.read(sys.stdin.buffer)) is not None:
        reply = worker.answer(message[0], sys.stdin.buffer)
        try:
            replies.write(pipe.encode(*reply))
            replies.flush()
        except BrokenPipeError:
            return
