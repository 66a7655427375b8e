"""A simulated disk: a page cache over stable storage.

Model. A file has the bytes of the page cache, which every reader sees, and those on stable
storage; what was written and not synced is *dirty*. A directory has its current names and those
that are on stable storage. Every change is a *step*: ``create``, ``write``, ``sync``, ``rename``,
``link``, ``unlink``, ``truncate``, ``mkdir``, ``syncdir``. ``crash_at = n`` lets the process die
just before step ``n``, so trying every ``n`` puts a crash between any two steps. The dead disk
refuses all further calls; ``after_crash`` gives the disk that the next process finds, where of the
unsynced changes

* ``none`` survived (power failed, caches were lost),
* ``all`` survived (the process was killed, the system lives on): the page cache is as it was, but
  what was not synced still is not, and a power failure later may lose it, or
* a ``random`` part survived (power failed): each 512-byte sector and each change of a name by
  itself. A lost sector before the end of the file reads as zeros. A sector that already held
  synced bytes keeps those.

A failed sync leaves the bytes readable and clean: later syncs succeed, yet those bytes are not on
stable storage unless they are written again, which is what Linux does after an I/O error.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.sim.loop import SimulatedCrash

SECTOR = 512
Survival = Literal["none", "all", "random"]
SURVIVALS: tuple[Survival, ...] = ("none", "all", "random")


@dataclass
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    """The page cache."""
    stable: bytearray = field(default_factory=bytearray)
    """What is on stable storage."""
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of ``data`` that a sync would write."""
    cut_to: int | None = None
    """Length to which the file was truncated since it was synced."""

    @classmethod
    def of(cls, content: bytes) -> _Inode:
        return cls(bytearray(content), bytearray(content))

    def append(self, content: bytes) -> None:
        self.dirty.append((len(self.data), len(self.data) + len(content)))
        self.data.extend(content)

    def sync(self) -> None:
        if self.cut_to is not None:
            del self.stable[self.cut_to :]
        self.stable.extend(bytes(len(self.data) - len(self.stable)))
        for start, end in self.dirty:
            self.stable[start:end] = self.data[start:end]
        self.forget_dirty()

    def forget_dirty(self) -> None:
        self.dirty, self.cut_to = [], None

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self.cut_to = size if self.cut_to is None else min(size, self.cut_to)
            self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]
            del self.data[size:]
        else:
            self.append(bytes(size - len(self.data)))

    def survivor(self, survival: Survival, rng: random.Random) -> _Inode:
        if survival == "all":
            return _Inode(
                bytearray(self.data), bytearray(self.stable), list(self.dirty), self.cut_to
            )
        if survival == "none" or (self.cut_to is not None and rng.random() < 0.5):
            return _Inode.of(self.stable)
        if not self.dirty:
            return _Inode.of(self.stable[: self.cut_to])
        return _Inode.of(self._surviving_sectors(rng))

    def _surviving_sectors(self, rng: random.Random) -> bytearray:
        data = self.stable[: self.cut_to]
        kept_end = len(data)
        data.extend(bytes(max(0, len(self.data) - len(data))))
        for start, stop in self.dirty:
            position = start
            while position < stop:
                end = min(position - position % SECTOR + SECTOR, stop)
                if rng.random() < 0.5:
                    data[position:end] = self.data[position:end]
                    kept_end = max(kept_end, end)
                position = end
        # The length is metadata: it may be durable although the last sectors are not.
        return data if rng.random() < 0.5 else data[:kept_end]


_NameChange = dict[str, _Inode | None]
"""Names set together atomically; ``None`` removes the name."""


class SimDisk:
    """A ``pulsark.runtime.Disk`` in memory, with faults. One node's disk."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps taken so far."""
        self.trace: list[str] = []
        """A line for each step, to read a failure by."""

        self.crash_at = 0
        """The step before which the process dies; 0 = never."""
        self.before_step: Callable[[], None] = lambda: None
        """Called before each step, for instance to keep a ``survivor`` of every moment."""
        self.capacity: int | None = None
        """Size of the disk in bytes; writes beyond it are cut short with ENOSPC."""
        self.write_errno = 0
        """Every write fails with this error while it is set."""
        self.sync_errno = 0
        """Every sync of a file fails with this error while it is set."""
        self.sync_errno_once = 0
        """The next sync of a file fails with this error, those after it do not."""
        self.read_errno = 0
        """Every read fails with this error while it is set."""
        self.name_errno = 0
        """Every create, rename and unlink fails with this error while it is set."""
        self.faulty = ""
        """The errors above happen only on paths that contain this text."""

        self.dead = False
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._name_changes: dict[str, list[_NameChange]] = {}
        self._dirs: set[str] = {"/"}
        self._durable_dirs: set[str] = {"/"}
        self._new_dirs: dict[str, set[str]] = {}
        """By directory: those in it that are not durable yet."""
        self._listings: dict[str, set[str]] | None = None
        """By directory: what is in it; made when one is listed first."""

    # The Disk protocol.

    def make_dirs(self, path: str) -> None:
        missing = []
        path = _absolute(path)
        while path not in self._dirs:
            missing.append(path)
            path = os.path.dirname(path)
        if path not in self._durable_dirs:
            self._sync_dir(os.path.dirname(path))
        for directory in reversed(missing):
            self._step("mkdir", directory)
            self._dirs.add(directory)
            self._new_dirs.setdefault(os.path.dirname(directory), set()).add(directory)
            self._list_anew(directory)
            self._sync_dir(os.path.dirname(directory))

    def sync_names(self, path: str) -> None:
        path = _absolute(path)
        self._check_alive()
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if path in self._name_changes:
            self._sync_dir(path)

    def create(self, path: str) -> SimAppendFile:
        path = _absolute(path)
        self._check_parent(path)
        self._step("create", path)
        self._fail(self.name_errno, path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        inode = _Inode()
        self._change_names({path: inode})
        self._sync_dir(os.path.dirname(path))
        return SimAppendFile(self, path, inode)

    def open(self, path: str) -> SimReadFile:
        self._check_alive()
        return SimReadFile(self, _absolute(path), self._inode(path))

    def open_below(self, top: str, name: str) -> SimReadFile:
        return self.open(f"{top}/{name}")

    def list(self, path: str) -> list[str]:
        self._check_alive()
        if self._listings is None:
            self._listings = {}
            for each in (*self._names, *self._dirs):
                self._list_anew(each)
        return sorted(self._listings.get(_absolute(path), ()))

    def size(self, path: str) -> int:
        self._check_alive()
        return len(self._inode(path).data)

    def write_atomic(self, path: str, data: bytes) -> None:
        path = _absolute(path)
        self._check_parent(path)
        temporary = path + ".tmp"
        self._step("create", temporary)
        self._fail(self.name_errno, path)
        inode = _Inode()
        self._change_names({temporary: inode})
        file = SimAppendFile(self, temporary, inode)
        file.writev([data])
        file.sync()
        self._step("rename", path)
        self._fail(self.name_errno, path)
        self._change_names({temporary: None, path: inode})
        self._sync_dir(os.path.dirname(path))

    def write_hint(self, path: str, data: bytes) -> None:
        """No step: it may be lost at any time, so no crash before it tells anything new."""
        self._check_alive()
        path = _absolute(path)
        if path not in self._names:
            self._change_names({path: _Inode()})
        inode = self._inode(path)
        inode.truncate(0)
        inode.append(data)

    def write_new(self, path: str, data: bytes) -> None:
        path = _absolute(path)
        self._check_parent(path)
        temporary = f"{path}.{self.steps}.tmp"
        self._step("create", temporary)
        self._fail(self.name_errno, path)
        inode = _Inode()
        self._change_names({temporary: inode})
        try:
            file = SimAppendFile(self, temporary, inode)
            file.writev([data])
            file.sync()
            self._step("link", path)
            self._fail(self.name_errno, path)
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._change_names({path: inode})
        except OSError:
            self._step("unlink", temporary)
            self._change_names({temporary: None})
            raise
        self._step("unlink", temporary)
        self._change_names({temporary: None})
        self._sync_dir(os.path.dirname(path))

    def link(self, path: str, name: str) -> None:
        inode, name = self._inode(path), _absolute(name)
        self._check_parent(name)
        self._step("link", name)
        self._fail(self.name_errno, name)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "exists", name)
        self._change_names({name: inode})
        self._sync_dir(os.path.dirname(name))

    def truncate(self, path: str, size: int) -> None:
        inode = self._inode(path)
        self._step("truncate", path)
        self._fail(self.write_errno, path)
        inode.truncate(size)
        self._sync(path, inode)

    def write_again(self, path: str, start: int) -> None:
        inode = self._inode(path)
        self._step("write", path)
        self._fail(self.write_errno, path)
        inode.dirty.append((start, len(inode.data)))
        self._sync(path, inode)

    def remove(self, path: str) -> None:
        path = _absolute(path)
        self._check_alive()
        if path not in self._names:
            return
        self._step("unlink", path)
        self._fail(self.name_errno, path)
        self._change_names({path: None})
        self._sync_dir(os.path.dirname(path))

    def remove_dir(self, path: str) -> None:
        path = _absolute(path)
        self._check_alive()
        if path in self._dirs and not self.list(path):
            self._step("rmdir", path)
            self._dirs.discard(path)
            self._new_dirs.get(os.path.dirname(path), set()).discard(path)
            self._list_anew(path)

    def space(self, path: str) -> tuple[int, int]:
        self._check_alive()
        total = self.capacity if self.capacity is not None else 1 << 40
        return max(0, total - self.used()), total

    # For tests: the crash, and hands inside the disk.

    def after_crash(self, survival: Survival, rng: random.Random) -> SimDisk:
        """The disk that the next process finds. Without faults; the capacity stays."""
        self.dead = True
        return self.survivor(survival, rng)

    def survivor(self, survival: Survival, rng: random.Random) -> SimDisk:
        """The disk that a process would find if this one crashed now; this one lives on."""
        disk = SimDisk()
        disk.capacity = self.capacity
        twins: dict[int, _Inode] = {}

        def twin(inode: _Inode) -> _Inode:
            if id(inode) not in twins:
                twins[id(inode)] = inode.survivor(survival, rng)
            return twins[id(inode)]

        names = dict(self._durable_names)
        if survival == "all":
            disk._durable_names = {path: twin(inode) for path, inode in names.items()}
            disk._names = {path: twin(inode) for path, inode in self._names.items()}
            disk._name_changes = {
                directory: [{p: i and twin(i) for p, i in change.items()} for change in changes]
                for directory, changes in self._name_changes.items()
            }
            disk._dirs, disk._durable_dirs = set(self._dirs), set(self._durable_dirs)
            disk._new_dirs = {directory: set(new) for directory, new in self._new_dirs.items()}
            return disk
        for changes in self._name_changes.values():
            for change in changes:
                if survival == "random" and rng.random() < 0.5:
                    _apply(names, change)
        disk._dirs = set(self._durable_dirs)
        disk._durable_dirs = set(disk._dirs)
        disk._names = {path: twin(inode) for path, inode in names.items()}
        disk._durable_names = dict(disk._names)
        return disk

    def files(self) -> tuple[str, ...]:
        """Paths of all files, sorted."""
        return tuple(sorted(self._names))

    def used(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.data) for inode in self._names.values())

    def content(self, path: str) -> bytes:
        """The current bytes of a file."""
        return bytes(self._names[_absolute(path)].data)

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Flip bits of one byte, as a bad disk does: no error, durable at once."""
        inode = self._names[_absolute(path)]
        inode.data[offset] ^= mask
        if offset < len(inode.stable):
            inode.stable[offset] ^= mask

    def edit(self, path: str, content: bytes) -> None:
        """Replace a file's bytes behind the program's back, durably. Creates it if missing."""
        path = _absolute(path)
        inode = _Inode.of(content)
        self._names[path] = inode
        self._durable_names[path] = inode
        self._list_anew(path)

    def discard(self, path: str) -> None:
        """Remove a file behind the program's back, durably."""
        path = _absolute(path)
        self._names.pop(path)
        self._durable_names.pop(path, None)
        self._list_anew(path)

    # Steps and faults.

    def _check_alive(self) -> None:
        if self.dead:
            raise SimulatedCrash("the process that used this disk is dead")

    def _step(self, what: str, path: str) -> None:
        self._check_alive()
        self.before_step()
        self.steps += 1
        self.trace.append(f"{self.steps} {what} {path}")
        if self.steps == self.crash_at:
            self.dead = True
            raise SimulatedCrash(f"crash before step {self.trace[-1]}")

    def _fail(self, code: int, path: str) -> None:
        if code and self.faulty in path:
            raise OSError(code, os.strerror(code), path)

    def _fail_sync(self, inode: _Inode, path: str) -> None:
        code = self.sync_errno or self.sync_errno_once
        if code and self.faulty in path:
            self.sync_errno_once = 0
            inode.forget_dirty()
            self._fail(code, path)

    def _inode(self, path: str) -> _Inode:
        path = _absolute(path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def _check_parent(self, path: str) -> None:
        if os.path.dirname(path) not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def _change_names(self, change: _NameChange) -> None:
        _apply(self._names, change)
        for path in change:
            self._list_anew(path)
        directory = os.path.dirname(next(iter(change)))
        self._name_changes.setdefault(directory, []).append(change)

    def _sync_dir(self, directory: str) -> None:
        self._step("syncdir", directory)
        for change in self._name_changes.pop(directory, []):
            _apply(self._durable_names, change)
        self._durable_dirs.update(self._new_dirs.pop(directory, ()))

    def _list_anew(self, path: str) -> None:
        """A name has come or gone."""
        if self._listings is None or path == "/":
            return
        directory, name = os.path.split(path)
        listing = self._listings.setdefault(directory, set())
        if path in self._names or path in self._dirs:
            listing.add(name)
        else:
            listing.discard(name)

    def _write(self, path: str, inode: _Inode, buffers: Sequence[bytes]) -> None:
        self._step("write", path)
        self._fail(self.write_errno, path)
        data = b"".join(buffers)
        room = len(data) if self.capacity is None else max(0, self.capacity - self.used())
        inode.append(data[:room])
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _sync(self, path: str, inode: _Inode) -> None:
        self._step("sync", path)
        self._fail_sync(inode, path)
        inode.sync()


class SimAppendFile:
    """A ``pulsark.runtime.AppendFile`` on a ``SimDisk``."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode
        self._open = True

    def writev(self, buffers: Sequence[bytes]) -> None:
        self._check_open()
        self._disk._write(self._path, self._inode, buffers)

    def sync(self) -> None:
        self._check_open()
        self._disk._sync(self._path, self._inode)

    def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "closed", self._path)


class SimReadFile:
    """A ``pulsark.runtime.ReadFile`` on a ``SimDisk``. Outlives the unlinking of its name."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode
        self._open = True

    def read(self, offset: int, size: int) -> bytes:
        self._disk._check_alive()
        if not self._open:
            raise OSError(errno.EBADF, "closed", self._path)
        self._disk._fail(self._disk.read_errno, self._path)
        return bytes(self._inode.data[offset : offset + size])

    def uncache(self) -> None:
        self._disk._check_alive()

    def close(self) -> None:
        self._open = False


def _absolute(path: str) -> str:
    return os.path.normpath(os.path.join("/", path))


def _apply(names: dict[str, _Inode], change: _NameChange) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def crash_points(run: Callable[[SimDisk], None]) -> int:
    """Run a script once on a whole disk and return its number of steps.

    ``crash_at`` from 1 to that number plus 1 then covers every place to crash; at the number
    plus 1 the script ends undisturbed.
    """
    disk = SimDisk()
    run(disk)
    return disk.steps
