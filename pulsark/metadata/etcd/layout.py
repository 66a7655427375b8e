"""Where etcd has the values of the metadata store. Pure.

All keys are below ``/pulsark/`` under the root of the address. What other processes are told of is
below ``told/``, and every process watches that; the rest is below ``quiet/``. Slashes of a path are
NUL in its key: no path has one, and so a name's descendants stand right behind it, before any other
name.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from pulsark.metadata.told import APPEARANCES, UNTOLD, is_within

PARTS: Final = 16
"""Parts of the tree that count deletions apart; see ``plan``."""

_QUIET: Final = (*UNTOLD, *APPEARANCES)


class Layout:
    """Keys below one root."""

    def __init__(self, root: str) -> None:
        base = f"{root}/pulsark/".encode()
        self.instance = base + b"instance"
        self._sessions = base + b"sessions/"
        self._deletions = base + b"deletions/"
        self.told = base + b"told/"
        """The prefix of all that is watched."""
        self.history = self.told + b"history"
        """Told, so that no later change is heard of before it."""
        self.appeared = self.told + b"appeared"
        """Names paths that have appeared or vanished, and are not told themselves."""
        self._tree = self.told + b"tree"
        self._quiet = base + b"quiet/tree"

    def key(self, path: str) -> bytes:
        """The key of a value."""
        tree = self._quiet if is_quiet(path) else self._tree
        return tree + _encoded(path)

    def told_path(self, key: bytes) -> str | None:
        """The path of a watched key, if it is that of a value."""
        if not key.startswith(self._tree + b"\0"):
            return None
        return key[len(self._tree) :].replace(b"\0", b"/").decode()

    def parents(self, path: str) -> list[bytes]:
        """What the keys of all descendants of a path begin with. Two, if some are quiet."""
        if is_quiet(path):
            return [self._quiet + _encoded(path) + b"\0"]
        found = [self._tree + _encoded(path) + b"\0"]
        if path == "/" or any(tree.startswith(f"{path}/") for tree in _QUIET):
            found.append(self._quiet + _encoded(path) + b"\0")
        return found

    def session(self, lease: int) -> bytes:
        """The key that a session has for as long as it lives."""
        return self._sessions + b"%016x" % lease

    def deletions(self, part: int) -> bytes:
        """The key that each deletion in a part changes."""
        return self._deletions + b"%02x" % part


def is_quiet(path: str) -> bool:
    """Whether no other process watches the key of a value."""
    return is_within(path, _QUIET)


def part_of(path: str) -> int:
    """Which part of the tree counts the deletions of a path."""
    return crc32(path.encode()) % PARTS


def behind(parent: bytes, name: str) -> bytes:
    """The first key behind a child and all its descendants."""
    return parent + name.encode() + b"\1"


def child_of(parent: bytes, key: bytes) -> str:
    """The name of the child that a key belongs to."""
    return key[len(parent) :].partition(b"\0")[0].decode()


def _encoded(path: str) -> bytes:
    return b"" if path == "/" else path.encode().replace(b"/", b"\0")
