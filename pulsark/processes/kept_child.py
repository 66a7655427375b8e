"""A process that is started again whenever it ends, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import ConfigError
from pulsark.processes.duty import BEAT, BEAT_SECONDS

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from pulsark.processes.duty import Duty

log = logging.getLogger(__name__)

PROGRAM: Final = (sys.executable, "-m", "pulsark.processes.child")

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 10.0
"""Before it is started again: the first time, and at most. The pause doubles."""

SOUND_SECONDS: Final = 30.0
"""What was ready for so long is started again at once when it dies."""

SILENT_BEATS_MAX: Final = 12
"""A process that was ready and whose event loop stands still for so long is killed: its session of
the metadata store is over, and clients would wait for it. Beats of this process are counted, so
that nobody is silent while the whole machine stands still."""

_REPORT_BYTES_MAX: Final = 1 << 20


class KeptChild:
    """One role. Its process dies with this one: it holds the other end of a socket."""

    def __init__(
        self, name: str, duty: Callable[[], Duty], ready: Callable[[dict[str, Any]], None]
    ) -> None:
        """``duty`` is asked at each start; ``ready`` hears what each process reports."""
        self.name = name
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it was ready for the first time; ``ConfigError`` if it cannot be."""
        self._duty = duty
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._ready_at: float | None = None
        self._silent_beats = 0
        self._watch: asyncio.TimerHandle | None = None
        self._error = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process that is there now; 0 if none is."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and keep it."""
        self._task = self._loop.create_task(self._keep())

    def restart(self) -> None:
        """Let another process take its place, in order."""
        self._signal(signal.SIGTERM)

    async def stop(self, seconds: float) -> None:
        """Stop it in order; killed if it takes longer."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        if not done:
            log.error("%s did not stop within %g s and is killed", self.name, seconds)
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def _signal(self, signum: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signum)

    async def _keep(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            how = await self._live()
            if self._stopping.is_set():
                return
            if not self.first.done():
                self.first.set_exception(ConfigError(self._error or f"{self.name} {how}"))
                return
            if self._ready_at is not None and self._loop.time() - self._ready_at > SOUND_SECONDS:
                pause = PAUSE_SECONDS
            because = f": {self._error}" if self._error else ""
            log.error("%s %s%s; it is started again in %g s", self.name, how, because, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _live(self) -> str:
        """One life; returns how it ended."""
        self._ready_at, self._error = None, ""
        duty = self._duty()
        try:
            ours, process = await self._started(duty)
        except OSError as error:  # no memory for it, for example
            return f"cannot be started: {error}"
        self._process = process
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=ours, limit=_REPORT_BYTES_MAX)
        try:
            writer.write(duty.encode())
            while line := await reader.readline():
                self._silent_beats = 0
                if line != BEAT:
                    self._hear(json.loads(line))
        except ConnectionError:
            pass  # it died: it is waited for below
        except ValueError as error:
            log.error("%s says what is not understood, and is killed: %s", self.name, error)
            self._signal(signal.SIGKILL)
        finally:
            code = await process.wait()
            writer.close()
            self._process = None
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"(process {process.pid}) {how}"

    async def _started(self, duty: Duty) -> tuple[socket.socket, Process]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return ours, await asyncio.create_subprocess_exec(
                    *PROGRAM, self.name, stdin=theirs.fileno(), pass_fds=tuple(duty.descriptors)
                )
            except BaseException:
                ours.close()
                raise

    def _look(self) -> None:
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS_MAX:
            log.error("%s (process %d) stands still and is killed", self.name, self.pid)
            self._signal(signal.SIGKILL)
            return
        self._watch = self._loop.call_later(BEAT_SECONDS, self._look)

    def _hear(self, told: dict[str, Any]) -> None:
        if "error" in told:
            self._error = told["error"]
            return
        self._ready_at = self._loop.time()
        self._look()
        try:
            self._ready(told["ready"])
        except OSError as error:  # the disk is full, for example: it serves all the same
            log.error("what %s says cannot be made known: %s", self.name, error)
        if not self.first.done():
            self.first.set_result(None)
