"""Rows of a topic straight from the files of its table. Runs in tasks.

A task that can reach a file reads it at the speed of Parquet and not through the broker. It uses a
file only if it is provably whole: size and row groups are as the broker said, and no entry is
missing. Otherwise it reads from the broker, which has other copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsark.errors import CorruptEntryError
from pulsark.rows import ROW_SCHEMA, RowBuilder, entries_of
from pulsark.rows.entries import COLUMNS as ENTRY_COLUMNS
from pulsark.rows.entries import SCHEMA_VERSION
from pulsark.rows.values import ValueColumn
from pulsark.storage.roots.task_files import for_pyarrow, task_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pulsark.datasource.admin.table_files import TableFile
    from pulsark.datasource.plan.plan import Span, Split
    from pulsark.datasource.read.filters import RowFilter

BATCH_ROWS = 65_536
BATCH_BYTES = 2 << 20
"""The size limit of an Arrow batch, and of the row groups that are read at once: each call and each
batch has a fixed cost, and a row group has few bytes of the columns that are read."""

FORMAT_VERSIONS = ("1", "2", "3")
_FORMAT_KEY = b"pulsark.formatVersion"
_VALUES_KEY = b"pulsark.values"
_NEEDED = ("entry_id", "batch_index", "batch_size")
_COMPARED = (
    "entry_id", "batch_index", "batch_size", "key", "sequence_id", "publish_time", "event_time",
    "deliver_at_time", "producer_name",
)  # fmt: skip
"""Columns whose minimum and maximum in a row group say something of the column of a query."""


class _Run(NamedTuple):
    """Row groups that follow each other, and their first and last entry."""

    groups: list[int]
    low: int
    high: int


class UnreadableError(Exception):
    """A file is not there, or not whole, from an entry on."""

    def __init__(self, entry_id: int, reason: str) -> None:
        super().__init__(reason)
        self.entry_id = entry_id


def file_rows(
    item: Split,
    file: TableFile,
    directories: Sequence[str],
    columns: Sequence[str],
    wanted: RowFilter,
) -> Iterator[pa.RecordBatch]:
    """The rows of a split within one file, without row groups that filters exclude.

    ``UnreadableError`` says from which entry on the broker has to deliver them.
    """
    (span,) = item.spans
    first = span.first
    for directory in directories:
        path = f"{directory}/{file.path}"
        try:
            if task_files().size(path) == file.size:
                break
        except OSError:
            continue
    else:
        raise UnreadableError(first, f"{file.path} is in none of {', '.join(directories)}")
    try:
        with pq.ParquetFile(for_pyarrow(path), page_checksum_verification=True) as parquet:
            _check(parquet, file)
            values = _values(parquet)
            stored = _stored_columns(columns, values)
            typed = values if "value" in stored else None
            for run in _runs(parquet, _ranges(parquet, file), span, wanted, stored, typed):
                first = max(first, run.low)
                rows = parquet.read_row_groups(run.groups, columns=stored, use_threads=False)
                (found,) = rows.combine_chunks().to_batches()
                _check_entries(found, run.low, run.high)
                if typed is None:
                    yield from _shaped(found, item, columns)
                elif found.column("value_raw").null_count == found.num_rows:
                    yield from _shaped(_with_payloads(found, typed), item, columns)
                else:
                    # What was sent compressed or encrypted is told apart by its entry only.
                    whole = parquet.read_row_groups(
                        run.groups, columns=[*ENTRY_COLUMNS, SCHEMA_VERSION], use_threads=False
                    )
                    yield from entry_rows(item, entries_of(whole, typed), columns)
                first = run.high + 1
    except (OSError, pa.ArrowException, CorruptEntryError) as error:
        raise UnreadableError(first, f"{path}: {error}") from error


def _check(parquet: pq.ParquetFile, file: TableFile) -> None:
    version = (parquet.metadata.metadata or {}).get(_FORMAT_KEY, b"?").decode("ascii", "replace")
    if version not in FORMAT_VERSIONS:
        raise pa.ArrowInvalid(f"its format is {version}")
    if parquet.metadata.num_rows != file.rows:
        raise pa.ArrowInvalid(f"it has {parquet.metadata.num_rows} rows and not {file.rows}")


def _ranges(parquet: pq.ParquetFile, file: TableFile) -> list[tuple[int, int]]:
    """First and last entry of each row group: without gaps, all that the file is to have."""
    found = []
    for number in range(parquet.num_row_groups):
        statistics = parquet.metadata.row_group(number).column(0).statistics
        found.append((statistics.min, statistics.max))
    firsts = [file.first, *(high + 1 for _, high in found)]
    if [low for low, _ in found] != firsts[:-1] or firsts[-1] != file.last + 1:
        raise pa.ArrowInvalid(f"its row groups have the entries {found}")
    return found


def _runs(
    parquet: pq.ParquetFile,
    ranges: Sequence[tuple[int, int]],
    span: Span,
    wanted: RowFilter,
    stored: Sequence[str],
    typed: ValueColumn | None,
) -> Iterator[_Run]:
    """Neighbouring row groups that are read at once, but for those that nothing is wanted of."""
    places = _places(parquet)
    metadata = parquet.metadata
    leaves = [
        number
        for number in range(metadata.num_columns)
        if metadata.schema.column(number).path.split(".", 1)[0] in stored
    ]
    groups: list[int] = []
    rows = size = 0
    for number, (low, high) in enumerate(ranges):
        if high < span.first or low > span.last:
            continue
        group = metadata.row_group(number)
        if not wanted.may_match(group, places):
            continue
        more = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
        apart = groups and (
            typed is not None
            or groups[-1] != number - 1
            or rows + group.num_rows > BATCH_ROWS
            or size + more > BATCH_BYTES
        )
        if apart:
            yield _Run(groups, ranges[groups[0]][0], ranges[groups[-1]][1])
            groups, rows, size = [], 0, 0
        groups.append(number)
        rows += group.num_rows
        size += more
    if groups:
        yield _Run(groups, ranges[groups[0]][0], ranges[groups[-1]][1])


def _places(parquet: pq.ParquetFile) -> dict[str, int]:
    names = [parquet.metadata.schema.column(i).path for i in range(parquet.metadata.num_columns)]
    return {name: place for place, name in enumerate(names) if name in _COMPARED}


def _values(parquet: pq.ParquetFile) -> ValueColumn | None:
    """How the file's values are typed, if they are."""
    found = (parquet.metadata.metadata or {}).get(_VALUES_KEY)
    return None if found is None else ValueColumn.from_metadata(found)


def _stored_columns(columns: Sequence[str], values: ValueColumn | None) -> list[str]:
    derived = ("topic", "partition", "message_id", "ledger_id")
    found = [*_NEEDED, *(name for name in columns if name not in derived)]
    if values is not None and {"value", "value_raw"} & set(found):
        found += ["value", "value_raw", SCHEMA_VERSION]
    return list(dict.fromkeys(found))


def _with_payloads(rows: pa.RecordBatch, values: ValueColumn) -> pa.RecordBatch:
    payloads = values.join(*(rows.column(n) for n in ("value", "value_raw", SCHEMA_VERSION)))
    return rows.set_column(rows.schema.get_field_index("value"), "value", payloads)


def entry_rows(
    item: Split, entries: Iterable[tuple[int, bytes]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages that a split within one ledger has of some entries."""
    (span,) = item.spans
    builder = RowBuilder(item.topic, item.partition, columns)
    for entry_id, entry in entries:
        if not span.first <= entry_id <= span.last:
            continue
        limits = {}
        if entry_id == span.first and item.skip_through >= 0:
            limits["skip_through"] = item.skip_through
        if entry_id == span.last and item.stop_after >= 0:
            limits["stop_after"] = item.stop_after
        builder.add(span.ledger_id, entry_id, entry, **limits)
    if builder.rows:
        yield builder.finish()


def _check_entries(rows: pa.RecordBatch, low: int, high: int) -> None:
    ids = rows.column("entry_id").to_numpy()
    steps = np.diff(ids)
    if ids[0] != low or ids[-1] != high or ((steps != 0) & (steps != 1)).any():
        raise pa.ArrowInvalid(f"some of the entries {low} to {high} are missing")


def _shaped(rows: pa.RecordBatch, item: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The messages that the split has, with a query's columns, in pieces."""
    mask = _messages(rows, item)
    if mask is not None:
        rows = rows.filter(mask)
    pieces = max(-(-rows.nbytes // BATCH_BYTES), -(-rows.num_rows // BATCH_ROWS), 1)
    step = max(-(-rows.num_rows // pieces), 1)
    for start in range(0, rows.num_rows, step):
        some = rows.slice(start, step)
        arrays = [_column(name, some, item) for name in columns]
        yield pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([ROW_SCHEMA.field(name) for name in columns])
        )


def _messages(rows: pa.RecordBatch, item: Split) -> pa.Array | None:
    """Which rows are messages of the split; ``None`` if all are."""
    (span,) = item.spans
    ids = rows.column("entry_id").to_numpy()
    sizes = pc.fill_null(rows.column("batch_size"), 1).to_numpy()
    found = (sizes != 0) & (ids >= span.first) & (ids <= span.last)
    if item.skip_through >= 0 or item.stop_after >= 0:
        indexes = np.maximum(rows.column("batch_index").to_numpy(), 0)
        if item.skip_through >= 0:
            found &= (ids > span.first) | (indexes > item.skip_through)
        if item.stop_after >= 0:
            found &= (ids < span.last) | (indexes <= item.stop_after)
    return None if found.all() else pa.array(found)


def _column(name: str, rows: pa.RecordBatch, item: Split) -> pa.Array:
    kind = ROW_SCHEMA.field(name).type
    (span,) = item.spans
    constants: dict[str, Any] = {
        "topic": item.topic,
        "partition": item.partition,
        "ledger_id": span.ledger_id,
    }
    if name in constants:
        return pa.repeat(pa.scalar(constants[name], kind), rows.num_rows)
    if name == "message_id":
        return pc.binary_join_element_wise(
            str(span.ledger_id),
            rows.column("entry_id").cast(pa.string()),
            str(item.partition),
            rows.column("batch_index").cast(pa.string()),
            ":",
        )
    found = rows.column(name)
    if found.type != kind:
        raise pa.ArrowInvalid(f"its column {name} is {found.type}")
    return found
