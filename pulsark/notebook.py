"""A look at topics and queries from a notebook or a terminal.

What these functions return shows itself: as an HTML table in a notebook, as text elsewhere.
``rows`` has the data. ``tail``, ``preview`` and ``lag`` need no Spark session; they take addresses
from the same options and environment variables as ``format("pulsark")``.
"""

from __future__ import annotations

import html
import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pulsark.datasource.admin.client import admin_of
from pulsark.datasource.options.columns import unknown_column
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.options import Options
from pulsark.datasource.plan.plan import Split, range_of
from pulsark.datasource.plan.topics import TopicFinder
from pulsark.datasource.read.following import BEHIND
from pulsark.datasource.read.layout import layout_of
from pulsark.runtime import SystemClock
from pulsark.wire.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pulsark.datasource.admin.partitions import PartitionState

__all__ = ["Table", "bars", "lag", "preview", "tail", "watch"]

MESSAGES_MAX = 10_000
"""More messages are for ``spark.read``."""

CELL_CHARS_MAX = 60
BARS_MAX = 100
"""Rows that ``bars`` shows at most: a picture of more says nothing."""

BATCHES_SHOWN = 10

_SHOWN = ("publish_time", "partition", "message_id", "key", "value", "properties")
_BARS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
_LEFT = "text-align:left;font-family:monospace;white-space:pre"
_RIGHT = _LEFT.replace("left", "right")


@dataclass(frozen=True)
class Table:
    """Rows that show themselves. ``bar`` names a column of numbers to draw as bars."""

    title: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    bar: str | None = None

    def __repr__(self) -> str:
        cells = [[_text(row[name]) for name in self.columns] for row in self.rows]
        if self.bar is not None:
            for line, share in zip(cells, self._shares(), strict=True):
                line.append(_bar(share))
        heads = [*self.columns, *([""] if self.bar is not None else [])]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        to_right = [self._of_numbers(name) for name in heads]
        lines = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, to_right, strict=True)
            ).rstrip()
            for line in [heads, *cells]
        ]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        styles = {name: _RIGHT if self._of_numbers(name) else _LEFT for name in self.columns}
        heads = "".join(
            f'<th style="{style}">{html.escape(name)}</th>' for name, style in styles.items()
        )
        shares: Sequence[float | None] = self._shares() or [None] * len(self.rows)
        body = "".join(
            f"<tr>{''.join(_html_cell(row[name], style) for name, style in styles.items())}"
            f"{_html_bar(share)}</tr>"
            for row, share in zip(self.rows, shares, strict=True)
        )
        title = html.escape(self.title)
        return f"<table><caption>{title}</caption><tr>{heads}</tr>{body}</table>"

    def _of_numbers(self, name: str) -> bool:
        """Whether a column has its digits one below the other."""
        values = [row[name] for row in self.rows if row.get(name) is not None]
        return bool(values) and all(isinstance(value, (int, float, Decimal)) for value in values)

    def _shares(self) -> list[float]:
        """Each row's part of the largest value, 0 to 1."""
        if self.bar is None:
            return []
        values = [max(float(row[self.bar] or 0), 0.0) for row in self.rows]
        most = max(values, default=0.0)
        return [value / most if most else 0.0 for value in values]


def tail(topic: str, n: int = 10, **options: str) -> Table:
    """The newest ``n`` messages of a topic, the newest last; by publish time over partitions."""
    found, states = _messages(topic, n, options, newest=True)
    return Table(f"{topic}: the last {len(found)} of {_entries(states)}", _SHOWN, found)


def preview(topic: str, n: int = 10, **options: str) -> Table:
    """The oldest ``n`` messages of a topic, and how much there is in all."""
    found, states = _messages(topic, n, options, newest=False)
    return Table(f"{topic}: the first {len(found)} of {_entries(states)}", _SHOWN, found)


def lag(topic: str, **options: str) -> Table:
    """How far behind each subscription of a topic is, drawn as bars."""
    checked = Options.parse({"topic": topic, "view": "backlog", **options}, streaming=False)
    with admin_of(checked) as admin:
        rows = [row for name in _names(checked) for row in admin.topics.view(name, "backlog")]
    columns = ("subscription", "partition", "backlog_entries", "backlog_bytes", "lag_seconds")
    rows.sort(key=lambda row: (row["subscription"], row["partition"]))
    return Table(f"{topic}: backlog by subscription", columns, rows, bar="backlog_entries")


def bars(frame: DataFrame, column: str, title: str = "") -> Table:
    """The first rows of a small DataFrame, with one of its columns of numbers drawn as bars."""
    if column not in frame.columns:
        raise OptionError(unknown_column(column, frame.columns))
    rows = [row.asDict() for row in frame.limit(BARS_MAX).collect()]
    return Table(title or column, tuple(frame.columns), rows, bar=column)


def watch(
    query: StreamingQuery,
    *,
    interval: float = 1.0,
    seconds: float | None = None,
    show: Callable[[Table], None] | None = None,
) -> Table:
    """Show the batches of a streaming query until it ends, or for some ``seconds``.

    Every ``interval`` seconds, if there is a new batch: rows, rates, time and how many entries
    the query is behind. In a notebook the table is replaced, on a terminal a line is added;
    ``show`` takes the table elsewhere. Interrupting it leaves the query running. Returns the
    last table. Raises what made the query fail.
    """
    clock = SystemClock()
    deadline = None if seconds is None else clock.monotonic() + seconds
    display = show or _display()
    shown: Table | None = None
    try:
        while True:
            ended = query.awaitTermination(interval)  # type: ignore[arg-type]
            table = _progress(query)
            if shown is None or table.rows != shown.rows:
                display(table)
                shown = table
            if ended or (deadline is not None and clock.monotonic() >= deadline):
                break
    except KeyboardInterrupt:
        shown = shown or _progress(query)
    return _once(shown) if show is None else shown


# -- messages ------------------------------------------------------------------------------------


def _messages(
    topic: str, n: int, options: Mapping[str, str], *, newest: bool
) -> tuple[list[dict[str, Any]], list[PartitionState]]:
    if not 1 <= n <= MESSAGES_MAX:
        raise OptionError(f"n is {n}: it must be from 1 to {MESSAGES_MAX}; spark.read takes more")
    checked = Options.parse({"topic": topic, **options}, streaming=False)
    with admin_of(checked) as admin:
        states = list(TopicFinder(checked, admin).states().values())
    rows: list[dict[str, Any]] = []
    for state in states:
        some = _rows(_last(state, n) if newest else _first(state, n), checked)
        rows += some[-n:] if newest else some[:n]
    rows.sort(key=lambda row: row["publish_time"] or datetime.min.replace(tzinfo=UTC))
    return (rows[-n:] if newest else rows[:n]), states


def _rows(split: Split | None, options: Options) -> list[dict[str, Any]]:
    from pulsark.datasource.read.reader import SplitPartition, SplitReader

    if split is None:
        return []
    layout = layout_of(options, dict)
    batches = SplitReader(options, layout, _SHOWN).read(SplitPartition((split,)))
    found = [row for batch in batches for row in batch.to_pylist()]
    for row in found:
        row["properties"] = dict(row["properties"] or ())
    return found


def _last(state: PartitionState, entries: int) -> Split | None:
    """The last ``entries`` entries of a partition; each has a message, unless it is empty."""
    left, after = entries, state.earliest()
    for ledger in reversed(state.ledgers):
        if ledger.entries >= left:
            after = max(after, MessageId(ledger.ledger_id, ledger.entries - left - 1))
            break
        left -= ledger.entries
    return range_of(state, after, state.latest())


def _first(state: PartitionState, entries: int) -> Split | None:
    left, through = entries, state.latest()
    for ledger in state.ledgers:
        if ledger.entries >= left:
            through = min(through, MessageId(ledger.ledger_id, left - 1))
            break
        left -= ledger.entries
    return range_of(state, state.earliest(), through)


def _entries(states: Sequence[PartitionState]) -> str:
    ledgers = [ledger for state in states for ledger in state.ledgers]
    entries, size = sum(each.entries for each in ledgers), sum(each.size for each in ledgers)
    partitions = f" in {len(states)} partitions" if len(states) > 1 else ""
    return f"{entries:,} entries, {size:,} bytes{partitions}"


def _names(options: Options) -> Iterator[Any]:
    from pulsark.datasource.plan.topics import topic_names

    yield from topic_names(options.topics)


# -- queries -------------------------------------------------------------------------------------


def _progress(query: StreamingQuery) -> Table:
    rows = [
        {
            "batch": progress.batchId,
            "rows": progress.numInputRows,
            "in/s": round(progress.inputRowsPerSecond or 0.0),
            "out/s": round(progress.processedRowsPerSecond or 0.0),
            "ms": progress.batchDuration,
            "entries behind": _behind(progress.sources),
        }
        for progress in query.recentProgress[-BATCHES_SHOWN:]
    ]
    columns = ("batch", "rows", "in/s", "out/s", "ms", "entries behind")
    title = f"query {query.name or query.id}"
    return Table(title if rows else f"{title}: no batch yet", columns, rows, bar="rows")


def _behind(sources: Sequence[Any]) -> int | None:
    """Entries that come after what was read; ``None`` if it cannot be told."""
    try:
        return sum(int(json.loads(each.latestOffset)[BEHIND]["entries"]) for each in sources)
    except (TypeError, ValueError, KeyError):
        return None  # another source, or no batch yet


def _display() -> Callable[[Table], None]:
    """Shows tables one in place of the other in a notebook, the last row of each elsewhere."""
    if "ipykernel" in sys.modules:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        handle: Any = None

        def replace(table: Table) -> None:
            nonlocal handle
            if handle is None:
                handle = display(table, display_id=True)
            else:
                handle.update(table)

        return replace
    return lambda table: print(_line(table), flush=True)


class _Shown(Table):
    """What a cell has shown already: as the value of the same cell it is not shown again."""

    cell: int | None = None

    def _ipython_display_(self) -> None:
        if self.cell != _cell():
            raise NotImplementedError  # so IPython takes the other forms


def _once(table: Table) -> Table:
    if (cell := _cell()) is None:
        return table
    shown = _Shown(table.title, table.columns, table.rows, table.bar)
    object.__setattr__(shown, "cell", cell)
    return shown


def _cell() -> int | None:
    """The number of the notebook's cell that runs; ``None`` outside of notebooks."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython import get_ipython  # type: ignore[import-not-found,unused-ignore]

    shell = get_ipython()
    return None if shell is None else int(shell.execution_count)


def _line(table: Table) -> str:
    if not table.rows:
        return table.title
    return "  ".join(f"{name} {_text(value)}" for name, value in table.rows[-1].items())


# -- cells ---------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bytes():
            try:
                text = value.decode()
            except UnicodeDecodeError:
                text = value.hex(" ")
        case float():
            text = f"{value:,.3f}".rstrip("0").rstrip(".")
        case int() if not isinstance(value, bool):
            text = f"{value:,}"
        case datetime():
            text = value.isoformat(sep=" ", timespec="milliseconds")
        case dict():
            text = ", ".join(f"{key}={item}" for key, item in value.items())
        case _:
            text = str(value)
    text = "".join(char if char.isprintable() else "\u00b7" for char in text)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "\u2026"


def _bar(share: float) -> str:
    eighths = round(share * 80)
    return _BARS[-1] * (eighths // 8) + (_BARS[eighths % 8 - 1] if eighths % 8 else "")


def _html_cell(value: Any, style: str) -> str:
    return f'<td style="{style}">{html.escape(_text(value))}</td>'


def _html_bar(share: float | None) -> str:
    if share is None:
        return ""
    width = round(share * 160)
    bar = f'<div style="background:#4c78a8;height:1em;width:{width}px"></div>'
    return f"<td>{bar}</td>"
