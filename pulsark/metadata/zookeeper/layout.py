"""Where ZooKeeper has the values of the metadata store. Pure.

All nodes are below ``/pulsark``, so that BookKeeper and others may share the root: the values in
``tree``, and beside it what the store itself needs. The server lists a directory in one packet, so
the topics of a namespace are spread over 256 directories, named by a hash of the topic's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pulsark.metadata import paths

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE: Final = "/pulsark"
TREE: Final = f"{BASE}/tree"
INSTANCE: Final = f"{BASE}/instance"
HISTORY: Final = f"{BASE}/history"
CHANGES: Final = f"{BASE}/changes"
CHANGE: Final = f"{CHANGES}/n-"
SESSIONS: Final = f"{BASE}/sessions"
DELETIONS: Final = f"{BASE}/deletions"
NOWHERE: Final = f"{BASE}/none"
"""Never there: for writes that are to be refused."""

DIRECTORIES: Final = 256

_SIMPLE: Final = re.compile(r"[ -}]*").fullmatch
_REFUSED: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff~]")
"""Characters that no name of a node may have, and the one that stands for them."""
_ESCAPE: Final = re.compile("~([0-9a-f]+);")

_KNOWN_MAX: Final = 4096

PARTS: Final = 64
"""Parts of the tree that count deletions apart; see ``facts``."""

_SPREAD: Final = {
    paths.PARTITIONED_TOPICS: 3,
    paths.TOPIC_POLICIES: 3,
    paths.MANAGED_LEDGERS: 3,
    paths.TABLES: 3,
    paths.DELAYED_BUCKETS: 3,
    paths.SCHEMAS: 2,
    paths.LEDGERS: 0,
    paths.LEDGER_RUNS: 0,
    paths.REMOVED_LEDGERS: 0,
}
"""Trees with directories below them, and after how many more levels these are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of values by their paths."""

    directories: int = DIRECTORIES
    spread: Mapping[str, int] = field(default_factory=lambda: _SPREAD)
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Nodes by path: each value is read and written several times while a topic is loaded."""

    def node(self, path: str) -> str:
        """The node of a value."""
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[path] = self._node(path)
        return known

    def _node(self, path: str) -> str:
        if path == "/":
            return TREE
        parent, name = self._spread_above(path)
        if name:
            child = name.partition("/")[0]
            path = f"{parent}/{self.directory_of(child)}/{name}"
        return TREE + (path if _SIMPLE(path) else _REFUSED.sub(_escaped, path))

    def is_spread(self, path: str) -> bool:
        """Whether the children of a path are in directories."""
        parent, name = self._spread_above(f"{path}/x")
        return parent == path and name == "x"

    def directory_of(self, child: str) -> str:
        """The directory of a child among its parent's directories."""
        return f"{crc32(child.encode()) % self.directories:02x}"

    def _spread_above(self, path: str) -> tuple[str, str]:
        """The path's part whose children are in directories, and the rest; or no rest."""
        for tree, levels in self.spread.items():
            if path.startswith(tree) and path.startswith("/", len(tree)):
                parts = path[len(tree) + 1 :].split("/", levels)
                if len(parts) == levels + 1:
                    name = parts[-1]
                    return path[: -len(name) - 1], name
        return path, ""


def name_of(child: str) -> str:
    """The name of a path's child whose node has this name."""
    return _ESCAPE.sub(_unescaped, child) if "~" in child else child


def _escaped(match: re.Match[str]) -> str:
    return f"~{ord(match[0]):x};"


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def part_of(node: str) -> int:
    """Which part of the tree counts the deletions of a node."""
    return crc32(node.encode()) % PARTS


def part_node(part: int) -> str:
    """Where the deletions of a part are counted."""
    return f"{DELETIONS}/{part:02x}"
