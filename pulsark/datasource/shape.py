"""Rows in the shape that a query wants. Runs in tasks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.options import Options

_TEXT = pc.CastOptions(pa.string(), allow_invalid_utf8=True)


class Shape:
    """Makes record batches of ``columns`` from those of stored rows."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._value = -1
        if options.value_format == "string" and "value" in columns:
            self._value = columns.index("value")

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows. Text that is not UTF-8 stays as it is, as in Spark's own casts."""
        if self._value < 0:
            return batch
        text = pc.cast(batch.column(self._value), options=_TEXT)
        return batch.set_column(self._value, "value", text)
