"""From offsets to splits: pure arithmetic over the ledgers of topic partitions.

A split knows every entry that it must deliver, so that a reader can prove that it got them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pulsark.datasource.admin.table_files import NO_FILES, TableFile, TableFiles
from pulsark.datasource.options.errors import DataLossError
from pulsark.wire.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pulsark.datasource.admin.partitions import PartitionState

SMALL_BYTES = 1 << 20
"""A split below this size is not worth a task of its own, unless minPartitions asks for it."""

LARGE_BYTES = 128 << 20
"""A split above this size is cut, however many there are: a failed task reads it all again."""


class Span(NamedTuple):
    """Consecutive entries of one ledger, both ends inclusive; ``size`` in bytes, about."""

    ledger_id: int
    first: int
    last: int
    size: int

    @property
    def entries(self) -> int:
        """How many entries the span has."""
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> Span:
        """Some of its entries, with their share of the size."""
        size = self.size * (last - first + 1) // self.entries
        return Span(self.ledger_id, first, last, size)


class Between(NamedTuple):
    """The messages in ``(after, through]``."""

    after: MessageId
    through: MessageId

    def limits(self, ledger_id: int, entry_id: int) -> dict[str, int] | None:
        """What ``RowBuilder.add`` needs to know of an entry; ``None``: none of it is in between."""
        here = (ledger_id, entry_id)
        if not self.after.position <= here <= self.through.position:
            return None
        limits = {}
        if here == self.after.position:
            if self.after.batch_index < 0:
                return None
            limits["skip_through"] = self.after.batch_index
        if here == self.through.position and self.through.batch_index >= 0:
            limits["stop_after"] = self.through.batch_index
        return limits


@dataclass(frozen=True, slots=True)
class Split:
    """Entries of one topic partition that one task reads, all of them and in order.

    ``skip_through`` is the batch index in the first entry that was already read (-1: none),
    ``stop_after`` the last batch index to read in the last entry (-1: all). ``files`` have some of
    the entries, or all; the broker has each of them. With ``compacted`` the spans are of a
    compacted ledger, and the task reads the stored entries between them. With ``only_files`` only
    the files have the entries, as they were.
    """

    topic: str
    name: str
    partition: int
    topic_id: str
    flight_url: str
    spans: tuple[Span, ...]
    skip_through: int = -1
    stop_after: int = -1
    files: TableFiles = NO_FILES
    compacted: Between | None = None
    only_files: bool = False

    @property
    def entries(self) -> int:
        """How many entries the split has."""
        return sum(span.entries for span in self.spans)

    def of(self, spans: Sequence[Span]) -> Split:
        """Some of its entries, in order."""
        whole, some = self.spans, tuple(spans)
        begins = some[0][:2] == whole[0][:2]
        ends = (some[-1].ledger_id, some[-1].last) == (whole[-1].ledger_id, whole[-1].last)
        return replace(
            self,
            spans=some,
            skip_through=self.skip_through if begins else -1,
            stop_after=self.stop_after if ends else -1,
        )

    @property
    def size(self) -> int:
        """Bytes of the entries, about."""
        return sum(span.size for span in self.spans)


def spans_between(state: PartitionState, after: MessageId, through: MessageId) -> list[Span]:
    """The entries in ``(after, through]``, ledger by ledger."""
    found = []
    for ledger in state.ledgers:
        if not after.ledger_id <= ledger.ledger_id <= through.ledger_id:
            continue
        first, last = 0, ledger.entries - 1
        if ledger.ledger_id == after.ledger_id:
            first = after.entry_id + (1 if after.batch_index < 0 else 0)
        if ledger.ledger_id == through.ledger_id:
            last = through.entry_id
        if first <= last:
            size = ledger.size * (last - first + 1) // max(ledger.entries, 1)
            found.append(Span(ledger.ledger_id, first, last, size))
    return found


def range_of(state: PartitionState, after: MessageId, through: MessageId) -> Split | None:
    """The whole range ``(after, through]`` as one split; ``None`` if there is nothing in it."""
    if not comes_after(through, after):
        return None
    spans = spans_between(state, after, through)
    if not spans:
        return None
    return Split(
        topic=state.topic,
        name=state.name,
        partition=state.partition,
        topic_id=state.topic_id,
        flight_url=state.flight_url,
        spans=tuple(spans),
        skip_through=after.batch_index if spans[0][:2] == after.position else -1,
        stop_after=through.batch_index,
    )


def compacted_range(state: PartitionState, after: MessageId, through: MessageId) -> Split | None:
    """What compaction left of ``(after, through]``; ``None`` if that is nothing."""
    part = state.compacted
    if part is None or not part.entries:
        return None
    through = min(through, part.horizon, key=lambda place: place.position)
    if not comes_after(through, after):
        return None
    return Split(
        topic=state.topic,
        name=state.name,
        partition=state.partition,
        topic_id=state.topic_id,
        flight_url=state.flight_url,
        spans=(Span(part.ledger_id, 0, part.entries - 1, part.size),),
        compacted=Between(after, through),
    )


def comes_after(place: MessageId, other: MessageId) -> bool:
    """Whether reading up to ``place`` reads more than reading up to ``other``."""
    if place.position != other.position:
        return place.position > other.position
    return other.batch_index >= 0 and not 0 <= place.batch_index <= other.batch_index


def check_available(
    state: PartitionState, after: MessageId, through: MessageId, *, streaming: bool = False
) -> None:
    """Raise ``DataLossError`` if entries of ``(after, through]`` were deleted, or never existed."""
    if not comes_after(through, after):
        return
    part_read = after.batch_index >= 0
    if state.trimmed.position > after.position or (
        part_read and state.trimmed.position == after.position
    ):
        missing = f"messages after {after} were deleted, up to {state.trimmed}"
    elif through.position > state.latest().position:
        missing = f"messages up to {through} are gone, the last one is {state.last}"
    else:
        return
    if state.compacted is not None:
        raise DataLossError(
            f"{state.name}: {missing}, before they were compacted: keys may have later values. Set "
            "option failOnDataLoss to false to read what a reader of the topic receives, or leave "
            "out readCompacted to read what is stored"
        )
    prevention = "keep messages longer" + (" or use the option subscription" if streaming else "")
    raise DataLossError(
        f"{state.name}: {missing}; the first message available is {state.first}. Set option "
        f"failOnDataLoss to false to go on from there, and {prevention} to prevent it"
    )


def cut(ranges: Sequence[Split], wanted: int) -> list[Split]:
    """Cut ranges into about ``wanted`` splits of equal size, at entry boundaries.

    Deterministic. A split is never below ``SMALL_BYTES`` merely to reach the number, never
    above ``LARGE_BYTES`` if it can be cut, and every range gives at least one.
    """
    total = sum(item.size for item in ranges)
    target = min(max(total // max(wanted, 1), SMALL_BYTES), LARGE_BYTES)
    return [part for item in ranges for part in _cut(item, -(-item.size // target))]


def cut_at_least(ranges: Sequence[Split], wanted: int) -> list[Split]:
    """Like ``cut``, but with ``wanted`` splits even if they become small."""
    splits = cut(ranges, wanted)
    total = sum(item.entries for item in ranges)
    if len(splits) >= min(wanted, total):
        return splits
    parts = [1] * len(ranges)
    for _ in range(min(wanted, total) - len(ranges)):
        open_for_more = [i for i, item in enumerate(ranges) if parts[i] < item.entries]
        parts[max(open_for_more, key=lambda i: (ranges[i].entries / parts[i], -i))] += 1
    return [part for item, n in zip(ranges, parts, strict=True) for part in _cut(item, n)]


def cut_rows(splits: Iterable[Split], rows: Callable[[Split], float], most: int) -> list[Split]:
    """Cut further, so that no split has more than about ``most`` rows."""
    return [part for item in splits for part in _cut(item, math.ceil(rows(item) / most))]


def group(splits: Sequence[Split], wanted: int) -> list[tuple[Split, ...]]:
    """Splits that one task reads one after the other: more than ``wanted`` are put together.

    In their order, into about equal sizes, at most twice as many groups as wanted.
    """
    if len(splits) <= wanted:
        return [(item,) for item in splits]
    share = sum(item.size + 1 for item in splits) / wanted
    found: list[tuple[Split, ...]] = []
    collected: list[Split] = []
    size = 0
    for item in splits:
        if collected and size + item.size + 1 > share:
            found.append(tuple(collected))
            collected, size = [], 0
        collected.append(item)
        size += item.size + 1
    return [*found, tuple(collected)]


def _cut(item: Split, parts: int) -> Iterator[Split]:
    parts = max(1, min(parts, item.entries))
    bounds = [item.entries * i // parts for i in range(parts + 1)]
    for i in range(parts):
        yield item.of(tuple(_slice(item.spans, bounds[i], bounds[i + 1])))


def _slice(spans: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """Entries number ``start`` to ``stop`` (exclusive) of spans laid end to end."""
    base = 0
    for span in spans:
        first = max(start - base, 0)
        last = min(stop - base, span.entries) - 1
        if first <= last:
            yield span.part(span.first + first, span.first + last)
        base += span.entries


def with_files(item: Split, found: TableFiles) -> Split:
    """The split with those of the files that have some of its entries."""
    files = {}
    for span in item.spans:
        key = item.name, span.ledger_id
        some = tuple(
            file
            for file in found.files.get(key, ())
            if file.last >= span.first and file.first <= span.last
        )
        if some:
            files[key] = some
    return replace(item, files=TableFiles(found.directories, files)) if files else item


def consecutive(item: Split, spans: Sequence[Span]) -> Iterator[Split]:
    """Some of a split's entries, at most one span a ledger, as splits without gaps."""
    places = {span.ledger_id: number for number, span in enumerate(item.spans)}
    run: list[Span] = []
    for span in spans:
        number = places[span.ledger_id]
        joined = run and (
            places[run[-1].ledger_id] == number - 1
            and run[-1].last == item.spans[number - 1].last
            and span.first == item.spans[number].first
        )
        if run and not joined:
            yield item.of(run)
            run = []
        run.append(span)
    if run:
        yield item.of(run)


def pieces(item: Split) -> Iterator[tuple[Split, TableFile | None]]:
    """A split as consecutive ones, each within a file, or with entries that no file has."""
    found: list[tuple[list[Span], TableFile | None]] = []
    for span in item.spans:
        for part, file in _by_file(span, item.files.files.get((item.name, span.ledger_id), ())):
            if found and file is None and found[-1][1] is None:
                found[-1][0].append(part)
            else:
                found.append(([part], file))
    for spans, file in found:
        yield replace(item.of(spans), files=NO_FILES), file


def behind(item: Split, entry_id: int) -> Split:
    """What is left of a split within one ledger, from an entry on."""
    (span,) = item.spans
    return item.of([span.part(max(entry_id, span.first), span.last)])


def _by_file(span: Span, files: Iterable[TableFile]) -> Iterator[tuple[Span, TableFile | None]]:
    first = span.first
    for file in sorted(files, key=lambda file: file.first):
        if file.last < first or file.first > span.last:
            continue
        if first < file.first:
            yield span.part(first, file.first - 1), None
            first = file.first
        last = min(file.last, span.last)
        yield span.part(first, last), file
        first = last + 1
    if first <= span.last:
        yield span.part(first, span.last), None


def within_bytes(
    state: PartitionState, after: MessageId, through: MessageId, budget: int
) -> MessageId:
    """The place at or before ``through`` that lies about ``budget`` bytes beyond ``after``.

    At least one entry beyond it, so that a stream with a small limit moves.
    """
    reached: MessageId | None = None
    for span in spans_between(state, after, through):
        fit = span.entries
        if span.size > budget:
            fit = budget * span.entries // span.size
        if fit == 0 and reached is None:
            fit = 1
        if fit > 0:
            reached = MessageId(span.ledger_id, span.first + fit - 1)
        if fit < span.entries:
            break
        budget -= span.size
    return through if reached is None or reached.position == through.position else reached
