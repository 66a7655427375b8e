"""SIGKILL for a process and all that it has started."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def kill_tree(pid: int) -> None:
    """Kill a process, then what it had started: Spark's Python workers have a group of their own.

    The caller waits for its own child.
    """
    family = [pid, *descendants(pid)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """What a process has started, and what that has started, as of now."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name, in parentheses, may have spaces; the parent is the second field after.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children[parent].append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        mine = children[waiting.pop()]
        found += mine
        waiting += mine
    return found
