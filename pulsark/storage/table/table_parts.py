"""What the tables of a process share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsark.storage.table.lost_values import LostValues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.runtime import Runtime, Worker
    from pulsark.schemas.definition import SchemaData
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.table_limits import TableLimits
    from pulsark.storage.table.known_ledgers import KnownLedgers
    from pulsark.storage.table.process.table_processes import TableProcesses
    from pulsark.storage.table.read_ahead import ReadAhead
    from pulsark.storage.table.roots import TableRoots
    from pulsark.storage.table.touched_ledgers import TouchedLedgers
    from pulsark.wire.topic_name import TopicName

    SchemasOf = Callable[[TopicName], Awaitable[Sequence[tuple[bytes, SchemaData]]]]
    """Gives all versions of a topic's schema, the oldest first, by what messages carry of them."""


@dataclass(frozen=True, slots=True)
class TableParts:
    """What the tables of a process share."""

    runtime: Runtime
    files: RootFiles
    """Those of the storage roots."""
    thread: Callable[[], Worker]
    roots: TableRoots
    processes: TableProcesses
    ledgers: KnownLedgers
    touched: TouchedLedgers
    ahead: ReadAhead
    limits: TableLimits
    schemas_of: SchemasOf | None
    states: Callable[[], bool]
    """Whether all brokers understand records that say what an attach changes."""
    knows_format_3: Callable[[], bool] = lambda: True
    """Whether every broker reads files of format 3."""
    lost: LostValues = field(default_factory=LostValues)

    def forget(self, path: str) -> None:
        """Anything of a table may have changed."""
        self.forget_content(path)
        self.touched.forget(path)

    def forget_content(self, path: str) -> None:
        """What was read of a table may be untrue."""
        self.ahead.forget(path)
        self.ledgers.forget(path)
