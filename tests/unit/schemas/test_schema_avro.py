"""Which definitions are Avro, and what hostile ones get."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.limits import SCHEMA_DEPTH_MAX
from pulsark.schemas.avro import (
    Array,
    Enumeration,
    Fixed,
    Map,
    Record,
    Union,
    load_json,
    parse_avro,
)
from pulsark.schemas.definition import InvalidSchemaDataError
from tests.support.avro_schemas import Author


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_a_record_with_everything() -> None:
    parsed = parse_avro(
        record(
            field("text", "string", default="x", doc="a text", order="ignore"),
            field("maybe", ["null", "long"], aliases=["perhaps"]),
            field("suit", {"type": "enum", "name": "Suit", "symbols": ["A", "B"], "default": "A"}),
            field("hash", {"type": "fixed", "name": "x.y.Hash", "size": 16}),
            field("tags", {"type": "map", "values": {"type": "array", "items": "string"}}),
            field("again", "R"),
            field("amount", {"type": "bytes", "logicalType": "decimal", "precision": 4}),
            namespace="com.shop",
            aliases=["Old", "org.Older"],
        )
    )
    assert isinstance(parsed, Record)
    assert parsed.name == "com.shop.R"
    assert parsed.aliases == {"com.shop.Old", "org.Older"}
    assert list(parsed.fields) == ["text", "maybe", "suit", "hash", "tags", "again", "amount"]
    assert [f.has_default for f in parsed.fields.values()] == [True] + [False] * 6
    assert parsed.fields["maybe"].aliases == ("perhaps",)
    suit, hash_ = parsed.fields["suit"].type, parsed.fields["hash"].type
    assert isinstance(suit, Enumeration)
    assert suit.name == "com.shop.Suit"
    assert suit.symbols == ("A", "B")
    assert isinstance(hash_, Fixed)
    assert (hash_.name, hash_.simple_name, hash_.size) == ("x.y.Hash", "Hash", 16)
    assert parsed.fields["again"].type is parsed
    assert str(parsed.fields["amount"].type) == "bytes"


@pytest.mark.parametrize(
    "definition",
    [
        "int",
        {"type": "int"},
        {"type": "error", "name": "E", "fields": []},
        record(field("a", "int", default="no number")),  # as in Java: not checked
        record(name="Outer$Inner"),
        record(namespace=1),
        {"type": "enum", "name": "E", "symbols": ["A"], "default": 1},
        record(name="Größe"),
        {"type": "array", "items": ["null", "R2"]} | {"items": ["null", "string"]},
        record(field("a", {"type": "fixed", "name": "F", "size": 0}), field("b", "F")),
        record(field("a", {"type": "fixed", "name": "F", "size": 1}), field("b", {"type": "F"})),
    ],
    ids=repr,
)
def test_definitions_that_are_fine(definition: Any) -> None:
    parse_avro(definition)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (None, "None is not a type"),
        (5, "5 is not a type"),
        ({}, 'a "type" that is a text, not None'),
        ({"type": 3}, "not 3"),
        ({"type": {"type": "int"}}, "not an object"),
        ("nothing", "'nothing' is not defined"),
        ({"type": "array"}, '"items" is missing'),
        ({"type": "map", "items": "int"}, '"values" is missing'),
        ({"type": "record", "fields": []}, '"name" is missing'),
        (record(name=7), '"name" is missing'),
        (record(name="1x"), "cannot be named '1x'"),
        (record(name="a-b"), "cannot be named 'a-b'"),
        (record(name="a."), "cannot be named ''"),
        (record(name="long"), "record cannot be named like the type long"),
        (record(aliases=["1x"]), "R: an alias cannot be named '1x'"),
        ({"type": "record", "name": "R"}, '"fields" is a list'),
        ({"type": "record", "name": "R", "fields": {}}, '"fields" is a list'),
        (record("a"), "'a' is not a field"),
        (record({"name": "a"}), 'field a: "type" is missing'),
        (record({"type": "int"}), "cannot be named None"),
        (record(field("a", "int"), field("a", "long")), "field a is there twice"),
        (record(field("a", "int", aliases="b")), '"aliases" is a list'),
        (record(field("a", "int", aliases=[1])), '"aliases" holds 1'),
        (record(field("a", "S")), "record R, field a: Type 'S' is not defined"),
        (record(field("a", record())), "'R' is defined twice"),
        ({"type": "enum", "name": "E"}, '"symbols" is a list'),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "twice"),
        ({"type": "enum", "name": "E", "symbols": ["A b"]}, "cannot be named 'A b'"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not one of its symbols"),
        ({"type": "fixed", "name": "F"}, '"size" is a number'),
        ({"type": "fixed", "name": "F", "size": -1}, '"size" is a number'),
        ({"type": "fixed", "name": "F", "size": True}, '"size" is a number'),
        ({"type": "fixed", "name": "F", "size": 1 << 31}, '"size" is a number'),
        (["int", "int"], "holds int twice"),
        ([{"type": "map", "values": "int"}, {"type": "map", "values": "long"}], "holds map twice"),
        (["int", ["null"]], "another union"),
    ],
)
def test_definitions_that_are_not(definition: Any, reason: str) -> None:
    with pytest.raises(InvalidSchemaDataError, match=re.escape(reason)):
        parse_avro(definition)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"NaN", b'{"a": Infinity}', b"[" * 100_000])
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(InvalidSchemaDataError, match="not JSON"):
        load_json(text)


def test_a_number_of_very_many_digits_is_refused_at_once() -> None:
    with pytest.raises(InvalidSchemaDataError, match="not JSON"):
        load_json(b"1" * 500_000)


@pytest.mark.parametrize("wrap", [lambda t: {"type": "array", "items": t}, lambda t: ["null", t]])
def test_types_may_be_nested_only_so_deep(wrap: Any) -> None:
    def nested(levels: int) -> Any:
        definition: Any = "int"
        for _ in range(levels):
            definition = {"type": "map", "values": definition}
        return wrap(definition)

    parse_avro(nested(SCHEMA_DEPTH_MAX - 2))
    with pytest.raises(InvalidSchemaDataError, match=f"more than {SCHEMA_DEPTH_MAX} levels"):
        parse_avro(nested(SCHEMA_DEPTH_MAX - 1))


def test_a_reason_is_short_and_can_be_sent_whatever_it_quotes() -> None:
    for name in ("x" * 400_000 + "-", "\ud800", "é" * 1000 + " "):
        with pytest.raises(InvalidSchemaDataError) as refused:
            parse_avro(record(name=name))
        assert len(str(refused.value).encode()) < 1000
    with pytest.raises(InvalidSchemaDataError) as refused:
        parse_avro(record(field("a", "S"), name="n" * 400_000))
    assert len(str(refused.value)) <= 500


@given(st.randoms(use_true_random=False))
def test_fastavro_takes_what_is_taken_here(rng: Random) -> None:
    definition = Author(rng).new()
    parse_avro(definition)
    fastavro.parse_schema(json.loads(json.dumps(definition)))


KEYS = ["type", "name", "namespace", "fields", "items", "values", "symbols", "size"]
KEYS += ["aliases", "default"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["record", "enum", "fixed", "array", "int", "R", "a.b", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_a_type_or_refused(definition: Any) -> None:
    with suppress(InvalidSchemaDataError):
        parse_avro(definition)


def test_a_schema_whose_types_are_shared_is_shown_at_once() -> None:
    """Two fields a level make 2^40 of the lowest record, if all of them are shown."""
    definition: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, 41):
        fields = [{"name": "a", "type": definition}, {"name": "b", "type": f"R{level - 1}"}]
        definition = {"type": "record", "name": f"R{level}", "fields": fields}
    parsed = parse_avro(definition)
    assert len(repr(parsed)) < 1000
    assert len(repr(Array(Union((parsed, Map(parsed)))))) < 1000
