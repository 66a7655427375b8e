"""A server that speaks S3's protocol, for storage roots in an object store.

gofakes3, a program in Go that keeps objects in memory: it starts in 20 ms, knows ranges, parts,
copies and ``If-None-Match``, and checks no signatures. Tests are skipped only where there is no Go.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

from benchmarks.maven import CACHE
from pulsark.storage.roots.options import ObjectStoreOptions

MODULE = "github.com/johannesboyne/gofakes3/cmd/gofakes3"
VERSION = "v1.2.0"
BUCKET = "tables"
ACCESS = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}
"""Credentials, as variables of the environment."""
ATTEMPTS = 5


def built() -> str:
    """The server's program; built once."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go command")
    folder = CACHE / "go" / f"gofakes3-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = folder / "gofakes3"
        if not program.exists():
            done = subprocess.run(
                [go, "install", f"{MODULE}@{VERSION}"],
                env={**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    return str(program)


class S3Server:
    """The running server, with an empty bucket ``tables``."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.port = 0

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def options(
        self, endpoint: str = "", *, timeout: int = 5, retry: int = 5
    ) -> ObjectStoreOptions:
        """How it is reached; at another endpoint if a proxy is in front."""
        return ObjectStoreOptions(endpoint or self.url, "", "", timeout, retry)

    def __enter__(self) -> S3Server:
        for _ in range(ATTEMPTS):
            if self._start():
                return self
        raise AssertionError(f"the S3 server did not start: {self._log.read_text()}")

    def _start(self) -> bool:
        """On a port that is free now; another process may be faster to take it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        told = ("-backend", "memory", "-host", f"127.0.0.1:{self.port}", "-initialbucket", BUCKET)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([built(), *told, "-quiet"], stdout=log, stderr=log)
        end = time.monotonic() + 30
        while self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self._process.poll() is None
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.01)
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
