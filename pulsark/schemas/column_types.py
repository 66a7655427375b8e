"""Types of columns, as a Delta table's schema has them, and how they grow with a topic's schema.

A type is a text such as ``long``, or the JSON object of a struct, an array or a map. ``columns``
finds the types of schemas: an idle broker does not need that.

Two types of one field have a common type if it holds every value of both exactly, or nearly every
one: a ``double`` holds all integers up to 2**53. A column never rounds. A value that it cannot
hold exactly is null there, and its payload is kept beside it.

A query takes the common type (``widened``). A table has files already, and only some changes of a
type are read by all engines (decision 040). Where they are not, a second column, a *wider twin*,
follows the first in the same struct (``merged``). It is called ``<name>__2``, and its metadata name
the field.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsark.limits import VALUE_TYPE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

ColumnType: TypeAlias = str | dict[str, Any]

BINARY: Final = "binary"
LOCAL_TIMESTAMP: Final = "timestamp_ntz"

TWIN_OF: Final = "pulsark.twinOf"
"""In the metadata of a wider twin: the name of the field whose values it has."""

DECIMAL_DIGITS_MAX: Final = 38
"""The limit of Delta and of the engines that read it."""

_INTEGERS: Final = ("byte", "short", "integer", "long")
_FLOATS: Final = ("float", "double")
_DECIMAL: Final = re.compile(r"decimal\(([1-9][0-9]?),([0-9][0-9]?)\)", re.ASCII)


def widened(known: ColumnType, new: ColumnType) -> ColumnType:
    """Return the type that shows values of both types; further fields follow the existing ones.

    Types that have nothing in common leave the known one.
    """
    return _bounded(known, _Merge(in_files=False).of(known, new)[0])


def merged(table: ColumnType, new: ColumnType, *, widen: bool = True) -> ColumnType:
    """Return a table's type after a further version, such that engines still read its old files.

    Unless types may ``widen``, only fields are added.
    """
    return _bounded(table, _Merge(in_files=True, widen=widen).of(table, new)[0])


def in_tables(kind: ColumnType) -> ColumnType:
    """Return the type that a table has for a query's: local times are shown as if they were UTC.

    Some catalogs refuse every table of a schema if one has a column without a time zone.
    """
    if isinstance(kind, str):
        return "timestamp" if kind == LOCAL_TIMESTAMP else kind
    match kind["type"]:
        case "array":
            return {**kind, "elementType": in_tables(kind["elementType"])}
        case "map":
            return {**kind, "valueType": in_tables(kind["valueType"])}
    return {**kind, "fields": [{**f, "type": in_tables(f["type"])} for f in kind["fields"]]}


def fields_of(kind: ColumnType) -> list[dict[str, Any]]:
    """Return the fields of a struct, and none of another type."""
    return list(kind["fields"]) if isinstance(kind, dict) and kind["type"] == "struct" else []


def types_of(kind: ColumnType) -> dict[str, ColumnType]:
    """Map the names of a struct's fields to their types; empty for another type."""
    return {field["name"]: field["type"] for field in fields_of(kind)}


def struct(fields: Iterable[tuple[str, ColumnType]]) -> ColumnType:
    """Return a struct; all of its fields may be null."""
    return {"type": "struct", "fields": [struct_field(name, kind) for name, kind in fields]}


def struct_field(name: str, kind: ColumnType, twin_of: str | None = None) -> dict[str, Any]:
    """Return a field of a struct, which is a wider twin if ``twin_of`` names a field."""
    metadata = {} if twin_of is None else {TWIN_OF: twin_of}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def twin_of(field: dict[str, Any]) -> str | None:
    """Return the name of the field whose wider twin this is, or None."""
    found = field["metadata"].get(TWIN_OF)
    return found if isinstance(found, str) else None


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None for another type."""
    found = _DECIMAL.fullmatch(kind)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (precision, scale) if are_digits(precision, scale) else None


def are_digits(precision: int, scale: int) -> bool:
    """Return whether a column can have a decimal of this precision and scale."""
    return 1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision


def _bounded(known: ColumnType, found: ColumnType) -> ColumnType:
    return known if len(json.dumps(found)) > VALUE_TYPE_BYTES_MAX else found


def _common(old: str, new: str) -> str | None:
    if old == new:
        return old
    if old in _INTEGERS and new in _INTEGERS:
        return max(old, new, key=_INTEGERS.index)
    if {old, new} <= {*_INTEGERS, *_FLOATS}:
        return "double"
    digits, more = decimal_digits(old), decimal_digits(new)
    if digits is None or more is None:
        return None
    scale = max(digits[1], more[1])
    precision = max(digits[0] - digits[1], more[0] - more[1]) + scale
    return f"decimal({precision},{scale})" if precision <= DECIMAL_DIGITS_MAX else None


def _engines_follow(old: str, wider: str) -> bool:
    """Return whether all engines read old files of a column that now has a wider type."""
    return wider in _INTEGERS or (old, wider) == _FLOATS


class _Merge:
    def __init__(self, *, in_files: bool, widen: bool = True) -> None:
        self._in_files = in_files
        self._widen = widen

    def of(self, old: ColumnType, new: ColumnType) -> tuple[ColumnType, bool]:
        """Return the common type, or the old one; and whether the column may just change to it."""
        if isinstance(old, str) or isinstance(new, str):
            if isinstance(old, str) and isinstance(new, str) and self._widen:
                found = _common(old, new) or old
                return found, found == old or not self._in_files or _engines_follow(old, found)
            return old, True
        if old["type"] != new["type"]:
            return old, True
        match old["type"]:
            case "array":
                items, follow = self.of(old["elementType"], new["elementType"])
                return {**old, "elementType": items}, follow
            case "map":
                if old["keyType"] != new["keyType"]:
                    return old, True
                values, follow = self.of(old["valueType"], new["valueType"])
                return {**old, "valueType": values}, follow
        return {**old, "fields": self._fields(old["fields"], new["fields"])}, True

    def _fields(self, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        added = {field["name"].lower(): field for field in new}
        taken = {field["name"].lower() for field in (*old, *new)}
        fields, twins = [], []
        for field in old:
            if twin_of(field) is not None:
                continue
            own = [
                {**each, "type": self.of(each["type"], added[each["name"].lower()]["type"])[0]}
                if twin_of(added.get(each["name"].lower(), each)) == field["name"]
                and each["name"].lower() in added
                else each
                for each in old
                if twin_of(each) == field["name"]
            ]
            other = added.pop(field["name"].lower(), None)
            if other is not None and other["name"] == field["name"]:
                kind, follow = self.of(field["type"], other["type"])
                if follow:
                    field = {**field, "type": kind}
                else:
                    own = self._twins(field["name"], own, other["type"], kind, taken)
            fields.append(field)
            twins += own
        places = {field["name"]: place for place, field in enumerate(old)}
        known = sorted(
            (each for each in (*fields, *twins) if each["name"] in places),
            key=lambda each: places[each["name"]],
        )
        further = [each for each in twins if each["name"] not in places]
        new_fields = [each for key, each in added.items() if key not in _names(known)]
        return [*known, *further, *new_fields]

    def _twins(
        self,
        name: str,
        own: list[dict[str, Any]],
        new: ColumnType,
        kind: ColumnType,
        taken: set[str],
    ) -> list[dict[str, Any]]:
        """Widen the last twin of a field, or add another one."""
        if own:
            kind, follow = self.of(own[-1]["type"], new)
            if follow:
                return [*own[:-1], {**own[-1], "type": kind}]
        number = 2
        while f"{name}__{number}".lower() in taken:
            number += 1
        taken.add(f"{name}__{number}".lower())
        return [*own, struct_field(f"{name}__{number}", kind, name)]


def _names(fields: list[dict[str, Any]]) -> set[str]:
    return {field["name"].lower() for field in fields}
