"""Deferrable work of the event loop, queued so that no turn is long.

Work that may come in large amounts (a thousand subscriptions with entries to send, the consumers
of a lost connection) waits in one queue of the broker. A turn of the loop runs it for some
milliseconds; then sockets and timers are served, and the queue continues after them.

Commands of clients that waited for a later turn have a line of their own with a share of each turn:
however many they are, deliveries and other work of the broker do not stand in line behind them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.limits import CROWDED_CLIENTS, INTAKE_SECONDS, POSTPONED_SECONDS, TURN_SECONDS

if TYPE_CHECKING:
    from pulsark.runtime import Clock


_TICK_SECONDS: Final = 1e-6
"""A rest that is shorter is over: a timer may not be able to wait for it."""


class Step(NamedTuple):
    """Something that was called and took time."""

    seconds: float
    name: str


class Lane(Enum):
    """A line of postponed work. Each has a share of a turn, so none waits for another."""

    LIGHT = "light"
    """Commands of clients that take little time."""
    HTTP = "http"
    """Requests that arrived over HTTP and are not parsed yet."""
    HEAVY = "heavy"
    """Commands that are large themselves, and those of clients whose last turn was long."""


class TurnShare:
    """Time that one kind of work may take in one turn of the event loop.

    A loop does not tell its turns apart, and a call at the end of each would wake it once more for
    all that a client sends. So some work is free, over any number of turns. Only what comes after
    it counts as one turn's, up to a call at that turn's end.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._now = clock.monotonic
        self._seconds = seconds
        self._free_until: float | None = None
        """The end of the time for which no turn has to be known."""
        self._until: float | None = None
        """The end of this turn's share, once the free time is over."""

    def is_spent(self) -> bool:
        """Return whether this kind of work has had its share of the current turn.

        A turn gets the whole share, and a quarter more if the free time falls into it.
        """
        now = self._now()
        if self._until is not None:
            return now >= self._until
        if self._free_until is None:
            self._free_until = now + self._seconds / 4
        elif now >= self._free_until:
            self._until = now + self._seconds
            asyncio.get_running_loop().call_soon(self._end)
        return False

    def _end(self) -> None:
        self._free_until = self._until = None


class RunQueue:
    """First come, first served. What is put in has to be short: well below a turn."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._waiting: deque[Callable[[], object]] = deque()
        self._postponed: dict[Lane, deque[Callable[[], object]]] = {lane: deque() for lane in Lane}
        self._postponed_count = 0
        self._heavy_from = -math.inf
        """The end of the rest after heavy work that took more than its share of a turn."""
        self._intake = TurnShare(clock, INTAKE_SECONDS)
        self._scheduled = False
        self._until = math.inf
        """While it is worked off, the end of the turn."""
        self._longest: tuple[float, Callable[[], object]] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + self._postponed_count

    def is_late(self) -> bool:
        """Return whether new commands of clients have had their share of this turn.

        Each connection may carry out one command, however late it is. If very many connections have
        one at the same moment, the later ones postpone theirs.
        """
        return self._intake.is_spent()

    @property
    def is_crowded(self) -> bool:
        """Return whether many clients wait for later turns."""
        return self._postponed_count >= CROWDED_CLIENTS

    def deadline(self) -> float:
        """The deadline of work that can be resumed later, such as a client's."""
        now, others_wait = self._now(), self._waiting or self._postponed_count
        return min(now + (TURN_SECONDS / 4 if others_wait else 2 * TURN_SECONDS), self._until)

    def call(self, work: Callable[[], object]) -> None:
        """Call it in this or a later turn."""
        self._waiting.append(work)
        self._schedule()

    def postpone(self, work: Callable[[], object], lane: Lane, *, is_begun: bool = False) -> None:
        """Call a client's work in a later turn, in line with that of other clients.

        Heavy work that is begun ends before other heavy work begins: what a large command was
        parsed into is much larger than the command.
        """
        if is_begun and lane is Lane.HEAVY:
            self._postponed[lane].appendleft(work)
        else:
            self._postponed[lane].append(work)
        self._postponed_count += 1
        self._schedule()

    def _schedule(self) -> None:
        if len(self) and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work_off)

    def take_steps(self, steps: Iterator[object]) -> None:
        """Run an iterator to its end: half a turn's worth at once, the rest in its turns.

        A step that fails is told to the loop and not to the caller, whichever turn it is. Those
        behind it are taken, unless the iterator is a generator: that has ended.
        """
        until = self._now() + TURN_SECONDS / 2
        while True:
            try:
                next(steps)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - the loop's handler logs it
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a step of {_name_of(steps)} failed", "exception": error}
                )
            if self._now() >= until:
                self.call(partial(self.take_steps, steps))
                return

    def call_all(self, works: Iterator[Callable[[], object]]) -> None:
        """Call them in order, as steps: all of them, whichever fails."""
        self.take_steps(_Calls(works))

    def take_longest(self) -> Step | None:
        """The longest step since the last call that took more than a turn."""
        longest, self._longest = self._longest, None
        return None if longest is None else Step(longest[0], _name(longest[1]))

    def _work_off(self) -> None:
        try:
            try:
                self._work(self._waiting, TURN_SECONDS)
            finally:
                if self._postponed_count:
                    self._work_off_postponed()
        finally:
            self._until = math.inf
            self._postponed_count = sum(map(len, self._postponed.values()))
            # Also when one of them fails, which the loop logs: the others go on.
            self._scheduled = len(self) > 0
            if self._scheduled:
                self._go_on()

    def _work_off_postponed(self) -> None:
        """What a heavy command takes beyond the share of its turn is not given to heavy ones again.

        A client can send a command that takes tens of milliseconds, and a thousand clients can do
        it at once. Between two of those, everybody else has as much time.
        """
        try:
            self._work(self._postponed[Lane.LIGHT], POSTPONED_SECONDS)
            self._work(self._postponed[Lane.HTTP], POSTPONED_SECONDS)
        finally:
            heavy = self._postponed[Lane.HEAVY]
            begun = self._now()
            if heavy and self._heavy_from - begun < _TICK_SECONDS:
                try:
                    self._work(heavy, POSTPONED_SECONDS)
                finally:
                    ended = self._now()
                    self._heavy_from = ended + max(0.0, ended - begun - 2 * TURN_SECONDS)

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        only_heavy = len(self) == len(self._postponed[Lane.HEAVY])
        rest = self._heavy_from - self._now() if only_heavy else 0.0
        if rest < _TICK_SECONDS:
            loop.call_soon(self._work_off)
        else:
            self._scheduled = False
            loop.call_later(rest, self._schedule)

    def _work(self, waiting: deque[Callable[[], object]], seconds: float) -> None:
        if not waiting:
            return
        now = self._now
        begun = now()
        self._until = until = begun + seconds
        while waiting:
            work = waiting.popleft()
            work()
            ended = now()
            if ended >= until:
                if ended - begun > TURN_SECONDS:
                    self._was_long(ended - begun, work)
                return
            begun = ended

    def _was_long(self, seconds: float, work: Callable[[], object]) -> None:
        if self._longest is None or self._longest[0] < seconds:
            self._longest = seconds, work


class _Calls(Iterator[object]):
    """Calls what an iterator gives. Unlike a generator it goes on after one that failed."""

    def __init__(self, works: Iterator[Callable[[], object]]) -> None:
        self._works = works
        self.__qualname__ = _name_of(works)

    def __next__(self) -> object:
        return next(self._works)()


def _name(work: Callable[[], object]) -> str:
    """Return what people call it. What it holds is not shown: that may be a client's, and large."""
    if isinstance(work, partial):
        steps = work.args[0] if work.func.__name__ == RunQueue.take_steps.__name__ else work.func
        return _name_of(steps)
    owner = getattr(work, "__self__", None)
    if owner is None:
        return _name_of(work)
    has_name = getattr(type(owner), "__str__", None) is not object.__str__
    return f"{_name_of(work)} of {owner if has_name else type(owner).__qualname__}"


def _name_of(steps: object) -> str:
    return str(getattr(steps, "__qualname__", None) or type(steps).__qualname__)
