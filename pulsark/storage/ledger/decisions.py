"""What each change of a ledger's metadata makes of what is stored. Pure.

Several brokers and BookKeeper's auto-recovery change the same metadata. Each decision starts from
what was *read* and changes only what is its own: a writer and a recovery the last ensemble and the
state, a repair one earlier ensemble. So nobody takes back what another one did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import LedgerFencedError
from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.storage.ledger.store import Decision


def start_recovery(found: LedgerMetadata) -> LedgerMetadata:
    """From here on the writer can change nothing any more."""
    if found.state is LedgerState.OPEN:
        return replace(found, state=LedgerState.IN_RECOVERY)
    return found


def change_ensemble(before: Ensemble, after: Ensemble) -> Decision:
    """The writer's last ensemble is ``after`` from its first entry on, and was ``before``.

    ``LedgerFencedError``: the ledger is not open, or somebody else changed the last ensemble.
    """

    def decide(found: LedgerMetadata) -> LedgerMetadata:
        _check_open(found)
        last = found.ensembles[-1]
        if last.is_same_as(after):
            return found
        if not last.is_same_as(before):
            raise LedgerFencedError(f"ledger {found.ledger_id} has another writer: {last}")
        return found.with_ensemble(after)

    return decide


def close(last_entry_id: int, length: int) -> Decision:
    """The writer's ledger ends here. It was confirmed up to here, and nothing is above.

    ``LedgerFencedError``: it is in recovery, or was closed at another end.
    """

    def decide(found: LedgerMetadata) -> LedgerMetadata:
        if found.is_closed and found.last_entry_id == last_entry_id:
            return found
        _check_open(found)
        return found.closed(last_entry_id, length)

    return decide


def end_recovery(
    began: LedgerMetadata, ensembles: tuple[Ensemble, ...], last_entry_id: int, length: int
) -> Decision:
    """A recovery that ``began`` with these metadata found the end.

    ``ensembles`` are what it made of the last one. They come true only together with the end: had
    they been stored before and the recovery died, the next one would ask replacements that hold
    nothing, and end the ledger too early. A ledger that another recovery closed stays as it is.
    ``LedgerFencedError``: its last ensemble is another one now, so the end may be wrong.
    """
    start = began.ensembles[-1]

    def decide(found: LedgerMetadata) -> LedgerMetadata:
        if found.is_closed:
            return found
        if not found.ensembles[-1].is_same_as(start):
            raise LedgerFencedError(f"ledger {found.ledger_id} changed during its recovery")
        kept = found.ensembles[:-1]
        return replace(found, ensembles=(*kept, *ensembles)).closed(last_entry_id, length)

    return decide


def replace_lost(
    first_entry_id: int, lost: str, copy: str
) -> Callable[[LedgerMetadata], LedgerMetadata]:
    """A repair has copied what ``lost`` had of the ensemble with this first entry.

    Only an ensemble that nobody writes to: of a closed ledger, or before the last one.
    """

    def decide(found: LedgerMetadata) -> LedgerMetadata:
        fixed = found.ensembles if found.is_closed else found.ensembles[:-1]
        return replace(
            found,
            ensembles=tuple(
                e.with_bookie(lost, copy)
                if e in fixed and e.first_entry_id == first_entry_id
                else e
                for e in found.ensembles
            ),
        )

    return decide


def _check_open(found: LedgerMetadata) -> None:
    if found.state is not LedgerState.OPEN:
        raise LedgerFencedError(f"ledger {found.ledger_id} is {found.state}: it was recovered")
