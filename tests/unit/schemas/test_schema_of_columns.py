"""Schemas of columns: what Avro makes of Spark's types, and what a topic's schema becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.schemas.columns import value_type
from pulsark.schemas.compatibility import check
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.of_columns import NoSchemaError, next_schema, schema_of
from pulsark.schemas.parsed import parse
from pulsark.schemas.strategies import SchemaCompatibilityStrategy

AVRO, JSON = SchemaType.AVRO, SchemaType.JSON
FULL = SchemaCompatibilityStrategy.FULL


def field(name: str, kind: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(inner: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": inner, "containsNull": True}


def mapped(inner: Any, key: str = "string") -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": inner, "valueContainsNull": True}


def avro(*fields: dict[str, Any], name: str = "R") -> SchemaData:
    definition = {"type": "record", "name": name, "fields": list(fields)}
    return SchemaData(AVRO, json.dumps(definition).encode())


def fields_of(schema: SchemaData) -> dict[str, Any]:
    return {each["name"]: each["type"] for each in json.loads(schema.data)["fields"]}


SIMPLE = [
    ("boolean", "boolean", "boolean"),
    ("byte", "int", "int"),
    ("short", "int", "int"),
    ("integer", "int", "int"),
    ("long", "long", "long"),
    ("float", "float", "float"),
    ("double", "double", "double"),
    ("string", "string", "string"),
    ("varchar(9)", "string", "string"),
    ("binary", "bytes", "bytes"),
    ("date", {"type": "int", "logicalType": "date"}, "string"),
    ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}, "string"),
    (
        "decimal(9,2)",
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "string",
    ),
]


@pytest.mark.parametrize(("kind", "in_avro", "in_json"), SIMPLE, ids=lambda each: str(each)[:20])
def test_each_type_has_the_one_of_pulsars_clients(kind: str, in_avro: Any, in_json: Any) -> None:
    columns = struct(field("a", kind, False), field("b", array(kind)), field("c", mapped(kind)))
    for schema_type, of_kind in ((AVRO, in_avro), (JSON, in_json)):
        schema = schema_of(columns, schema_type, "t")
        assert fields_of(schema) == {
            "a": of_kind,
            "b": ["null", {"type": "array", "items": of_kind}],
            "c": ["null", {"type": "map", "values": of_kind}],
        }
        parse(schema)
        assert next_schema(schema, columns, "t") is schema


def test_names_of_records_follow_topics_and_fields() -> None:
    inner = struct(field("x", "long"))
    columns = struct(
        field("home_address", inner), field("homeAddress", array(inner)), field("n", inner)
    )
    found = json.loads(schema_of(columns, AVRO, "1-orders").data)
    records = [found["fields"][0]["type"][1], found["fields"][1]["type"][1]["items"]]
    assert found["name"] == "_1_orders"
    assert [each["name"] for each in records] == ["HomeAddress", "homeAddress"]
    parse(schema_of(columns, AVRO, "1-orders"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (struct(), "'value' is a struct without fields"),
        (struct(field("a b", "long")), "'a b' cannot be a field.*'a_b'"),
        (struct(field("a", struct(field("é", "long")))), "'a.é' cannot be a field.* to 'e'"),
        (struct(field("1x", "long")), "'1x' cannot be .* not begin with a digit.* to '_1x'"),
        (struct(field("", "long")), "'' cannot be a field.* to '_'"),
        (struct(field("a b", "long"), field("A_B", "long")), "'a b' cannot be .* to 'a_b_2'"),
        (struct(field("日本", "long"), field("__", "long")), "cannot be a field.* to '___2'"),
        (struct(field("a", "long"), field("A", "long")), "'a' and 'A' differ"),
        (struct(field("a", array(mapped("long", "integer")))), r"'a\[\]' is a map by integer"),
        (struct(field("a", "interval day to second")), "'a' is interval"),
        (struct(field("a", {"type": "udt"})), "'a' is udt"),
    ],
)
def test_columns_that_no_schema_describes_are_named(columns: Any, said: str) -> None:
    with pytest.raises(NoSchemaError, match=said):
        schema_of(columns, AVRO, "t")


def test_a_topics_schema_stays_where_the_columns_fit() -> None:
    nullable = ["null", "string"]
    known = avro(
        {"name": "id", "type": "long"},
        {"name": "Name", "type": nullable},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "more", "type": nullable},
    )
    columns = struct(
        field("kind", "string"), field("at", "timestamp"), field("name", "string"),
        field("id", "integer"),
    )  # fmt: skip
    assert next_schema(known, columns, "t") is known


@pytest.mark.parametrize(
    ("columns", "types", "compatible"),
    [
        # One more field may be null, even if the column is not: older messages lack it.
        (struct(field("id", "long"), field("n", "double", False)), ["long", "double"], True),
        (struct(field("id", "string", False)), ["string"], False),
        (struct(field("other", "long")), ["long"], False),
        (struct(field("id", "long"), field("opt", "long")), ["long", "long"], True),
    ],
)
def test_what_columns_have_more_or_otherwise_makes_another_version(
    columns: Any, types: list[str], compatible: bool
) -> None:
    known = avro({"name": "id", "type": "long"})
    new = next_schema(known, columns, "t")
    assert new != known
    found = [t[1] if isinstance(t, list) else t for t in fields_of(new).values()]
    assert found == types
    assert json.loads(new.data)["name"] == "R"
    if compatible:
        check([parse(known)], parse(new), FULL)
    else:
        with pytest.raises(Exception, match="Incompatible"):
            check([parse(known)], parse(new), FULL)


def test_a_field_is_added_within_a_record() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "long"]}]}
    known = avro({"name": "id", "type": "long"}, {"name": "in", "type": ["null", inner]})
    new = next_schema(
        known,
        struct(field("in", struct(field("x", "long"), field("y", "string"))), field("id", "long")),
        "t",
    )
    check([parse(known)], parse(new), FULL)
    assert value_type(new) == {
        "type": "struct",
        "fields": [
            field("id", "long"),
            field("in", struct(field("x", "long"), field("y", "string"))),
        ],
    }
