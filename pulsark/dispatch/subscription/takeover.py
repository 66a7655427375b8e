"""The pause of a Failover subscription between two active consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsark.dispatch.subscription.dispatcher import Dispatcher


class Takeover:
    """Lets the old consumer acknowledge what it has, so that less of it is delivered twice."""

    __slots__ = ("_dispatcher", "_timer")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float) -> None:
        """Deliver nothing for this time. Consumers that come and go meanwhile do not extend it."""
        if self._timer is None:
            self._dispatcher.pause()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self._timer = None
        self._dispatcher.rewind()
        self._dispatcher.go_on()

    def cancel(self) -> None:
        """The subscription is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
