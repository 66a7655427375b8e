"""Which ledgers of a topic nobody needs any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pulsark.storage.ledger_list import LedgerInfo
from pulsark.storage.position import Position


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages are kept that every subscription has acknowledged.

    A ledger goes once it was closed ``time_ms`` ago, or once the topic without it still has
    ``size_bytes``. -1 is never, so both -1 keep everything; both 0 keep nothing.
    """

    time_ms: int = 0
    size_bytes: int = 0


def trim_point(
    ledgers: Iterable[LedgerInfo], consumed: Position, retention: Retention, now_ms: int
) -> Position | None:
    """The position before which ledgers may be removed; ``None`` if none may.

    ``ledgers`` are in order; ``consumed`` is the last entry that everybody has acknowledged, as
    have been all before it. An open ledger stays, and so does everything behind the first that
    stays.
    """
    ledgers = list(ledgers)
    size = sum([info.size for info in ledgers])
    point = None
    for info in ledgers:
        end = Position(info.ledger_id, info.entries - 1)
        if info.open or end > consumed:
            break
        size -= info.size
        too_old = 0 <= retention.time_ms <= now_ms - info.timestamp_ms
        too_much = 0 <= retention.size_bytes <= size
        if not (too_old or too_much):
            break
        point = Position(info.ledger_id, info.entries)
    return point
