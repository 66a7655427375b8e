"""Sealing: entries of a ledger become Parquet files on the storage roots of a table.

``seal`` is what both runners call, the Spark job and the child process of a standalone. The
files it returns are written, synced and verified, and part of nothing: ``attach`` makes them so.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

import contextlib
import io
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.limits import ROW_GROUP_CELLS_MAX
from pulsark.rows import FILE_SCHEMA, RowBuilder, file_schema
from pulsark.rows.arrow.field_ids import with_field_ids
from pulsark.rows.arrow.schema import PARTITION_COLUMNS, TABLE_SCHEMA
from pulsark.rows.values import ValueColumn
from pulsark.schemas.column_types import BINARY
from pulsark.storage.roots.disk_source import DiskSource
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.statistics import Leaf, file_statistics
from pulsark.wire.entry import checksum_ok

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pulsark.runtime import AppendFile
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import Statistics

log = logging.getLogger(__name__)

FORMAT_KEY: Final = b"pulsark.formatVersion"
FILE_FORMAT_VERSION: Final = 3
"""The newest that is read. Version 1 has values as bytes, and is still written for those; version 2
is written as long as some broker does not know version 3."""

VALUES_KEY: Final = b"pulsark.values"
"""Where a file with typed values says how they were made."""

TARGET_FILE_BYTES: Final = 128 << 20
"""A file is closed when it has become as large."""

ROW_GROUP_BYTES: Final = 1 << 20
"""Bytes of the file that a row group is to take, about: what a read of one entry costs."""

ROW_GROUP_VALUES_MAX: Final = 16 << 20
"""Bytes of values in a row group, however well they are compressed."""

COMPRESSION_LEVEL: Final = 6
"""zstd's: flights as JSON take 13 % less than at level 3; sealing is never in a hurry."""

VERIFIED_ROWS: Final = 8192
"""At a time, of one row group: few enough that their memory is used again."""

PAGE_BYTES: Final = 32 << 20
"""More than a row group has: a column of a row group is one page, compressed as a whole."""

DICTIONARIES: Final = [
    "batch_size", "key", "key_base64", "ordering_key", "properties.key_value.key",
    "properties.key_value.value", "producer_name", "publish_time", "schema_version",
    "replicated_from", "deliver_at_time", *PARTITION_COLUMNS,
]  # fmt: skip
"""Columns whose values come again."""

DIFFERENCES: Final = dict.fromkeys(
    ("entry_id", "batch_index", "sequence_id", "event_time"), "DELTA_BINARY_PACKED"
)
"""Columns that rise, by little."""

PIECE_BYTES: Final = 1 << 20
"""Bytes of a file that are written, or read to be verified, at a time."""

UNKNOWN_LEDGER: Final = -1
"""The ledger of a file of a bulk publish, which gets its id when it is published."""


def seal(
    entries: Iterable[tuple[int, bytes]],
    partition: int,
    ledger_id: int,
    directories: Sequence[str],
    disk: RootFiles,
    nonce: str,
    *,
    target_bytes: int = TARGET_FILE_BYTES,
    roots_needed: int = 1,
    values: ValueSchemas | None = None,
    as_sent: bool = False,
    on_refused: Callable[[int], None] | None = None,
    lost: Counter[str] | None = None,
) -> list[DataFile]:
    """Write consecutive entries of one ledger, in order, to every directory of its table.

    ``values`` are the schemas of their messages, and the type to be given to ``attach`` with the
    files; without them values are bytes, for a table whose values are.
    Each file is synced, read back and compared on ``roots_needed`` directories at least; one
    that fails meanwhile is left out with a warning, and gets its files from another one later.
    ``on_refused`` is told how many payloads have no value because they are beyond the bounds.
    With ``as_sent`` nothing is taken apart: each entry is one row with its bytes.
    Messages with values that do not fit the columns are added to ``lost``, by field.
    ``nonce`` makes the names differ from those of any other attempt. Raises ``CorruptEntryError``
    for an entry that fails its checksum, ``StorageError`` for a gap, ``OSError``.
    """
    column = ValueColumn(values, lost) if values is not None and values.kind != BINARY else None
    sealer = _Sealer(
        partition, ledger_id, directories, disk, nonce, target_bytes, roots_needed, column, as_sent
    )
    try:
        for entry_id, entry in entries:
            sealer.add(entry_id, entry)
        sealer.finish_file()
    except BaseException:
        sealer.abandon()
        raise
    if on_refused is not None:
        on_refused(sealer.refused)
    return sealer.files


class _Sealer:
    def __init__(
        self,
        partition: int,
        ledger_id: int,
        directories: Sequence[str],
        disk: RootFiles,
        nonce: str,
        target_bytes: int,
        roots_needed: int,
        values: ValueColumn | None,
        as_sent: bool,
    ) -> None:
        self.files: list[DataFile] = []
        self.refused = 0
        self._as_sent = as_sent
        self._partition = partition
        self._ledger_id = ledger_id
        self._directories = list(directories)
        self._disk = disk
        self._nonce = nonce
        self._target_bytes = target_bytes
        self._roots_needed = roots_needed
        self._values = values
        self._builder = RowBuilder.for_table(partition, values)
        self._group_bytes = ROW_GROUP_BYTES
        columns = sum(
            1 for name in self._builder.schema.names for _ in _leaves(self._builder.schema, name)
        )
        self._group_rows = max(ROW_GROUP_CELLS_MAX // columns, 1)
        self._file: FileWriter | None = None
        self._next = -1
        self._first = 0
        """First entry of the row group that is being collected."""

    def add(self, entry_id: int, entry: bytes) -> None:
        if self._next not in (-1, entry_id):
            raise StorageError(
                f"ledger {self._ledger_id}: entry {entry_id} follows {self._next - 1}"
            )
        if not checksum_ok(entry):
            raise CorruptEntryError(f"entry {self._ledger_id}:{entry_id} fails its checksum")
        if not self._builder.rows:
            self._first = entry_id
        self._next = entry_id + 1
        if self._as_sent:
            self._builder.add_as_sent(self._ledger_id, entry_id, entry)
        else:
            self._builder.add(self._ledger_id, entry_id, entry)
        if self._builder.size >= self._group_bytes or self._builder.rows >= self._group_rows:
            self._finish_group()

    def _finish_group(self) -> None:
        if not self._builder.rows:
            return
        size = self._builder.size
        if self._file is None:
            name = f"part-{self._first:012d}-{self._nonce}-{len(self.files)}.parquet"
            path = f"partition={self._partition}/ledger_id={self._ledger_id}/{name}"
            values = self._values.fresh() if self._values is not None else None
            self._file = FileWriter(
                path,
                self._partition,
                self._ledger_id,
                self._first,
                self._directories,
                self._disk,
                values,
            )
            self._builder.values = values
        written = self._file.write_rows(self._builder.finish(), self._next - 1)
        # What this group took says how many values the next one may hold.
        ratio = max(written, 1) / max(size, 1)
        wanted = int(ROW_GROUP_BYTES / ratio)
        self._group_bytes = max(ROW_GROUP_BYTES // 4, min(wanted, ROW_GROUP_VALUES_MAX))
        if self._file.size >= self._target_bytes:
            self.finish_file()

    def finish_file(self) -> None:
        self._finish_group()
        file, self._file = self._file, None
        if file is not None:
            found = file.finish(self._roots_needed)
            self._directories = file.directories
            self.refused += file.refused
            self.files.append(found)

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()


class FileWriter(io.RawIOBase):
    """One Parquet file, written to several directories at the same time.

    ``ledger_id`` is ``UNKNOWN_LEDGER`` of a file that is part of no ledger yet; such a file has no
    column with it. ``first`` is its first entry. Without ``compressed`` all columns are, else those
    and what is in them. ``verified`` are the columns of which every row is read again at the end,
    without it all; that every byte is right is always seen. A file that is not ``cached`` leaves
    its memory in the kernel to the next one: new memory for gigabytes takes as long as compressing
    them. Directories that fail are left out with a warning.
    """

    def __init__(
        self,
        path: str,
        partition: int,
        ledger_id: int,
        first: int,
        directories: Sequence[str],
        disk: RootFiles,
        values: ValueColumn | None,
        compression_level: int = COMPRESSION_LEVEL,
        compressed: Sequence[str] | None = None,
        verified: Sequence[str] | None = None,
        cached: bool = True,
    ) -> None:
        super().__init__()
        self._verified = verified
        self._cached = cached
        self._values = values
        self._path = path
        self._partition = partition
        self._ledger_id = ledger_id
        self._first = first
        self._last = first - 1
        self._disk = disk
        self._rows = 0
        self._crc = 0
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.size = 0
        """Bytes of the file so far."""
        self._footers: list[pq.FileMetaData] = []
        """Gets the file's own, when it is closed."""
        self._outputs: dict[str, AppendFile] = {}
        errors = []
        for directory in directories:
            try:
                self._outputs[directory] = self._create(directory)
            except OSError as e:
                log.warning("%s: left out of sealing: %s", directory, e)
                errors.append(e)
        if not self._outputs:
            raise errors[0]
        schema = FILE_SCHEMA if values is None else file_schema(values.type)
        self._constants = [(PARTITION_COLUMNS[0], partition)]
        if ledger_id != UNKNOWN_LEDGER:
            self._constants.append((PARTITION_COLUMNS[1], ledger_id))
        # They come last: readers find the entry ids in the first column.
        for name, _ in self._constants:
            schema = schema.append(TABLE_SCHEMA.field(name))
        self._schema = with_field_ids(schema)
        dictionaries = list(DICTIONARIES)
        if values is not None:
            dictionaries += [leaf for leaf, _ in _leaves(schema, "value")]
        some = [leaf for name in compressed or () for leaf, _ in _leaves(schema, name)]
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self, mode="w"),
            self._schema.with_metadata(
                {FORMAT_KEY: b"1" if values is None else b"%d" % values.format}
            ),
            compression="zstd" if compressed is None else dict.fromkeys(some, "zstd"),
            compression_level=(
                compression_level if compressed is None else dict.fromkeys(some, compression_level)
            ),
            data_page_size=PAGE_BYTES,
            use_dictionary=dictionaries,
            column_encoding=DIFFERENCES,
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(1)],
            # By its ends, a reader cannot tell whether a fraction is NaN, and takes it for none.
            write_statistics=[
                leaf
                for name in self._schema.names
                for leaf, kind in _leaves(self._schema, name)
                if not pa.types.is_floating(kind)
            ],
            metadata_collector=self._footers,
        )

    @property
    def refused(self) -> int:
        """Payloads that have no value because they are beyond the bounds."""
        return 0 if self._values is None else self._values.refused

    @property
    def directories(self) -> list[str]:
        """Where the file has been written without an error so far."""
        return list(self._outputs)

    def _create(self, directory: str) -> AppendFile:
        path = f"{directory}/{self._path}"
        self._disk.make_dirs(path.rpartition("/")[0])
        return self._disk.create(path)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """For pyarrow."""
        piece = bytes(data)
        self._crc = google_crc32c.extend(self._crc, piece)
        self.size += len(piece)
        # Pages come in small pieces: a column of a row group is at least three of them.
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting >= PIECE_BYTES:
            self._push()
        return len(piece)

    def _push(self) -> None:
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        self._everywhere(lambda directory: self._outputs[directory].writev(pieces))

    def write_rows(self, rows: pa.RecordBatch, last: int) -> int:
        """A row group with all rows of the entries up to ``last``; returns its bytes.

        The rows may have the constant columns as well: they get those of this file.
        """
        before = self.size
        self._rows += rows.num_rows
        self._last = last
        constants = [
            pa.repeat(pa.scalar(value, TABLE_SCHEMA.field(name).type), rows.num_rows)
            for name, value in self._constants
        ]
        varying = [rows.column(name) for name in self._schema.names[: -len(constants)]]
        whole = pa.RecordBatch.from_arrays([*varying, *constants], schema=self._schema)
        self._writer.write_batch(whole, row_group_size=max(rows.num_rows, 1))
        return self.size - before

    def finish(self, roots_needed: int) -> DataFile:
        """Close, sync and verify."""
        if self._values is not None:
            self._writer.add_key_value_metadata({VALUES_KEY: self._values.to_metadata()})
        self._writer.close()
        self._push()
        self._everywhere(lambda directory: self._outputs[directory].sync())
        self._everywhere(lambda directory: self._outputs[directory].close())
        file = DataFile(
            self._path,
            self._partition,
            self._ledger_id,
            self._first,
            self._last,
            self._rows,
            self.size,
            self._crc,
            file_statistics(self._footers[0], self._schema, self._read_column),
        )
        self._everywhere(
            lambda directory: verify(self._disk, directory, file, self._verified, self._cached)
        )
        if len(self._outputs) < roots_needed:
            raise StorageError(
                f"{self._path} is on {len(self._outputs)} storage roots of {roots_needed}"
            )
        return file

    def _read_column(self, group: int, leaf: Leaf) -> pa.Array:
        errors: list[Exception] = []
        for directory in self._outputs:
            try:
                return read_column(self._disk, f"{directory}/{self._path}", group, leaf)
            except (OSError, pa.ArrowException) as e:
                errors.append(e)
        raise StorageError(f"{self._path} cannot be read again: {errors[0]}")

    def abandon(self) -> None:
        for directory in list(self._outputs):
            self._leave_out(directory)

    def _leave_out(self, directory: str) -> None:
        """Give one directory up; what was written there goes."""
        with contextlib.suppress(OSError):  # it may try to write once more
            self._outputs.pop(directory).close()
        try:
            self._disk.remove(f"{directory}/{self._path}")
        except OSError as e:
            log.warning("%s/%s stays: %s", directory, self._path, e)

    def _everywhere(self, action: Any) -> None:
        """Do something on each directory; those that fail are left out from then on."""
        errors = []
        for directory in list(self._outputs):
            try:
                action(directory)
            except (OSError, StorageError) as e:
                log.warning("%s: left out of sealing: %s", directory, e)
                self._leave_out(directory)
                errors.append(e)
        if not self._outputs:
            raise errors[0]


def _leaves(parent: Any, name: str, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """The columns that a field has in a file, and their types."""
    kind, path = parent.field(name).type, f"{path}{name}"
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves(kind, inner.name, f"{path}.")
    elif pa.types.is_map(kind):
        yield f"{path}.key_value.key", kind.key_type
        yield from _leaves(pa.struct([("value", kind.item_type)]), "value", f"{path}.key_value.")
    elif pa.types.is_list(kind):
        yield from _leaves(pa.struct([("element", kind.value_type)]), "element", f"{path}.list.")
    else:
        yield path, kind


def verify(
    disk: RootFiles,
    directory: str,
    file: DataFile,
    columns: Sequence[str] | None = None,
    cached: bool = True,
) -> None:
    """Read a file again: all its bytes, and every row of some columns, of all without ``columns``.

    Without ``cached`` the kernel need not keep any of it in memory.

    ``CorruptEntryError`` if they are not right.
    """
    path = f"{directory}/{file.path}"
    size = disk.size(path)
    with DiskSource(disk.open(path), size) as source:
        if size != file.size or _checksum(source) != file.crc32c:
            raise CorruptEntryError(f"{path} reads differently than it was written")
        _verify_rows(source, path, file, columns)
        if not cached:
            source.uncache()


def _checksum(source: DiskSource) -> int:
    """The CRC of all bytes, read a few at a time: new memory for all would take longest."""
    crc = 0
    while piece := source.read(PIECE_BYTES):
        crc = google_crc32c.extend(crc, piece)
    return int(crc)


def _verify_rows(
    source: DiskSource, path: str, file: DataFile, columns: Sequence[str] | None
) -> None:
    try:
        parquet = pq.ParquetFile(pa.PythonFile(source, mode="r"), page_checksum_verification=True)
        rows = first = 0
        last = file.first_entry_id - 1
        for batch in _batches(parquet, columns):
            ids = batch.column("entry_id").to_numpy()
            steps = np.diff(np.concatenate(([last if rows else ids[0]], ids)))
            if ((steps != 0) & (steps != 1)).any():
                raise CorruptEntryError(f"{path} lacks entries")
            first = first if rows else int(ids[0])
            last = int(ids[-1])
            rows += batch.num_rows
    except (pa.ArrowException, OSError) as e:
        raise CorruptEntryError(f"{path} cannot be read: {e}") from None
    if (rows, first, last) != (file.rows, file.first_entry_id, file.last_entry_id):
        raise CorruptEntryError(f"{path} has {rows} rows of the entries {first} to {last}")


def _batches(parquet: pq.ParquetFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Read rows, never of two row groups at once: large ones would add up."""
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(
            VERIFIED_ROWS, row_groups=[group], use_threads=False, columns=columns
        )


def read_whole(disk: RootFiles, path: str) -> bytes:
    """All bytes of a file."""
    size = disk.size(path)
    file = disk.open(path)
    try:
        return file.read(0, size)
    finally:
        file.close()


def read_statistics(disk: RootFiles, path: str) -> Statistics:
    """Return the statistics of a file that was written before. Raises ``OSError``, or what pyarrow
    raises for a file that is damaged."""
    with DiskSource(disk.open(path), disk.size(path)) as source:
        parquet = pq.ParquetFile(pa.PythonFile(source, mode="r"), page_checksum_verification=True)
        return file_statistics(parquet.metadata, parquet.schema_arrow, partial(_column_of, parquet))


def read_column(disk: RootFiles, path: str, group: int, leaf: Leaf) -> pa.Array:
    """Return a column of a row group. Errors as those of ``read_statistics``."""
    with DiskSource(disk.open(path), disk.size(path)) as source:
        parquet = pq.ParquetFile(pa.PythonFile(source, mode="r"), page_checksum_verification=True)
        return _column_of(parquet, group, leaf)


def _column_of(parquet: pq.ParquetFile, group: int, leaf: Leaf) -> pa.Array:
    rows = parquet.read_row_group(group, columns=[".".join(leaf.path)], use_threads=False)
    found = rows.column(leaf.path[0]).combine_chunks()
    for name in leaf.path[1:]:
        found = pc.struct_field(found, name)
    return found
