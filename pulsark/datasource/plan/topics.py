"""Which topics a query reads, and where each of their partitions starts and ends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsark.datasource.admin.partitions import PartitionState
from pulsark.datasource.options.errors import DataSourceError, OptionError, TopicNotFoundError
from pulsark.datasource.options.offsets import (
    NOTHING,
    Edge,
    Moment,
    PartitionOffset,
    Point,
    StartingPoint,
)
from pulsark.datasource.options.options import DEFAULT_NAMESPACE, Options
from pulsark.datasource.plan.plan import comes_after
from pulsark.errors import ClientError
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import LATEST, Position
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.datasource.admin.client import SparkAdmin

_PATTERN = re.compile(r"(?:persistent://)?(?:([^/]+)/([^/]+)/)?([^/]+)")
MANY_TOPICS = 8
"""From this number on, topics are asked for together: a pattern may have thousands."""

_LIST_SECONDS = 1.0
_FRESH_SECONDS = 0.02
_DUTY = 10
"""Polls that cost little take at most about one part in this of the time."""

_ENDING_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 1.0
_COSTLY_DUTY = 2
"""A poll that costs more than half of the longest pause is followed by this many times its cost."""

States = Mapping[str, PartitionState]
FirstSince = Callable[[str, int], MessageId]
"""Name of a partition, milliseconds: its first message published then or later, or the place
behind its last one."""


class TopicFinder:
    """The partitions of a query's topics, by name; remembers them for some milliseconds.

    Spark asks a stream for its end every 10 ms while nothing happens. A remembered answer is good
    enough to begin a batch; only ``is_newer_than`` proves that there is nothing to read.
    """

    def __init__(self, options: Options, admin: SparkAdmin) -> None:
        self._admin = admin
        self._pattern = options.topics_pattern
        self._optional = self._pattern is not None or options.wait_for_topic
        self._compacted = options.read_compacted
        self._names = [] if self._pattern else topic_names(options.topics)
        self._listed = _Age(_LIST_SECONDS, lambda: admin.waited_s)
        self._known = _Age(_FRESH_SECONDS, lambda: admin.waited_s)
        self._states: dict[str, PartitionState] = {}

    def states(self, read: Mapping[str, MessageId] | None = None, *, fresh: bool = False) -> States:
        """What the broker says of all partitions, sorted by name; ``TopicNotFoundError``.

        ``read`` is how far partitions are read: their older ledgers may be left out.
        """
        if fresh or self._known.over:
            with self._known:
                after = self._after(read or {})
                names = self._topics()
                if self._optional and len(names) >= MANY_TOPICS:
                    found = self._admin.topics.plans(
                        {name: after.get(str(name), ()) for name in names},
                        compacted=self._compacted,
                    )
                else:
                    found = [
                        state
                        for name in names
                        for state in self._partitions(name, after.get(str(name), ()))
                    ]
                self._states = {state.name: state for state in sorted(found, key=_by_name)}
        return self._states

    def is_newer_than(self, moment: float) -> bool:
        """Return whether all that is remembered was asked for at a monotonic time or later."""
        listed = self._pattern is None or self._listed.asked_at >= moment
        return listed and self._known.asked_at >= moment

    @property
    def follows_deletions(self) -> bool:
        """Whether the query goes on without a topic that is deleted once all of it was read."""
        return self._optional

    def wait_until_due(self) -> None:
        """Sleep until ``states`` would ask again."""
        time.sleep(self._known.left_s)

    def reads(self, partition: str) -> bool:
        """Whether a partition, deleted or not, is one of the query's topics."""
        base = TopicName.parse(partition).base
        if self._pattern is None:
            return base in self._names
        namespace, pattern = split_pattern(self._pattern)
        return base.namespace_name == namespace and pattern.fullmatch(base.local) is not None

    def _after(self, read: Mapping[str, MessageId]) -> Mapping[str, Sequence[int]]:
        """By topic: the ledger that each partition is read up to, as far as that is known."""
        after: dict[str, list[int]] = {}
        for name, state in self._states.items():
            place = read.get(name)
            after.setdefault(state.topic, []).append(0 if place is None else place.ledger_id)
        return after

    def _topics(self) -> list[TopicName]:
        if self._pattern is not None and self._listed.over:
            with self._listed:
                self._names = topics_matching(self._admin, self._pattern)
        return self._names

    def _partitions(self, name: TopicName, after: Sequence[int]) -> list[PartitionState]:
        try:
            return self._admin.topics.partitions(name, after, compacted=self._compacted)
        except TopicNotFoundError:
            if not self._optional:
                raise
            return []  # deleted since it was listed, or not there yet


class _Age:
    """When something was fetched, and when to fetch it again.

    The pause grows with what the fetch cost the broker. Waiting for a broker that is away costs
    it nothing, and the first answer of a broker that has just started says little of the next.
    """

    def __init__(self, fresh_s: float, waited: Callable[[], float]) -> None:
        """``waited``: the seconds that the client has waited for an absent broker so far."""
        self._fresh_s = fresh_s
        self._waited = waited
        self._stale_at = float("-inf")
        self._began = self._waited_before = 0.0
        self.asked_at = float("-inf")
        """When the answer that is remembered was asked for."""

    @property
    def over(self) -> bool:
        """Whether it is time to fetch again."""
        return time.monotonic() >= self._stale_at

    @property
    def left_s(self) -> float:
        """Seconds until it is time to fetch again."""
        return max(self._stale_at - time.monotonic(), 0.0)

    def __enter__(self) -> None:
        self._began, self._waited_before = time.monotonic(), self._waited()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            now = time.monotonic()
            self.asked_at = self._began
            pause_s = self._fresh_s
            if self._waited() == self._waited_before:
                pause_s = max(pause_s, _pause_after(now - self._began))
            self._stale_at = now + pause_s


def _pause_after(cost_s: float) -> float:
    return max(min(_DUTY * cost_s, _PAUSE_SECONDS_MAX), _COSTLY_DUTY * cost_s)


def _by_name(state: PartitionState) -> tuple[str, int]:
    return state.topic, state.partition


def topic_names(written: Iterable[str]) -> list[TopicName]:
    """Parse names as users write them, each once; ``OptionError``."""
    names = []
    for text in written:
        try:
            name = TopicName.parse(text)
        except ClientError as error:
            raise OptionError(f"topic '{text}': {error}") from None
        if not name.is_persistent:
            raise OptionError(f"topic '{text}': {name} stores nothing that could be read")
        names.append(name)
    return list(dict.fromkeys(names))


def split_pattern(text: str) -> tuple[str, re.Pattern[str]]:
    """``(tenant/namespace, pattern of the topic's own name)``; ``OptionError``."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise OptionError(
            f"option 'topicsPattern': '{text}' is not like persistent://tenant/namespace/regex"
        )
    tenant, namespace, pattern = found[1] or "public", found[2] or "default", found[3]
    try:
        return f"{tenant}/{namespace}", re.compile(pattern)
    except re.error as error:
        raise OptionError(f"option 'topicsPattern': '{pattern}': {error}") from None


def topics_matching(
    admin: SparkAdmin, text: str | None, namespace: str = DEFAULT_NAMESPACE
) -> list[TopicName]:
    """The topics that match a pattern, or all of a namespace."""
    pattern = None
    if text is not None:
        namespace, pattern = split_pattern(text)
    names = map(TopicName.parse, admin.topics.names(namespace))
    return [name for name in names if pattern is None or pattern.fullmatch(name.local)]


def starting_places(
    states: States, point: StartingPoint, first_since: FirstSince, *, latest_if_none: bool = False
) -> dict[str, MessageId]:
    """Per partition, the message before the first one to read.

    ``OptionError`` for a place behind the end, and for a time that no message is as new as, unless
    it is to be the latest then.
    """
    return {
        name: _start(states[name], wanted, first_since, latest_if_none)
        for name, wanted in _points(states, point).items()
    }


def ending_places(
    states: States, point: StartingPoint, first_since: FirstSince
) -> dict[str, MessageId]:
    """Per partition, the last message to read.

    ``OptionError`` for a message that does not exist yet.
    """
    return {
        name: _end(states[name], wanted, first_since)
        for name, wanted in _points(states, point).items()
    }


def _start(
    state: PartitionState, wanted: Point, first_since: FirstSince, latest_if_none: bool
) -> MessageId:
    if wanted in (Edge.EARLIEST, NOTHING):  # -1:-1 is how clients print the earliest id
        return state.earliest()
    if isinstance(wanted, Edge):
        return state.latest()
    if isinstance(wanted, MessageId):
        if wanted.position == LATEST:
            return state.latest()
        _check_reached(state, "startingOffsets", wanted, wanted.before())
        return wanted.before()
    found = first_since(state.name, wanted.ms)
    if found.position <= state.latest().position:
        return found.before()
    if latest_if_none:
        return state.latest()
    raise OptionError(
        f"{state.name} has no message published at {_iso(wanted)} or later; set option "
        "startingOffsetsByTimestampStrategy to latest to start behind its last one"
    )


def _end(state: PartitionState, wanted: Point, first_since: FirstSince) -> MessageId:
    if isinstance(wanted, Edge):
        return state.earliest() if wanted is Edge.EARLIEST else state.latest()
    if isinstance(wanted, Moment):
        found = first_since(state.name, wanted.ms)
        latest = state.latest()
        return found.before() if found.position <= latest.position else latest
    if wanted.position == LATEST:
        return state.latest()
    _check_reached(state, "endingOffsets", wanted, wanted)
    return wanted


def _check_reached(
    state: PartitionState, option: str, wanted: MessageId, last_read: MessageId
) -> None:
    """Raise ``OptionError`` if a partition has not come as far as ``last_read`` yet.

    A reader that starts there would pass over messages that are published later. The place behind
    the last message is fine as a start, also if a new ledger has been opened for the next one.
    """
    ends = [state.latest().position]
    if state.ledgers:
        newest = state.ledgers[-1]
        ends.append(Position(newest.ledger_id, newest.entries - 1))
    if last_read.position <= max(ends):
        return
    last = state.latest()
    end = f"its last message is {last}" if last.entry_id >= 0 else "it has no message yet"
    choice = ", or earliest or latest" if option == "startingOffsets" else ", or latest"
    raise OptionError(
        f"option '{option}': {wanted} is beyond the end of {state.name}: {end}. Name a message "
        f"of this topic{choice}; an id of another cluster means nothing here"
    )


def _iso(moment: Moment) -> str:
    return f"{datetime.fromtimestamp(moment.ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _points(states: States, point: StartingPoint) -> dict[str, Point]:
    """The point of every partition; JSON has to name all of them, and none else."""
    if isinstance(point, Edge | Moment):
        return dict.fromkeys(states, point)
    named = {str(topic_names([topic])[0]): dict(partitions) for topic, partitions in point.items()}
    found: dict[str, Point] = {}
    for name, state in states.items():
        partitions = named.get(state.topic, {})
        number = state.partition
        if number not in partitions and number == -1 and set(partitions) == {0}:
            number = 0  # other connectors call a topic without partitions partition 0
        if number not in partitions:
            raise OptionError(
                f"the offsets in JSON do not name partition {state.partition} of {state.topic}; "
                "name every partition, with earliest or latest if need be"
            )
        found[name] = partitions.pop(number)
    for topic, partitions in named.items():
        if partitions:
            raise OptionError(
                f"the offsets in JSON name partition {min(partitions)} of {topic}, "
                "which the query does not read"
            )
    return found


def require_topics(states: States, options: Options) -> None:
    """``TopicNotFoundError`` if a pattern matches nothing: a batch would read nothing."""
    if not states:
        raise TopicNotFoundError(
            f"no topic matches '{options.topics_pattern}' at {options.admin_url}"
        )


def missing_topic(state: PartitionState | None, name: str, known: PartitionOffset) -> str | None:
    """Say why a partition is not the one that was read; ``None`` if it still is."""
    if state is None:
        return f"{name} was deleted"
    if state.topic_id != known.topic_id:
        return (
            f"the checkpoint is of another topic {name} (its id was {known.topic_id} and is "
            f"{state.topic_id}): it was deleted and created again, or is of another cluster"
        )
    return None


class DeletedTopics:
    """Finds out whether a query had read all of the topics that were deleted under it."""

    def __init__(self, end_of_deleted: Callable[[str, str], MessageId | None]) -> None:
        """``end_of_deleted``: asks the broker, by the name of a partition and the topic's id."""
        self._ask = end_of_deleted
        self._ends: dict[tuple[str, str], MessageId | None] = {}

    def unread(self, name: str, known: PartitionOffset, *, patience_s: float = 0.0) -> str | None:
        """Say what of a deleted partition was not read; ``None`` if all of it was.

        A deletion that is under way is waited for as long as ``patience_s``.
        """
        asked = name, known.topic_id
        if asked not in self._ends:
            deadline = time.monotonic() + patience_s
            while (end := self._ask(*asked)) is None and time.monotonic() < deadline:
                time.sleep(_ENDING_PAUSE_SECONDS)
            self._ends[asked] = end
        end = self._ends[asked]
        if end is None:
            return "whether all of it was read is not known to the broker"
        if comes_after(end, known.read):
            return f"it was read up to {known.read}, and its last message was {end}"
        return None


def require_in_query(finder: TopicFinder, name: str) -> None:
    """``DataSourceError`` if a checkpoint has a topic that the query does not read."""
    if not finder.reads(name):
        raise DataSourceError(
            f"the checkpoint is of {name}, which this query does not read: each query needs a "
            "checkpoint of its own. Start with a new one, or set option failOnDataLoss to false "
            "to go on without that topic"
        )
