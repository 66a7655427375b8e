"""Runs of closed ledgers, folded: columns instead of rows, in documents of their own.

A topic that forgets nothing has a hundred thousand ledgers after a year or two. What is true of a
closed ledger never changes, so runs of them leave the topic's record for
``/managed-ledger-runs/<topic id>/<first id>-<last id>``; the record keeps a line for each. Some
runs of ``SMALL_RUN`` become one of ``LARGE_RUN``. ``docs/formats/ledger.md`` has the JSON.

The name of a document says what is in it: all brokers would write the same bytes. Documents that
no record names were left by a broker that died, and are deleted.
"""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import CorruptMetadataError
from pulsark.metadata.documents import check_version
from pulsark.metadata.paths import ledger_runs_path
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT_VERSION = 1
SMALL_RUN = 256
LARGE_RUN = 32 * SMALL_RUN
"""Ledgers of a run. The document of a large one has 350 KB."""


class LedgerInfo(NamedTuple):
    """One ledger of a managed ledger.

    ``entries`` and ``size`` (bytes) are final unless ``open``. ``timestamp_ms`` is when the
    ledger was closed, or created as long as it is open.
    """

    ledger_id: int
    entries: int
    size: int
    timestamp_ms: int
    open: bool = False


class RunLine(NamedTuple):
    """What the record says of a run. Ledgers at its beginning may have been trimmed since."""

    first_id: int
    last_id: int
    ledgers: int
    settled: bool
    """All of it is in the topic's table, and all bookies have been told so."""

    def path(self, topic_id: str) -> str:
        """Where its document is."""
        return f"{ledger_runs_path(topic_id)}/{self.name}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return f"{self.first_id}-{self.last_id}"


class LedgerRun:
    """Closed ledgers by ascending id; 32 bytes each. Immutable."""

    __slots__ = ("_bytes", "_ids", "_skip", "_starts", "_times")

    def __init__(
        self,
        ids: array[int],
        starts: array[int],
        bytes_before: array[int],
        times: array[int],
        skip: int = 0,
    ) -> None:
        """``starts`` and ``bytes_before`` are of all before, and one more for the end."""
        self._ids = ids
        self._starts = starts
        self._bytes = bytes_before
        self._times = times
        self._skip = skip
        """Ledgers at the beginning that are no part of it any more."""

    @classmethod
    def of(cls, infos: Sequence[LedgerInfo]) -> LedgerRun:
        """A run of these ledgers, which are closed."""
        assert infos
        assert not any(info.open for info in infos)
        return cls(
            array("q", [info.ledger_id for info in infos]),
            array("q", accumulate([info.entries for info in infos], initial=0)),
            array("q", accumulate([info.size for info in infos], initial=0)),
            array("q", [info.timestamp_ms for info in infos]),
        )

    def __len__(self) -> int:
        return len(self._ids) - self._skip

    @property
    def first_id(self) -> int:
        """The id of the first ledger."""
        return self._ids[self._skip]

    @property
    def last_id(self) -> int:
        """The id of the last ledger."""
        return self._ids[-1]

    @property
    def entries(self) -> int:
        """Entries of all its ledgers."""
        return self._starts[-1] - self._starts[self._skip]

    @property
    def size(self) -> int:
        """Bytes of all its ledgers."""
        return self._bytes[-1] - self._bytes[self._skip]

    def line(self, *, settled: bool) -> RunLine:
        """What a record says of it."""
        return RunLine(self.first_id, self.last_id, len(self), settled)

    def behind(self, ledger_id: int) -> LedgerRun:
        """Without the ledgers up to this one; not all of them."""
        skip = bisect_right(self._ids, ledger_id, lo=self._skip)
        return LedgerRun(self._ids, self._starts, self._bytes, self._times, skip)

    def infos(self, first: int = 0) -> Iterator[LedgerInfo]:
        """Its ledgers from an id on."""
        for index in range(bisect_left(self._ids, first, lo=self._skip), len(self._ids)):
            yield self._info(index)

    def info(self, ledger_id: int) -> LedgerInfo | None:
        """One of its ledgers."""
        index = bisect_left(self._ids, ledger_id, lo=self._skip)
        found = index < len(self._ids) and self._ids[index] == ledger_id
        return self._info(index) if found else None

    def _info(self, index: int) -> LedgerInfo:
        return LedgerInfo(
            self._ids[index],
            self._starts[index + 1] - self._starts[index],
            self._bytes[index + 1] - self._bytes[index],
            self._times[index],
        )

    def rank(self, position: Position) -> int:
        """Entries of the run before a position that is not behind its last ledger."""
        ledger_id, entry_id = position
        index = bisect_left(self._ids, ledger_id, lo=self._skip)
        start, end = self._starts[index], self._starts[index + 1]
        inside = max(0, min(entry_id, end - start)) if self._ids[index] == ledger_id else 0
        return start + inside - self._starts[self._skip]

    def at(self, rank: int) -> Position:
        """The position of the entry with ``rank`` entries of the run before it."""
        entry = rank + self._starts[self._skip]
        index = bisect_right(self._starts, entry, lo=self._skip) - 1
        return Position(self._ids[index], entry - self._starts[index])

    def bytes_through(self, position: Position) -> int:
        """Bytes up to a position, about; those of one ledger count as equally large."""
        ledger_id, entry_id = position
        index = bisect_left(self._ids, ledger_id, lo=self._skip)
        before = self._bytes[index] - self._bytes[self._skip]
        info = self._info(index)
        if info.ledger_id != ledger_id or not info.entries:
            return before
        return before + info.size * max(0, min(entry_id + 1, info.entries)) // info.entries

    def position_with(self, size: int) -> Position:
        """The first position up to which there are ``size`` bytes, about; at least one byte."""
        target = size + self._bytes[self._skip]
        index = bisect_left(self._bytes, target, lo=self._skip) - 1
        info = self._info(index)
        return info_position_with(info, target - self._bytes[index])

    def joined(self, others: Sequence[LedgerRun]) -> LedgerRun:
        """With the ledgers of runs that follow it."""
        ids, times = array("q"), array("q")
        starts, sizes = array("q", [0]), array("q", [0])
        for run in (self, *others):
            run.add_to(ids, starts, sizes, times)
        return LedgerRun(ids, starts, sizes, times)

    def add_to(
        self, ids: array[int], starts: array[int], sizes: array[int], times: array[int]
    ) -> None:
        """Put its ledgers behind those of other columns."""
        skip = self._skip
        ids.extend(self._ids[skip:])
        times.extend(self._times[skip:])
        for joined, column in ((starts, self._starts), (sizes, self._bytes)):
            shift = joined[-1] - column[skip]
            joined.extend([before + shift for before in column[skip + 1 :]])

    def encode(self) -> bytes:
        """The stored JSON."""
        columns = (self._ids, self._starts, self._bytes, self._times)
        document = {name: _text(column) for name, column in zip(_COLUMNS, columns, strict=True)}
        return json.dumps({"version": FORMAT_VERSION, **document}, separators=(",", ":")).encode()


_COLUMNS = ("ledgerIds", "entriesBefore", "bytesBefore", "closedMs")


def decode_run(path: str, value: bytes) -> LedgerRun:
    """The inverse of ``encode``; raises ``MetadataError``."""
    try:
        document = json.loads(value)
        check_version(document, FORMAT_VERSION)
        ids, starts, sizes, times = [_column(document[name]) for name in _COLUMNS]
        if not len(ids) == len(times) == len(starts) - 1 == len(sizes) - 1 or not ids:
            raise ValueError(f"columns of {len(ids)}, {len(starts)}, {len(sizes)}, {len(times)}")
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptMetadataError(f"the ledgers at {path} cannot be read: {e!r}") from e
    return LedgerRun(ids, starts, sizes, times)


def info_position_with(info: LedgerInfo, size: int) -> Position:
    """The first position of a ledger up to which it has ``size`` bytes, about."""
    entries = -(-size * info.entries // info.size) if info.size else info.entries
    return Position(info.ledger_id, min(entries, info.entries) - 1)


def _text(column: array[int]) -> str:
    return b64encode(_little_endian(column).tobytes()).decode()


def _column(text: str) -> array[int]:
    column = array("q")
    column.frombytes(b64decode(text, validate=True))
    return _little_endian(column)


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


class FoldedLedgers:
    """The runs of a topic, as one list. Immutable; O(log n) a question."""

    def __init__(self, runs: Sequence[LedgerRun] = ()) -> None:
        self.runs = tuple(runs)
        self._lasts = [run.last_id for run in runs]
        self._starts = [*accumulate([run.entries for run in runs], initial=0)]
        self._bytes = [*accumulate([run.size for run in runs], initial=0)]
        self.last_id = self._lasts[-1] if runs else -2
        """The last ledger's id; without any, before every position there is."""
        self.entries = self._starts[-1]
        self.size = self._bytes[-1]
        self._count = sum(map(len, runs))

    def __len__(self) -> int:
        return self._count

    def behind(self, ledger_id: int) -> FoldedLedgers:
        """Without the ledgers up to this one."""
        first = bisect_right(self._lasts, ledger_id)
        rest = self.runs[first:]
        if not rest or rest[0].first_id > ledger_id:
            return self if first == 0 else FoldedLedgers(rest)
        return FoldedLedgers((rest[0].behind(ledger_id), *rest[1:]))

    def infos(self, first: int = 0) -> Iterator[LedgerInfo]:
        """The ledgers from an id on."""
        for run in self.runs[bisect_left(self._lasts, first) :]:
            yield from run.infos(first)

    def info(self, ledger_id: int) -> LedgerInfo | None:
        """One ledger."""
        index = bisect_left(self._lasts, ledger_id)
        return self.runs[index].info(ledger_id) if index < len(self.runs) else None

    def rank(self, position: Position) -> int:
        """Entries before a position that is not behind the last ledger."""
        index = bisect_left(self._lasts, position.ledger_id)
        return self._starts[index] + self.runs[index].rank(position)

    def at(self, rank: int) -> Position:
        """The position of the entry with ``rank`` entries before it."""
        index = bisect_right(self._starts, rank) - 1
        return self.runs[index].at(rank - self._starts[index])

    def bytes_through(self, position: Position) -> int:
        """Bytes up to a position that is not behind the last ledger, about."""
        index = bisect_left(self._lasts, position.ledger_id)
        return self._bytes[index] + self.runs[index].bytes_through(position)

    def position_with(self, size: int) -> Position:
        """The first position up to which there are ``size`` bytes, at least one, about."""
        index = bisect_left(self._bytes, size) - 1
        return self.runs[index].position_with(size - self._bytes[index])


NOTHING_FOLDED = FoldedLedgers()
