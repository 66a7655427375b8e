"""Whether data that was written as one Avro type can be read as another.

The rules are "Schema Resolution" of the Avro specification, decided for types and not for
single data: a reader must be able to read *everything* that the writer may write.

Types may contain themselves, so a pair (reader, writer) may depend on itself. The answer is the
greatest fixpoint: all pairs that are reached count as readable, those with a mismatch of their
own are refuted, and each refutation spreads to the pairs that depend on it. Nothing recurses,
and no answer is kept that rested on an assumption which failed later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pulsark.limits import SCHEMA_COMPARISONS_MAX
from pulsark.schemas.avro import Array, AvroType, Enumeration, Fixed, Map, Primitive, Record, Union
from pulsark.schemas.definition import IncompatibleSchemaError

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
        effort.spend(_size(pair[0]))
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
        yield "", [(branch, writer) for branch in _branches(reader, writer)]
        return
    if not _alike(reader, writer):
        raise _MismatchError(f"the reader expects {reader}, the writer has {writer}")
    match reader, writer:
        case Array(), Array():
            yield "items: ", [(reader.items, writer.items)]
        case Map(), Map():
            yield "values: ", [(reader.values, writer.values)]
        case Enumeration(), Enumeration():
            unknown = writer.symbols - reader.symbols
            if unknown and reader.default is None:
                raise _MismatchError(f"{reader}: the reader lacks {min(unknown)} and a default")
        case Fixed(), Fixed():
            if reader.size != writer.size:
                raise _MismatchError(f"{reader}: {reader.size} bytes are not {writer.size}")
        case Record(), Record():
            yield from _fields(reader, writer)


def _size(reader: AvroType) -> int:
    """How many comparisons it takes to find out what a reader demands."""
    match reader:
        case Union():
            return 1 + len(reader.branches)
        case Record():
            return 1 + len(reader.fields)
    return 1


def _alike(reader: AvroType, writer: AvroType) -> bool:
    """Whether two types that are no unions fit at their outside: kind, and name but of records.

    The specification wants the names of records to match too. Pulsar goes by Avro's Java
    implementation, which looks at their fields alone.
    """
    match reader, writer:
        case Primitive(), Primitive():
            return reader is writer or writer.kind in _PROMOTIONS.get(reader.kind, ())
        case ((Enumeration() | Fixed()), (Enumeration() | Fixed())):
            named_so = reader.simple_name == writer.simple_name or writer.name in reader.aliases
            return named_so and type(reader) is type(writer)
    return type(reader) is type(writer)


def _branches(reader: Union, writer: AvroType) -> list[AvroType]:
    """The branches of a reader's union that may read a type: of records those with its name."""
    alike = [branch for branch in reader.branches if _alike(branch, writer)]
    if not isinstance(writer, Record):
        return alike
    records = [branch for branch in alike if isinstance(branch, Record)]
    named = [r for r in records if r.name == writer.name or writer.name in r.aliases]
    return [*(named or records)]


def _fields(reader: Record, writer: Record) -> Iterator[tuple[str, list[_Pair]]]:
    """The fields of a reader's record. One that the writer lacks needs a default."""
    taken: dict[str, str] = {}
    for field in reader.fields.values():
        found = [name for name in (field.name, *field.aliases) if name in writer.fields]
        where = f"{reader}, field {field.name}"
        if not found:
            if not field.has_default:
                raise _MismatchError(f"{where}: the writer lacks it, and it has no default")
            continue
        if len(set(found)) > 1:
            raise _MismatchError(f"{where}: the writer has it as {found[0]} and as {found[1]}")
        name = found[0]
        if name in taken:
            raise _MismatchError(f"{where}: field {taken[name]} reads the writer's {name} already")
        taken[name] = field.name
        yield f"{where}: ", [(field.type, writer.fields[name].type)]
