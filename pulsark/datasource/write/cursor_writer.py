"""Writing to the view ``cursors``: seeks, acknowledgements, new and deleted subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.options import CURSORS, Options
from pulsark.datasource.plan.admin_client import AdminClient
from pulsark.datasource.plan.cursor_changes import changes, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row
    from pyspark.sql.types import StructType


class CursorWriter(DataSourceWriter):
    """Each row is a change of one subscription, carried out when the task comes to it.

    Rows of one task are carried out in order, tasks side by side. A job that fails has carried
    out some; run again, it comes to the same state.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if options.view != CURSORS:
            raise OptionError(f"option 'view': {options.view} cannot be written; {CURSORS} can")
        if overwrite:
            raise OptionError('the view cursors is appended to: add .mode("append")')
        if len(options.topics) > 1 or options.topics_pattern is not None:
            raise OptionError("option 'topic': name one topic, or none and have a column topic")
        self._topic = options.topics[0] if options.topics else None
        check_columns({field.name: field.dataType.simpleString() for field in schema}, self._topic)
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Carry out the rows of one task."""
        admin = AdminClient(self._options.admin_url, self._options.poll_timeout_s)
        try:
            for change in changes((row.asDict() for row in iterator), self._topic):
                admin.change_subscription(change)
        finally:
            admin.close()
        return WriterCommitMessage()
