"""Examples of schema resolution, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.schemas.avro import parse_avro
from pulsark.schemas.avro_resolution import Effort, why_unreadable
from pulsark.schemas.definition import IncompatibleSchemaError


def reason(reader: Any, writer: Any, effort: int = 10_000) -> str | None:
    return why_unreadable(parse_avro(reader), parse_avro(writer), Effort(effort))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", **more, "symbols": list(symbols)}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TREE = record(field("value", "int"), field("next", ["null", "R"]))

READABLE = {
    "promotion": ("double", "int"),
    "bytes as text": ("string", "bytes"),
    "text as bytes": ("bytes", "string"),
    "a union of one": (["null", "int"], "int"),
    "no union any more": ("long", ["int", "long"]),
    "a branch promoted": (["null", "double"], ["null", "float"]),
    "a new field with a default": (record(field("a", "int", default=1)), record()),
    "a default of null": (record(field("a", ["null", "int"], default=None)), record()),
    "a field gone": (record(), record(field("a", "int"))),
    "fields in another order": (
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
    ),
    "a field renamed": (
        record(field("new", "long", aliases=["old"])),
        record(field("old", "int")),
    ),
    "a record renamed": (
        record(name="New", namespace="x", aliases=["y.Old"]),
        record(name="Old", namespace="y"),
    ),
    "another namespace": (record(namespace="x"), record(namespace="y")),
    "more symbols": (enum("A", "B"), enum("A")),
    "fewer symbols: a matter of each datum": (enum("A"), enum("B")),
    "another name of the record": (record(name="New"), record(name="Old")),
    "another name in a union": (["null", record(name="New")], ["null", record(name="Old")]),
    "of renamed branches the one that fits": (
        [record(field("a", "int"), name="A"), record(field("b", "int"), name="B")],
        record(field("b", "int"), name="Old"),
    ),
    "another namespace of what is named": (enum("A", namespace="x"), enum("A", namespace="y")),
    "the same bytes": (fixed(3), fixed(3)),
    "inside arrays": (array("long"), array("int")),
    "inside maps": ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
    "a tree": (record(field("value", "long"), field("next", ["null", "R"])), TREE),
    "logical types do not count": ("long", {"type": "long", "logicalType": "timestamp-millis"}),
}

UNREADABLE = {
    "demotion": ("int", "long", "the reader expects int, the writer has long"),
    "other kinds": ("boolean", "int", "the reader expects boolean"),
    "null": ("int", "null", "the reader expects int, the writer has null"),
    "a branch that is missing": ("int", ["null", "int"], "the writer has null"),
    "no branch": (["null", "int"], "string", "no branch of the reader's union reads the writer's"),
    "a new field without a default": (
        record(field("a", "int")),
        record(),
        "record R, field a: the writer lacks it, and it has no default",
    ),
    "null allowed but no default": (record(field("a", ["null", "int"])), record(), "no default"),
    "a field of another type": (
        record(field("a", "int")),
        record(field("a", "string")),
        "record R, field a: the reader expects int, the writer has string",
    ),
    "an enum renamed": (
        enum("A", name="New"),
        enum("A", name="Old"),
        "the reader expects enum New, the writer has enum Old",
    ),
    "an alias in another namespace": (
        enum("A", name="New", namespace="x", aliases=["Old"]),
        enum("A", name="Old", namespace="y"),
        "the writer has enum y.Old",
    ),
    "aliases of fields in a record of another name": (
        record(field("b", "int", aliases=["a"]), name="New"),
        record(field("a", "int"), name="Old"),
        "record New, field b: the writer lacks it, and it has no default",
    ),
    "the branch that the name chooses": (
        [record(field("a", "int"), name="A"), record(name="B")],
        record(name="A"),
        "record A, field a: the writer lacks it",
    ),
    "more bytes": (fixed(4), fixed(3), "fixed F: 4 bytes are not 3"),
    "other kinds of one name": (fixed(1, "X"), record(name="X"), "the reader expects fixed X"),
    "inside arrays": (array("int"), array("string"), "items: the reader expects int"),
    "deep inside": (
        record(field("a", array({"type": "map", "values": "int"}))),
        record(field("a", array({"type": "map", "values": "null"}))),
        "record R, field a: items: values: the reader expects int",
    ),
    "an alias of two fields": (
        record(field("a", "int", aliases=["b"])),
        record(field("a", "int"), field("b", "int")),
        "record R, field a: several of the writer's are meant",
    ),
    "two fields of one": (
        record(field("a", "int"), field("b", "int", aliases=["a"])),
        record(field("a", "int")),
        "record R, field a: the writer lacks it",
    ),
    "inside a tree": (
        record(field("value", "int"), field("next", ["null", "R"])),
        record(field("value", "long"), field("next", ["null", "R"])),
        "record R, field value: the reader expects int",
    ),
}


@pytest.mark.parametrize(("reader", "writer"), READABLE.values(), ids=READABLE)
def test_a_reader_reads(reader: Any, writer: Any) -> None:
    assert reason(reader, writer) is None


@pytest.mark.parametrize(("reader", "writer", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_reader_does_not_read(reader: Any, writer: Any, why: str) -> None:
    found = reason(reader, writer)
    assert found is not None
    assert why in found


def test_what_rests_on_a_failed_assumption_is_taken_back() -> None:
    """``b`` holds only if the whole record does, and the record fails in its last field."""

    def version(last: str) -> Any:
        b = record(field("up", ["null", "R"]), name="B")
        return record(field("b", b), field("other", ["null", "B"]), field("last", last))

    assert reason(version("int"), version("int")) is None
    assert reason([version("int"), "null"], version("string")) is not None
    # The branch that rests on the failed one fails with it, and the other one decides.
    reader = record(field("x", [version("int"), "string"]), name="Top")
    assert reason(reader, record(field("x", "string"), name="Top")) is None
    assert reason(reader, record(field("x", version("string")), name="Top")) is not None


def test_what_failed_in_one_place_fails_in_all_others() -> None:
    """``u`` has another branch than ``A``, ``s`` has none; ``u`` is looked at first."""
    a, b = record(field("a", "int"), name="A"), record(name="B")
    holder = record(field("g", a), name="S")
    reader = record(field("s", holder), field("u", ["A", b]))
    written = record(field("g", record(name="X")), name="S")
    found = reason(reader, record(field("s", written), field("u", "X")))
    assert found is not None
    assert "field g" in found


def test_cycles_of_different_length_are_followed_without_recursion() -> None:
    def ring(length: int) -> Any:
        """Records of one simple name, each holding the next and the last one the first."""
        definition: Any = "n0.R"
        for i in reversed(range(length)):
            definition = record(field("next", ["null", definition]), namespace=f"n{i}")
        return definition

    assert reason(ring(19), ring(20)) is None


def test_a_comparison_ends_when_it_takes_too_long() -> None:
    def wide(prefix: str) -> Any:
        return [record(field("a", "int"), namespace=f"{prefix}{i}") for i in range(200)]

    with pytest.raises(IncompatibleSchemaError, match="too large to be compared"):
        reason(wide("x"), wide("y"), effort=20_000)
    assert reason(wide("x"), wide("y"), effort=200_000) is None


def test_effort_is_shared_by_comparisons() -> None:
    effort = Effort(5)
    parsed = parse_avro(array("int"))
    for _ in range(2):
        assert why_unreadable(parsed, parsed, effort) is None
    with pytest.raises(IncompatibleSchemaError):
        why_unreadable(parsed, parsed, effort)
