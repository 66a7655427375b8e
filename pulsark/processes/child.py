"""The main program of a process that a supervisor starts.

Its standard input is a socket to the supervisor. It reads its duty there, then reports that it is
ready, or why it cannot start. After that a thread sends an empty line each second as long as the
event loop gets on, however late it is. When the supervisor's end closes, the process stops in
order, as on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

from pulsark.errors import ConfigError, PortInUseError, PulsarkError
from pulsark.log_format import start_logging
from pulsark.private_files import create_privately
from pulsark.processes.duty import BEAT, BOOKIE, Duty
from pulsark.processes.loop_watch import Heartbeat
from pulsark.processes.until_signal import FAILED_STOP_SECONDS
from pulsark.runtime import Runtime, collect_rarely, hand_over_promptly, raise_descriptor_limit
from pulsark.tasks import heard

if TYPE_CHECKING:
    from collections.abc import Callable

STOP_SECONDS: Final = 20
"""An alarm of the system kills a process that takes longer to stop."""


DESCRIPTORS: Final = "/dev/fd"

_OWN_PORTS: Final = (
    " (each of several brokers has ports of its own, and this is one of {}: docs/scaling.md)"
)


class Process(Protocol):
    """What runs in this process."""

    async def start(self) -> dict[str, Any]:
        """Start, and return what to report to the supervisor."""

    async def stop(self) -> None:
        """Stop in order, even if ``start`` did not finish."""


class ProcessLife:
    """From the start of a process to its end."""

    def __init__(self, channel: socket.socket, make: Callable[[Callable[..., None]], Process]):
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._process = make(self._fail)

    async def live(self) -> None:
        """Run until told to stop; ``PulsarkError`` if the process cannot start or go on."""
        self._loop.add_signal_handler(signal.SIGTERM, self._end)
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._hear)
        starting = self._loop.create_task(self._process.start())
        either: set[asyncio.Future[Any]] = {starting, self._ended}
        heartbeat: Heartbeat | None = None
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._ended.done():
                self._tell(ready=starting.result())
                collect_rarely()
                heartbeat = Heartbeat(self._beat)
            await self._ended
        finally:
            try:
                await self._stop(starting)
            finally:
                if heartbeat is not None:
                    heartbeat.close()

    async def _stop(self, starting: asyncio.Task[dict[str, Any]]) -> None:
        signal.alarm(STOP_SECONDS)
        starting.cancel()
        await asyncio.wait({starting})
        heard(starting)
        failed = self._ended.done() and self._ended.exception() is not None
        self._end()  # from here on, a part that ends has not failed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAILED_STOP_SECONDS if failed else None):
                await self._process.stop()

    def tell_error(self, error: PulsarkError, role: str) -> None:
        """Tell the supervisor why the process ends."""
        # No setting has this number, perhaps: it follows from one, and from that of the broker.
        whose = _OWN_PORTS.format(role) if isinstance(error, PortInUseError) else ""
        self._tell(error=f"{error}{whose}", lasts=isinstance(error, ConfigError))

    def _tell(self, **told: object) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(told).encode() + b"\n")

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(BEAT)

    def _hear(self) -> None:
        try:
            told = self._channel.recv(64)
        except BlockingIOError:
            return
        except ConnectionError:  # the supervisor died before it had read all that it was told
            told = b""
        if not told:
            self._loop.remove_reader(self._channel)
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: PulsarkError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)


def main() -> None:
    """Carry out the supervisor's duty; exit with 1 if that fails."""
    keep_descriptors()
    channel = _channel()
    duty = Duty.decode(_line(channel))
    settings = duty.settings
    create_privately(settings.dataDirectoryAccess)
    start_logging(settings.logLevel, settings.logFormat, duty.role)
    import uvloop

    raise_descriptor_limit()
    hand_over_promptly()
    sys.exit(uvloop.run(_run(channel, duty)))


async def _run(channel: socket.socket, duty: Duty) -> int:
    runtime = Runtime()

    def make(failed: Callable[..., None]) -> Process:
        if duty.broker is not None:
            from pulsark.processes.broker_process import BrokerProcess

            return BrokerProcess(duty, runtime, failed)
        if duty.role == BOOKIE:
            from pulsark.processes.bookie_process import BookieProcess

            return BookieProcess(duty, runtime, failed)
        from pulsark.processes.cluster_broker import ClusterBroker

        return ClusterBroker(duty.settings, runtime, failed)

    life = ProcessLife(channel, make)
    try:
        await life.live()
    except PulsarkError as error:
        life.tell_error(error, duty.role)
        return 1
    return 0


def keep_descriptors() -> None:
    """See to it that no child process inherits what this one has inherited, but its output.

    uvloop leaves all to a child that can be inherited: here the shared ports, and second
    descriptors of the channel and of the output, from the start of this process. A table process
    that lives longer than its broker would keep the ports open, and the supervisor waiting.
    """
    with contextlib.suppress(FileNotFoundError):
        for descriptor in map(int, os.listdir(DESCRIPTORS)):
            if descriptor > 2:
                with contextlib.suppress(OSError):  # that of the directory is closed by now
                    os.set_inheritable(descriptor, False)


def _channel() -> socket.socket:
    """Standard input as a socket; no child process inherits it."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _line(channel: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = channel.recv(65536)
        if not more:
            sys.exit(1)
        found += more
    return found
