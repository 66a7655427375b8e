"""The event loop's time for requests: one budget of all clients.

A request is a task, and each of its steps runs from one await to the next. One step is short, but
the steps of a thousand requests may be due in the same turn of the loop. ``RequestTurns`` runs them
until the turn's share for requests is spent; later steps wait, and get the following turns client
by client, so that a client with many requests waits for its own.
"""

from __future__ import annotations

import asyncio
import types
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pulsark.dispatch.loop.run_queue import TurnShare
from pulsark.limits import REQUESTS_SECONDS, REQUESTS_WAITING_CROWDED
from pulsark.runtime import run_in_worker
from pulsark.tasks import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from pulsark.runtime import Clock, Runtime, Worker

T = TypeVar("T")

_Line: TypeAlias = tuple[str, str]
"""A client, and its connection."""

_STEPS_MAX: Final = 64
"""Most waiting steps that one turn resumes."""
_FORGOTTEN_SECONDS: Final = 60.0
"""Time after which it does not matter any more what a client's large jobs took."""
_CLIENTS_MAX: Final = 10_000
"""Most clients and connections of which it is known."""
_WEIGHT: Final = 0.5
"""Weight of the last turn's steps in the average."""


class RequestTurns:
    """Shares out one broker's event loop among the requests of its clients."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._share = TurnShare(clock, REQUESTS_SECONDS)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Steps by client, the client whose turn is next first."""
        self._step_seconds = REQUESTS_SECONDS / _STEPS_MAX
        """Time that a step takes, by those that were resumed last."""
        self._when_calm: dict[Callable[[], None], None] = {}
        self._begun = 0.0
        self._has_first = False
        """Whether the next step that is resumed may go on although the share is spent."""
        self._scheduled = False

    def __len__(self) -> int:
        """Return how many steps wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_crowded(self) -> bool:
        """Whether so many steps wait that clients should begin few more requests."""
        return len(self._waiting) > 0 and len(self) > REQUESTS_WAITING_CROWDED

    def when_calm(self, go_on: Callable[[], None]) -> None:
        """Call once, as soon as the steps of few requests wait."""
        self._when_calm[go_on] = None

    async def run(
        self, work: Coroutine[Any, Any, T], owner: Callable[[], str], connection: str = ""
    ) -> T:
        """Run a request, and postpone those of its steps that come late in a turn.

        ``owner`` returns the client to which the next step counts: its role is known only after a
        login. ``connection`` tells its connections apart.
        """
        token = _current.set((self, owner, connection))
        try:
            return await self._steps(work, owner)
        finally:
            _current.reset(token)

    async def pause(self, owner: Callable[[], str]) -> None:
        """Let others have their turns: in the middle of something long."""
        if self._share.is_spent():
            await self._wait(owner())
        else:
            await asyncio.sleep(0)

    @types.coroutine
    def _steps(
        self, work: Coroutine[Any, Any, T], owner: Callable[[], str]
    ) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        awaited: Any = None
        try:
            while True:
                if error is None and self._share.is_spent():
                    try:
                        yield from self._wait(owner())
                    except asyncio.CancelledError as cancelled:
                        error = cancelled
                try:
                    awaited = work.send(None) if error is None else work.throw(error)
                except StopIteration as stop:
                    found: T = stop.value
                    return found
                error = None
                try:
                    yield awaited
                except GeneratorExit:
                    raise
                except BaseException as raised:  # noqa: BLE001 - the request is told
                    error = raised
        finally:
            error = awaited = None  # else its traceback and this frame would keep each other
            work.close()

    @types.coroutine
    def _wait(self, owner: str) -> Generator[Any, Any, None]:
        """Wait for a turn. Of those that get the same one, the first may go on in any case."""
        yield from self._line_up(owner, deque.append)
        while not self._has_first and self._share.is_spent():
            yield from self._line_up(owner, deque.appendleft)
        self._has_first = False

    def _line_up(self, owner: str, join: Callable[..., None]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        join(self._waiting.setdefault(owner, deque()), future)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._resume)
        return future

    def _resume(self) -> None:
        """Resume as many steps as one turn has time for, of one client after the other."""
        call_soon = asyncio.get_running_loop().call_soon
        most = max(1, min(_STEPS_MAX, int(REQUESTS_SECONDS / max(self._step_seconds, 1e-6))))
        resumed = 0
        # The loop runs what it is given in order: these two before and after the steps.
        call_soon(self._begin)
        while self._waiting and resumed < most:
            owner, steps = self._waiting.popitem(last=False)
            future = steps.popleft()
            if steps:
                self._waiting[owner] = steps
            if not future.done():
                future.set_result(None)
                resumed += 1
        call_soon(self._end, resumed)

    def _begin(self) -> None:
        self._begun, self._has_first = self._now(), True

    def _end(self, resumed: int) -> None:
        if resumed:
            each = (self._now() - self._begun) / resumed
            self._step_seconds += _WEIGHT * (each - self._step_seconds)
        if self._when_calm and not self.is_crowded:
            held_back, self._when_calm = self._when_calm, {}
            for go_on in held_back:
                go_on()
        self._scheduled = bool(self._waiting)
        if self._waiting:
            self._resume()


class LargeJobs:
    """Runs what takes too long for the event loop in one thread, one job at a time.

    The next job is one of the client whose jobs have taken least of the thread lately, and of its
    connections that one whose jobs have. So who asks for the first time waits for one job, however
    many others wait.
    """

    def __init__(self, runtime: Runtime, name: str = "large-jobs") -> None:
        self._runtime = runtime
        self._name = name
        self._worker: Worker | None = None
        self._is_busy = False
        self._waiting: dict[_Line, deque[asyncio.Future[None]]] = {}
        """Jobs by client and connection, in the order in which these began to wait."""
        self._used: OrderedDict[str | _Line, tuple[float, float]] = OrderedDict()
        """By client, and by connection: seconds of the thread, and when they were counted."""

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job and return its result. It runs to its end even if its client leaves."""
        current = _current.get()
        owner = ("", "") if current is None else (current[1](), current[2])
        if self._is_busy:
            await self._turn(owner)
        self._is_busy = True
        if self._worker is None:
            self._worker = self._runtime.new_worker(self._name)
        task = asyncio.create_task(self._measured(self._worker, job, owner))
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # else an error's traceback and the task would keep each other

    def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    async def _measured(self, worker: Worker, job: Callable[[], T], owner: _Line) -> T:
        began = self._runtime.clock.monotonic()
        try:
            return await run_in_worker(worker, job)
        finally:
            self._count(owner, self._runtime.clock.monotonic() - began)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        heard(task)
        self._next()

    async def _turn(self, owner: _Line) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # its turn had come
                self._next()
            else:
                self._leave(owner, mine)
            raise

    def _leave(self, owner: _Line, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and mine in waiting:
            waiting.remove(mine)
            if not waiting:
                del self._waiting[owner]

    def _next(self) -> None:
        if not self._waiting:
            self._is_busy = False
            return
        owner = min(self._waiting, key=lambda line: (self._used_by(line[0]), self._used_by(line)))
        waiting = self._waiting[owner]
        following = waiting.popleft()
        if not waiting:
            del self._waiting[owner]
        if following.cancelled():
            self._next()
        else:
            following.set_result(None)

    def _count(self, owner: _Line, seconds: float) -> None:
        for each in (owner[0], owner):
            used = self._used_by(each) + seconds
            self._used.pop(each, None)
            self._used[each] = used, self._runtime.clock.monotonic()
        while len(self._used) > _CLIENTS_MAX:
            self._used.popitem(last=False)

    def _used_by(self, who: str | _Line) -> float:
        """Return the seconds used, less what time has made good."""
        used, since = self._used.get(who, (0.0, 0.0))
        passed = (self._runtime.clock.monotonic() - since) / _FORGOTTEN_SECONDS
        return used * max(1 - passed, 0.0)


_current: ContextVar[tuple[RequestTurns, Callable[[], str], str] | None] = ContextVar(
    "request_turns", default=None
)


async def pause() -> None:
    """Let others have their turns, a request in line with other requests."""
    current = _current.get()
    if current is None:
        await asyncio.sleep(0)
    else:
        turns, owner, _ = current
        await turns.pause(owner)
