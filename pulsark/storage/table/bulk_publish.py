"""Bulk publish: files that were staged become ledgers of a topic, in all its partitions at once.

The Spark tasks with the rows write them as Parquet files of entries to the table's staging
directory, on every root, under names that begin with the time. No reader sees them there. A publish

1. reserves ledgers behind everything there is, and gives the files a second name where those
   ledgers belong;
2. has the partitions confirm and close what is open, and hold back appends from then on;
3. attaches: the intent, one compare-and-set, is the moment from which the ledgers exist;
4. tells the partitions, whose consumers receive them at once, and lets appends go on.

A publish that fails before the intent leaves the staged files as they were; it may be tried again.
Staged files that are never published are deleted when they are old.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.runtime import Worker, run_in_worker
from pulsark.schemas.column_types import BINARY, ColumnType
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger, ledger_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from pulsark.storage.managed_ledger.reservations import Reserving
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.attach import TableOwner
    from pulsark.storage.table.files.record import DataFile

log = logging.getLogger(__name__)

T = TypeVar("T")


class BulkPublish:
    """One publish; ``places`` has for each of the topic's partitions, all that are concerned, where
    its ledgers are reserved."""

    def __init__(
        self,
        owner: TableOwner,
        places: Mapping[int, Reserving],
        staged: Sequence[StagedLedger],
        disk: RootFiles,
        worker: Worker,
        roots_needed: int,
    ) -> None:
        self._owner = owner
        self._places = places
        self._staged = staged
        self._disk = disk
        self._worker = worker
        self._roots_needed = roots_needed
        self._linked: list[tuple[str, DataFile]] = []
        self._reserving: list[Reserving] = []

    async def run(self, ident: str, number: int, value: ColumnType = BINARY) -> bool:
        """Publish; ``False`` if it was done before. Errors as those of ``TableOwner.publish``."""
        try:
            done = await self._owner.publish(ident, number, self._reserve, self._decided, value)
        finally:
            for place in self._reserving:
                await place.leave()
        # Whether it was done now or before: the first names are not needed any more.
        await self._everywhere(self._remove_staged)
        return done

    async def _reserve(self) -> list[DataFile]:
        staged: dict[int, list[StagedLedger]] = {}
        for ledger in sorted(self._staged, key=lambda ledger: ledger.partition):
            staged.setdefault(ledger.partition, []).append(ledger)
        wanted: dict[Reserving, dict[int, list[NewLedger]]] = {}
        for partition, mine in staged.items():
            new = [NewLedger(one.entries, one.length) for one in mine]
            wanted.setdefault(self._places[partition], {})[partition] = new
        self._reserving = list(wanted)
        ids: dict[int, Sequence[int]] = {}
        for found in await _all(place.add(new) for place, new in wanted.items()):
            ids.update(found)
        adds: list[DataFile] = []
        names: list[str] = []
        for partition, mine in staged.items():
            for ledger_id, ledger in zip(ids[partition], mine, strict=True):
                adds += ledger.as_ledger(ledger_id)
                names += [file.path for file in ledger.files]
        await self._link(names, adds)
        await _all(place.close_ledgers() for place in self._reserving)
        return adds

    async def _decided(self, exist: bool | None) -> None:
        await asyncio.gather(*[place.decide(exist) for place in self._reserving])
        if exist is False:
            await self._everywhere(self._unlink)

    async def _link(self, names: Sequence[str], adds: Sequence[DataFile]) -> None:
        complete, errors = 0, []
        for root in self._owner.record.roots:
            try:
                await run_in_worker(self._worker, partial(self._link_on, root, names, adds))
            except (OSError, StorageError) as e:
                log.warning("storage root %s is left out of a bulk publish: %s", root, e)
                errors.append(e)
            else:
                complete += 1
        if complete < self._roots_needed:
            kind = CorruptEntryError if isinstance(errors[0], CorruptEntryError) else StorageError
            raise kind(
                f"the staged files are on {complete} storage roots of {self._roots_needed}: "
                f"{errors[0]}"
            )

    def _link_on(self, root: str, names: Sequence[str], adds: Sequence[DataFile]) -> None:
        for name, file in zip(names, adds, strict=True):
            source, target = f"{root}/{STAGING}/{name}", f"{root}/{file.path}"
            try:
                size = self._disk.size(source)
            except FileNotFoundError:
                raise CorruptEntryError(
                    f"{name} is not there; was it written on another machine, or long ago?"
                ) from None
            if size != file.size:
                raise CorruptEntryError(f"{name} has {size} bytes, not {file.size}")
            self._disk.make_dirs(target.rpartition("/")[0])
            self._linked.append((root, file))
            self._disk.link(source, target)

    async def _everywhere(self, action: Callable[[str], None]) -> None:
        for root in self._owner.record.roots:
            try:
                await run_in_worker(self._worker, partial(action, root))
            except OSError as e:
                log.warning("%s: cannot delete files of a bulk publish yet: %s", root, e)

    def _unlink(self, root: str) -> None:
        for where, file in self._linked:
            if where == root:
                self._disk.remove(f"{root}/{file.path}")

    def _remove_staged(self, root: str) -> None:
        for ledger in self._staged:
            for file in ledger.files:
                self._disk.remove(f"{root}/{STAGING}/{file.path}")


async def _all(steps: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All have come to an end before anything is decided, also if one of them fails."""
    done: list[T] = []
    for found in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        done.append(found)
    return done


def remove_old_staged(disk: RootFiles, root: str, before_ms: int) -> int:
    """Delete staged files of writers that began before a time; returns how many others stay."""
    left = 0
    for name in disk.list(f"{root}/{STAGING}"):
        time = name.partition("-")[0]
        if time.isdigit() and int(time) < before_ms:
            disk.remove(f"{root}/{STAGING}/{name}")
        else:
            left += 1
    return left


def remove_never_attached(disk: RootFiles, root: str, partition: int, ledger_id: int) -> int:
    """Delete the files of a ledger that was reserved and never will exist; returns 0."""
    directory = f"{root}/{ledger_directory(partition, ledger_id)}"
    for name in disk.list(directory):
        disk.remove(f"{directory}/{name}")
    return 0
