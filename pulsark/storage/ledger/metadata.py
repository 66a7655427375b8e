"""What the metadata store knows of a ledger: who holds it, and where it ends.

``docs/formats/ledger.md`` describes the JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pulsark.errors import CorruptMetadataError
from pulsark.metadata.documents import check_version

FORMAT_VERSION = 1


class LedgerState(StrEnum):
    """A ledger goes through its states in this order, or from ``OPEN`` to ``CLOSED``."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """How a new ledger is to be stored.

    Entry e goes to the bookies ``(e + i) % ensemble_size``, i below ``write_quorum``; it is
    confirmed once ``ack_quorum`` of them hold it. ``reserve`` lets the ledger use the space that
    bookies keep back; ``owner`` names the metadata path that lists the ledger.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    reserve: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError(
                f"1 <= ack quorum {self.ack_quorum} <= write quorum {self.write_quorum}"
                f" <= ensemble size {self.ensemble_size} does not hold"
            )


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The bookies of all entries from ``first_entry_id`` to the next ensemble's first.

    ``length`` is that of all earlier entries, in bytes; -1 where the store does not keep it.
    """

    first_entry_id: int
    length: int
    bookies: tuple[str, ...]

    def is_same_as(self, other: Ensemble) -> bool:
        """Whether the same bookies have entries from the same one on."""
        return (self.first_entry_id, self.bookies) == (other.first_entry_id, other.bookies)

    def with_bookie(self, lost: str, copy: str) -> Ensemble:
        """With another bookie in the place of one."""
        return replace(self, bookies=tuple(copy if b == lost else b for b in self.bookies))


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Immutable; every change is a compare-and-set of the whole.

    A closed ledger without ensembles was attached: no bookie ever had its entries, the topic's
    table has them.
    """

    ledger_id: int
    config: LedgerConfig
    state: LedgerState
    ensembles: tuple[Ensemble, ...]
    created_ms: int
    last_entry_id: int = -1
    """Final once the ledger is closed; -1 before, and for an empty one."""
    length: int = 0
    """Bytes of all entries, once the ledger is closed."""

    @property
    def is_closed(self) -> bool:
        """Whether the end of the ledger is known and final."""
        return self.state is LedgerState.CLOSED

    @property
    def is_attached(self) -> bool:
        """Whether the entries are in a table and were never on bookies."""
        return not self.ensembles

    def ensemble_at(self, entry_id: int) -> tuple[Ensemble, int]:
        """The ensemble of an entry, and the last entry id for which it holds."""
        end = 2**63 - 1
        for ensemble in reversed(self.ensembles):
            if ensemble.first_entry_id <= entry_id:
                return ensemble, end
            end = ensemble.first_entry_id - 1
        raise ValueError(f"no entry {entry_id}")

    def holders(self, ensemble: Ensemble, entry_id: int) -> list[str]:
        """The write set: the bookies that are to hold an entry."""
        size = self.config.ensemble_size
        return [ensemble.bookies[(entry_id + i) % size] for i in range(self.config.write_quorum)]

    def bookie_ids(self) -> list[str]:
        """Every bookie that may hold entries of this ledger, sorted."""
        return sorted({bookie for ensemble in self.ensembles for bookie in ensemble.bookies})

    def with_ensemble(self, ensemble: Ensemble) -> LedgerMetadata:
        """With these bookies for the entries from its first on."""
        kept = tuple(e for e in self.ensembles if e.first_entry_id < ensemble.first_entry_id)
        return replace(self, ensembles=(*kept, ensemble))

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Closed at its end."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def encode(self) -> bytes:
        """The stored JSON."""
        return json.dumps(
            {
                "version": FORMAT_VERSION,
                "ledgerId": self.ledger_id,
                "state": self.state.value,
                "ensembleSize": self.config.ensemble_size,
                "writeQuorum": self.config.write_quorum,
                "ackQuorum": self.config.ack_quorum,
                "reserve": self.config.reserve,
                "owner": self.config.owner,
                "createdMs": self.created_ms,
                "ensembles": [
                    {
                        "firstEntryId": e.first_entry_id,
                        "length": e.length,
                        "bookies": list(e.bookies),
                    }
                    for e in self.ensembles
                ],
                "lastEntryId": self.last_entry_id,
                "length": self.length,
            },
            separators=(",", ":"),
        ).encode()


def decode_ledger_metadata(ledger_id: int, value: bytes) -> LedgerMetadata:
    """The inverse of ``encode``; raises ``MetadataError``."""
    try:
        document = json.loads(value)
        check_version(document, FORMAT_VERSION)
        metadata = _from_document(document)
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptMetadataError(
            f"the metadata of ledger {ledger_id} cannot be read: {e!r}"
        ) from e
    if metadata.ledger_id != ledger_id:
        raise CorruptMetadataError(
            f"the metadata of ledger {ledger_id} is that of {metadata.ledger_id}"
        )
    return metadata


def _from_document(document: dict[str, Any]) -> LedgerMetadata:
    ensembles = tuple(
        Ensemble(int(e["firstEntryId"]), int(e["length"]), tuple(map(str, e["bookies"])))
        for e in document["ensembles"]
    )
    config = LedgerConfig(
        document["ensembleSize"],
        document["writeQuorum"],
        document["ackQuorum"],
        document["reserve"],
        document["owner"],
    )
    firsts = [e.first_entry_id for e in ensembles]
    state = LedgerState(document["state"])
    attached = not firsts and state is LedgerState.CLOSED
    if not attached and (not firsts or firsts[0] != 0 or firsts != sorted(set(firsts))):
        raise ValueError(f"ensembles start at {firsts}")
    if any(len(e.bookies) != config.ensemble_size for e in ensembles):
        raise ValueError(f"an ensemble is not of {config.ensemble_size} bookies")
    return LedgerMetadata(
        int(document["ledgerId"]),
        config,
        state,
        ensembles,
        int(document["createdMs"]),
        int(document["lastEntryId"]),
        int(document["length"]),
    )
