"""The session: a lease of etcd, kept alive by this process.

The lease of a new leader begins anew, so an answer of a leader that has lost its followers promises
nothing wrong but for an election's time, about a second. What a session leaves between its own
deadline and the server's covers that.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError
from pulsark.metadata.session import SIGNS_A_DEADLINE, Session
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from pulsark.metadata.etcd.gateway import Gateway
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

_SURE_AFTER: Final = 0.1
"""The first sign must be answered within this share of the lease's time."""


class Lease:
    """See ``grant``."""

    def __init__(self, gateway: Gateway, clock: Clock, number: int, seconds: float) -> None:
        self.number = number
        self.session = Session(clock, seconds)
        self._gateway = gateway
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def grant(cls, gateway: Gateway, clock: Clock, seconds: float, deadline: float) -> Lease:
        """A new lease of at least this time; etcd may choose a longer one. ``MetadataError``."""
        answer = await gateway.read("lease/grant", {"TTL": math.ceil(seconds)}, deadline)
        number, seconds = int(answer.get("ID", 0)), float(answer.get("TTL", 0))
        if not number or not seconds:
            raise MetadataError(f"etcd grants no lease: {answer.get('error', answer)}")
        late = True
        while late:  # the session below must not begin later than the lease
            sent_at = clock.monotonic()
            if not await _kept(gateway, number, deadline):
                raise MetadataError("the lease in etcd has ended at once")
            late = clock.monotonic() - sent_at > _SURE_AFTER * seconds
        return cls(gateway, clock, number, seconds)

    def keep(self) -> None:
        """Give signs of life from now on."""
        self._task = unattended(self._keep(), "keeping the lease in etcd")

    def end(self, reason: str) -> None:
        """It is known to be over, or not to be relied on."""
        if not self.session.has_ended:
            log.error("the session with etcd is over: %s", reason)
        self.stop()
        self.session.end()

    def stop(self) -> None:
        """Give no more signs."""
        if self._task is not None:
            self._task.cancel()

    async def revoke(self, seconds: float) -> None:
        """Let etcd end it at once, if it answers in time; else it ends by itself."""
        deadline = asyncio.get_running_loop().time() + seconds
        with suppress(MetadataError):
            await self._gateway.write("lease/revoke", {"ID": str(self.number)}, deadline)

    async def _keep(self) -> None:
        seconds = self.session.timeout_seconds / SIGNS_A_DEADLINE
        while True:
            sent_at = self._clock.monotonic()
            deadline = asyncio.get_running_loop().time() + seconds
            with suppress(MetadataError):  # the next one will do
                if not await _kept(self._gateway, self.number, deadline):
                    self.end("etcd has ended it")
                    return
                self.session.heard(sent_at)
            await asyncio.sleep(max(sent_at + seconds - self._clock.monotonic(), 0))


async def _kept(gateway: Gateway, number: int, deadline: float) -> bool:
    """Whether the lease goes on."""
    answer = await gateway.read("lease/keepalive", {"ID": str(number)}, deadline)
    try:
        return int(answer["result"].get("TTL", 0)) > 0
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MetadataError(f"etcd's answer cannot be read: {answer}") from error
