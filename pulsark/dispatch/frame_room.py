"""The memory of large frames that have not arrived whole, those of all connections together.

A frame is only parsed when all of it is there, and a client may take its time to send it. So room
for the whole frame is taken before its rest is read, and each client has a fair share. Who finds
no room is not read and waits in line. A frame that has its room must arrive within some time, if
others wait: otherwise clients that send nothing more would keep everybody waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.limits import LARGE_FRAME_SECONDS
from pulsark.rates.shares import SharedBudget

if TYPE_CHECKING:
    from pulsark.runtime import Clock


class FrameReceiver(Protocol):
    """The connection on which a frame arrives."""

    def frame_has_room(self) -> None:
        """Read on: the room is taken."""

    def frame_is_late(self) -> None:
        """Give up the frame, and the connection with it."""


class _Held(NamedTuple):
    owner: str
    counted: int
    since: float


class FrameRoom:
    """The room of one broker, in bytes."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._budget = SharedBudget(limit)
        self._now = clock.monotonic
        self._held: OrderedDict[FrameReceiver, _Held] = OrderedDict()
        """The room that is taken, the oldest first."""
        self._waiting: dict[str, OrderedDict[FrameReceiver, int]] = {}
        """Receivers that wait and the sizes of their frames, in line by owner."""
        self._check: asyncio.TimerHandle | None = None

    @property
    def bytes(self) -> int:
        """Return how much room is taken."""
        return self._budget.held

    @property
    def waiting(self) -> int:
        """Return how many connections wait for room."""
        return sum(map(len, self._waiting.values()))

    def take(self, receiver: FrameReceiver, owner: str, size: int) -> bool:
        """Take room for a frame, or wait in line for it: ``frame_has_room`` is called later.

        A single frame always has room, whatever its size.
        """
        if owner not in self._waiting and self._take(receiver, owner, size):
            return True
        self._waiting.setdefault(owner, OrderedDict())[receiver] = size
        self._check_later()
        return False

    def give_back(self, receiver: FrameReceiver) -> None:
        """Free the room of a frame that the broker has carried out, or whose connection closed."""
        held = self._held.pop(receiver, None)
        if held is None:
            for owner, line in self._waiting.items():
                if line.pop(receiver, None) is not None:
                    if not line:
                        del self._waiting[owner]
                    break
            return
        self._budget.give_back(held.owner, held.counted)
        for owner in list(self._waiting):
            self._let_in(owner)

    def _let_in(self, owner: str) -> None:
        line = self._waiting[owner]
        while line:
            receiver, size = next(iter(line.items()))
            if not self._take(receiver, owner, size):
                return
            del line[receiver]
            if not line:
                del self._waiting[owner]
            receiver.frame_has_room()

    def _take(self, receiver: FrameReceiver, owner: str, size: int) -> bool:
        counted = size
        if not self._budget.take(owner, size):
            if self._held:
                return False
            counted = 0
        self._held[receiver] = _Held(owner, counted, self._now())
        return True

    def _check_later(self) -> None:
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(LARGE_FRAME_SECONDS / 4, self._check_times)

    def _check_times(self) -> None:
        self._check = None
        late = self._now() - LARGE_FRAME_SECONDS
        while self._waiting and self._held:
            receiver, held = next(iter(self._held.items()))
            if held.since > late:
                break
            self.give_back(receiver)
            receiver.frame_is_late()
        if self._waiting:
            self._check_later()
