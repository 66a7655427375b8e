"""The limits of a micro-batch: rows and bytes at most, and rows at least.

Rows are messages, and an entry may hold many: the broker counts them. A limit is divided
among the partitions by their backlog in bytes, and each may always read one message, so that a
stream makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.datasource.admin.partitions import PartitionState
from pulsark.datasource.options.offsets import StreamOffset
from pulsark.datasource.plan.plan import comes_after, spans_between, within_bytes
from pulsark.datasource.read.stream_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pulsark.wire.message_id import MessageId

if TYPE_CHECKING:
    from pulsark.datasource.options.options import Options

States = Mapping[str, PartitionState]
CountMessages = Callable[[str, MessageId, MessageId, int], tuple[int, MessageId]]
"""Name of a partition, after, through, limit: how many, and the last of them; may stop early."""


@dataclass(frozen=True, slots=True)
class _Counted:
    after: MessageId
    through: MessageId
    messages: int


class Admission:
    """Decides where a micro-batch ends. One for each query."""

    def __init__(
        self,
        options: Options,
        count: CountMessages,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._count = count
        self._monotonic = monotonic
        self._last_batch = float("-inf")
        self._waiting: dict[str, _Counted] = {}

    def admit(
        self,
        begin: StreamOffset,
        end: StreamOffset,
        states: States,
        limit: ReadLimit,
        *,
        wait: bool = True,
    ) -> StreamOffset:
        """The end of the next batch, at or before ``end``; ``begin`` if it is to wait for more.

        Spark passes ``ReadAllAvailable`` where limits do not count, as for ``Trigger.Once``.
        """
        sizes = _sizes(begin, end, states)
        if not sizes or isinstance(limit, ReadAllAvailable):
            return end
        if wait and self._too_few(begin, end, sizes):
            return begin
        self._last_batch = self._monotonic()
        self._waiting.clear()
        max_bytes = self._options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        if max_bytes is not None:
            end = _within_bytes(begin, end, states, sizes, max_bytes)
        max_rows = self._options.max_rows_per_trigger
        if isinstance(limit, ReadMaxRows):
            max_rows = limit.max_rows
        return end if max_rows is None else self._within_rows(begin, end, sizes, max_rows)

    def _too_few(self, begin: StreamOffset, end: StreamOffset, names: Mapping[str, int]) -> bool:
        least = self._options.min_rows_per_trigger
        delay = self._options.max_trigger_delay_s
        if least is None or self._monotonic() - self._last_batch >= delay:
            return False
        found = 0
        for name in names:
            offset = end.partitions[name]
            found += self._rows(name, begin.start_of(name, offset), offset.read, least - found)
            if found >= least:
                return False
        return True

    def _rows(self, name: str, after: MessageId, through: MessageId, enough: int) -> int:
        """Messages of a range, or ``enough`` if there are more. Counts none of them twice."""
        known = self._waiting.get(name)
        if known is None or known.after != after:
            known = _Counted(after, after, 0)
        while known.messages < enough and comes_after(through, known.through):
            messages, last = self._count(name, known.through, through, enough - known.messages)
            known = _Counted(after, last, known.messages + messages)
        self._waiting[name] = known
        return known.messages

    def _within_rows(
        self, begin: StreamOffset, end: StreamOffset, sizes: Mapping[str, int], max_rows: int
    ) -> StreamOffset:
        total = sum(sizes.values())
        limited = dict(end.partitions)
        for name, size in sizes.items():
            offset = end.partitions[name]
            left = max(max_rows * size // max(total, 1), 1)
            place = begin.start_of(name, offset)
            while left > 0 and comes_after(offset.read, place):
                messages, place = self._count(name, place, offset.read, left)
                left -= messages
            if comes_after(offset.read, place):
                limited[name] = replace(offset, read=place)
        return StreamOffset(limited)


def default_limit(options: Options) -> ReadLimit:
    """What ``getDefaultReadLimit`` answers: any limit but "all" if one is set."""
    if options.max_rows_per_trigger is not None:
        return ReadMaxRows(options.max_rows_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    if options.min_rows_per_trigger is not None:
        return ReadMinRows(options.min_rows_per_trigger)
    return ReadAllAvailable()


def _sizes(begin: StreamOffset, end: StreamOffset, states: States) -> Mapping[str, int]:
    """Bytes of each partition that has something to read."""
    sizes = {}
    for name, offset in end.partitions.items():
        after = begin.start_of(name, offset)
        if name in states and comes_after(offset.read, after):
            spans = spans_between(states[name], after, offset.read)
            sizes[name] = sum(span.size for span in spans)
    return sizes


def _within_bytes(
    begin: StreamOffset,
    end: StreamOffset,
    states: States,
    sizes: Mapping[str, int],
    max_bytes: int,
) -> StreamOffset:
    total = sum(sizes.values())
    if total <= max_bytes:
        return end
    limited = dict(end.partitions)
    for name, size in sizes.items():
        offset = end.partitions[name]
        after = begin.start_of(name, offset)
        place = within_bytes(states[name], after, offset.read, max_bytes * size // total)
        limited[name] = replace(offset, read=place)
    return StreamOffset(limited)
