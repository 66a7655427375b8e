"""A Java program as a child process, with its output in a file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 10.0
_DYING_WITH_US: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, which stays with the program below
if os.getppid() == int(sys.argv[1]):  # else it is too late for the signal
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class JavaProcess:
    """Runs one program at a time; it can be started again after its end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.dies_with_us = False
        """Whether Linux kills it when the thread ends that starts it, however that ends."""

    @property
    def pid(self) -> int:
        """The id of the running process, or 0."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], output: Path) -> None:
        """Start; what it prints is appended to a file."""
        assert self._process is None
        if self.dies_with_us and sys.platform == "linux":
            own = str(os.getpid())
            command = [sys.executable, "-I", "-S", "-c", _DYING_WITH_US, own, *command]
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in a terminal is for those who started it
            )

    def wait(self) -> int:
        """Its exit code once it has ended by itself. Blocks."""
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        return code

    def pause(self) -> None:
        """Stop the process without ending it, as a machine that hangs. Blocks until it stands."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in order, or by force if that takes too long. Blocks."""
        self._signal(signal.SIGCONT)
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a power failure does. Blocks."""
        self._end(signal.SIGKILL)

    def _end(self, signum: signal.Signals) -> None:
        self._signal(signum)
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _signal(self, signum: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signum)


def java(tool: str = "java") -> str:
    """A command of the JDK in ``JAVA_HOME`` or on the path; ``ConfigError`` if there is none."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(tool, path=f"{home}/bin" if home else None)
    if command is None:
        raise ConfigError(f"a JDK 17 or 21 is needed: no {tool} on the PATH or in JAVA_HOME")
    return command


def free_port() -> int:
    """A port that nobody listened at a moment ago."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether nobody listens at a port, a moment ago."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers in Java do
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True
