"""The bookies that ledgers can use, and which of them failed lately."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from pulsark.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pulsark.runtime import Runtime
    from pulsark.storage.bookie.bookie import Bookie
    from pulsark.storage.ledger.metadata import LedgerConfig

SUSPECT_SECONDS = 30.0
"""Time for which a bookie that failed a write is used only where no other is left."""


class LedgerBookies:
    """Chooses bookies for ensembles. The mapping may change while it is used."""

    def __init__(self, bookies: Mapping[str, Bookie], runtime: Runtime) -> None:
        self._bookies = bookies
        self._runtime = runtime
        self._suspect_until: dict[str, float] = {}

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

    def flush(self) -> None:
        """Let all bookies start with what they were given."""
        for bookie in self._bookies.values():
            bookie.flush()

    def all(self) -> list[Bookie]:
        """All that are there now."""
        return list(self._bookies.values())

    def failed(self, bookie_id: str) -> None:
        """A write to this bookie failed."""
        self._suspect_until[bookie_id] = self._runtime.clock.monotonic() + SUSPECT_SECONDS

    def is_suspect(self, bookie_id: str) -> bool:
        """Whether the bookie failed lately, or is not there."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None or bookie.is_away:
            return True
        until = self._suspect_until.get(bookie_id)
        if until is None:
            return False
        if self._runtime.clock.monotonic() < until:
            return True
        del self._suspect_until[bookie_id]
        return False

    def attainable(self, config: LedgerConfig) -> LedgerConfig:
        """The config with as many copies as there are bookies.

        Raises ``StorageError`` if they are fewer than an ack quorum.
        """
        count = len(self._bookies)
        if count < config.ack_quorum:
            raise StorageError(f"{config.ack_quorum} bookies are needed and {count} are there")
        size = min(config.ensemble_size, count)
        return replace(config, ensemble_size=size, write_quorum=min(config.write_quorum, size))

    def choose(self, count: int) -> list[Bookie]:
        """Bookies for a new ensemble, in random order; suspects only where others lack."""
        names = self._runtime.rng.sample(sorted(self._bookies), len(self._bookies))
        names.sort(key=self.is_suspect)
        return [self._bookies[name] for name in names[:count]]

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
        names = [n for n in sorted(self._bookies) if n not in taken and not self.is_suspect(n)]
        return self._bookies[self._runtime.rng.choice(names)] if names else None
