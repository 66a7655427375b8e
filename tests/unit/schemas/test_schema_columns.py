"""The types of columns: what comes from outside is checked, and they grow only so far."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.schemas.column_types import ColumnType, merged, struct
from pulsark.schemas.columns import is_column_type

LONG_LIST = {"type": "array", "elementType": "long", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}


@pytest.mark.parametrize(
    "kind", ["long", "binary", LONG_LIST, MAP, struct([("a", "long"), ("b", struct([("c", MAP)]))])]
)
def test_types_are_known(kind: ColumnType) -> None:
    assert is_column_type(kind)


def nested(levels: int) -> Any:
    kind: Any = "long"
    for _ in range(levels):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    return kind


@pytest.mark.parametrize(
    "kind",
    [
        None, 5, "varchar", [], {}, ["long"],
        {**LONG_LIST, "elementType": "x"},
        {**LONG_LIST, "more": 1},
        {**MAP, "keyType": "double"},
        struct([]),
        struct([("a", "x")]),
        struct([("a", "long"), ("A", "long")]),
        {"type": "struct", "fields": [{"name": "a", "type": "long"}]},
        {"type": "struct", "fields": [5]},
        {**struct([("a", "long")]), "more": 1},  # type: ignore[dict-item]
        struct((f"field_{i}", "long") for i in range(2000)),
        nested(5000),
    ],
)  # fmt: skip
def test_anything_else_is_refused(kind: Any) -> None:
    assert not is_column_type(kind)


def test_lists_maps_and_records_grow_inside_and_nothing_changes_its_type() -> None:
    def of(inner: ColumnType) -> ColumnType:
        return struct(
            [
                ("l", {"type": "array", "elementType": inner, "containsNull": True}),
                ("m", {**MAP, "valueType": inner}),
                ("r", inner),
            ]
        )

    old, new = struct([("x", "long")]), struct([("y", "string"), ("x", "string")])
    both = struct([("x", "long"), ("y", "string")])
    assert merged(of(old), of(new)) == of(both)
    assert merged(of(old), struct([("l", "long"), ("m", LONG_LIST)])) == of(old)
    assert merged("string", of(old)) == "string"
    assert merged(of(old), "string") == of(old)


def test_a_type_that_would_become_too_large_stays() -> None:
    old = struct([("a", "long")])
    assert merged(old, struct((f"field_{i}", "long") for i in range(2000))) == old
