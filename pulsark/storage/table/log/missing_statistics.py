"""Finds files of which a log lacks statistics, and reads these from the files. Everything blocks.

A log of an older release has statistics of numbers and times only. Where the statistics of an
attach had no room in the table's record, the log has none of its files.

Its functions import pyarrow: never call them in a broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.table.files.file_skipping import has_statistics, indexable, indexed_by
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.log.delta_log import files_of
from pulsark.storage.table.log.log_sum import log_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import Statistics, TableRecord

FILES_A_TIME: Final = 100
"""Files whose footers are read by one request: about half a second."""


@dataclass(frozen=True, slots=True)
class MissingStatistics:
    """Some files of a table, with statistics that its log does not have."""

    files: Sequence[DataFile]
    indexed: tuple[str, ...] | None
    """The columns of which all files of the table have statistics when these have them; ``None`` if
    there are more such files."""

    def to_json(self) -> dict[str, Any]:
        """For a reply of the table process."""
        indexed = None if self.indexed is None else list(self.indexed)
        return {"files": [file.to_json() for file in self.files], "indexed": indexed}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> MissingStatistics:
        """The inverse."""
        indexed = document["indexed"]
        files = [DataFile.from_json(file) for file in document["files"]]
        return cls(files, None if indexed is None else tuple(indexed))


def missing_statistics(
    disk: RootFiles, record: TableRecord, room: int, most: int = FILES_A_TIME
) -> MissingStatistics:
    """Return some files of which a table's log lacks statistics, and these.

    As JSON they take at most ``room`` bytes, unless there is only one. ``StorageError`` if no root
    has the log, or all such files are lost.
    """
    columns = indexable(record.value)
    known = files_of({"add": add} for add in _adds(disk, record))
    lacking = [file for file in known if not has_statistics(file, columns)]
    found: list[DataFile] = []
    errors: list[StorageError] = []
    for file in lacking:
        try:
            stated = replace(file, statistics=_read(disk, record, file))
        except StorageError as e:
            errors.append(e)
            continue
        room -= len(json.dumps(stated.to_json()))
        if room < 0 and found:
            break
        found.append(stated)
        if len(found) == most:
            break
    if errors and not found:
        raise errors[0]
    if len(found) < len(lacking):
        return MissingStatistics(found, None)
    whole = [file for file in known if has_statistics(file, columns)]
    return MissingStatistics(found, indexed_by([*whole, *found], columns))


def _adds(disk: RootFiles, record: TableRecord) -> list[dict[str, Any]]:
    """Return the ``add`` of each file, from the first log that can be read."""
    errors: list[Exception] = []
    for directory in record.roots:
        try:
            return list(log_sum(disk, directory).files.values())
        except (OSError, CorruptEntryError) as e:
            errors.append(e)
    raise StorageError(f"no log of table {record.table_id} can be read: {errors[0]}")


def _read(disk: RootFiles, record: TableRecord, file: DataFile) -> Statistics:
    import pyarrow as pa

    from pulsark.storage.table.files.seal import read_statistics

    errors: list[Exception] = []
    for directory in record.roots:
        try:
            if disk.size(f"{directory}/{file.path}") == file.size:
                return read_statistics(disk, f"{directory}/{file.path}")
        except (OSError, pa.ArrowException) as e:
            errors.append(e)
    reason = errors[0] if errors else "it has another size"
    raise StorageError(f"no root has {file.path}: {reason}")
