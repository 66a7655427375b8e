"""Which ledgers of a topic are not needed any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages are kept that every subscription has acknowledged.

    A ledger goes once it was closed ``time_ms`` ago, or once the topic without it still has
    ``size_bytes``. -1 is never, so both -1 keep everything; both 0 keep nothing.
    """

    time_ms: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, minutes: int, megabytes: int) -> Retention:
        """From a policy's numbers, of which -1 is for ever."""
        return cls(
            minutes * 60_000 if minutes >= 0 else -1, megabytes << 20 if megabytes >= 0 else -1
        )

    def lets_go(self, age_ms: int, size_without: int) -> bool:
        """Whether a ledger may go that was closed ``age_ms`` ago, beside ``size_without`` bytes."""
        return 0 <= self.time_ms <= age_ms or 0 <= self.size_bytes <= size_without


def trim_points(
    ledgers: Iterable[LedgerInfo],
    size: int,
    consumed: Position,
    retention: Retention,
    now_ms: int,
    of_table: Retention | None = None,
    in_table: Container[int] | None = None,
) -> Iterator[Position]:
    """Positions before which ledgers may be removed, rising; none if none may.

    A ledger in the topic's table (``in_table``; ``None``: all are, or will be) goes when
    ``of_table`` lets it go as well: there is one copy of a message, and the longer retention wins.

    ``ledgers`` are in order, ``size`` bytes all together; ``consumed`` is the last entry that
    all subscriptions have acknowledged, with all before it. An open ledger stays, and so does
    everything behind the first that stays.
    """
    for info in ledgers:
        end = Position(info.ledger_id, info.entries - 1)
        if info.open or end > consumed:
            return
        size -= info.size
        if not retention.lets_go(now_ms - info.timestamp_ms, size):
            return
        sealed = in_table is None or info.ledger_id in in_table
        if of_table and sealed and not of_table.lets_go(now_ms - info.timestamp_ms, size):
            return
        yield Position(info.ledger_id, info.entries)
