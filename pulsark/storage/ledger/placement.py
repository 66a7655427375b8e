"""Which bookies get the copies of a ledger: pure decisions.

Copies are spread over racks as evenly as can be, and neighbours in an ensemble stand in different
racks where two are to be had, because an entry goes to neighbours. Nothing is refused for the sake
of racks. What failed lately is taken where others lack.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SUSPECT_SECONDS: Final = 30.0
"""Time for which a bookie that failed a write is used only where no other is left."""

QUARANTINE_SECONDS_MAX: Final = 1800.0
"""The same for one that failed again and again. After so long without a failure all is forgiven."""

SLOW_SECONDS: Final = 30.0
"""Time for which a bookie that was slow to answer a read is asked behind the others."""


class Places(Protocol):
    """What a cluster knows of its bookies beyond that they are there."""

    def is_writable(self, bookie_id: str) -> bool:
        """Whether it takes new entries."""

    def rack(self, bookie_id: str) -> str:
        """Where it stands: what fails together has one name."""

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(bookie_id)`` when a bookie can be written no more, also if nobody did."""


class OnePlace:
    """All bookies can be written and stand in one rack."""

    def is_writable(self, bookie_id: str) -> bool:
        return True

    def rack(self, bookie_id: str) -> str:
        return ""

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Appends that fail tell."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a bookie failed lately, and until when it is suspect. Seconds of one clock."""

    until: float
    seconds: float

    def and_one_at(self, now: float) -> Failures:
        """With one more. Those of one time count once: each of its ledgers has noticed it."""
        if now < self.until:
            return Failures(now + self.seconds, self.seconds)
        if now - self.until > QUARANTINE_SECONDS_MAX:
            return first_failure(now)
        seconds = min(2 * self.seconds, QUARANTINE_SECONDS_MAX)
        return Failures(now + seconds, seconds)


def first_failure(now: float) -> Failures:
    """A bookie that never failed before has failed."""
    return Failures(now + SUSPECT_SECONDS, SUSPECT_SECONDS)


def spread(
    candidates: Sequence[str],
    count: int,
    rack: Callable[[str], str],
    is_suspect: Callable[[str], bool],
    beside: Iterable[str] = (),
) -> list[str]:
    """``count`` of the candidates, or all if they are fewer; among equals the earlier ones.

    ``beside``: bookies that the chosen ones will stand beside.
    """
    left, chosen = list(candidates), list[str]()
    used = Counter(map(rack, beside))
    previous: str | None = None
    while left and len(chosen) < count:
        best = min(
            left, key=lambda name: (is_suspect(name), used[rack(name)], rack(name) == previous)
        )
        left.remove(best)
        chosen.append(best)
        previous = rack(best)
        used[previous] += 1
    return chosen
