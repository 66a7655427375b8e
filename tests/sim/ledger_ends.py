"""What must be true whenever the metadata of a ledger change, whoever changes them and why.

* A ledger that is closed stays as it is, but for repairs; one in recovery is never open again.
* A bookie whose place was given to another one by a repair is not named there again.
* When a recovery closes a ledger, its writer can confirm nothing beyond the end any more: so many
  of the bookies of the next entry are fenced without having had it from the writer that those left
  are no ack quorum.

The last is the argument of ``storage/ledger/recovery.py`` itself. Whether a writer would have
made use of a wrong end is chance; that the end was wrong is seen here at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.ledger.metadata import LedgerMetadata, LedgerState, decode_ledger_metadata
from tests.support.memory_bookie import MemoryBookie

LEDGERS = "/ledgers/"
ORDER = list(LedgerState)


class WatchedTree(MemoryTree):
    """Metadata of ledgers on ``bookies``. ``broken`` says what was not as it must be."""

    def __init__(self, bookies: Mapping[str, MemoryBookie]) -> None:
        super().__init__()
        self.broken: list[str] = []
        self.repaired: dict[tuple[int, int], set[str]] = {}
        """Bookies by ledger and first entry of an ensemble that a repair is taking them from."""
        self._taken: set[tuple[int, int, str]] = set()
        self._bookies = bookies

    def put(
        self, path: str, value: bytes, expected_version: int, session: MemoryMetadataStore | None
    ) -> int:
        before = self.get(path)
        version = super().put(path, value, expected_version, session)
        if path.startswith(LEDGERS) and before is not None:
            ledger_id = int(path.removeprefix(LEDGERS))
            self._changed(
                decode_ledger_metadata(ledger_id, before.value),
                decode_ledger_metadata(ledger_id, value),
            )
        return version

    def _changed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        for ensemble in after.ensembles:
            key = after.ledger_id, ensemble.first_entry_id
            for name in self.repaired.get(key, ()):
                if name not in ensemble.bookies:
                    self._taken.add((*key, name))
                elif (*key, name) in self._taken:
                    self.broken.append(f"{before} became {after}: {name} is named again")
        if before.is_closed and replace(before, ensembles=after.ensembles) != after:
            self.broken.append(f"{before} was closed and became {after}")
        elif ORDER.index(after.state) < ORDER.index(before.state):
            self.broken.append(f"{before} became {after}")
        elif after.is_closed and before.state is LedgerState.IN_RECOVERY:
            self._recovered(before, after.last_entry_id + 1)

    def _recovered(self, ledger: LedgerMetadata, following: int) -> None:
        """``ledger`` as its writer knows it, and the first entry that is said not to exist."""
        holders = ledger.holders(ledger.ensembles[-1], following)
        able = [
            name for name in holders if self._bookies[name].may_give(ledger.ledger_id, following)
        ]
        if len(able) >= ledger.config.ack_quorum:
            self.broken.append(
                f"ledger {ledger.ledger_id} was closed before entry {following}, "
                f"which its writer may yet confirm with {able} of {holders}"
            )
