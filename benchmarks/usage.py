"""What a measured run used: CPU of broker and client, the machine, the disk. Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 1.0
"""How often processes are looked at that may be gone in the end."""
BUSY = 0.85
"""A thread, or the disk, that is busy for this share of a run is taken for its limit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares of a run: 1.0 is one core (or the disk) for all of it.

    ``*_thread`` is the busiest single thread, ``idle`` what all cores together had left, and
    ``others`` what processes outside of the measurement took, with the kernel's own work.
    """

    broker: float
    broker_thread: float
    client: float
    client_thread: float
    idle: float
    others: float
    disk: float

    @property
    def limit(self) -> str:
        """The resource that held the run back."""
        if self.broker_thread >= BUSY:
            return "broker thread"
        if self.idle <= 0.1 * (os.cpu_count() or 1):
            return "all cores"
        if self.client_thread >= BUSY:
            return "client thread"
        if self.disk >= BUSY:
            return "disk"
        return "waiting"


class Meter:
    """Samples ``/proc`` when created; ``read`` gives the usage since then.

    ``brokers`` are the processes of one side, of which the shares are those of all together;
    ``servers`` are those that both sides use, which are no ``others``.
    """

    def __init__(
        self, brokers: Sequence[int], client: int, data: Path, servers: Sequence[int] = ()
    ) -> None:
        self._sides = (tuple(brokers), (client,), tuple(servers))
        self._device = _device_of(data)
        self._start = time.monotonic()
        self._threads = [_threads_of(pids) for pids in self._sides]
        self._idle = idle_seconds()
        self._disk = _disk_seconds(self._device)

    def read(self) -> Usage:
        elapsed = time.monotonic() - self._start
        shares = []
        for pids, before in zip(self._sides, self._threads, strict=True):
            now = _threads_of(pids)
            spent = [seconds - before.get(thread, 0.0) for thread, seconds in now.items()]
            shares += [sum(spent) / elapsed, max(spent, default=0.0) / elapsed]
        idle = (idle_seconds() - self._idle) / elapsed
        disk = (_disk_seconds(self._device) - self._disk) / elapsed
        others = max(0.0, (os.cpu_count() or 1) - idle - shares[0] - shares[2] - shares[4])
        return Usage(shares[0], shares[1], shares[2], shares[3], idle, others, disk)


def resident_bytes(pid: int) -> int:
    """Resident memory (RSS) of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def with_children(pid: int) -> list[int]:
    """A process, and all that are below it."""
    return list(_tree_ticks(pid))


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far, that of threads which ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def processors_seconds(pids: Iterable[int]) -> float:
    """The same of several processes together."""
    return sum(map(processor_seconds, pids))


def file_system(path: Path) -> str:
    """Type of the file system that holds ``path``."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        inside = str(path.resolve()).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def _threads_of(pids: Iterable[int]) -> dict[str, float]:
    return {thread: seconds for pid in pids for thread, seconds in _thread_seconds(pid).items()}


def _thread_seconds(pid: int) -> dict[str, float]:
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # the thread ended meanwhile
        seconds[task.name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return seconds


def idle_seconds() -> float:
    """Of all processors together, since the machine's start."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICKS


def _device_of(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def _disk_seconds(device: str) -> float:
    stat = Path(f"/sys/dev/block/{device}/stat")
    return int(stat.read_text().split()[9]) / 1000 if stat.exists() else 0.0


class Spent:
    """Processor time of this process and all below it, from now on.

    It is looked at again and again: Spark's Python daemon does not wait for its workers, so that
    what they used is gone with them.
    """

    def __init__(self) -> None:
        self._first = _tree_ticks(os.getpid())
        self._last = dict(self._first)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def seconds(self) -> float:
        """Since it was made, which ends here."""
        self._ended.set()
        self._watcher.join()
        self._last |= _tree_ticks(os.getpid())
        used = sum(ticks - self._first.get(pid, 0) for pid, ticks in self._last.items())
        return used / _TICKS

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._last |= _tree_ticks(os.getpid())


def _tree_ticks(root: int) -> dict[int, int]:
    """User and system time of a process and of all below it that are there."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended meanwhile
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = int(fields[11]) + int(fields[12])
    todo = [root]
    found: dict[int, int] = {}
    while todo:
        pid = todo.pop()
        found[pid] = ticks.get(pid, 0)
        todo += children.get(pid, [])
    return found
