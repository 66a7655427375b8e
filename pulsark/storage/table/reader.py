"""Entries of a topic, read back from its table.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

import io
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pulsark.errors import CorruptEntryError, NoSuchEntryError
from pulsark.runtime import Disk, ReadFile
from pulsark.storage.rows import entries_of
from pulsark.storage.rows.entries import COLUMNS, SCHEMA_VERSION
from pulsark.storage.rows.values import ValueColumn
from pulsark.storage.table.record import DataFile, SealedLedger
from pulsark.storage.table.seal import FILE_FORMAT_VERSION, FORMAT_KEY, VALUES_KEY

log = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 32
GROUPS_KEPT: Final = 4
"""Row groups that are kept as entries; readers one behind the other share them."""

Entries = list[tuple[int, bytes]]


class TableReader:
    """Reads sealed ledgers from the directories of a table; blocks, and is not for several threads.

    What is damaged or missing on one root is read from another one. If no root has it, that is
    an error and never the end of a ledger.
    """

    def __init__(self, directories: Sequence[str], disk: Disk) -> None:
        self._directories = list(directories)
        self._disk = disk
        self._files: OrderedDict[tuple[str, str], _OpenFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Entries] = OrderedDict()

    def read(self, ledger: SealedLedger, first: int, last: int, max_bytes: int) -> Entries:
        """Entries from ``first`` to ``last`` or the end of what is sealed, without gaps.

        At least one, further ones up to about ``max_bytes``; it may end earlier, at the end of
        a row group. ``NoSuchEntryError`` if ``first`` is not sealed, ``CorruptEntryError`` if
        no root has it intact.
        """
        file = ledger.file_of(first)
        if file is None:
            raise NoSuchEntryError(f"entry {ledger.ledger_id}:{first} is not sealed")
        errors = []
        for directory in self._directories:
            try:
                group = self._group(directory, file, first)
            except (OSError, CorruptEntryError, pa.ArrowException) as e:
                log.warning("%s/%s: %s", directory, file.path, e)
                self._close(directory, file)
                errors.append(e)
                continue
            return _part(group, first, last, max_bytes)
        raise CorruptEntryError(
            f"entry {ledger.ledger_id}:{first} can be read from no storage root: {errors}"
        )

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._groups.clear()

    def _group(self, directory: str, file: DataFile, entry_id: int) -> Entries:
        """The entries of the row group that has this one."""
        for (path, number), kept in self._groups.items():
            if path == file.path and kept[0][0] <= entry_id <= kept[-1][0]:
                self._groups.move_to_end((path, number))
                return kept
        opened = self._open(directory, file)
        number = opened.group_of(entry_id)
        found = opened.entries(number)
        self._groups[file.path, number] = found
        while len(self._groups) > GROUPS_KEPT:
            self._groups.popitem(last=False)
        return found

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
        found = self._files.pop((directory, file.path), None)
        if found is not None:
            found.close()


def check_files(disk: Disk, directories: Sequence[str], files: Sequence[DataFile]) -> None:
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

    def __init__(self, disk: Disk, directory: str, file: DataFile) -> None:
        path = f"{directory}/{file.path}"
        size = disk.size(path)
        if size != file.size:
            raise CorruptEntryError(f"it has {size} bytes and not {file.size}")
        self._name = path
        self._source = _Source(disk.open(path), size)
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

    def entries(self, number: int) -> Entries:
        columns = [*COLUMNS, SCHEMA_VERSION]
        rows = self._parquet.read_row_group(number, columns=columns, use_threads=False)
        found = entries_of(rows, self._values)
        first, last = self._ranges[number]
        if [entry_id for entry_id, _ in found] != list(range(first, last + 1)):
            raise CorruptEntryError(f"row group {number} lacks some of the entries {first}-{last}")
        return found

    def close(self) -> None:
        self._parquet.close(force=True)
        self._source.close()


class _Source(io.RawIOBase):
    """A file of the injected disk, as pyarrow reads one."""

    def __init__(self, file: ReadFile, size: int) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._position if size < 0 else size
        found = self._file.read(self._position, wanted)
        self._position += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
