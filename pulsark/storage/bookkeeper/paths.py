"""Where BookKeeper keeps its nodes, below the root of a cluster."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

CLUSTER: Final = "ledgers"
"""The usual name of the root."""
AVAILABLE: Final = "available"
"""Has a node for each bookie that may be written."""
READ_ONLY: Final = "available/readonly"
"""Has a node for each that may be read only."""
COOKIES: Final = "cookies"
"""Has a node for each that was ever formatted, also if it is gone."""
INSTANCE_ID: Final = "INSTANCEID"
LAYOUT: Final = "LAYOUT"

LAYOUT_VALUE: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
"""The one layout that is served here, and the default of BookKeeper and Pulsar."""

_SHORT_END: Final = 2**31 - 1
_SHORT_CUTS: Final = (0, 2, 6, 10)
_LONG_CUTS: Final = (0, 3, 7, 11, 15, 19)


def ledger_node(ledger_id: int) -> str:
    """The path of a ledger's node: no directory has more than 10,000 names."""
    if not 0 <= ledger_id < 2**63:
        raise ValueError(f"{ledger_id} is no ledger id")
    short = ledger_id < _SHORT_END
    cuts = _SHORT_CUTS if short else _LONG_CUTS
    digits = f"{ledger_id:010d}" if short else f"{ledger_id:019d}"
    parts = [digits[a:b] for a, b in pairwise(cuts)]
    return "/".join([*parts[:-1], f"L{parts[-1]}"])


def parents(path: str) -> list[str]:
    """The nodes above a path, from the top."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]
