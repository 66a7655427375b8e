"""Merges staged ledgers of many writers, so that one publish can hold them all.

A job of T tasks and P partitions stages up to T x P small files. Ledgers of one partition that
follow each other become one, the smallest first, so that few bytes are written again and rows keep
the order of the tasks.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

import heapq
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.rows.values import ValueColumn
from pulsark.storage.roots.disk_source import DiskSource
from pulsark.storage.table.files.seal import UNKNOWN_LEDGER, VALUES_KEY, FileWriter
from pulsark.storage.table.staging.bulk_writer import COMPRESSED, COMPRESSION_LEVEL, VERIFIED
from pulsark.storage.table.staging.staged_ledger import StagedLedger, staged_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile

CHEAP_BYTES: Final = 4 << 20
"""Merged files up to this size are worth their rewriting even if a publish could hold the parts."""

MERGED_BYTES_MAX: Final = 1 << 30
"""The size above which nothing is merged, however many files there are."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Ledgers of one partition that follow each other; ``place`` of the first, then the next."""

    first: int
    end: int
    size: int
    files: int


def plan_merges(
    ledgers: Sequence[StagedLedger], wanted: int, most: int
) -> list[Sequence[StagedLedger]]:
    """Return the ledgers in runs, each of which is to become one ledger of one file.

    Merge until there are ``wanted`` files if that costs little, and until there are ``most`` in
    any case. ``ledgers`` are sorted by partition. Raise ``StorageError`` if there are too many.
    """
    runs = {place: _run_of(place, ledger) for place, ledger in enumerate(ledgers)}
    starts = {run.end: run.first for run in runs.values()}  # by its end, where a run begins
    files = sum(run.files for run in runs.values())
    heap: list[tuple[int, int, int, int]] = []

    def offer(left: _Run) -> None:
        right = runs.get(left.end)
        if right is not None and ledgers[left.first].partition == ledgers[right.first].partition:
            heapq.heappush(heap, (left.size + right.size, left.first, right.first, right.end))

    for run in list(runs.values()):
        offer(run)
    while heap and files > wanted:
        size, first, middle, end = heapq.heappop(heap)
        left, right = runs.get(first), runs.get(middle)
        if left is None or right is None or (left.end, right.end) != (middle, end):
            continue  # one of them has been merged since
        if size > MERGED_BYTES_MAX or (size > CHEAP_BYTES and files <= most):
            break
        files -= left.files + right.files - 1
        merged = runs[first] = _Run(first, end, size, 1)
        del runs[middle], starts[middle]
        starts[end] = first
        offer(merged)
        if first in starts:
            offer(runs[starts[first]])
    if files > most:
        raise StorageError(
            f"{files} files are more than {most}, which is the most that one publish may have, "
            "although those that together are small were merged: write with fewer tasks, or in "
            "several parts"
        )
    return [ledgers[run.first : run.end] for _, run in sorted(runs.items())]


def _run_of(place: int, ledger: StagedLedger) -> _Run:
    size = sum(file.size for file in ledger.files)
    return _Run(place, place + 1, size, len(ledger.files))


def merge_ledgers(
    run: Sequence[StagedLedger], directories: Sequence[str], needed: int, disk: RootFiles
) -> list[StagedLedger]:
    """Write the entries of several ledgers, in their order, as one ledger of one file.

    Ledgers whose values are described differently stay apart. Raise ``StorageError``, ``OSError``.
    """
    merged: list[StagedLedger] = []
    alike: list[StagedLedger] = []
    described: bytes | None = None
    for ledger in run:
        found = _description(ledger.files[0], directories, disk)
        if alike and found != described:
            merged.append(_merged(alike, described, directories, needed, disk))
            alike = []
        alike.append(ledger)
        described = found
    merged.append(_merged(alike, described, directories, needed, disk))
    return merged


def _merged(
    ledgers: Sequence[StagedLedger],
    described: bytes | None,
    directories: Sequence[str],
    needed: int,
    disk: RootFiles,
) -> StagedLedger:
    if len(ledgers) == 1:
        return ledgers[0]
    time_ms = int(ledgers[0].files[0].path.partition("-")[0])
    values = None if described is None else _values(described)
    writer = FileWriter(
        staged_name(time_ms, f"{uuid.uuid4().hex}m", 0), ledgers[0].partition, UNKNOWN_LEDGER, 0,
        directories, disk, values, COMPRESSION_LEVEL, COMPRESSED, VERIFIED, cached=False,
    )  # fmt: skip
    try:
        entries = 0
        for ledger in ledgers:
            for file in ledger.files:
                for rows in _row_groups(file, directories, disk):
                    last = entries + rows.column("entry_id")[-1].as_py()
                    writer.write_rows(_moved(rows, entries), last)
            entries += ledger.entries
        file = writer.finish(needed)
    except BaseException:
        writer.abandon()
        raise
    if (file.last_entry_id, file.rows) != (entries - 1, sum(each.rows for each in ledgers)):
        raise CorruptEntryError(f"{file.path} has {file.rows} rows up to {file.last_entry_id}")
    return StagedLedger(ledgers[0].partition, sum(each.length for each in ledgers), (file,))


def _moved(rows: pa.RecordBatch, entries: int) -> pa.RecordBatch:
    """Rows whose entries come behind others."""
    place = rows.schema.get_field_index("entry_id")
    moved = pc.add(rows.column(place), pa.scalar(entries, pa.int64()))
    return rows.set_column(place, rows.schema.field(place), moved)


def _values(described: bytes) -> ValueColumn:
    """A column that describes itself in the same words."""
    values = ValueColumn.from_metadata(described)
    values.use_all()
    if values.to_metadata() != described:
        raise StorageError("these values cannot be described again as they were")
    return values


def _row_groups(
    file: DataFile, directories: Sequence[str], disk: RootFiles
) -> Iterator[pa.RecordBatch]:
    with _opened(file, directories, disk) as parquet:
        for number in range(parquet.num_row_groups):
            table = parquet.read_row_group(number, use_threads=False)
            yield table.combine_chunks().to_batches()[0].replace_schema_metadata(None)


def _description(file: DataFile, directories: Sequence[str], disk: RootFiles) -> bytes | None:
    with _opened(file, directories, disk) as parquet:
        found: bytes | None = (parquet.metadata.metadata or {}).get(VALUES_KEY)
        return found


def _opened(file: DataFile, directories: Sequence[str], disk: RootFiles) -> pq.ParquetFile:
    """Open a staged file on the first root that has all of it."""
    problem: Exception = StorageError(f"{file.path} is on no storage root in reach")
    for directory in directories:
        path = f"{directory}/{file.path}"
        try:
            if disk.size(path) == file.size:
                source = DiskSource(disk.open(path), file.size)
                return pq.ParquetFile(
                    pa.PythonFile(source, mode="r"), page_checksum_verification=True
                )
        except (OSError, pa.ArrowException) as error:
            problem = error
    raise StorageError(f"{file.path} cannot be read: {problem}")
