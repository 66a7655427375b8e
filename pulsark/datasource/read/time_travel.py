"""Plans queries of the past: topics as of a version of their table, or as of a time.

A version is the files that the table had then, whatever the topic has now. A time is the version of
that time and, after what was sealed by then, the messages published until then: from the topic, or
from files of later versions if the topic no longer has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pulsark.datasource.admin.table_files import PastTable, TableFile, TableFiles
from pulsark.datasource.options.errors import DataLossError, OptionError
from pulsark.datasource.plan.plan import Span, Split, pieces, range_of
from pulsark.datasource.plan.topics import TopicFinder, require_topics, topic_names
from pulsark.datasource.read.file_times import first_published_since
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.datasource.admin.client import SparkAdmin
    from pulsark.datasource.admin.partitions import PartitionState
    from pulsark.datasource.options.options import Options
    from pulsark.wire.message_id import MessageId

log = logging.getLogger(__name__)

Ledgers = Mapping[int, Sequence[TableFile]]
"""The files of a partition's ledgers, in order."""


def past_ranges(options: Options, admin: SparkAdmin) -> list[Split]:
    """All that there was; ``OptionError`` if that is not known any more, or not yet."""
    if options.version_as_of is not None:
        (topic,) = topic_names(options.topics)
        table = admin.topics.past_table(topic.base, version=options.version_as_of)
        return list(_sealed(topic.base, table.files))
    return _at_time(options, admin)


def _at_time(options: Options, admin: SparkAdmin) -> list[Split]:
    assert options.as_of_ms is not None
    at = options.as_of_ms
    states = TopicFinder(options, admin).states()
    require_topics(states, options)
    found: list[Split] = []
    tables = {
        topic: admin.topics.past_table(TopicName.parse(topic), timestamp=at)
        for topic in dict.fromkeys(state.topic for state in states.values())
    }
    for topic, table in tables.items():
        if at > table.now_ms:
            raise OptionError(
                f"option 'timestampAsOf': {_iso(at)} is not over yet; at the broker it is "
                f"{_iso(table.now_ms)}"
            )
        if at < table.created_ms:
            raise OptionError(
                f"option 'timestampAsOf': {topic} was made at {_iso(table.created_ms)}, and "
                f"{_iso(at)} is before that"
            )
        found += _sealed(TopicName.parse(topic), table.files)
    for name, state in states.items():
        since = admin.topics.first_since(name, at + 1)
        table = tables[state.topic]
        found += _published(state, table, since, at, options.fail_on_data_loss)
    return found


def _sealed(topic: TopicName, table: TableFiles) -> Iterator[Split]:
    """The files of each partition as one range."""
    partitions: dict[str, list[Span]] = {}
    for (name, ledger_id), files in table.files.items():
        size = sum(file.size for file in files)
        span = Span(ledger_id, files[0].first, files[-1].last, size)
        partitions.setdefault(name, []).append(span)
    for name, spans in partitions.items():
        yield Split(
            topic=str(topic),
            name=name,
            partition=TopicName.parse(name).partition,
            topic_id="",
            flight_url="",
            spans=tuple(spans),
            files=table,
            only_files=True,
        )


def _published(
    state: PartitionState, table: PastTable, since: MessageId, at: int, fail_on_data_loss: bool
) -> Iterator[Split]:
    """What was not sealed at that time, up to the place before the first message since."""
    sealed = _of(state.name, table.files)
    later = _of(state.name, table.later)
    if not table.later_whole or _may_lack(state, {**sealed, **later}):
        problem = (
            f"{state.name}: messages up to {state.trimmed} were deleted, and it is not known "
            "whether some were there at timestampAsOf that were not sealed by then"
        )
        if fail_on_data_loss:
            raise DataLossError(f"{problem}. Set option failOnDataLoss to false to go without")
        log.warning("%s", problem)
    spans = list(_lost_since(table.later.directories, sealed, later, at))
    if spans:
        yield Split(
            topic=state.topic,
            name=state.name,
            partition=state.partition,
            topic_id="",
            flight_url="",
            spans=tuple(spans),
            files=table.later,
            only_files=True,
        )
    latest = state.latest()
    through = since.before() if since.position <= latest.position else latest
    item = range_of(state, state.earliest(), through)
    if item is not None:
        yield from (each for each, file in pieces(replace(item, files=table.files)) if file is None)


def _lost_since(
    directories: Sequence[str], sealed: Ledgers, later: Ledgers, at: int
) -> Iterator[Span]:
    """Entries that were not sealed at that time, of ledgers that only the table still had after it.

    They are in order, so the first entry published since ends them.
    """
    for ledger_id, files in sorted(later.items()):
        first = sealed[ledger_id][-1].last + 1 if ledger_id in sealed else 0
        for file in files:
            end = first_published_since(file, directories, at + 1, first)
            if end is not None:
                if end > first:
                    yield Span(ledger_id, first, end - 1, file.size)
                return
        yield Span(ledger_id, first, files[-1].last, sum(file.size for file in files))


def _of(name: str, table: TableFiles) -> Ledgers:
    return {ledger: files for (owner, ledger), files in table.files.items() if owner == name}


def _may_lack(state: PartitionState, sealed: Ledgers) -> bool:
    """Whether the topic may have lost messages of that time that were not in its table then.

    The oldest ledgers go first. So of a table that still had an older ledger than the last that was
    trimmed, that one went later, or came later.
    """
    ledger_id, entry_id = state.trimmed.position
    if ledger_id < 0:
        return False
    if ledger_id in sealed:
        return sealed[ledger_id][-1].last < entry_id
    return not sealed or min(sealed) < ledger_id


def _iso(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
