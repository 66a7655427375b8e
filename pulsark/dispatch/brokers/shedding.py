"""Which bundles of a clearly busier broker go to less busy ones. Pure.

The leader decides once per round, by the reports of all brokers. It must not move bundles back and
forth:

- A broker gives a bundle away only if it was clearly busier than the average for some rounds.
- The bundle's load is less than half of the difference between the two brokers, so the giver stays
  the busier one. If the reports are right, each move lowers the sum of the squares of all
  utilisations, so moves come to an end.
- Then both brokers are left alone until they have reported again.
- A moved bundle stays for a grace period, whatever the reports, and whoever leads then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.dispatch.brokers.load import LoadReport

ROUNDS = 3
"""The number of rounds in a row in which a broker must be clearly busier."""
MOVES_MAX = 2
"""Most bundles moved in a round."""
LEAST_PART = 0.01
"""A bundle with a smaller share of its broker's time is not worth the pause of its clients."""
SURE_PART = 0.8
"""The share of half the difference that is moved at most: reports are a little old and rounded."""


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a bundle from one broker to another."""

    bundle: str
    source: str
    to: str


class Shedding:
    """The state that is kept from round to round."""

    def __init__(self, moved: Mapping[str, float] | None = None) -> None:
        """``moved``: what a leader before had moved."""
        self._busy_rounds: dict[str, int] = {}
        self.moved = dict(moved or {})
        """By bundle when it was moved, if that is not long ago."""

    def round(
        self,
        brokers: Mapping[str, LoadReport],
        now: float,
        *,
        threshold: float,
        grace_seconds: float,
        may_have: Callable[[str, str], bool],
    ) -> list[Move]:
        """The moves of this round. ``may_have(broker, bundle)``: whether a move is allowed."""
        self.moved = {
            bundle: at for bundle, at in self.moved.items() if 0 <= now - at < grace_seconds
        }
        known = {broker_id: report.utilisation for broker_id, report in brokers.items()}
        average = sum(known.values()) / len(known) if known else 0.0
        self._busy_rounds = {
            broker_id: self._busy_rounds.get(broker_id, 0) + 1
            for broker_id, utilisation in known.items()
            if utilisation > average + threshold
        }
        moves: list[Move] = []
        for source in sorted(self._busy_rounds, key=lambda each: (-known[each], each)):
            if self._busy_rounds[source] < ROUNDS or len(moves) == MOVES_MAX:
                continue
            move = self._move_from(source, brokers, known, may_have)
            if move is not None:
                moves.append(move)
                self.moved[move.bundle] = now
                self._busy_rounds[source] = 0
                del known[source], known[move.to]  # one move per broker and round
        return moves

    def _move_from(
        self,
        source: str,
        brokers: Mapping[str, LoadReport],
        known: Mapping[str, float],
        may_have: Callable[[str, str], bool],
    ) -> Move | None:
        """The largest bundle that may go to the least busy broker that may have it."""
        for to in sorted(known, key=lambda each: (known[each], each)):
            room = (known[source] - known[to]) / 2 * SURE_PART
            for bundle, part in brokers[source].busiest:
                if LEAST_PART <= part < room and bundle not in self.moved and may_have(to, bundle):
                    return Move(bundle, source, to)
        return None
