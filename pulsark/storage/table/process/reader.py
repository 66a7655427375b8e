"""Entries of a topic, read back from its table.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsark.errors import CorruptEntryError, NoSuchEntryError, UnreadableTableError
from pulsark.rows import entries_of
from pulsark.rows.entries import COLUMNS, SCHEMA_VERSION
from pulsark.rows.values import ValueColumn
from pulsark.storage.roots.disk_source import DiskSource
from pulsark.storage.table.files.seal import FILE_FORMAT_VERSION, FORMAT_KEY, VALUES_KEY
from pulsark.storage.table.process.block_cache import Blocks, Entries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile, SealedLedger

log = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 32
GROUPS_KEPT: Final = 8
GROUPS_BYTES_MAX: Final = 64 << 20
"""Row groups that are kept as entries; readers one behind the other share them."""

COMING_MAX: Final = 2
"""Row groups of a table that are made entries before a reader asks for them."""

ENDS_MAX: Final = 64
"""Ledgers of a table of which it is known where their reader is."""


def row_groups() -> Blocks[str]:
    """Row groups as entries, by the path of their file: those of all readers that share this."""
    return Blocks(GROUPS_BYTES_MAX, least=1, most=GROUPS_KEPT)


class TableReader:
    """Reads sealed ledgers from the directories of a table; blocks, and is for one thread.

    What is damaged or missing on one root is read from another one. If no root has it, that is
    an error and never the end of a ledger. With a thread of its own (``ahead``) it makes entries
    of the next row group while a reader that goes in order is busy with the one before.
    """

    def __init__(
        self,
        directories: Sequence[str],
        disk: RootFiles,
        ahead: Executor | None = None,
        groups: Blocks[str] | None = None,
    ) -> None:
        self._directories = list(directories)
        self._disk = disk
        self._ahead = ahead
        self._groups = row_groups() if groups is None else groups
        self._opening = Lock()
        self._files: OrderedDict[tuple[str, str], _OpenFile] = OrderedDict()
        self._coming: OrderedDict[str, Future[Entries]] = OrderedDict()
        """By file: the row group that is read ahead."""
        self._ends: OrderedDict[int, int] = OrderedDict()
        """By ledger: the entry behind the last one that was asked for."""

    def read(self, ledger: SealedLedger, first: int, last: int, max_bytes: int) -> Entries:
        """Entries from ``first`` to ``last`` or the end of what is sealed, without gaps.

        At least one, further ones up to about ``max_bytes``; it may end earlier, at the end of
        a row group. ``NoSuchEntryError`` if ``first`` is not sealed, ``UnreadableTableError`` if
        no root has it intact.
        """
        file = ledger.file_of(first)
        if file is None:
            raise NoSuchEntryError(f"entry {ledger.ledger_id}:{first} is not sealed")
        failures: list[str] = []
        for directory in self._directories:
            try:
                group = self._group(directory, file, first)
            except Exception as e:  # noqa: BLE001 - another root may have it
                self._close(directory, file)
                reason = e.strerror if isinstance(e, OSError) and e.strerror else e
                failures.append(f"{directory}/{file.path}: {reason}")
                continue
            for failure in failures:
                log.warning("%s; another storage root has it", failure)
            found = _part(group, first, last, max_bytes)
            self._look_ahead(ledger, first, found[-1][0] + 1, group[-1][0] + 1)
            return found
        raise UnreadableTableError(
            f"entry {ledger.ledger_id}:{first} can be read from no storage root: "
            + "; ".join(failures)
        )

    def close(self) -> None:
        """Close all files."""
        with self._opening:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _group(self, directory: str, file: DataFile, entry_id: int) -> Entries:
        """The entries of the row group that has this one."""
        found = self._groups.with_entry(file.path, entry_id)
        if found is None and file.path in self._coming:
            # What fails is read once more: that says what is wrong, or another root has it.
            with contextlib.suppress(Exception):
                self._groups.keep(file.path, self._coming.pop(file.path).result())
            found = self._groups.with_entry(file.path, entry_id)
        if found is None:
            found = self._load(directory, file, entry_id)
            self._groups.keep(file.path, found)
        return found

    def _load(self, directory: str, file: DataFile, entry_id: int) -> Entries:
        """Read a row group; in any thread."""
        with self._opening:
            opened = self._open(directory, file)
            number = opened.group_of(entry_id)
            rows = opened.rows(number)
        return opened.entries(number, rows)

    def _look_ahead(self, ledger: SealedLedger, first: int, end: int, beyond: int) -> None:
        """Have the row group that begins with ``beyond`` read, if the ledger is read in order."""
        before = self._ends.pop(ledger.ledger_id, 0)
        self._ends[ledger.ledger_id] = end
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
        if self._ahead is None or first != before:
            return
        file = ledger.file_of(beyond)
        if (
            file is None
            or file.path in self._coming
            or self._groups.with_entry(file.path, beyond) is not None
        ):
            return
        if len(self._coming) == COMING_MAX:
            self._coming.popitem(last=False)[1].cancel()
        self._coming[file.path] = self._ahead.submit(self._load, self._directories[0], file, beyond)

    def _open(self, directory: str, file: DataFile) -> _OpenFile:
        key = directory, file.path
        found = self._files.get(key)
        if found is None:
            found = self._files[key] = _OpenFile(self._disk, directory, file)
            while len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(key)
        return found

    def _close(self, directory: str, file: DataFile) -> None:
        with self._opening:
            found = self._files.pop((directory, file.path), None)
            if found is not None:
                found.close()


def check_files(disk: RootFiles, directories: Sequence[str], files: Sequence[DataFile]) -> None:
    """Files that others wrote are what they are said to be, as far as a glance can tell.

    Size, format, columns and entries are compared in each directory that has the file.
    ``CorruptEntryError`` names one that differs.
    """
    for directory in directories:
        for file in files:
            try:
                opened = _OpenFile(disk, directory, file)
            except FileNotFoundError:
                continue  # whether enough directories have it is found out later
            except (OSError, CorruptEntryError, pa.ArrowException) as e:
                raise CorruptEntryError(f"{directory}/{file.path}: {e}") from None
            try:
                opened.check(file)
            finally:
                opened.close()


def _part(group: Entries, first: int, last: int, max_bytes: int) -> Entries:
    start = first - group[0][0]
    if not 0 <= start < len(group) or group[start][0] != first:
        raise CorruptEntryError(f"entry {first} is missing between its neighbours")
    size, end = 0, start
    while end < len(group) and group[end][0] <= last and (size < max_bytes or end == start):
        size += len(group[end][1])
        end += 1
    return group[start:end]


class _OpenFile:
    """A Parquet file and which entries its row groups have."""

    def __init__(self, disk: RootFiles, directory: str, file: DataFile) -> None:
        path = f"{directory}/{file.path}"
        size = disk.size(path)
        if size != file.size:
            raise CorruptEntryError(f"it has {size} bytes and not {file.size}")
        self._name = path
        self._source = DiskSource(disk.open(path), size)
        try:
            self._parquet = pq.ParquetFile(
                pa.PythonFile(self._source, mode="r"), page_checksum_verification=True
            )
            self._check_format()
            self._values = self._find_values()
            self._ranges = [self._range(i) for i in range(self._parquet.num_row_groups)]
        except BaseException:
            self._source.close()
            raise
        whole = self._ranges and (
            (self._ranges[0][0], self._ranges[-1][1]) == (file.first_entry_id, file.last_entry_id)
        )
        if not whole:
            self._source.close()
            raise CorruptEntryError(f"its row groups have the entries {self._ranges}")

    def _check_format(self) -> None:
        found = (self._parquet.metadata.metadata or {}).get(FORMAT_KEY, b"?")
        if not found.isdigit() or not 1 <= int(found) <= FILE_FORMAT_VERSION:
            raise CorruptEntryError(
                f"it has format {found!r}; this release knows up to {FILE_FORMAT_VERSION}"
            )

    def _find_values(self) -> ValueColumn | None:
        found = (self._parquet.metadata.metadata or {}).get(VALUES_KEY)
        return None if found is None else ValueColumn.from_metadata(found)

    def check(self, file: DataFile) -> None:
        """``CorruptEntryError`` unless the file has the columns and rows that it should have."""
        found = self._parquet.schema_arrow
        missing = [name for name in COLUMNS if name not in found.names]
        if missing:
            raise CorruptEntryError(f"{file.path} lacks the columns {missing}")
        if self._parquet.metadata.num_rows != file.rows:
            raise CorruptEntryError(f"{file.path} has {self._parquet.metadata.num_rows} rows")
        ends = [file.first_entry_id - 1, *(last for _, last in self._ranges)]
        for (first, _), end in zip(self._ranges, ends, strict=False):
            if first != end + 1:
                raise CorruptEntryError(f"{file.path} lacks entries after {end}")

    def _range(self, number: int) -> tuple[int, int]:
        statistics = self._parquet.metadata.row_group(number).column(0).statistics
        return statistics.min, statistics.max

    def group_of(self, entry_id: int) -> int:
        for number, (first, last) in enumerate(self._ranges):
            if first <= entry_id <= last:
                return number
        raise CorruptEntryError(f"no row group has entry {entry_id}")

    def rows(self, number: int) -> pa.Table:
        columns = [*COLUMNS, SCHEMA_VERSION]
        return self._parquet.read_row_group(number, columns=columns, use_threads=False)

    def entries(self, number: int, rows: pa.Table) -> Entries:
        found = entries_of(rows, self._values)
        first, last = self._ranges[number]
        if [entry_id for entry_id, _ in found] != list(range(first, last + 1)):
            raise CorruptEntryError(f"row group {number} lacks some of the entries {first}-{last}")
        return found

    def close(self) -> None:
        self._parquet.close(force=True)
        self._source.close()
