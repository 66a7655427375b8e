"""A child process that is restarted whenever it ends, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import ConfigError
from pulsark.processes.duty import BEAT, BEAT_SECONDS
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from pulsark.processes.duty import Duty

log = logging.getLogger(__name__)

PROGRAM: Final = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "from pulsark.processes.child import main; main()",
)
"""A terminal sends SIGINT to all processes, also to one that is loading its modules: the supervisor
decides when a child stops."""

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 10.0
"""The pause before the first restart; it doubles up to the maximum."""

SOUND_SECONDS: Final = 30.0
"""A process that was ready for this long and dies is restarted after the short pause."""

SILENT_BEATS_MAX: Final = 12
"""A ready process that misses this many beats is killed: its event loop has been in one and the
same callback all the time, and its metadata session has expired. The supervisor counts its own
beats, so a paused machine kills no process."""

HOPELESS_STARTS: Final = 8
"""So many starts in a row fail for a reason that no restart mends until a role is given up. They
take a quarter of a minute: what stood in the way may be a process that was about to end."""

LAST_WORDS_SECONDS: Final = 1.0
"""How long the socket of a process that has ended is read."""

_REPORT_BYTES_MAX: Final = 1 << 20


class KeptChild:
    """One role. Its process ends with this one, because it then reads the end of its socket."""

    def __init__(
        self,
        name: str,
        duty: Callable[[], Duty],
        ready: Callable[[dict[str, Any]], None],
        *,
        check: Callable[[], None] = lambda: None,
        given_up: Callable[[ConfigError], None] = lambda error: None,
        vital: bool = False,
    ) -> None:
        """``duty`` is called at each start, ``ready`` with the report of each new process.

        ``check`` is called before a restart, and raises ``ConfigError`` if that is of no use; then
        there is none, and ``given_up`` is called. So it is if the role is ``vital``, and fails to
        start again and again for a reason that lasts. Others may do without one that is not.
        """
        self.name = name
        self._check = check
        self._given_up = given_up
        self._vital = vital
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the role is first ready; ``ConfigError`` if its first process fails."""
        self._duty = duty
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._ready_at: float | None = None
        self._silent_beats = 0
        self._start_seconds = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._error = ""
        self._lasts = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process, or 0."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process and keep it running."""
        self._task = unattended(self._keep(), f"keeping {self.name} running")

    def restart(self) -> None:
        """Stop the process in order; another one takes its place."""
        self._signal(signal.SIGTERM)

    async def stop(self, seconds: float) -> None:
        """Stop the process in order, and kill it after ``seconds``."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        if not done:
            log.error("%s has not stopped within %g s: killing it", self.name, seconds)
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def _signal(self, signum: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    async def _keep(self) -> None:
        pause, hopeless = PAUSE_SECONDS, 0
        while not self._stopping.is_set():
            how = await self._live()
            if self._stopping.is_set():
                return
            if not self.first.done():
                self.first.set_exception(ConfigError(self._error or f"{self.name} {how}"))
                return
            hopeless = hopeless + 1 if self._lasts else 0
            if self._is_given_up(hopeless):
                return
            if self._ready_at is not None and self._loop.time() - self._ready_at > SOUND_SECONDS:
                pause = PAUSE_SECONDS
            because = f": {self._error}" if self._error else ""
            log.error("%s %s%s; restarting it in %g s", self.name, how, because, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _is_given_up(self, hopeless: int) -> bool:
        try:
            self._check()
            if self._vital and hopeless >= HOPELESS_STARTS:
                raise ConfigError(f"{self.name}: {self._error}")
        except ConfigError as error:
            self._given_up(error)
            return True
        return False

    async def _live(self) -> str:
        """Run one process; returns how it ended."""
        self._ready_at, self._error, self._lasts, self._silent_beats = None, "", False, 0
        duty = self._duty()
        self._start_seconds = duty.settings.processStartTimeoutSeconds
        try:
            ours, process = await self._started(duty)
        except OSError as error:  # no memory for it, for example
            return f"cannot start: {error}"
        self._process = process
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=ours, limit=_REPORT_BYTES_MAX)
        # It may have changed before there was a process that could be told to restart.
        writer.write(self._duty().encode())
        hearing = self._loop.create_task(self._hear_all(reader))
        self._look()
        try:
            code = await process.wait()
            # What it said last is read, but a process that it left behind may hold its socket.
            await asyncio.wait({hearing}, timeout=LAST_WORDS_SECONDS)
        finally:
            hearing.cancel()
            writer.close()
            self._process = None
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"(process {process.pid}) {how}"

    async def _hear_all(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._silent_beats = 0
                if line != BEAT:
                    self._hear(json.loads(line))
        except ConnectionError:
            pass  # the process died, which ``_live`` waits for
        except ValueError as error:
            log.error("%s sent an invalid report (%s): killing it", self.name, error)
            self._signal(signal.SIGKILL)

    async def _started(self, duty: Duty) -> tuple[socket.socket, Process]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return ours, await asyncio.create_subprocess_exec(
                    *PROGRAM,
                    self.name,
                    stdin=theirs.fileno(),
                    pass_fds=tuple(duty.descriptors),
                    env={**duty.environment, **os.environ},
                )
            except BaseException:
                ours.close()
                raise

    def _look(self) -> None:
        self._silent_beats += 1
        starts = self._ready_at is None
        seconds = self._start_seconds if starts else SILENT_BEATS_MAX * BEAT_SECONDS
        if self._silent_beats * BEAT_SECONDS <= seconds:
            self._watch = self._loop.call_later(BEAT_SECONDS, self._look)
            return
        who = f"{self.name} (process {self.pid})"
        if starts:
            self._error = (
                f"{who} was not ready within {seconds:g} s and was killed: see what it logged "
                "last. If it only needs more time, raise processStartTimeoutSeconds"
            )
        else:
            log.error("%s has been unresponsive for %g s: killing it", who, seconds)
        self._signal(signal.SIGKILL)

    def _hear(self, told: dict[str, Any]) -> None:
        if "error" in told:
            self._error, self._lasts = told["error"], told.get("lasts", False)
            return
        self._ready_at = self._loop.time()
        try:
            self._ready(told["ready"])
        except OSError as error:  # a full disk, for example: the process serves all the same
            log.error("cannot publish the addresses of %s: %s", self.name, error)
        if not self.first.done():
            self.first.set_result(None)
