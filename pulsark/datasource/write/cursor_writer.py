"""Writing to the view ``cursors``: seeks, acknowledgements, new and deleted subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from pulsark.admin_client.paths import subscription_path
from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.errors import OptionError, with_short_tracebacks
from pulsark.datasource.options.options import CURSORS, Options
from pulsark.datasource.plan.cursor_changes import SubscriptionChange, changes, check_columns
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row
    from pyspark.sql.types import StructType


@with_short_tracebacks
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
        with admin_of(self._options) as admin:
            for change in changes((row.asDict() for row in iterator), self._topic):
                carry_out(change, admin)
        return WriterCommitMessage()


def carry_out(change: SubscriptionChange, admin: SparkAdmin) -> None:
    """Make the request of a change; it is fine if the subscription is already so."""
    path = subscription_path(TopicName.parse(change.topic), change.subscription) + change.path
    answer = admin.request(change.method, path, change.body)
    if answer.status not in change.fine:
        what = f"{change.what} of subscription {change.subscription} of {change.topic}"
        admin.value_of(answer, what)
