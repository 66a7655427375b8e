"""Whether data written as one Avro type can be read as another.

The rules are "Schema Resolution" of the Avro specification as Avro's Java library decides them
for types, because Pulsar's brokers do: what registers there must do so here. Beyond what the
specification says

- the names of records do not matter, except to choose among several in a union and for the aliases
  of fields;
- a symbol that the reader's enum lacks is an error of the datum, not of the types.

Otherwise a reader must be able to read *everything* that the writer may write. Where that library
takes the first branch of a union that looks right at its outside, any branch that is right will do.

Types may contain themselves, so a pair (reader, writer) may depend on itself. The answer is the
greatest fixpoint: all pairs that are reached count as readable, those with a mismatch of their
own are refuted, and each refutation spreads to the pairs that depend on it. Nothing recurses,
and no answer is kept that rested on an assumption which failed later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pulsark.limits import SCHEMA_COMPARISONS_MAX
from pulsark.schemas.avro import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Union,
)
from pulsark.schemas.definition import IncompatibleSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

_Pair: TypeAlias = tuple[AvroType, AvroType]

_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""For a reader's primitive type, the others that it reads."""

_REASON_CHARS_MAX = 400


class Effort:
    """How much may still be compared for one decision; several comparisons share it."""

    def __init__(self, comparisons: int = SCHEMA_COMPARISONS_MAX) -> None:
        self._left = comparisons

    def spend(self, comparisons: int) -> None:
        """Count comparisons. Raises ``IncompatibleSchemaError`` when there were too many."""
        self._left -= comparisons
        if self._left < 0:
            raise IncompatibleSchemaError("The schemas are too large to be compared")


@dataclass(slots=True, eq=False)
class _Clause:
    """``owner`` is readable only if one of ``open`` pairs (or more) still is."""

    owner: _Pair
    where: str
    alternatives: int
    open: int


def why_unreadable(reader: AvroType, writer: AvroType, effort: Effort) -> str | None:
    """Why ``reader`` cannot read all data of ``writer``; ``None`` if it can."""
    root = (reader, writer)
    dependents: dict[_Pair, list[_Clause]] = {root: []}
    refuted: dict[_Pair, str] = {}
    new = [root]
    while new:
        pair = new.pop()
        effort.spend(_size(pair))
        try:
            demands = list(_demands(*pair))
        except _MismatchError as mismatch:
            _refute(pair, str(mismatch), dependents, refuted)
            demands = []
        for where, pairs in demands:
            clause = _Clause(pair, where, len(pairs), len(pairs))
            for needed in pairs:
                if needed not in dependents:
                    dependents[needed] = []
                    new.append(needed)
                dependents[needed].append(clause)
            # What was refuted before has told only the dependents that it had then.
            clause.open -= sum(needed in refuted for needed in pairs)
            if not clause.open:
                reason = refuted[pairs[0]] if pairs else ""
                _refute(pair, _explained(clause, reason), dependents, refuted)
        if root in refuted:
            return refuted[root]
    return None


def _refute(
    pair: _Pair, reason: str, dependents: dict[_Pair, list[_Clause]], refuted: dict[_Pair, str]
) -> None:
    """Mark a pair as unreadable, and all that depend on it and on nothing else."""
    spreading = [(pair, reason)]
    while spreading:
        pair, reason = spreading.pop()
        if pair in refuted:
            continue
        refuted[pair] = reason
        for clause in dependents[pair]:
            clause.open -= 1
            if not clause.open:
                spreading.append((clause.owner, _explained(clause, reason)))


def _explained(clause: _Clause, reason: str) -> str:
    """The reason of a pair from the reason of what it depended on."""
    if clause.alternatives != 1:
        return f"no branch of the reader's union reads the writer's {clause.owner[1]}"
    return f"{clause.where}{reason}"[:_REASON_CHARS_MAX]


class _MismatchError(Exception):
    """Two types do not fit, whatever is inside them."""


def _demands(reader: AvroType, writer: AvroType) -> Iterator[tuple[str, list[_Pair]]]:
    """What must be readable for a pair to be: of each list one pair, and where it is."""
    if isinstance(writer, Union):
        for branch in writer.branches:
            yield "", [(reader, branch)]
        return
    if isinstance(reader, Union):
        branches = [branch for branch in reader.branches if _alike(branch, writer)]
        named = [branch for branch in branches if _same_name(branch, writer)]
        yield "", [(branch, writer) for branch in named or branches]
        return
    if not _alike(reader, writer):
        raise _MismatchError(f"the reader expects {reader}, the writer has {writer}")
    match reader, writer:
        case Array(), Array():
            yield "items: ", [(reader.items, writer.items)]
        case Map(), Map():
            yield "values: ", [(reader.values, writer.values)]
        case Fixed(), Fixed():
            if reader.size != writer.size:
                raise _MismatchError(f"{reader}: {reader.size} bytes are not {writer.size}")
        case Record(), Record():
            yield from _fields(reader, writer)


def _size(pair: _Pair) -> int:
    """How many comparisons it takes to find out what a pair demands."""
    inside = 0
    for each in pair:
        match each:
            case Union():
                inside += len(each.branches)
            case Record():
                inside += len(each.fields)
    return 1 + inside


def _alike(reader: AvroType, writer: AvroType) -> bool:
    """Whether two types that are no unions fit at their outside: by kind, and some by name."""
    if type(reader) is not type(writer):
        return False
    if isinstance(reader, Primitive) and isinstance(writer, Primitive):
        return reader.kind == writer.kind or writer.kind in _PROMOTIONS.get(reader.kind, ())
    if isinstance(reader, Enumeration | Fixed) and isinstance(writer, Enumeration | Fixed):
        return reader.simple_name == writer.simple_name or _same_name(reader, writer)
    return True


def _same_name(reader: AvroType, writer: AvroType) -> bool:
    """Whether two types have the same full name, possibly by an alias."""
    if not (isinstance(reader, Named) and isinstance(writer, Named)):
        return False
    return writer.name == reader.name or writer.name in reader.aliases


def _fields(reader: Record, writer: Record) -> Iterator[tuple[str, list[_Pair]]]:
    """The fields of a reader's record. One that the writer lacks needs a default."""
    names = {}
    if _same_name(reader, writer):
        names = {alias: field.name for field in reader.fields.values() for alias in field.aliases}
    written: dict[str, AvroType] = {}
    for name, field in writer.fields.items():
        name = names.get(name, name)
        if name in written:
            raise _MismatchError(f"{reader}, field {name}: several of the writer's are meant")
        written[name] = field.type
    for name, field in reader.fields.items():
        where = f"{reader}, field {name}"
        if name in written:
            yield f"{where}: ", [(field.type, written[name])]
        elif not field.has_default:
            raise _MismatchError(f"{where}: the writer lacks it, and it has no default")
