"""What happens during an await is the test's choice: calls stop on their way in, or out.

``at_each_await`` runs an operation once for each place at which it can stop, makes a change there,
lets it go on, and looks at the outcome.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SETTLE_TURNS = 200
"""Turns of the loop in which everything that has no timer comes to rest."""


class Gate:
    """Stops the call that passes as number ``at``. Each call passes twice: before and after.

    One that is not ``armed`` does not count those who pass.
    """

    def __init__(self, at: int, *, armed: bool = True) -> None:
        self.armed = armed
        self._at = at
        self._passed = 0
        self._open = asyncio.Event()
        self.reached = asyncio.Event()

    async def passes(self) -> None:
        """Stop here, if it is the place."""
        if not self.armed:
            return
        number, self._passed = self._passed, self._passed + 1
        if number == self._at:
            self.reached.set()
            await self._open.wait()

    def open(self) -> None:
        """Let the call that has stopped go on, and all that come."""
        self._open.set()


class Gated(Generic[T]):
    """Any store, bookie, file or reader whose coroutines pass a gate."""

    def __init__(self, inner: T, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            await self._gate.passes()
            answer = await found(*arguments, **named)
            await self._gate.passes()
            return answer

        return call


class GatedBookie(Gated[T]):
    """A bookie whose appends pass the gate too, in order: on their way in, and their answers."""

    def __init__(self, inner: T, gate: Gate) -> None:
        super().__init__(inner, gate)
        self._arriving: deque[Callable[[], None]] = deque()
        self._answering: deque[Callable[[], None]] = deque()

    def append(self, run: Any, done: Callable[[Any], None], **options: bool) -> None:
        """``Bookie.append``."""
        inner: Any = self._inner

        def answered(error: BaseException | None) -> None:
            self._pass(self._answering, lambda: done(error))

        self._pass(self._arriving, lambda: inner.append(run, answered, **options))

    def _pass(self, line: deque[Callable[[], None]], what: Callable[[], None]) -> None:
        line.append(what)
        if len(line) == 1:
            asyncio.ensure_future(self._in_line(line))  # noqa: RUF006 - it ends with the line

    async def _in_line(self, line: deque[Callable[[], None]]) -> None:
        while line:
            await self._gate.passes()
            line[0]()
            line.popleft()


def outcomes(
    begin: T, effects: Sequence[Callable[[T], T | None]], failed: Collection[int]
) -> Iterator[T]:
    """Yield the states after all effects in any order.

    Those whose action failed may have happened, or not. An effect gives ``None`` if its action is
    refused in a state.
    """
    for count in range(len(effects) + 1):
        for order in permutations(range(len(effects)), count):
            if not set(range(len(effects))) <= {*order, *failed}:
                continue
            state: T | None = begin
            for number in order:
                state = effects[number](state) if state is not None else None
            if state is not None:
                yield state


async def settle() -> None:
    """Let everything that was set in motion come to rest."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


async def with_change(
    gate: Gate,
    operation: Awaitable[object],
    change: Callable[[], Awaitable[object]],
    rest: Callable[[], Awaitable[object]] = settle,
) -> bool:
    """Run an operation; where it stops, begin a change, and let both go on after a rest.

    Return whether it stopped. The gate is open afterwards.
    """
    running = asyncio.ensure_future(operation)
    reaching = asyncio.ensure_future(gate.reached.wait())
    await asyncio.wait([running, reaching], return_when=asyncio.FIRST_COMPLETED)
    reaching.cancel()
    gate.armed = False
    if gate.reached.is_set():
        changing = asyncio.ensure_future(change())
        await rest()
        gate.open()
        await asyncio.wait([running, changing])
        changing.result()
    running.result()
    return gate.reached.is_set()


async def at_each_await(
    make: Callable[[Gate], Awaitable[T]],
    operation: Callable[[T], Awaitable[object]],
    change: Callable[[T], Awaitable[object]],
    check: Callable[[T, str], Awaitable[None]],
) -> int:
    """Return how many places there were. ``check`` gets a text that says where it was."""
    place = 0
    while True:
        gate = Gate(place)
        stage = await make(gate)
        if not await with_change(gate, operation(stage), partial(change, stage)):
            return place
        await settle()
        await check(stage, f"at await {place}")
        place += 1
