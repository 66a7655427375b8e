"""Calls of one client, from when they are made to their outcomes.

A call that is made while there is no connection waits here, not in kazoo: it is refused at its
deadline, and then certainly was not sent. A read whose connection breaks is sent again. A write
whose connection breaks, or that is not answered in time, has an unknown outcome.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kazoo_errors

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.zookeeper.nodes import (
    EphemeralParentError,
    NodeError,
    NodeExistsError,
    NodeVersionError,
    NoNodeError,
    NotEmptyError,
)

if TYPE_CHECKING:
    import asyncio

    from pulsark.metadata.zookeeper.connection import Connection

_SWEEPS_A_DEADLINE: Final = 10

_NODE_ERRORS: Final[dict[type[BaseException], type[NodeError]]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: NodeVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: EphemeralParentError,
}
_UNKNOWN: Final = (kazoo_errors.ConnectionLoss, kazoo_errors.OperationTimeoutError)
FOLLOWING: Final = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class _Call:
    """A request from the time it is made to its outcome."""

    __slots__ = ("deadline", "future", "may_lack", "path", "reads", "request", "sent")

    def __init__(
        self, request: Any, path: str, deadline: float, loop: asyncio.AbstractEventLoop, reads: bool
    ) -> None:
        self.request = request
        self.path = path
        self.deadline = deadline
        self.future: asyncio.Future[Any] = loop.create_future()
        self.reads = reads
        self.may_lack = False
        self.sent = False


class Calls:
    """The calls of one connection."""

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, deadline_seconds: float
    ) -> None:
        self.is_connected = False
        """Whether calls are sent, rather than kept until there is a connection."""
        self.deadline_seconds = deadline_seconds
        self.zxid = 0
        """The last transaction of which answers have told."""
        self._connection = connection
        self._loop = loop
        self._ended = ""
        self._waiting: deque[_Call] = deque()
        self._open: deque[_Call] = deque()
        """All calls, in the order of their deadlines."""
        self._sweep: asyncio.TimerHandle | None = None

    async def read(self, request: Any, path: str) -> Any:
        """The answer to a request that changes nothing."""
        return await self._call(request, path, reads=True).future

    async def read_if_there(self, request: Any, path: str) -> Any:
        """The same; ``None`` if there is no such node. Many reads are of what most topics have not,
        and an exception costs as much as the rest."""
        call = self._call(request, path, reads=True)
        call.may_lack = True
        return await call.future

    async def write(self, request: Any, path: str) -> Any:
        """The answer to a request that may change something."""
        return await self._call(request, path, reads=False).future

    def _call(self, request: Any, path: str, *, reads: bool) -> _Call:
        if self._ended:
            raise MetadataRefusedError(f"the session with ZooKeeper is over: {self._ended}")
        while self._open and self._open[0].future.done():
            self._open.popleft()
        deadline = self._loop.time() + self.deadline_seconds
        call = _Call(request, path, deadline, self._loop, reads)
        self._open.append(call)
        if self._sweep is None:
            self._sweep_later()
        if self.is_connected:
            self._send(call)
        else:
            self._waiting.append(call)
        return call

    def send_waiting(self) -> None:
        """Send what was kept, because there is a connection."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if not call.future.done():
                self._send(call)

    def end(self, reason: str) -> None:
        """Decide all calls: there will be no answers any more."""
        self._ended = reason
        self.is_connected = False
        if self._sweep is not None:
            self._sweep.cancel()
        for call in self._open:
            if call.future.done():
                continue
            if call.sent and not call.reads:
                call.future.set_exception(OutcomeUnknownError(f"no answer: {reason}"))
            else:
                call.future.set_exception(
                    MetadataRefusedError(f"the session with ZooKeeper is over: {reason}")
                )
        self._open.clear()
        self._waiting.clear()

    def _send(self, call: _Call) -> None:
        call.sent = True
        self._connection.submit(call.request, partial(self._answered, call))

    def _answered(self, call: _Call, answer: Any, error: BaseException | None, zxid: int) -> None:
        self.zxid = max(self.zxid, zxid)
        if call.future.done():  # cancelled, or given up
            call.request = None
            return
        if error is None:
            call.request = None
            call.future.set_result(answer)
        elif call.reads and isinstance(error, _UNKNOWN):
            self._waiting.append(call)  # ``disconnected`` follows, or has been called
            if self.is_connected and self._connection.client_id is not None:
                self.send_waiting()
        elif call.may_lack and isinstance(error, kazoo_errors.NoNodeError):
            call.request = None
            call.future.set_result(None)
        else:
            call.future.set_exception(error_of(error, call.path))

    def _sweep_later(self) -> None:
        seconds = self.deadline_seconds / _SWEEPS_A_DEADLINE
        self._sweep = self._loop.call_later(seconds, self._give_up_late)

    def _give_up_late(self) -> None:
        now = self._loop.time()
        trouble = f"ZooKeeper has not answered for {self.deadline_seconds:g} s"
        while self._open and (self._open[0].future.done() or self._open[0].deadline <= now):
            call = self._open.popleft()
            if call.future.done():
                continue
            if call.reads:
                call.future.set_exception(MetadataError(trouble))
            elif call.sent:
                call.future.set_exception(OutcomeUnknownError(trouble))
            else:
                call.future.set_exception(MetadataRefusedError(f"{trouble}; nothing was written"))
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        self._sweep = None
        if self._open:
            self._sweep_later()


def error_of(error: BaseException, path: str, index: int = 0) -> BaseException:
    kind = _NODE_ERRORS.get(type(error))
    if kind is not None:
        return kind(path, index)
    if isinstance(error, _UNKNOWN):
        return OutcomeUnknownError("the connection to ZooKeeper was lost before it answered")
    if isinstance(error, kazoo_errors.KazooException):
        return MetadataRefusedError(f"ZooKeeper refuses {path}: {type(error).__name__}")
    return OutcomeUnknownError(f"ZooKeeper's answer cannot be read: {error}")
