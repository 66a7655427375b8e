"""The bookies that ledgers can use, and which of them failed lately."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulsark.errors import StorageError, StorageFullError
from pulsark.storage.ledger.placement import (
    SLOW_SECONDS,
    Failures,
    OnePlace,
    first_failure,
    spread,
)
from pulsark.storage.ledger.troubles import Troubles

FULL_PROBE_SECONDS: Final = 2.0
"""Time after which one new ledger may try a bookie again that had no room."""

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pulsark.runtime import Runtime
    from pulsark.storage.bookie.bookie import Bookie
    from pulsark.storage.ledger.metadata import LedgerConfig
    from pulsark.storage.ledger.placement import Places


FULL_REMEMBERED_SECONDS: Final = 10.0
"""Time after which a bookie that nobody tried again does not count as full any more."""


class Shortage(Enum):
    """Whether a ledger that is written has as many copies as are wanted."""

    NONE = "it has all"
    LASTING = "there are no more bookies now"
    PRESSING = "a bookie is gone: BookKeeper's auto-recovery closes such ledgers, after 30 s"
    NEEDLESS = "a new ledger would have all"


class LedgerBookies:
    """Chooses bookies for ensembles. The mapping may change while it is used."""

    def __init__(
        self, bookies: Mapping[str, Bookie], runtime: Runtime, places: Places | None = None
    ) -> None:
        self._bookies = bookies
        self._runtime = runtime
        self._places: Places = OnePlace() if places is None else places
        self.troubles = Troubles()
        """Told of what fails with them."""
        self._failures: dict[str, Failures] = {}
        self.full: dict[str, float] = {}
        """Bookies that refused an append for want of room, and when to try them again."""
        self._slow: dict[str, float] = {}
        """Until when bookies are read last."""
        self._given: dict[Bookie, None] = {}
        """In order."""

    def get(self, bookie_id: str) -> Bookie:
        """The bookie of that name; ``StorageError`` if it is not there now."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            raise StorageError(f"bookie {bookie_id} is not available")
        return bookie

    def __contains__(self, bookie_id: str) -> bool:
        return bookie_id in self._bookies

    @property
    def by_id(self) -> Mapping[str, Bookie]:
        """Those that are there now; they may change."""
        return self._bookies

    @property
    def ids(self) -> list[str]:
        """Their ids, sorted."""
        return sorted(self._bookies)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._bookies)

    def given(self, bookie: Bookie) -> None:
        """A bookie was given an append."""
        self._given[bookie] = None

    def flush(self) -> None:
        """Let bookies start with what they were given. Others are not touched: they may be many."""
        given, self._given = self._given, {}
        for bookie in given:
            bookie.flush()

    def all(self) -> list[Bookie]:
        """All that are there now."""
        return list(self._bookies.values())

    def failed(self, bookie_id: str, error: BaseException | None = None) -> None:
        """Note that a write to this bookie failed.

        A bookie without room is not suspect: new ledgers leave it out until it has room again.
        """
        if isinstance(error, StorageFullError):
            self.full[bookie_id] = self._runtime.clock.monotonic() + FULL_PROBE_SECONDS
            return
        now, before = self._runtime.clock.monotonic(), self._failures.get(bookie_id)
        self._failures[bookie_id] = first_failure(now) if before is None else before.and_one_at(now)

    def has_room(self, bookie_ids: Iterable[str]) -> None:
        """Note that these bookies stored entries that may not use the reserve."""
        for bookie_id in bookie_ids:
            self.full.pop(bookie_id, None)

    def try_full(self) -> None:
        """Let new ledgers try full bookies at once: something was freed."""
        now = self._runtime.clock.monotonic()
        self.full = dict.fromkeys(self.full, now)

    def is_full(self, ack_quorum: int) -> bool:
        """Return whether too few bookies have room for entries, as far as their answers tell."""
        if not self.full:
            return False
        since = self._runtime.clock.monotonic() - FULL_REMEMBERED_SECONDS
        names = self._writable()
        with_room = sum(self.full.get(name, -math.inf) < since for name in names)
        return with_room < min(ack_quorum, len(names))

    def is_suspect(self, bookie_id: str) -> bool:
        """Whether the bookie failed lately, or is not there."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None or bookie.is_away:
            return True
        failures = self._failures.get(bookie_id)
        return failures is not None and self._runtime.clock.monotonic() < failures.until

    def was_slow(self, bookie_id: str) -> None:
        """A read from it took long. That says nothing of writes, which take turns elsewhere."""
        self._slow[bookie_id] = self._runtime.clock.monotonic() + SLOW_SECONDS

    def is_slow(self, bookie_id: str) -> bool:
        """Whether a read from it took long lately."""
        until = self._slow.get(bookie_id)
        if until is None:
            return False
        if self._runtime.clock.monotonic() < until:
            return True
        del self._slow[bookie_id]
        return False

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(bookie_id)`` when a bookie is gone, where that is known."""
        self._places.on_lost(listener)

    def shortage(self, failed: Sequence[str], size: int, wanted: int) -> Shortage:
        """Why a ledger on so many bookies, of which these failed, has fewer copies than wanted."""
        if not failed and size >= wanted:
            return Shortage.NONE
        names = self._writable()
        if sum(not self.is_suspect(name) for name in names) >= max(wanted, size):
            return Shortage.NEEDLESS
        return Shortage.LASTING if {*failed} <= {*names} else Shortage.PRESSING

    def attainable(self, config: LedgerConfig) -> LedgerConfig:
        """The config with as many copies as there are bookies.

        Raises ``StorageError`` if they are fewer than an ack quorum, and ``StorageFullError`` if
        they would be enough but have no room.
        """
        count = len(self._with_room(config))
        if count < config.ack_quorum:
            if len(self._writable()) >= config.ack_quorum:
                raise StorageFullError(
                    f"the disks of {len(self.full)} bookies are full; free or acknowledge messages"
                )
            raise StorageError(f"{config.ack_quorum} bookies are needed and {count} are there")
        if config.ensemble_size <= count:
            return config
        return replace(config, ensemble_size=count, write_quorum=min(config.write_quorum, count))

    def choose(self, config: LedgerConfig) -> list[Bookie]:
        """Bookies for a new ensemble, by chance and by rack; suspects only where others lack."""
        count, names = config.ensemble_size, self._with_room(config)
        names = self._runtime.rng.sample(names, len(names))
        chosen = spread(names, count, self._places.rack, self.is_suspect)
        if self.full and not config.reserve:
            probe_at = self._runtime.clock.monotonic() + FULL_PROBE_SECONDS
            self.full.update({name: probe_at for name in chosen if name in self.full})
        return [self._bookies[name] for name in chosen]

    async def wait_for(self, count: int, ensemble: Sequence[Bookie]) -> None:
        """Wait until enough bookies accept appends; ``StorageError`` if that takes long."""
        away = [bookie for bookie in ensemble if bookie.is_away]
        missing = count - (len(ensemble) - len(away))
        if missing <= 0:
            return
        waiting = [asyncio.ensure_future(bookie.ready()) for bookie in away]
        try:
            for each in islice(asyncio.as_completed(waiting), missing):
                await each
        finally:
            for task in waiting:
                task.cancel()

    def spare(self, taken: Collection[str]) -> Bookie | None:
        """A bookie that is not among ``taken`` and not suspect."""
        names = [
            n
            for n in self._writable()
            if n not in taken and n not in self.full and not self.is_suspect(n)
        ]
        if not names:
            return None
        beside = [n for n in taken if not self.is_suspect(n)]
        names = self._runtime.rng.sample(names, len(names))
        return self._bookies[spread(names, 1, self._places.rack, self.is_suspect, beside)[0]]

    def _writable(self) -> list[str]:
        return [name for name in sorted(self._bookies) if self._places.is_writable(name)]

    def _with_room(self, config: LedgerConfig) -> list[str]:
        """Return the writable bookies for a ledger. One that was full may be tried now and then."""
        names = self._writable()
        if not self.full or config.reserve:
            return names
        now = self._runtime.clock.monotonic()
        return [name for name in names if self.full.get(name, 0.0) <= now]
