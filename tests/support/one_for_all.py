"""Servers that all pytest workers share: the first user starts them, the last one ends them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def one_for_all(directory: Path, start: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What ``start`` returned, once for all users of a directory; ``pids`` of it are killed then.

    Whoever started them may leave earlier than others.
    """
    directory.mkdir(parents=True, exist_ok=True)
    users = directory / "users.json"
    with _locked(directory):
        state = json.loads(users.read_text()) if users.exists() else {"users": 0}
        if state["users"] == 0:
            state["started"] = start()
        state["users"] += 1
        users.write_text(json.dumps(state))
    try:
        yield state["started"]
    finally:
        with _locked(directory):
            state = json.loads(users.read_text())
            state["users"] -= 1
            users.write_text(json.dumps(state))
            if state["users"] == 0:
                for pid in state["started"]["pids"]:
                    _kill(pid)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # a child of another worker
        os.waitpid(pid, 0)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
