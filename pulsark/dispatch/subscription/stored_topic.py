"""The topic that stores its messages, as its subscriptions see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.interfaces import AnyTopic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.subscription.broker_unacked import BrokerUnacked
    from pulsark.dispatch.subscription.delayed_tracker import DelayedDeliveryTracker
    from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit
    from pulsark.runtime import Clock
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.position import Position


class EntrySource(Protocol):
    """Where a subscription reads."""

    def valid_position_at_or_after(self, position: Position) -> Position:
        """The place of the first entry from ``position`` on, or where the next will be."""

    def read_cached(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """Entries from ``position`` on; ``None`` if they have to be read from storage."""

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``position`` on, from memory or from storage."""


class CompactedSource(EntrySource, Protocol):
    """A topic as those see it who read what compaction left."""

    @property
    def horizon(self) -> Position:
        """The last entry that the compacted part accounts for."""


class StoredEntries(EntrySource, Protocol):
    """All that a topic stores, and what its cache holds of it."""

    @property
    def compacted(self) -> CompactedSource | None:
        """How consumers with ``read_compacted`` see the topic, once it was compacted."""

    def cached_entry(self, position: Position) -> Entry | None:
        """The entry at exactly this position, if the cache holds it."""

    def mark_delete_before(self, position: Position) -> Position:
        """The mark-delete position that makes ``position`` the next one delivered."""


class DelayedEntries(Protocol):
    """Which entries of the topic are delayed."""

    tracker: DelayedDeliveryTracker

    def cutoff_ms(self) -> int:
        """Entries whose deliver-at time is above it are too early now."""

    def add(self, deliver_at_ms: int, position: Position) -> None:
        """An entry is too early; its subscriptions hear when it is due."""


class ReadBudget(Protocol):
    """The memory for what all subscriptions read for consumers that are behind."""

    def at_hand(self, change: int) -> None:
        """Change the number of bytes that a subscription holds."""

    def has_room(self, size: int) -> bool:
        """Whether subscriptions may hold this many more bytes."""

    def read_bytes(self, wanted: int) -> int:
        """How much of that may be read at once."""


class StoredTopic(AnyTopic, Protocol):
    """A topic with ledgers and cursors."""

    settings: Settings
    clock: Clock

    @property
    def ledger(self) -> ManagedLedger:
        """All entries."""

    @property
    def cache_budget(self) -> ReadBudget:
        """Shared by all topics."""

    @property
    def broker_unacked(self) -> BrokerUnacked:
        """The limit of all subscriptions of the broker together."""

    @property
    def dispatch_limits(self) -> Sequence[DispatchLimit]:
        """Dispatch rates that all its subscriptions share: its own and the broker's."""

    @property
    def delayed(self) -> DelayedEntries:
        """Which entries are delayed."""

    @property
    def entries(self) -> StoredEntries:
        """Where subscriptions read."""
