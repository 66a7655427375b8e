"""Of which changes other processes are told, by a store that has to tell them itself. Pure."""

from __future__ import annotations

from typing import Final

from pulsark.metadata import paths

UNTOLD: Final = (
    paths.LEDGERS, paths.LEDGER_RUNS, paths.REMOVED_LEDGERS, paths.DOOMED_TABLES, paths.CURSORS,
    paths.SEALED_APART,    paths.DELAYED_BUCKETS, paths.BUNDLE_EPOCHS, paths.LEDGER_ID_COUNTER,
    paths.PRODUCER_NAME_COUNTER,
)  # fmt: skip
"""Trees whose changes no other process is told of: nobody watches them."""

APPEARANCES: Final = (paths.MANAGED_LEDGERS,)
"""Trees of which only what appears and vanishes is told: their records change too often."""


def is_told(path: str, *, appearance: bool) -> bool:
    """Whether other processes are told of a change; ``appearance``: of a new or deleted value."""
    return appearance if is_within(path, APPEARANCES) else not is_within(path, UNTOLD)


def is_within(path: str, trees: tuple[str, ...]) -> bool:
    """Whether a path is one of the trees, or below one."""
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)
