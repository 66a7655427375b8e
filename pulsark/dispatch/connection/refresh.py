"""When a client's credentials expire, and how long it has to send new ones: one timer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.security.limits import EXPIRY_LOOKED_AT_SECONDS, REFRESH_SECONDS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.runtime import Clock


class Refresh:
    """The refresh of one connection's credentials."""

    def __init__(
        self,
        clock: Clock,
        answer_s: float,
        challenge: Callable[[], None],
        expired: Callable[[], None],
    ) -> None:
        """``challenge`` asks the client, which has ``answer_s``; ``expired`` gives it up."""
        self._clock = clock
        self._answer_s = answer_s
        self._challenge = challenge
        self._expired = expired
        self._can_refresh = False
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        """Before this nothing more is verified."""
        self._verifying = False
        self._until: float | None = None
        """Until then a client that was asked has time."""
        self._pause_s = REFRESH_SECONDS_MIN

    def start(self, expires_ms: int | None, *, can_refresh: bool) -> None:
        """The client has logged in, with what is good until then."""
        self._can_refresh = can_refresh
        self.renew(expires_ms)

    def answered(self) -> bool:
        """The client sent credentials: whether they are to be verified now. If not, forget them.

        Nobody keeps the broker busy by sending them all the time.
        """
        now = self._clock.monotonic()
        if self._verifying or now < self._next:
            return False
        self._next = now + REFRESH_SECONDS_MIN
        self._verifying = True
        return True

    def renew(self, expires_ms: int | None) -> None:
        """The credentials are good until then."""
        self._verifying = False
        self._until, self._pause_s = None, REFRESH_SECONDS_MIN
        self.stop()
        if expires_ms is not None:
            self._set_timer(expires_ms)

    def ask_again(self) -> bool:
        """What the client answered has expired: it is asked again later, while it has time.

        Its clock may be behind, or it counts from when its credentials came.
        """
        self._verifying = False
        now = self._clock.monotonic()
        if self._until is None or now + self._pause_s >= self._until:
            return False
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._ask)
        self._pause_s *= 2
        return True

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, expires_ms: int) -> None:
        # The wall clock may be put forward: it is looked at once in a while.
        left_s = max((expires_ms - self._clock.now_ms()) / 1000, 0.0)
        self._timer = asyncio.get_running_loop().call_later(
            min(left_s, EXPIRY_LOOKED_AT_SECONDS), self._on_timer, expires_ms
        )

    def _on_timer(self, expires_ms: int) -> None:
        if self._clock.now_ms() < expires_ms:
            self._set_timer(expires_ms)
        elif not self._can_refresh:
            self._expired()
        else:
            self._until = self._clock.monotonic() + self._answer_s
            self._ask()

    def _ask(self) -> None:
        assert self._until is not None
        left_s = self._until - self._clock.monotonic()
        self._timer = asyncio.get_running_loop().call_later(left_s, self._expired)
        self._challenge()
