"""``spark.readStream`` under Spark 4.1, which says neither where a batch begins nor how long it
may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.offsets import StreamOffset
from pulsark.datasource.read.stream_api import ReadAllAvailable, ReadLimit
from pulsark.datasource.read.stream_reader import PulsarkStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from pulsark.datasource.options.options import Options
    from pulsark.datasource.read.layout import ColumnLayout

_LIMITS = {
    "maxRowsPerTrigger": "max_rows_per_trigger",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "minRowsPerTrigger": "min_rows_per_trigger",
}


class UnlimitedStreamReader(PulsarkStreamReader):
    """A streaming read in which each batch has everything available.

    A query that is restarted does not say where it is before its first batch is planned. Until then
    an end offset says of each partition where it starts, which only counts for those that the
    checkpoint does not know: the first batch after a restart may be empty.
    """

    def __init__(self, options: Options, layout: ColumnLayout, columns: tuple[str, ...]) -> None:
        for name, field in _LIMITS.items():
            if getattr(options, field) is not None:
                raise OptionError(
                    f"option '{name}' needs Spark 4.2: an earlier one asks a Python source for all "
                    "there is. Leave it out, or update pyspark"
                )
        super().__init__(options, layout, columns)
        self._begin: StreamOffset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts, and so its first batch."""
        initial = super().initialOffset()
        if self._begin is None:
            self._begin = StreamOffset.from_json(initial)
        return initial

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Everything durable. What was planned before is done, or the query would have failed."""
        begin = self._begin if self._begin is not None else StreamOffset({})
        return self._latest(begin, ReadAllAvailable(), self._begin)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of a batch."""
        if self._begin is None:
            # Raises if the checkpoint is of another topic: no latestOffset could see it.
            begin = StreamOffset.from_json(start)
            self._ends(begin, self._states(begin))
        planned = super().partitions(start, end)
        self._begin = StreamOffset.from_json(end)
        return planned
