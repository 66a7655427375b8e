"""What may go wrong between several brokers, drawn anew for each seed.

Each seed has some of the faults, and each of them rarely or often: what one fault hides, another
seed shows. Those of a claim, a release or a split are drawn apart, since that is where owners
change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pulsark.dispatch.broker import Broker
from pulsark.errors import MetadataRefusedError, OutcomeUnknownError, PulsarkError
from pulsark.metadata.changes import Change, Check, Put
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import BUNDLE_OWNERS
from pulsark.metadata.store import Versioned
from pulsark.runtime import Clock
from pulsark.storage.bookie.bookie import LedgerTail
from tests.support.memory_bookie import MemoryBookie

SESSION_SECONDS = 10.0
AWAY_SECONDS = (0.5, 5.0, 8.0, 11.0, 20.0)
"""How long a broker is cut off: for less than its session, or for more."""

EVENTS = (
    *("acknowledge", "split", "release", "unload", "delete", "change"),
    *("cut off", "session", "restart", "clock"),
)
"""What happens beside publishes."""


@dataclass(frozen=True)
class BrokerFaults:
    """Those of one seed. Parts are of 1; all zero is a quiet day."""

    unanswered: float = 0.0
    """Part of the writes that get no answer."""
    unanswered_claims: float = 0.0
    """The same of the writes that change who owns a bundle."""
    cut_off_claims: float = 0.0
    """Part of those at which the broker is cut off, just before or just after."""
    slow: float = 0.0
    """Most seconds that a request takes."""
    slow_bookie: float = 0.0
    news_missed: float = 0.0
    """Part of the news that a broker hears late, and only that there was some."""
    news_late: float = 0.05
    """Most seconds that news takes."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How often things happen, beside a publish, which is 1."""
    are_over: bool = False

    @classmethod
    def drawn(cls, rng: random.Random) -> BrokerFaults:
        """One seed in six loses nothing."""
        weights = {what: rng.choice((0.0, 0.1, 0.2, 0.6)) for what in EVENTS}
        if rng.random() < 1 / 6:
            return cls(weights=weights)
        return cls(
            rng.choice((0.0, 0.02, 0.05, 0.2)),
            rng.choice((0.0, 0.05, 0.3, 0.6)),
            rng.choice((0.0, 0.0, 0.1, 0.3)),
            rng.choice((0.0, 0.0, 0.02, 0.3)),
            rng.choice((0.0, 0.0, 0.05, 1.0)),
            rng.choice((0.0, 0.05, 0.3)),
            rng.choice((0.01, 0.05, 1.0)),
            weights,
        )

    def over(self) -> BrokerFaults:
        """Nothing goes wrong any more."""
        quiet = replace(self, unanswered=0.0, unanswered_claims=0.0, cut_off_claims=0.0, slow=0.0)
        return replace(quiet, are_over=True)


class ShakyStore(MemoryMetadataStore):
    """The session of one broker."""

    broker: Broker
    """Whose session it is."""

    def __init__(self, tree: MemoryTree, clock: Clock, rng: random.Random) -> None:
        self._rng = rng
        self.faults = BrokerFaults()
        self.cut = False
        self._back = asyncio.Event()
        self._back.set()
        self.is_over = False
        """As the store knows; the broker may not."""
        super().__init__(tree, clock, SESSION_SECONDS)

    async def cut_off(self, seconds: float) -> None:
        """Nothing comes through for so long."""
        if self.faults.are_over:  # it was to begin a little later
            return
        self.cut = self.is_silent = True
        self._back.clear()
        await asyncio.sleep(seconds)
        self.come_back()

    def come_back(self) -> None:
        """The network is there again; that the session is over is heard a little later."""
        self.cut = False
        self._back.set()
        if self.is_over:
            self._later(self._rng.uniform(0, 3), super().expire)
        else:
            self.is_silent = False

    def expire(self) -> None:
        """The session ends; the broker hears of it at once, unless it is cut off."""
        if self.cut:
            self.is_over = True
            self.tree.end_session(self)
        elif not self.is_over:
            super().expire()

    async def get(self, path: str) -> Versioned | None:
        await self._reach()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._reach()
        return await super().children(path)

    async def next_id(self, path: str) -> int:
        await self._reach()
        return await super().next_id(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        rng, faults = self._rng, self.faults
        about_owners = _is_about_owners(changes)
        if about_owners and rng.random() < faults.cut_off_claims:
            away = self.cut_off(rng.choice(AWAY_SECONDS))
            self._later(rng.choice((0.0, 0.0, faults.slow)), lambda: asyncio.ensure_future(away))
            await asyncio.sleep(0)
        await self._reach()
        if self.is_over and any(isinstance(c, Put) and c.ephemeral for c in changes):
            raise MetadataRefusedError("the session is over")
        unanswered = faults.unanswered_claims if about_owners else faults.unanswered
        if rng.random() >= unanswered:
            return await super().commit(changes)
        fate = rng.choice(("never", "done", "late"))
        if fate == "late":
            await asyncio.sleep(0)
            self._later(
                rng.uniform(0, 2), lambda: asyncio.ensure_future(self._commit_late(changes))
            )
        elif fate == "done":
            with suppress(PulsarkError):
                await super().commit(changes)
        raise OutcomeUnknownError("the store did not answer")

    async def _commit_late(self, changes: Sequence[Change]) -> None:
        with suppress(PulsarkError):
            await super().commit(changes)

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        active = True

        def tell(path: str) -> None:
            if self.cut or self._rng.random() < self.faults.news_missed:
                self._later(self._rng.uniform(0, 3), lambda: missed() if active else None)
            else:
                late = self._rng.uniform(0, self.faults.news_late)
                self._later(late, lambda: changed(path) if active else None)

        end = super().watch(prefix, tell, missed)

        def ended() -> None:
            nonlocal active
            active = False
            end()

        return ended

    async def _reach(self) -> None:
        """A request takes its time. While it is cut off, it waits, or fails at once."""
        if self.faults.slow:
            await asyncio.sleep(self._rng.uniform(0, self.faults.slow))
        if self.cut:
            if self._rng.random() < 0.5:
                raise OutcomeUnknownError("the store does not answer")
            await self._back.wait()

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, action)


def _is_about_owners(changes: Sequence[Change]) -> bool:
    return any(
        change.path.startswith(f"{BUNDLE_OWNERS}/") and not isinstance(change, Check)
        for change in changes
    )


class SlowBookie(MemoryBookie):
    """Takes up to ``seconds`` for a read, and to store what it got meanwhile, in order."""

    def __init__(self, rng: random.Random, seconds: float) -> None:
        super().__init__()
        self._rng = rng
        self.seconds = seconds

    def _schedule(self) -> None:
        if not self.seconds:
            super()._schedule()
        elif not self._scheduled:
            self._scheduled = True
            late = self._rng.uniform(0, self.seconds)
            asyncio.get_running_loop().call_later(late, self._turn)

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        await asyncio.sleep(self._rng.uniform(0, self.seconds))
        return await super().read(ledger_id, first_entry_id, last_entry_id, max_bytes)

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        await asyncio.sleep(self._rng.uniform(0, self.seconds))
        return await super().tail(ledger_id, fence=fence)
