"""Writes the files of a bulk publish: messages of one partition, in the order in which they come.

Imports pyarrow: never import it where a broker starts.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from pulsark.rows.arrow.schema import file_schema
from pulsark.rows.outgoing import Batching, EntryRows, entry_rows
from pulsark.rows.values import ValueColumn
from pulsark.schemas.column_types import BINARY
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.files.seal import (
    ROW_GROUP_BYTES,
    ROW_GROUP_VALUES_MAX,
    TARGET_FILE_BYTES,
    UNKNOWN_LEDGER,
    FileWriter,
)
from pulsark.storage.table.staging.staged_ledger import StagedLedger, staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile

log = logging.getLogger(__name__)

COLLECTED_BYTES: Final = 2 << 20
"""Messages that become entries at a time: numpy has a price for each call, and putting what came in
pieces together has one for each byte."""

COMPRESSION_LEVEL: Final = 1
"""zstd's. A query waits for a bulk publish, unlike for sealing."""

COMPRESSED: Final = ("key", "ordering_key", "value", "value_raw", "properties")
"""Columns that are compressed: what rows bring. Their encodings leave little of the others, and
each page that is compressed costs the setting up of a compressor."""

VERIFIED: Final = ("entry_id", "batch_index")
"""Columns that are decoded again. To decode the values would take as long as to write them."""


@dataclass(frozen=True, slots=True)
class StagingArea:
    """Where the files of one attempt go; ``nonce`` is letters and digits."""

    directories: Sequence[str]
    directories_needed: int
    time_ms: int
    nonce: str


def values_said(document: Mapping[str, Any]) -> ValueSchemas:
    """What the broker says of the column ``value``."""
    return ValueSchemas.decode(json.dumps(document))


class BulkWriter:
    """Makes one ledger of one partition; not for several threads."""

    def __init__(
        self,
        area: StagingArea,
        partition: int,
        batching: Batching,
        disk: RootFiles,
        now_ms: Callable[[], int],
        *,
        values: ValueSchemas | None = None,
        target_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._area = area
        self._directories = list(area.directories)
        self._partition = partition
        self._batching = batching
        self._disk = disk
        self._now_ms = now_ms
        typed = values is not None and values.kind != BINARY
        self._values = ValueColumn(values) if values is not None and typed else None
        """The values of the file that is being written; ``None`` where values are bytes."""
        self._target_bytes = target_bytes
        self._collected: list[pa.RecordBatch] = []
        self.collected_bytes = 0
        """Bytes of messages that are in memory."""
        self._group_bytes = ROW_GROUP_BYTES
        self._file: FileWriter | None = None
        self._files: list[DataFile] = []
        self._next_entry = 0
        self._next_sequence_id = 0
        self._length = 0

    def add(self, messages: pa.RecordBatch, size: int) -> None:
        """Messages with ``OUTGOING_SCHEMA``, and their bytes, about.

        Values may be structs of the version that the batching names, if ``takes_structs``.
        """
        self._collected.append(messages)
        self.collected_bytes += size
        if self.collected_bytes >= COLLECTED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory."""
        collected, self._collected = self._collected, []
        self.collected_bytes = 0
        for messages in (
            pa.Table.from_batches(collected).combine_chunks().to_batches() if collected else ()
        ):
            made = entry_rows(
                messages, self._batching, self._next_entry, self._next_sequence_id, self._now_ms()
            )
            self._write(made)
            self._next_entry += made.entries
            self._next_sequence_id += messages.num_rows
            self._length += made.length

    def _write(self, made: EntryRows) -> None:
        """As row groups of a good size; an entry is within one of them."""
        starts, rows = made.starts, made.rows.num_rows
        bytes_a_row = max(made.length // rows, 1)
        groups = max(round(made.length / self._group_bytes), 1)
        rows_a_group = -(-rows // groups)
        entry = 0
        while entry < made.entries:
            wanted = int(starts[entry]) + rows_a_group
            end = int(np.searchsorted(starts, wanted, side="right")) - 1
            end = min(max(end, entry + 1), made.entries)
            first, last = int(starts[entry]), int(starts[end])
            if self._file is None:
                self._file = self._new_file(self._next_entry + entry)
            rows_of_group = self._typed(made.rows.slice(first, last - first))
            written = self._file.write_rows(rows_of_group, self._next_entry + end - 1)
            wanted_bytes = ROW_GROUP_BYTES * (last - first) * bytes_a_row // max(written, 1)
            self._group_bytes = max(ROW_GROUP_BYTES, min(wanted_bytes, ROW_GROUP_VALUES_MAX))
            if self._file.size >= self._target_bytes:
                self._finish_file()
            entry = end

    def _new_file(self, first_entry: int) -> FileWriter:
        name = staged_name(self._area.time_ms, self._area.nonce, len(self._files))
        self._values = self._values.fresh() if self._values is not None else None
        return FileWriter(
            name, self._partition, UNKNOWN_LEDGER, first_entry, self._directories, self._disk,
            self._values, COMPRESSION_LEVEL, COMPRESSED, VERIFIED, cached=False,
        )  # fmt: skip

    def takes_structs(self, kind: pa.DataType) -> bool:
        """Whether values of a type can be added as they are, and not as payloads."""
        version = self._batching.schema_version
        return (
            self._values is not None and version is not None and self._values.knows(version, kind)
        )

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """With values in the table's type, and where that does not tell all, as they are."""
        if self._values is None:
            return rows
        value = rows.column("value")
        if pa.types.is_struct(value.type):
            version = self._batching.schema_version
            assert version is not None
            typed, raw = self._values.keep(value, version)
        else:
            typed, raw = self._values.split(value, rows.column("schema_version"))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns.update(value=typed, value_raw=raw)
        schema = file_schema(self._values.type)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _finish_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            found = file.finish(self._area.directories_needed)
            self._directories = file.directories
            self._files.append(found)

    def finish(self) -> StagedLedger | None:
        """Write all, durably and verified; what is to be published, if anything came."""
        self.flush()
        self._finish_file()
        if not self._files:
            return None
        return StagedLedger(self._partition, self._length, tuple(self._files))

    def abandon(self) -> None:
        """Delete what was written. What cannot be deleted now the broker deletes later."""
        if self._file is not None:
            self._file.abandon()
        for directory in self._directories:
            try:
                for file in self._files:
                    self._disk.remove(f"{directory}/{file.path}")
            except OSError as e:
                log.warning("%s: staged files stay for now: %s", directory, e)
