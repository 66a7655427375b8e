"""Looking for files that are no part of a table, and deleting them.

The metadata store says which files a table has, and the log beside the files says it, too. Only
a file that neither of them names is unneeded.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.table.files.orphans import ledger_directories, ledger_of, old_files
from pulsark.storage.table.files.root_files import remove_files
from pulsark.storage.table.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.table_limits import TableLimits

log = logging.getLogger(__name__)

NamesOf = Callable[[int], Awaitable[Collection[str]]]
"""Gives the paths that the metadata store knows of a ledger: in the table, or left it lately."""


class UnnamedFiles:
    """The unnamed files of one table on one storage root, found in steps that let others run."""

    def __init__(
        self, disk: RootFiles, directory: str, thread: Worker, limits: TableLimits
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._thread = thread
        self._step = limits.files_a_turn

    async def remove(self, names_of: NamesOf, before_ms: int) -> int:
        """Delete those of attempts that began before a time; returns their number.

        Raises ``OSError`` or ``StorageError``; what is in doubt stays.
        """
        unknown = await self._unknown(names_of, before_ms)
        if not unknown:
            return 0
        named = await self._named_by_commits(unknown)
        if named:
            log.error(
                "%s: the log names %d files that the metadata store does not know, %s for one; "
                "they stay. An old copy of the metadata store seems to have been put back",
                self._directory, len(named), min(named),
            )  # fmt: skip
        going = sorted(unknown - named)
        for start in range(0, len(going), self._step):
            some = going[start : start + self._step]
            await run_in_worker(
                self._thread, partial(remove_files, self._disk, self._directory, some)
            )
        return len(going)

    async def _unknown(self, names_of: NamesOf, before_ms: int) -> set[str]:
        """Old files that the metadata store does not know."""
        unknown: set[str] = set()
        disk, directory = self._disk, self._directory
        ledgers = await run_in_worker(self._thread, partial(ledger_directories, disk, directory))
        for start in range(0, len(ledgers), self._step):
            some = ledgers[start : start + self._step]
            look = partial(old_files, disk, directory, some, before_ms)
            old = set(await run_in_worker(self._thread, look))
            for ledger_id in set(map(ledger_of, old)):
                old -= set(await names_of(ledger_id))
            unknown |= old
        return unknown

    async def _named_by_commits(self, paths: Collection[str]) -> set[str]:
        """The paths that a commit adds and no later one removes."""
        named: set[str] = set()
        undecided = set(paths)
        table_log = DeltaLog(self._disk, self._directory)
        versions = await run_in_worker(self._thread, table_log.versions)
        while versions and undecided:
            some, versions = versions[-self._step :], versions[: -self._step]
            look = partial(_mentioned, table_log, some, undecided)
            for mention in await run_in_worker(self._thread, look):
                if mention.path in undecided:
                    undecided.remove(mention.path)
                    if mention.joins:
                        named.add(mention.path)
        if undecided:
            named |= undecided & await run_in_worker(self._thread, partial(_in_base, table_log))
        return named


def _in_base(table_log: DeltaLog) -> set[str]:
    """Paths that the table had where its log begins, if that is a checkpoint."""
    first = table_log.first()
    if not first:
        return set()
    from pulsark.storage.table.log.checkpoint import files_at

    return {file.path for file in files_at(table_log.disk, table_log.directory, first)}


class _Mention(NamedTuple):
    path: str
    joins: bool


def _mentioned(
    table_log: DeltaLog, versions: Sequence[int], paths: Collection[str]
) -> list[_Mention]:
    """Where commits name some paths, the latest first."""
    found = []
    for version in reversed(versions):
        for action in table_log.read(version):
            for kind in ("remove", "add"):
                if kind in action and action[kind]["path"] in paths:
                    found.append(_Mention(action[kind]["path"], kind == "add"))
    return found
