"""``spark.readStream``: offsets are message ids, and the checkpoint is the truth.

Everything but ``read`` runs in one planning process a query. Order of calls, as Spark makes
them: ``initialOffset`` (new queries only), ``latestOffset(start)`` until it is beyond ``start``,
``partitions(start, end)``, ``read``, then the next ``latestOffset``, and ``commit`` of the batch
before once a new one is planned. After a failure ``partitions`` comes with the offsets of the
journalled batch and must plan the same messages again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pulsark.datasource.admin.client import SparkAdmin, admin_of
from pulsark.datasource.options.errors import (
    DataSourceError,
    TopicNotFoundError,
    UnavailableError,
    with_short_tracebacks,
)
from pulsark.datasource.options.offsets import Edge, PartitionOffset, StreamOffset
from pulsark.datasource.plan.plan import Split, comes_after, spans_between
from pulsark.datasource.plan.topics import (
    DeletedTopics,
    States,
    TopicFinder,
    missing_topic,
    require_in_query,
    starting_places,
)
from pulsark.datasource.read.admission import Admission, default_limit
from pulsark.datasource.read.following import BEHIND, FOLLOWS, Following
from pulsark.datasource.read.reader import (
    STREAM_FILES_BYTES,
    SplitReader,
    available_range,
    split_partitions,
)
from pulsark.datasource.read.stream_api import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from pulsark.datasource.admin.partitions import PartitionState
    from pulsark.datasource.options.options import Options
    from pulsark.datasource.read.layout import ColumnLayout
    from pulsark.wire.message_id import MessageId

log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0
_DELETION_SECONDS = 3.0
"""Seconds that a query waits until the broker has deleted a topic that is no longer listed."""


@with_short_tracebacks
class PulsarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read."""

    def __init__(self, options: Options, layout: ColumnLayout, columns: tuple[str, ...]) -> None:
        self._options = options
        self._splits = SplitReader(options, layout, columns, follows_schema=True)
        self._admin: SparkAdmin | None = None
        self._finder: TopicFinder | None = None
        self._initial: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._following: Following | None = None
        self._admitting: Admission | None = None
        self._deleted: DeletedTopics | None = None
        self._finished: StreamOffset | None = None
        self._planned = StreamOffset({})
        self._answered: tuple[StreamOffset, States] | None = None
        """The end that was given last, and what it was made of."""

    # -- offsets ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts. Spark asks twice; the answer must not move in between."""
        if self._initial is None:
            states = self._states()
            places = starting_places(
                states,
                self._options.starting or Edge.LATEST,
                self._client().topics.first_since,
                latest_if_none=self._options.latest_if_none_since,
            )
            self._initial = StreamOffset(
                {name: PartitionOffset(states[name].topic_id, places[name]) for name in states}
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options, if one is set."""
        return default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the ends as of now: such a query stops there."""
        self._target = self._ends(StreamOffset({}), self._states(fresh=True))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: everything durable, or as much as the limits allow."""
        begin = StreamOffset.from_json(start)
        return self._latest(begin, limit, begin)

    def _latest(
        self, begin: StreamOffset, limit: ReadLimit, known: StreamOffset | None
    ) -> dict[str, Any]:
        """``known``: the end of what Spark has read, if that can be known.

        Spark takes an end that it knows for the proof that nothing is left to read, and ends
        ``processAllAvailable`` by it. So that answer is never older than the question.
        """
        finder = self._topics()
        asked_at = time.monotonic()
        while True:
            states = self._states(begin)
            self._follow(begin)
            if self._target is not None:
                end = self._up_to_target(begin, states, self._target)
                break
            end = self._ends(begin, states)
            if finder.is_newer_than(asked_at) or known not in (None, end):
                break
            self._acknowledge_if_idle(begin, known is not None)
            finder.wait_until_due()
        end = self._admission().admit(begin, end, states, limit, wait=self._target is None)
        self._planned = end
        self._answered = end, states
        self._acknowledge_if_idle(begin, end == begin)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest message of every partition, for the query's progress and its listener."""
        states = self._states(self._finished)
        newest = self._ends(StreamOffset({}), states)
        behind = {
            name: spans_between(states[name], self._begun(name, offset), offset.read)
            for name, offset in newest.partitions.items()
        }
        entries = [sum(span.entries for span in spans) for spans in behind.values()]
        lag = {
            "entries": sum(entries),
            "bytes": sum(span.size for spans in behind.values() for span in spans),
            "minEntries": min(entries, default=0),
            "avgEntries": round(sum(entries) / max(len(entries), 1), 1),
            "maxEntries": max(entries, default=0),
        }
        follows = {FOLLOWS: self._following.said} if self._following is not None else {}
        return newest.to_json() | {BEHIND: lag} | follows

    def _begun(self, name: str, newest: PartitionOffset) -> MessageId:
        """How far a partition is read when the batch that was planned last is finished."""
        planned = self._planned.partitions.get(name)
        if planned is None or planned.topic_id != newest.topic_id:
            return newest.since or newest.read
        return planned.read

    def _ends(self, begin: StreamOffset, states: States) -> StreamOffset:
        """The end of every partition; a partition that ``begin`` lacks starts at its first
        message, and so does a topic that was created again, if loss is allowed."""
        found = {name: _end(state, begin.partitions.get(name)) for name, state in states.items()}
        for name, offset in begin.partitions.items():
            if name in found and found[name].topic_id == offset.topic_id:
                continue
            problem = self._loss(states, name, offset)
            if problem is not None:
                self._allow(problem)
                found.setdefault(name, offset)
        return StreamOffset(found)

    def _up_to_target(
        self, begin: StreamOffset, states: States, target: StreamOffset
    ) -> StreamOffset:
        now = self._ends(begin, states).partitions
        wanted = {}
        for name, offset in now.items():
            goal = target.partitions.get(name)
            known = begin.partitions.get(name)
            if goal is not None and goal.topic_id != offset.topic_id:
                goal = None  # created again since: it is for the next run
            if goal is None or (known is not None and not comes_after(goal.read, known.read)):
                if known is not None:
                    wanted[name] = known
                continue
            wanted[name] = replace(offset, read=goal.read)
        return StreamOffset(wanted)

    # -- batches ---------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of ``(start, end]``: the same messages for the same offsets, always."""
        begin, finish = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._follow(begin)
        self._planned = finish
        # Not older than the end offset, or ledgers would seem shorter than they are.
        known = self._answered
        states = known[1] if known is not None and known[0] == finish else None
        ranges = []
        for name, offset in finish.partitions.items():
            after = begin.start_of(name, offset)
            if not comes_after(offset.read, after):
                continue
            if states is None:
                states = self._states(begin, fresh=True)
            item = self._range(name, states, after, offset)
            if item is not None:
                ranges.append(item)
        return split_partitions(ranges, self._options, self._client(), STREAM_FILES_BYTES)

    def _range(
        self, name: str, states: States, after: MessageId, offset: PartitionOffset
    ) -> Split | None:
        state = states.get(name)
        problem = self._loss(states, name, replace(offset, read=after))
        if problem is not None:
            self._allow(problem)
        if state is None or state.topic_id != offset.topic_id:
            return None
        fail = self._options.fail_on_data_loss
        return available_range(state, after, offset.read, fail, streaming=True)

    def _loss(self, states: States, name: str, known: PartitionOffset) -> DataSourceError | None:
        """Return the error for a partition that was deleted before all of it was read.

        If it cannot be known whether all was read, that is an error, too.
        """
        state = states.get(name)
        problem = missing_topic(state, name, known)
        if problem is None:
            return None
        if state is None:
            try:
                require_in_query(self._topics(), name)
            except DataSourceError as error:
                return error
        fails = self._options.fail_on_data_loss
        if self._topics().follows_deletions:
            patience_s = _DELETION_SECONDS if fails else 0.0
            unread = self._deleted_topics().unread(name, known, patience_s=patience_s)
            if unread is None:
                return None
            problem = f"{problem}: {unread}"
        kind = TopicNotFoundError if state is None else DataSourceError
        return kind(
            f"{problem}. Start with a new checkpoint, or set option failOnDataLoss to false to go "
            "on without what is gone; a topic of that name is then read from its start"
        )

    def _allow(self, loss: DataSourceError) -> None:
        """Raise the error, or log it if the query allows a loss."""
        if self._options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        return self._splits.read(partition)

    # -- the subscription ------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Move the durable subscription to the end of a finished batch."""
        if self._following is not None:
            self._following.acknowledge_soon(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Acknowledge what Spark has finished but not committed, if the broker is there."""
        if self._following is not None:
            self._following.stop(self._finished, _STOP_SECONDS)
        if self._admin is not None:
            self._admin.close()

    def _follow(self, begin: StreamOffset) -> None:
        """Claim the subscription, before anything is read for it."""
        if self._following is None:
            self._following = Following(
                self._options.subscription, self._new_client(), self._new_client
            )
        self._following.start(begin)
        self._following.read(begin)

    def _acknowledge_if_idle(self, begin: StreamOffset, idle: bool) -> None:
        """``begin`` is the end of a batch that Spark has finished, or the start of the query.

        Spark commits a batch only when the next one is planned, and kills this process when a
        query is stopped. So where nothing comes next, the batch is acknowledged at once.
        """
        self._finished = begin
        if idle and self._following is not None:
            self._following.acknowledge(begin)

    # -- the broker ------------------------------------------------------------------------

    def _client(self) -> SparkAdmin:
        if self._admin is None:
            self._admin = self._new_client()
        return self._admin

    def _new_client(self) -> SparkAdmin:
        return admin_of(self._options)

    def _topics(self) -> TopicFinder:
        if self._finder is None:
            self._finder = TopicFinder(self._options, self._client())
        return self._finder

    def _states(self, begin: StreamOffset | None = None, *, fresh: bool = False) -> States:
        """The states of the topics, of the unread part only if ``begin`` says where it starts."""
        read = begin.partitions.items() if begin is not None else ()
        places = {name: offset.read for name, offset in read}
        for attempt in range(self._options.offset_retries + 1):
            try:
                return self._topics().states(places, fresh=fresh)
            except UnavailableError as error:
                if attempt == self._options.offset_retries:
                    raise
                log.warning("asking again: %s", error)
                time.sleep(self._options.offset_retry_pause_s)
        raise AssertionError

    def _deleted_topics(self) -> DeletedTopics:
        if self._deleted is None:
            self._deleted = DeletedTopics(self._client().topics.end_of_deleted)
        return self._deleted

    def _admission(self) -> Admission:
        if self._admitting is None:
            self._admitting = Admission(self._options, self._client().topics.count_messages)
        return self._admitting


def _end(state: PartitionState, known: PartitionOffset | None) -> PartitionOffset:
    if known is None or known.topic_id != state.topic_id:
        return PartitionOffset(state.topic_id, state.latest(), state.earliest())
    latest = state.latest()
    return PartitionOffset(state.topic_id, latest) if comes_after(latest, known.read) else known
