"""How a managed ledger stores entries, and whom it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pulsark.limits import LEDGERS_UNTIL_LARGER
from pulsark.storage.ledger.manager import LedgerConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.config.settings import Settings
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo


class ManagedLedgerListener(Protocol):
    """Whom a managed ledger tells. Called on the event loop, never from inside ``append``."""

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        """Consecutive entries are durable, and exist from now on."""

    def append_failed(self, contexts: list[Any], error: Exception) -> None:
        """Appends that were not confirmed, in order. Unless ``error`` says more, they may exist.

        ``StorageFullError``, ``LedgerFencedError`` (the topic has another owner; this managed
        ledger is of no more use), other ``StorageError`` and ``MetadataError``;
        ``ClientError`` with ``TopicTerminatedError``.
        """

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        """The end of a failed ledger is known: ``count`` entries exist after all, although their
        appends were reported as failed. The others never will."""

    def ledgers_attached(self, infos: Sequence[LedgerInfo]) -> None:
        """Whole ledgers are part of it now, behind all entries there were."""

    def ledger_closed(self) -> None:
        """A ledger was closed while the managed ledger goes on: it may be trimmed from now on."""


class Unheard:
    """Listens before there is a listener: nothing was appended, and the list has the ledgers."""

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        """Cannot be."""
        raise AssertionError(
            f"Entries of ledger {ledger_id} are confirmed, and there is no listener"
        )

    def append_failed(self, contexts: list[Any], error: Exception) -> None:
        """Cannot be."""
        raise AssertionError("Appends failed, and there is no listener") from error

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        """Nothing to do: no listener was told that they failed."""

    def ledgers_attached(self, infos: Sequence[LedgerInfo]) -> None:
        """Nothing to do: no reader waits for them."""

    def ledger_closed(self) -> None:
        """Nothing to do: trimming looks at all ledgers."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """How entries are stored, and when a ledger is closed for the next one.

    A ledger is full at ``max_entries``, ``max_bytes`` or ``max_age_ms``, but not before
    ``min_age_ms``.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    max_entries: int = 50_000
    max_bytes: int = 2048 << 20
    min_age_ms: int = 10 * 60_000
    max_age_ms: int = 240 * 60_000

    @classmethod
    def from_settings(cls, settings: Settings) -> ManagedLedgerConfig:
        """As the operator set it."""
        return cls(
            settings.managedLedgerDefaultEnsembleSize,
            settings.managedLedgerDefaultWriteQuorum,
            settings.managedLedgerDefaultAckQuorum,
            settings.managedLedgerMaxEntriesPerLedger,
            settings.managedLedgerMaxSizePerLedgerMbytes << 20,
            settings.managedLedgerMinLedgerRolloverTimeMinutes * 60_000,
            settings.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000,
        )

    def ledger_config(self, owner: str) -> LedgerConfig:
        """The configuration of a new ledger of the managed ledger at ``owner``."""
        return LedgerConfig(self.ensemble_size, self.write_quorum, self.ack_quorum, owner=owner)

    def is_full(self, entries: int, size: int, age_ms: int, times: int = 1) -> bool:
        """Whether a ledger with this content and age is to be closed, in a topic whose ledgers
        are ``times`` as large as configured."""
        return age_ms >= self.min_age_ms * times and (
            entries >= self.max_entries * times
            or size >= self.max_bytes * times
            or age_ms >= self.max_age_ms * times
        )

    def times(self, ledgers: int) -> int:
        """How many times as large as configured the ledgers of a topic with this many are.

        So its list grows with the logarithm of its age, and not without bound.
        """
        return 1 << ledgers // LEDGERS_UNTIL_LARGER
