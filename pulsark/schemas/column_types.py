"""Types of columns, as a Delta table's schema has them, without what they come from.

A type is a text such as ``long``, or the JSON object of a struct, an array or a map. ``columns``
finds those of schemas: an idle broker has no use for that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pulsark.limits import VALUE_TYPE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

ColumnType: TypeAlias = str | dict[str, Any]

BINARY: Final = "binary"


def merged(table: ColumnType, new: ColumnType) -> ColumnType:
    """A table's type after a further version: new fields follow the existing ones.

    Existing types never change.
    """
    found = _merged(table, new)
    return table if len(json.dumps(found)) > VALUE_TYPE_BYTES_MAX else found


def fields_of(kind: ColumnType) -> list[dict[str, Any]]:
    """The fields of a struct; of anything else there are none."""
    return list(kind["fields"]) if isinstance(kind, dict) and kind["type"] == "struct" else []


def types_of(kind: ColumnType) -> dict[str, ColumnType]:
    """The types of a struct's fields by their names; of anything else there are none."""
    return {field["name"]: field["type"] for field in fields_of(kind)}


def struct(fields: Iterable[tuple[str, ColumnType]]) -> ColumnType:
    """A struct; all of its fields may be null."""
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields
        ],
    }


def _merged(old: ColumnType, new: ColumnType) -> ColumnType:
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return old
    match old["type"]:
        case "array":
            return {**old, "elementType": _merged(old["elementType"], new["elementType"])}
        case "map":
            if old["keyType"] != new["keyType"]:
                return old
            return {**old, "valueType": _merged(old["valueType"], new["valueType"])}
    added = {field["name"].lower(): field for field in new["fields"]}
    fields = []
    for field in old["fields"]:
        other = added.pop(field["name"].lower(), None)
        if other is not None and other["name"] == field["name"]:
            field = {**field, "type": _merged(field["type"], other["type"])}
        fields.append(field)
    return {**old, "fields": [*fields, *added.values()]}
