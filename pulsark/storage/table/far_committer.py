"""The table of another broker, to which files go that this process writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import CrowdedTableError, NotAttachedError, PulsarkError, StorageError
from pulsark.storage.table.removed_files import remove_everywhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.metadata.changes import Check
    from pulsark.schemas.column_types import ColumnType
    from pulsark.storage.table.files.record import DataFile, RowChange, TableRecord
    from pulsark.storage.table.table_parts import TableParts

    Ask = Callable[[Sequence[DataFile], ColumnType | None], Awaitable[None]]
    """Has files attached. ``NotAttachedError``, ``CrowdedTableError``: nothing of it happened, nor
    will; what came of it after another error is not known."""


class FarCommitter:
    """``Committer`` of files that are new."""

    def __init__(self, record: TableRecord, parts: TableParts, ask: Ask) -> None:
        self.record = record
        """The table as it was when this began."""
        self._parts = parts
        self._ask = ask

    async def attach(
        self,
        adds: Sequence[DataFile],
        removes: Sequence[DataFile] = (),
        value: ColumnType | None = None,
        decided: Callable[[bool | None], Awaitable[None]] | None = None,
        checks: Sequence[Check] = (),
        change: RowChange | None = None,
    ) -> int:
        """As ``TableOwner.attach``, but that it says nothing of the attach's number."""
        if removes or checks or change is not None:
            raise ValueError("only the owner of a table takes files out of it")
        happened: bool | None = None
        try:
            await self._ask(adds, value)
            happened = True
        except (NotAttachedError, CrowdedTableError):
            happened = False
            raise
        except PulsarkError as error:
            raise StorageError(f"it is not known whether files were attached: {error}") from error
        finally:
            if decided is not None:
                await decided(happened)
        return 0

    async def remove_files(self, paths: Sequence[str]) -> None:
        """Delete files that are no part of the table."""
        parts = self._parts
        await remove_everywhere(
            parts.files, parts.thread(), self.record.roots, paths, parts.limits.files_a_turn
        )
