"""Topics without messages, and owners of cursor logs, for tests of cursors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import MetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.bookie.bookie import Bookie
from pulsark.storage.cursor.log import CursorLog, CursorLogConfig
from pulsark.storage.cursor.state import AckedSet
from pulsark.storage.ledger.manager import LedgerManager
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.wire.position import Position

BUNDLE = "public/default/0x00000000_0xffffffff"


class TopicLedgers:
    """The ledgers of a topic as ``[ledger_id, entries]``; the last one is open."""

    def __init__(self, *ledgers: tuple[int, int]) -> None:
        self.ledgers = [list(ledger) for ledger in ledgers]

    @property
    def last_confirmed(self) -> Position:
        return self._list().last()

    def next_position(self, position: Position) -> Position:
        return self._list().after(position)

    def entries_between(self, after: Position, last: Position) -> int:
        return self._list().between(after, last)

    def position_at(self, index: int) -> Position:
        return self._list().at(index)

    def positions(self) -> list[Position]:
        return [Position(ledger_id, i) for ledger_id, n in self.ledgers for i in range(n)]

    def _list(self) -> LedgerList:
        return LedgerList(LedgerInfo(ledger_id, n, 0, 0) for ledger_id, n in self.ledgers)


def contents(acked: AckedSet) -> tuple[object, ...]:
    """Everything that tells two sets apart, in a form that can be compared."""
    sets = {ledger_id: list(entries) for ledger_id, entries in acked.acked.items()}
    return acked.era, acked.mark_delete, sets, acked.masks.copy().ledgers, acked.count


class Owner:
    """One process that owns a bundle at some time: its own metadata session and log."""

    def __init__(
        self,
        tree: MemoryTree,
        bookies: Iterable[Bookie],
        runtime: Runtime,
        config: CursorLogConfig,
        metadata: MetadataStore | None = None,
    ) -> None:
        self.metadata = metadata or MemoryMetadataStore(tree)
        by_id: Mapping[str, Bookie] = {bookie.bookie_id: bookie for bookie in bookies}
        self.manager = LedgerManager(self.metadata, by_id, runtime)
        self._config = config
        self._runtime = runtime

    async def open(self, bundle: str = BUNDLE) -> CursorLog:
        """Take the bundle over."""
        return await CursorLog.open(
            bundle, self.manager, self.metadata, self._config, self._runtime
        )
