"""How a topic's record points to its compacted form."""

from __future__ import annotations

from typing import NamedTuple

from pulsark.storage.position import Position


class CompactedTo(NamedTuple):
    """The compacted ledger, and the last entry of the topic that it accounts for."""

    ledger_id: int
    horizon: Position
