"""Time, disk, threads and randomness, injected.

Nothing else in the package may call ``time``, ``random``, ``os.fsync`` or ``os.rename``
(ruff enforces it), so the whole system also runs under simulation, where ``tests/sim``
supplies the other implementation of these protocols. Timers come from the running event
loop; simulation supplies a loop in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import queue
import random
import resource
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Done = Callable[[BaseException | None], None]
Piece = bytes | memoryview


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is measured."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch. May step backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes backwards."""


class AppendFile(Protocol):
    """A file that only grows. One owner; calls are made from one thread at a time."""

    def writev(self, buffers: Sequence[Piece]) -> None:
        """Append all buffers, completely, or raise ``OSError``."""

    def sync(self) -> None:
        """Return once everything written is on stable storage (``fdatasync``)."""

    def close(self) -> None:
        """Release the descriptor, without a sync."""


class ReadFile(Protocol):
    """A file opened for positioned reads; may be read from any thread."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; shorter only at the end of the file."""

    def uncache(self) -> None:
        """Nobody reads it soon: what is on stable storage need not be in memory, too."""

    def close(self) -> None:
        """Release the descriptor."""


class Disk(Protocol):
    """The file system. All calls block; paths are absolute or relative to the process."""

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, durably, also where they exist already."""

    def sync_names(self, path: str) -> None:
        """Make the names in a directory durable that an earlier process may not have synced."""

    def create(self, path: str) -> AppendFile:
        """Create a new file (it must not exist) and make its name durable."""

    def open(self, path: str) -> ReadFile:
        """Open an existing file for reading.

        Raises ``OSError`` for a device, a pipe or another thing that is not a plain file, and
        never waits for one.
        """

    def open_below(self, top: str, name: str) -> ReadFile:
        """Open an existing file below a directory for reading.

        Raises ``OSError`` if a component of ``name`` is a link or ``..``, or if the file is a
        device, a pipe or another thing that is not a plain file.
        """

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory does not exist."""

    def size(self, path: str) -> int:
        """Length of a file in bytes; raises ``FileNotFoundError``."""

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file as a whole: temporary file, sync, rename, sync of the directory."""

    def write_hint(self, path: str, data: bytes) -> None:
        """Write a small file in place, without a sync: a crash may leave a mix of contents."""

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file as a whole under a name that must not exist: ``FileExistsError``.

        Temporary file (``*.tmp``), sync, link, sync of the directory. Of several that write one
        name at the same time, one succeeds.
        """

    def link(self, path: str, name: str) -> None:
        """Give a file a second name, durably, that must not exist: ``FileExistsError``."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes, durably."""

    def write_again(self, path: str, start: int) -> None:
        """Write in place what the file holds from ``start`` on, and make it durable.

        What a process that was killed had not synced can be read although a power failure would
        take it. After a sync that failed not even another sync changes that: the pages count as
        clean.
        """

    def remove(self, path: str) -> None:
        """Unlink a file durably; it is no error if it does not exist."""

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it is there and empty. After a power failure it may be back."""

    def space(self, path: str) -> tuple[int, int]:
        """``(free, total)`` bytes of the file system that holds ``path``.

        Where files can hardly be made any more, little is free.
        """


class Worker(Protocol):
    """Runs blocking jobs off the event loop, one after the other, in order of submission."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run ``job`` elsewhere; then call ``done(result, error)`` on the event loop."""

    def end(self) -> None:
        """Run what was submitted, then stop. Does not wait for it."""

    def close(self) -> None:
        """The same, and block until the worker has ended: not while the broker serves clients."""


def new_done() -> tuple[asyncio.Future[None], Done]:
    """A future, and a callback that decides it; nothing happens if it is decided already."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done


async def run_in_worker(worker: Worker, job: Callable[[], T]) -> T:
    """Await a job on a worker."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    worker.submit(job, partial(_decide, future))
    try:
        return await future
    finally:
        del future  # else an error's traceback, which has this frame, and it would keep each other


def _decide(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


class SureClock:
    """How late it certainly is, for what goes because it is old.

    The wall clock may be put forward or back at any time. What is stored has a time of the wall
    clock; it is taken to be old only if it is so by the wall clock of now *and* by the one that the
    process began with, as far as the monotonic clock has counted since.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms() - int(clock.monotonic() * 1000)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by whichever of the two says less."""
        return min(self._clock.now_ms(), self._start_ms + int(self._clock.monotonic() * 1000))


_IOV_MAX = 1024
_WRITE_AGAIN_BYTES = 1 << 20


class _OsAppendFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writev(self, buffers: Sequence[Piece]) -> None:
        for start in range(0, len(buffers), _IOV_MAX):
            self._write_all(list(buffers[start : start + _IOV_MAX]))

    def _write_all(self, pieces: list[Piece]) -> None:
        wanted = sum(map(len, pieces))
        written = os.writev(self._fd, pieces)
        if written == wanted:
            return
        # A short write happens on a full disk or at 2 GiB: go on to learn the reason.
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            written = os.write(self._fd, rest)
            if written == 0:
                raise OSError(errno.ENOSPC, "no progress in write")
            rest = rest[written:]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class _OsReadFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def uncache(self) -> None:
        if sys.platform == "linux":
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)


BYTES_PER_INODE = 1 << 20
"""A file that can still be made counts as so many: a reserve of bytes is one of files, too."""


class OsDisk:
    """The operating system's files."""

    def make_dirs(self, path: str) -> None:
        path = os.path.abspath(path)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        # Whoever made this one may have been killed before the sync. A parent that must not be
        # read, or is on a file system without syncs because nothing is written there, is not one
        # in which this program makes directories.
        try:
            self._sync_dir(os.path.dirname(path))
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise
        for directory in reversed(missing):
            os.makedirs(directory, exist_ok=True)
            self._sync_dir(os.path.dirname(directory))

    def sync_names(self, path: str) -> None:
        self._sync_dir(path)

    def create(self, path: str) -> AppendFile:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._sync_dir(os.path.dirname(path))
        return _OsAppendFile(fd)

    def open(self, path: str) -> ReadFile:
        return _OsReadFile(_opened_plain(path, os.O_RDONLY))

    def open_below(self, top: str, name: str) -> ReadFile:
        *directories, last = name.split("/")
        found = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for each in directories:
                found = _opened_in(found, each, os.O_DIRECTORY)
            found = _opened_in(found, last, os.O_NONBLOCK)  # a pipe must not wait for a writer
            _check_plain(found)
        except OSError as error:
            os.close(found)
            error.filename = f"{top}/{name}"
            raise
        return _OsReadFile(found)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        try:
            self._write_file(temporary, data)
        except OSError:
            with contextlib.suppress(OSError):  # a part of it would keep a full disk full
                os.unlink(temporary)
            raise
        os.rename(temporary, path)
        self._sync_dir(os.path.dirname(path))

    def write_hint(self, path: str, data: bytes) -> None:
        fd = _opened_plain(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)

    def write_new(self, path: str, data: bytes) -> None:
        # Others may be writing the same name: each has a temporary file of its own.
        temporary = f"{path}.{os.urandom(8).hex()}.tmp"
        try:
            self._write_file(temporary, data)
            os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self._sync_dir(os.path.dirname(path))

    def link(self, path: str, name: str) -> None:
        os.link(path, name)
        self._sync_dir(os.path.dirname(name))

    def truncate(self, path: str, size: int) -> None:
        fd = _opened_plain(path, os.O_WRONLY)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_again(self, path: str, start: int) -> None:
        fd = _opened_plain(path, os.O_RDWR)
        try:
            while piece := os.pread(fd, _WRITE_AGAIN_BYTES, start):
                start += os.pwrite(fd, piece, start)
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        self._sync_dir(os.path.dirname(path))

    def remove_dir(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def space(self, path: str) -> tuple[int, int]:
        usage = os.statvfs(path)
        free = usage.f_bavail * usage.f_frsize
        if usage.f_files:  # not every file system has a number of inodes
            free = min(free, usage.f_favail * BYTES_PER_INODE)
        return free, usage.f_blocks * usage.f_frsize

    @staticmethod
    def _write_file(path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def _sync_dir(path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _opened_plain(path: str, flags: int) -> int:
    """Open a plain file. Without ``O_NONBLOCK`` a pipe would wait for its other end."""
    try:
        found = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, _NO_PLAIN_FILE, path) from None
        raise
    try:
        _check_plain(found)
    except OSError as error:
        os.close(found)
        error.filename = path
        raise
    return found


_NO_PLAIN_FILE = "not a plain file; move it away, and put the file itself there"


def _check_plain(fd: int) -> None:
    """Raise ``OSError`` if an open file is a device, a pipe or a directory."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, _NO_PLAIN_FILE)


def _opened_in(directory: int, name: str, flags: int) -> int:
    """Open a name in an open directory, which is closed if that succeeds."""
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "not a name in a directory")
    found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=directory)
    os.close(directory)
    return found


_CAUSES_MAX = 10


class ThreadWorker:
    """A worker with one daemon thread. Must be created on the running event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[..., None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._jobs.put((job, done))

    def end(self) -> None:
        self._jobs.put(None)

    def close(self) -> None:
        self.end()
        self._thread.join()

    def _run(self) -> None:
        while self._do(self._jobs.get()):
            pass

    def _do(self, item: tuple[Callable[[], Any], Callable[..., None]] | None) -> bool:
        """Do a job, and keep nothing of it."""
        if item is None:
            return False
        job, done = item
        try:
            self._loop.call_soon_threadsafe(done, *_outcome(job))
        except RuntimeError:
            return False  # the loop is closed: nobody waits for the result any more
        return True


def _outcome(job: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return job(), None
    except BaseException as error:  # noqa: BLE001 - the event loop decides
        _forget_variables(error)
        return None, error


def _forget_variables(error: BaseException) -> None:
    """Let go of what a job that has failed had in its hands: its error may live for long."""
    following: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if following is None:
            return
        traceback.clear_frames(following.__traceback__)
        following = following.__context__


_DESCRIPTORS_MAX = 1 << 20


def raise_descriptor_limit() -> None:
    """Let the process open as many files as the system allows it. Children inherit that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a system may have a lower one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """Return how many files the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, _DESCRIPTORS_MAX)


SWITCH_INTERVAL_SECONDS = 50e-6


def hand_over_promptly() -> None:
    """Let a worker have the interpreter lock soon although the event loop is busy.

    CPython asks the holder for the lock only after a switch interval in which nobody released
    it. uvloop releases it between callbacks, too briefly for a waiting thread to win it, and
    that starts the wait anew: with the default of 5 ms and callbacks of 30 to 50 us, a worker
    that had finished a sync waited for up to a second. The interval must be below what a busy
    loop's callbacks take. Call once, where the process starts.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


GC_THRESHOLDS = (20_000, 5, 1_000_000)
"""Net allocations between two searches of the youngest objects: a pause of 2 ms. Of every fifth
one they are those of the last five. All objects are never searched because of a number."""


def collect_rarely() -> None:
    """Make the search for reference cycles short and rare: it took 9 % of a busy broker's time.

    Entries, connections and what surrounds them are freed by counting references. Call once
    everything is imported; ``collect`` searches all that came after that.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def collect() -> None:
    """Search all objects for cycles, which takes half a microsecond each.

    What is free between others goes back to the system, too: of itself the C library gives back
    only the end of its heap.
    """
    import ctypes  # most brokers never come here

    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return
    trim(0)


def resident_bytes() -> int:
    """Memory of this process; where the system does not tell, the most it ever was."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stop_this_process() -> None:
    """Stop this process in order, as whoever has started it would."""
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a process is given instead of the operating system."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=OsDisk)
    rng: random.Random = field(default_factory=random.SystemRandom)
    new_worker: Callable[[str], Worker] = ThreadWorker
    stop_process: Callable[[], None] = stop_this_process
    sure_clock: SureClock = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sure_clock", SureClock(self.clock))
