"""Filters of a query that a read applies itself, to read and send less to Spark.

Only comparisons of one column with values, joined by AND: what Spark hands over. Each accepted
filter is applied exactly; SQL's nulls are Arrow's.
"""

from __future__ import annotations

import operator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from pulsark.datasource.plan.plan import Span, Split, consecutive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

TAKEN_TYPES = ("string", "integer", "long", "binary", "timestamp", "boolean")
"""Types of columns whose values mean the same in Python as in Spark."""

_NAMES: Mapping[type[Filter], str] = {
    EqualTo: "equal",
    EqualNullSafe: "equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
}
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


class Condition(NamedTuple):
    """``test`` is the name of Arrow's function, ``is_in``, ``is_null`` or ``is_valid``.

    ``stored`` is the column of a message that ``column`` of the query is a copy of.
    """

    column: str
    test: str
    values: tuple[Any, ...] = ()
    stored: str | None = None

    def holds(self, value: Any) -> bool:
        """Whether it is true of a value that is not null."""
        if self.test in _OPERATORS:
            return _OPERATORS[self.test](value, self.values[0])
        return value in self.values if self.test == "is_in" else self.test == "is_valid"

    def may_hold(self, low: Any, high: Any) -> bool:
        """Whether it can be true of values from ``low`` to ``high``, which are not null."""
        match self.test:
            case "equal" | "is_in":
                return any(low <= value <= high for value in self.values)
            case "less" | "less_equal":
                return self.holds(low)
            case "greater" | "greater_equal":
                return self.holds(high)
            case _:
                return True


def condition(
    given: Filter, types: Mapping[str, str], stored: Mapping[str, str]
) -> Condition | None:
    """A filter as a condition, if it can be applied exactly to a column of one of the types."""
    path: Sequence[str] = getattr(given, "attribute", ())
    if len(path) != 1 or types.get(path[0]) not in TAKEN_TYPES:
        return None
    column, kind = path[0], types[path[0]]
    source = stored.get(column)
    if isinstance(given, IsNull | IsNotNull):
        return Condition(
            column, "is_null" if isinstance(given, IsNull) else "is_valid", stored=source
        )
    test = "is_in" if isinstance(given, In) else _NAMES.get(type(given))
    if test is None:
        return None
    raw = given.value  # type: ignore[attr-defined]
    values = tuple(raw) if test == "is_in" else (raw,)
    if test == "is_in":
        values = tuple(value for value in values if value is not None)
    elif isinstance(given, EqualNullSafe) and raw is None:
        return Condition(column, "is_null", stored=source)
    if not all(_fits(value, kind) for value in values):
        return None
    return Condition(column, test, tuple(map(_plain, values)), source)


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer" | "long":
            return isinstance(value, int) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "binary":
            return isinstance(value, bytes | bytearray)
        case _:
            return isinstance(value, datetime) and value.tzinfo is not None


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def narrowed(item: Split, conditions: Iterable[Condition]) -> list[Split]:
    """What of a split the conditions on ids and places can be true of, without gaps each."""
    spans: list[Span] = list(item.spans)
    for each in conditions:
        match each.stored:
            case "topic" | "partition":
                if not each.holds(getattr(item, each.stored)):
                    return []
            case _ if item.compacted is not None:
                continue  # its spans are numbered otherwise
            case "ledger_id":
                spans = [s for s in spans if each.holds(s.ledger_id)]
            case "entry_id":
                spans = [s for s in spans if each.may_hold(s.first, s.last)]
                spans = [_clipped(s, each) for s in spans]
    return list(consecutive(item, spans))


def _clipped(span: Span, each: Condition) -> Span:
    first, last = span.first, span.last
    match each.test:
        case "equal" | "is_in":
            inside = [value for value in each.values if first <= value <= last]
            first, last = min(inside), max(inside)
        case "less" | "less_equal":
            last = min(last, each.values[0] - (each.test == "less"))
        case "greater" | "greater_equal":
            first = max(first, each.values[0] + (each.test == "greater"))
    return span.part(first, last)


class RowFilter:
    """Applies conditions to record batches, and to what Parquet says of its row groups."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = conditions

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of which all conditions are true."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._conditions:
            return batch
        mask = None
        for each in self._conditions:
            column = batch.column(each.column)
            if each.test == "is_in":
                found = pc.is_in(column, value_set=pa.array(each.values, column.type))
            elif each.values:
                value = pa.scalar(each.values[0], column.type)
                found = pc.call_function(each.test, [column, value])
            else:
                found = pc.call_function(each.test, [column])
            mask = found if mask is None else pc.and_kleene(mask, found)
        return batch.filter(mask)

    def may_match(self, group: Any, columns: Mapping[str, int]) -> bool:
        """Whether a row group can have such rows; ``columns`` has the places of plain columns."""
        for each in self._conditions:
            place = columns.get(each.stored or "")
            found = group.column(place).statistics if place is not None else None
            if found is None:
                continue
            if found.has_null_count and found.null_count == group.num_rows:
                if each.test != "is_null":
                    return False
            elif each.test == "is_null":
                if found.has_null_count and not found.null_count:
                    return False
            elif found.has_min_max and not each.may_hold(found.min, found.max):
                return False
        return True
