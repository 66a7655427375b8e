"""Publish times in the files of a topic's table. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.datasource.options.errors import DataLossError
from pulsark.storage.roots.task_files import for_pyarrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.datasource.admin.table_files import TableFile


def first_published_since(
    file: TableFile, directories: Sequence[str], ms: int, first: int
) -> int | None:
    """The first entry from ``first`` on that was published at a time (epoch) or later, if any.

    ``DataLossError`` if the file cannot be read here.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    problem: Exception | None = None
    for directory in directories:
        try:
            source = for_pyarrow(f"{directory}/{file.path}")
            rows = pq.ParquetFile(source).read(["entry_id", "publish_time"])
        except (OSError, pa.ArrowException) as error:
            problem = error
            continue
        times = rows.column("publish_time")
        late = pc.greater_equal(times, pa.scalar(ms * 1000, pa.int64()).cast(times.type))
        late = pc.and_(pc.fill_null(late, False), pc.greater_equal(rows.column("entry_id"), first))
        found: int | None = pc.min(rows.column("entry_id").filter(late)).as_py()
        return found
    raise DataLossError(
        f"{file.path}: {problem}: a past state is read from the files of the table, which the "
        "driver and the tasks must reach under the broker's paths"
    )
