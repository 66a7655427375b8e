"""Iteration over very many items on the event loop, which yields to others in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pulsark.dispatch.loop.request_turns import pause
from pulsark.limits import TOPICS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

T = TypeVar("T")
U = TypeVar("U")


class Pace:
    """Counts steps; after some the event loop does what else there is to do."""

    def __init__(self, at_once: int = TOPICS_PER_TURN_MAX) -> None:
        self._at_once = at_once
        self._taken = 0

    async def step(self) -> None:
        """A step was taken."""
        self._taken += 1
        if self._taken % self._at_once == 0:
            await pause()


async def in_turns(things: Iterable[T], at_once: int = TOPICS_PER_TURN_MAX) -> AsyncIterator[T]:
    """Each of them, at a pace.

    What is gone through must not change meanwhile: a list of its own, for example.
    """
    pace = Pace(at_once)
    for thing in things:
        yield thing
        await pace.step()


async def answers_in_turns(
    ask: Callable[[T], Awaitable[U]], things: Sequence[T], at_once: int = TOPICS_PER_TURN_MAX
) -> AsyncIterator[tuple[T, U]]:
    """Each of them with what is answered about it, in their order.

    Some are asked at a time: a store in another process answers each after a while, which would be
    minutes for very many of them, one after the other.
    """
    for start in range(0, len(things), at_once):
        some = things[start : start + at_once]
        answers = await asyncio.gather(*map(ask, some))
        for pair in zip(some, answers, strict=True):
            yield pair


async def for_each(things: Collection[T], do: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do something with each of them, with so many beside each other."""
    waiting = iter(things)

    async def some() -> None:
        for thing in waiting:
            await do(thing)

    await asyncio.gather(*(some() for _ in range(min(at_once, len(things)))))
