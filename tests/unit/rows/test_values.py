"""Payloads as typed values: what each type of schema shows, and that no byte is ever lost."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.rows.values import ValueColumn, arrow_type_of, avro_reader, decode_values
from pulsark.rows.values.losses import Losses
from pulsark.schemas.column_types import ColumnType, merged
from pulsark.schemas.columns import type_of_versions, value_type
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.key_value import from_text
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from tests.support.typed_values import V0, V1, encoded, through


@pytest.fixture(params=[1, 16], ids=["together", "as it comes"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From how many messages on the elements of arrays and maps are read together."""
    monkeypatch.setattr(avro_reader, "FEW", request.param)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


def schema(kind: SchemaType, definition: Any = None, **properties: str) -> SchemaData:
    data = b"" if definition is None else json.dumps(definition).encode()
    return SchemaData(kind, data, properties)


def avro(definition: Any) -> SchemaData:
    return schema(SchemaType.AVRO, definition)


def as_json(definition: Any) -> SchemaData:
    return schema(SchemaType.JSON, definition)


def texts(*values: Any, **form: Any) -> list[bytes | None]:
    return [json.dumps(value, **form).encode() for value in values]


def column_of(kind: ColumnType, *versions: SchemaData) -> ValueColumn:
    schemas = map(ValueSchema, (V0, V1), versions)
    return ValueColumn(ValueSchemas(kind, tuple(schemas)))


def of(given: SchemaData, *payloads: bytes | None) -> tuple[list[Any], list[bytes | None]]:
    column = column_of(value_type(given), given)
    return through(column, payloads, [V0] * len(payloads))


def all_typed(given: SchemaData, *payloads: bytes | None) -> list[Any]:
    values, raw = of(given, *payloads)
    assert raw == [None] * len(payloads)
    return values


FLIGHT = record(
    ("carrier", ["null", "string"]),
    ("number", "int"),
    ("delay", ["null", "double"]),
    ("late", "boolean"),
    ("at", ["null", record(("lat", "double"), ("name", ["null", "string"]), name="Place")]),
)
FLIGHTS = [
    {"carrier": "UA", "number": 7, "delay": 1.5, "late": True, "at": {"lat": 40.0, "name": "é"}},
    {"carrier": None, "number": -(2**31), "delay": None, "late": False, "at": None},
    {
        "carrier": 'a"\n',
        "number": 300,
        "delay": 0.1,
        "late": False,
        "at": {"lat": -0.0, "name": None},
    },
]


@pytest.mark.usefixtures("few")
def test_avro_records_are_structs() -> None:
    assert all_typed(avro(FLIGHT), *encoded(FLIGHT, *FLIGHTS)) == FLIGHTS


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"separators": (",", ":")},
        {"indent": True},
        {"indent": 2, "ensure_ascii": False},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"sort_keys": True},
    ],
)
def test_json_in_the_form_of_its_client_is_not_kept_twice(form: dict[str, Any]) -> None:
    assert all_typed(as_json(FLIGHT), *texts(*FLIGHTS, **form)) == FLIGHTS


def test_json_numbers_without_digits_are_shown() -> None:
    definition = record(("d", "double"), ("f", ["null", "float"]))
    inf = math.inf
    numbers = [{"d": inf, "f": -inf}, {"d": -inf, "f": None}, {"d": 1.5, "f": inf}]
    assert all_typed(as_json(definition), *texts(*numbers)) == numbers
    odd: list[bytes | None] = [
        b'{"d": "-Infinity", "f": "Infinity"}', b'{"d": NaN, "f": "NaN"}', b'{"d": 1e999}',
        b'{"d": "inf", "f": 1}',
    ]  # fmt: skip
    shown, raw = of(as_json(definition), *odd)
    assert shown[0] == {"d": -inf, "f": inf}
    assert all(math.isnan(number) for number in shown[1].values())
    assert shown[2:] == [{"d": None, "f": None}, {"d": None, "f": 1.0}]
    assert [raw[0], *raw[2:]] == [odd[0], *odd[2:]]


def test_json_integers_with_a_point_are_shown_if_they_are_exact() -> None:
    definition = record(("n", "int"), ("l", ["null", "long"]))
    sent: list[bytes | None] = [
        b'{"n": 7.0, "l": -1e3}', b'{"n": 7.5}', b'{"n": 3e9, "l": 3e9}',
        b'{"n": 1, "l": 9007199254740993.0}',
    ]  # fmt: skip
    shown, raw = of(as_json(definition), *sent)
    assert shown == [
        {"n": 7, "l": -1000}, {"n": None, "l": None}, {"n": None, "l": 3_000_000_000},
        {"n": 1, "l": None},
    ]  # fmt: skip
    assert raw == sent


def test_json_of_a_union_is_read_by_the_member_that_it_is_of() -> None:
    definition = record(("a", ["int", "double"]), ("b", ["double", "string"]))
    shown = all_typed(as_json(definition), *texts({"a": 7.0, "b": "NaN"}, {"a": 7, "b": 1.5}))
    assert [value["a"] for value in shown] == [
        {"member0": None, "member1": 7.0}, {"member0": 7, "member1": None},
    ]  # fmt: skip
    assert [value["b"] for value in shown] == [
        {"member0": None, "member1": "NaN"}, {"member0": 1.5, "member1": None},
    ]  # fmt: skip


def test_json_of_a_union_of_records_is_read_by_the_one_that_writes_it_so() -> None:
    def both(one: Any, other: Any) -> list[Any]:
        inner = record(("x", one), name="A"), record(("x", other), name="B")
        of_map = {"type": "map", "values": one}
        return ["null", *inner] if one != "map" else ["null", of_map, inner[1]]

    texts_ = record(("u", both("double", "string")))
    shown, _ = of(as_json(texts_), b'{"u": {"x": "NaN"}}', b'{"u": {"x": 1.5}}', b'{"u": {"x": 7}}')
    assert [value["u"] for value in shown] == [
        {"member0": None, "member1": {"x": "NaN"}},
        {"member0": {"x": 1.5}, "member1": None},
        {"member0": {"x": 7.0}, "member1": None},
    ]
    numbers = record(("u", both("int", "double")))
    shown, _ = of(as_json(numbers), b'{"u": {"x": 7.0}}', b'{"u": {"x": 7.5}}', b'{"u": {"x": 7}}')
    assert [value["u"] for value in shown] == [
        {"member0": None, "member1": {"x": 7.0}},
        {"member0": None, "member1": {"x": 7.5}},
        {"member0": {"x": 7}, "member1": None},
    ]


def test_json_of_unions_in_unions_is_read_with_few_readers() -> None:
    definition: Any = record(("x", "double"), name="R0")
    payload: Any = {"x": "NaN"}
    for level in range(1, 25):
        definition = record(("u", ["string", definition]), name=f"R{level}")
        payload = {"u": payload}
    (shown,), _ = of(as_json(definition), json.dumps(payload).encode())
    for _ in range(1, 25):
        shown = shown["u"]["member1"]
    assert math.isnan(shown["x"])


def test_json_is_read_the_same_whatever_stands_beside_it() -> None:
    definition = record(("d", "double"), ("n", "int"))
    plain = [b'{"d":1.5,"n":1}'] * 40
    odd = [b'{"d":-NaN,"n":4}', b'{"d":NaN,"n":4}', b'{"d":-Infinity,"n":4}', b'{"d":1e400,"n":4}']
    for payload in odd:
        (alone,), raw = of(as_json(definition), payload)
        (beside, *_), raw_beside = of(as_json(definition), payload, *plain)
        assert repr(alone) == repr(beside)
        assert raw == raw_beside[:1]


def test_json_without_its_nulls() -> None:
    def without(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: without(v) for k, v in value.items() if v is not None}

    assert all_typed(as_json(FLIGHT), *texts(*map(without, FLIGHTS))) == FLIGHTS


NESTED = record(
    ("tags", {"type": "array", "items": "string"}),
    ("more", ["null", {"type": "array", "items": record(("n", "long"), name="N")}]),
    ("counts", {"type": "map", "values": "int"}),
)
NESTEDS: list[dict[str, Any]] = [
    {"tags": ["a", "é"], "more": [{"n": 1}, {"n": 2}], "counts": {"x": 1, "y": 2}},
    {"tags": [], "more": None, "counts": {}},
    {"tags": ["b"], "more": [], "counts": {"x": 3}},
]


@pytest.mark.parametrize("form", [{}, {"indent": True}, {"separators": (",", ":")}])
def test_lists_and_maps(form: dict[str, Any]) -> None:
    shown = [{**value, "counts": list(value["counts"].items())} for value in NESTEDS]
    assert all_typed(as_json(NESTED), *texts(*NESTEDS, **form)) == shown
    assert all_typed(avro(NESTED), *encoded(NESTED, *NESTEDS)) == shown
    lists = record(*((f["name"], f["type"]) for f in NESTED["fields"][:2]))
    values = [{k: v for k, v in value.items() if k != "counts"} for value in NESTEDS]
    assert all_typed(as_json(lists), *texts(*values, **form)) == values


LISTS = record(
    *(
        (kind, {"type": "array", "items": kind})
        for kind in ("int", "long", "float", "double", "boolean", "string", "bytes")
    ),
    ("color", {"type": "array", "items": {"type": "enum", "name": "C", "symbols": ["R", "G"]}}),
    ("day", {"type": "array", "items": {"type": "int", "logicalType": "date"}}),
    ("some", {"type": "array", "items": ["null", "string"]}),
    ("lists", {"type": "array", "items": {"type": "array", "items": "long"}}),
    ("maps", {"type": "map", "values": {"type": "map", "values": ["null", "double"]}}),
    ("last", "string"),
)


def lists(n: int) -> dict[str, Any]:
    return {
        "int": [-(2**31), 0, 2**31 - 1, 64, -65][:n],
        "long": [2**63 - 1, -(2**63), 1][:n],
        "float": [0.5, -0.0][:n],
        "double": [0.1] * n,
        "boolean": [True, False, True][:n],
        "string": ["é" * 70, "", "b"][:n],
        "bytes": [b"\xff", b""][:n],
        "color": ["G", "R", "G"][:n],
        "day": [date(2013, 1, 1)] * n,
        "some": [None, "x", None][:n],
        "lists": [[1, 300], [], [5]][:n],
        "maps": {f"k{k}": {"a": 1.5, "b": None} if k else {} for k in range(n)},
        "last": f"{n}",
    }


@pytest.mark.usefixtures("few")
def test_lists_of_any_length_and_of_lists() -> None:
    sent = [lists(n % 6) for n in range(40)] + [lists(200)]
    payloads = encoded(LISTS, *sent)
    found = all_typed(avro(LISTS), *payloads)
    for value, each in zip(found, sent, strict=True):
        maps = [(key, list(inner.items())) for key, inner in each["maps"].items()]
        assert value == {**each, "maps": maps}
    # A part of a message is none, wherever it ends; nor is one with more behind it.
    whole = payloads[5]
    assert whole is not None
    parts: list[bytes | None] = [whole[:end] for end in range(len(whole))]
    values, raw = of(avro(LISTS), *parts, whole, whole + b"!")
    assert values == [None] * len(parts) + [found[5], None]
    assert raw == [*parts, None, whole + b"!"]


@pytest.mark.usefixtures("few")
def test_what_may_be_written_in_several_ways_is_shown_and_kept() -> None:
    definition = record(
        ("l", {"type": "array", "items": "string"}), ("m", {"type": "map", "values": "int"})
    )
    usual = b"\x04\x02a\x02b\x00\x02\x02k\x04\x00"
    odd: list[bytes | None] = [
        b"\x02\x02a\x02\x02b\x00\x02\x02k\x04\x00",  # two blocks
        b"\x03\x08\x02a\x02b\x00\x02\x02k\x04\x00",  # a block with its size
        b"\x04\x02a\x02b\x00\x04\x02k\x02\x02k\x04\x00",  # a key twice
        b"\x04\x02a\x02b\x00\x82\x00\x02k\x04\x00",  # a number in more bytes than it needs
    ]
    value = {"l": ["a", "b"], "m": [("k", 2)]}
    values, raw = of(avro(definition), usual, *odd)
    assert values == [value] * 5
    assert raw == [None, *odd]
    sized = b"\x03\x08\x02a\x02b\x00\x00"
    assert of(avro(definition), sized) == ([{"l": ["a", "b"], "m": []}], [sized])


@pytest.mark.usefixtures("few")
def test_what_has_no_column_is_passed_over() -> None:
    definition = record(
        ("a", "int"),
        ("u", ["null", "int", "string", {"type": "array", "items": "long"}]),
        ("n", "null"),
        ("e", record(name="E")),
        ("m", {"type": "map", "values": ["int", "string"]}),
        ("b", "string"),
    )
    sent = [
        {"a": n, "u": u, "n": None, "e": {}, "m": m, "b": "x"}
        for n, (u, m) in enumerate([(None, {}), (5, {"k": 1}), ("s", {"k": "t"}), ([1, 2], {})])
    ]
    payloads = encoded(definition, *sent)
    values, raw = of(avro(definition), *payloads)
    assert [(value["a"], value["b"]) for value in values] == [(n, "x") for n in range(4)]
    assert raw == [None] * 4


@pytest.mark.usefixtures("few")
def test_unions_are_structs_of_their_members() -> None:
    inner = record(("x", "int"), name="Inner")
    definition = record(
        ("u", ["null", "int", "string", {"type": "array", "items": ["long", "boolean"]}]),
        ("v", [inner, "bytes"]),
        ("m", {"type": "map", "values": ["null", "double", inner["name"]]}),
    )
    sent = [
        {"u": None, "v": {"x": 1}, "m": {}},
        {"u": 5, "v": b"b", "m": {"k": 1.5, "n": None}},
        {"u": "s", "v": {"x": 2}, "m": {"k": {"x": 3}}},
        {"u": [1, True], "v": b"", "m": {}},
    ]
    shown = all_typed(avro(definition), *encoded(definition, *sent))
    none = {"member0": None, "member1": None}
    assert [value["u"] for value in shown] == [
        None,
        {"member0": 5, "member1": None, "member2": None},
        {"member0": None, "member1": "s", "member2": None},
        {**none, "member2": [{**none, "member0": 1}, {**none, "member1": True}]},
    ]
    assert [value["v"] for value in shown] == [
        {**none, "member0": {"x": 1}}, {**none, "member1": b"b"},
        {**none, "member0": {"x": 2}}, {**none, "member1": b""},
    ]  # fmt: skip
    assert shown[1]["m"] == [("k", {**none, "member0": 1.5}), ("n", None)]
    assert shown[2]["m"] == [("k", {**none, "member1": {"x": 3}})]
    texts_sent = [{**each, "v": {"x": 1}} for each in sent]
    as_text = all_typed(as_json(definition), *texts(*texts_sent))
    assert [value["u"] for value in as_text] == [value["u"] for value in shown]


@pytest.mark.usefixtures("few")
def test_decimals_of_a_fixed_size_local_times_and_times_of_a_day() -> None:
    def fixed(size: int, precision: int) -> Any:
        return {
            "type": "fixed", "name": f"F{size}", "size": size, "logicalType": "decimal",
            "precision": precision, "scale": 2,
        }  # fmt: skip

    def logical(kind: str, name: str) -> Any:
        return {"type": kind, "logicalType": name}

    definition = record(
        ("f", ["null", fixed(4, 9)]),
        ("g", fixed(20, 38)),
        ("lm", logical("long", "local-timestamp-millis")),
        ("lu", logical("long", "local-timestamp-micros")),
        ("tm", logical("int", "time-millis")),
        ("tu", ["null", logical("long", "time-micros")]),
    )
    plain = json.loads(json.dumps(definition).replace('"logicalType"', '"other"'))

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "big", signed=True)

    sent = [
        {"f": number(-125, 4), "g": number(10**37, 20), "lm": 1500, "lu": -1, "tm": 45_296_789,
         "tu": 1},
        {"f": None, "g": number(-1, 20), "lm": 0, "lu": 0, "tm": 86_400_000, "tu": None},
    ]  # fmt: skip
    column = column_of(value_type(avro(definition)), avro(definition))
    lost = Losses(2)
    payloads = pa.array(encoded(plain, *sent), pa.binary())
    values, raw = column.split(payloads, pa.array([V0, V0], pa.binary()), lost)
    assert values.to_pylist() == [
        {"f": Decimal("-1.25"), "g": Decimal(10**37).scaleb(-2), "lm": datetime(1970, 1, 1, 0, 0, 1,
         500_000), "lu": datetime(1969, 12, 31, 23, 59, 59, 999_999), "tm": "12:34:56.789",
         "tu": "00:00:00.000001"},
        {"f": None, "g": Decimal("-0.01"), "lm": datetime(1970, 1, 1), "lu": datetime(1970, 1, 1),
         "tm": None, "tu": None},
    ]  # fmt: skip
    assert raw.to_pylist() == [None, payloads[1].as_py()]
    assert lost.counts == {"tm": 1}


def doubled(depth: int, last: Any) -> Any:
    """Records that stand for 2**depth others."""
    for n in range(depth):
        last = record(("a", last), ("b", last["name"]), name=f"D{n}")
    return last


@pytest.mark.parametrize("inner", [record(("x", "int"), name="X"), record(name="X")])
def test_definitions_that_stand_for_more_than_can_be_counted(inner: Any) -> None:
    assert value_type(avro(doubled(50, inner))) == "binary"
    hidden = ["int", "string", doubled(50, inner)]
    odd = b"\x04\x04"
    values, raw = of(avro(record(("a", "int"), ("e", hidden))), b"\x02\x00\x02", odd)
    assert values == [{"a": 1}, None]
    assert raw == [b"\x02\x00\x02", odd]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("items", ["null", {"type": "fixed", "name": "F", "size": 0}])
def test_elements_without_bytes_cannot_be_counted_up(items: Any) -> None:
    definition = record(("a", "int"), ("l", {"type": "array", "items": items}))
    endless = b"\x02" + b"\xff" * 9 + b"\x01\x00"
    many = b"\x02" + b"\xfe" * 9 + b"\x01\x00"
    values, raw = of(avro(definition), b"\x02\x00", endless, many)
    assert values[0]["a"] == 1
    assert values[1:] == [None, None]
    assert raw[1:] == [endless, many]


def test_what_a_schema_says_otherwise_is_kept_as_it_was_sent() -> None:
    good = b'{"a": 1, "b": "x"}'
    given = as_json(record(("a", "int"), ("b", ["null", "string"])))
    odd: list[bytes | None] = [
        b'{"a":1,"b":"x"}',
        b'{"a": 1, "b": "x", "c": 5}',
        b'{"a": "1", "b": "x"}',
        b'{"a": 1.5, "b": null}',
        b'{"a": 99999999999, "b": null}',
        b'{"a": 1, "b": "\\ud800"}',
        b'{"a": 1} {"a": 2}',
        b'{"a":{}',
        b"}",
        b"null",
        b"",
        b"\xff\xfe",
        b'{"b": "x", "a": 1}',
        b" " + good,
        b"[" * 100_000,
    ]
    payloads = [good, good, *odd, good]
    values, raw = of(given, *payloads)
    whole = {"a": 1, "b": "x"}
    assert values[:4] == [whole] * 4
    assert values[4:8] == [
        {"a": None, "b": "x"}, {"a": None, "b": None}, {"a": None, "b": None}, {"a": 1, "b": None}
    ]  # fmt: skip
    assert values[8:14] == [None] * 6
    assert values[14:] == [whole, whole, None, whole]
    assert raw == [None, None, *odd, None]


def test_a_null_stays_one() -> None:
    payloads: list[bytes | None] = [None, b'{"a": 1}', None]
    assert all_typed(as_json(record(("a", "int"))), *payloads) == [None, {"a": 1}, None]
    assert all_typed(avro(record(("a", "int"))), None, b"\x02") == [None, {"a": 1}]
    assert all_typed(schema(SchemaType.STRING), None, b"", None) == [None, "", None]


@pytest.mark.usefixtures("few")
def test_times_dates_enums_and_fixed() -> None:
    definition = record(
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
        ("us", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
        ("day", {"type": "int", "logicalType": "date"}),
        ("color", {"type": "enum", "name": "C", "symbols": ["RED", "GREEN"]}),
        ("four", {"type": "fixed", "name": "F", "size": 4}),
        ("real", "float"),
    )
    moment = datetime(2013, 1, 1, 5, 0, 0, 7000, UTC)
    value = {
        "ms": moment, "us": moment, "day": date(2013, 1, 1), "color": "GREEN", "four": b"1234",
        "real": 0.5,
    }  # fmt: skip
    payloads = encoded(definition, value, {**value, "us": None})
    assert all_typed(avro(definition), *payloads) == [value, {**value, "us": None}]
    with_list = {
        **definition,
        "fields": [*definition["fields"], {"name": "l", "type": {"type": "array", "items": "int"}}],
    }
    value["l"] = [1]
    assert all_typed(avro(with_list), *encoded(with_list, value)) == [value]


def test_a_time_that_no_column_holds_is_kept_as_it_was_sent() -> None:
    members = [
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
        ("day", {"type": "int", "logicalType": "date"}),
    ]
    plain = record(("ms", "long"), ("day", "int"))
    far = {"ms": 253402300800000, "day": 2_932_897}
    payloads = encoded(plain, {"ms": 2**62, "day": 2**31 - 1}, {"ms": -(2**63), "day": 0}, far)
    values, raw = of(avro(record(*members)), *payloads)
    day = date(1970, 1, 1)
    assert values == [
        {"ms": None, "day": None},
        {"ms": None, "day": day},
        {"ms": None, "day": None},
    ]
    assert raw == payloads
    listed = ("l", {"type": "array", "items": "int"})
    plain["fields"].append({"name": "l", "type": listed[1]})
    payloads = encoded(plain, {**far, "l": [1]})
    values, raw = of(avro(record(*members, listed)), *payloads)
    assert (values, raw) == ([{"ms": None, "day": None, "l": [1]}], payloads)


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (SchemaType.STRING, "é".encode(), "é"),
        (SchemaType.BOOLEAN, b"\1", True),
        (SchemaType.INT8, b"\xff", -1),
        (SchemaType.INT16, b"\x01\x00", 256),
        (SchemaType.INT32, b"\xff\xff\xff\xfe", -2),
        (SchemaType.INT64, b"\0\0\0\0\0\0\1\0", 256),
        (SchemaType.FLOAT, b"\x3f\x00\x00\x00", 0.5),
        (SchemaType.DOUBLE, b"\x3f\xe0\0\0\0\0\0\0", 0.5),
        (SchemaType.TIMESTAMP, (1000).to_bytes(8, "big"), datetime(1970, 1, 1, 0, 0, 1, 0, UTC)),
        (SchemaType.DATE, (1000).to_bytes(8, "big"), datetime(1970, 1, 1, 0, 0, 1, 0, UTC)),
        (SchemaType.TIME, (1000).to_bytes(8, "big"), 1000),
        (
            SchemaType.INSTANT,
            (1).to_bytes(8, "big") + (5000).to_bytes(4, "big"),
            datetime(1970, 1, 1, 0, 0, 1, 5, UTC),
        ),
        (SchemaType.LOCAL_DATE, (366).to_bytes(8, "big"), date(1971, 1, 2)),
        (SchemaType.LOCAL_TIME, (5).to_bytes(8, "big"), 5),
        (
            SchemaType.LOCAL_DATE_TIME,
            (1).to_bytes(8, "big") + (5000).to_bytes(8, "big"),
            datetime(1970, 1, 2, 0, 0, 0, 5, UTC),
        ),
    ],
)
def test_primitives_are_themselves(kind: SchemaType, payload: bytes, value: Any) -> None:
    wrong = b"\xff" if kind is SchemaType.STRING else payload + b"!"
    values, raw = of(schema(kind), payload, wrong, None, payload)
    assert values == [value, None, None, value]
    assert raw == [None, wrong, None, None]


def test_a_part_of_a_microsecond_is_kept() -> None:
    payload = (1).to_bytes(8, "big") + (5001).to_bytes(4, "big")
    values, raw = of(schema(SchemaType.INSTANT), payload)
    assert values == [datetime(1970, 1, 1, 0, 0, 1, 5, UTC)]
    assert raw == [payload]


def test_pairs_in_one_payload_and_apart() -> None:
    inner = record(("a", "int"))
    data = from_text(json.dumps({"key": "", "value": inner}))
    types = {"key.schema.type": "STRING", "value.schema.type": "JSON"}
    inline = SchemaData(SchemaType.KEY_VALUE, data, {**types, "kv.encoding.type": "INLINE"})
    value = b'{"a":5}'
    pair = b"\0\0\0\1k" + len(value).to_bytes(4, "big") + value
    no_key = b"\xff\xff\xff\xff" + len(value).to_bytes(4, "big") + value
    values, raw = of(inline, pair, no_key, b"\0\0\0\x09k", b"", pair + b"!")
    assert values == [
        {"key": "k", "value": {"a": 5}},
        {"key": None, "value": {"a": 5}},
        *[None] * 3,
    ]
    assert raw == [None, None, b"\0\0\0\x09k", b"", pair + b"!"]
    apart = SchemaData(SchemaType.KEY_VALUE, data, {**types, "kv.encoding.type": "SEPARATED"})
    assert all_typed(apart, value) == [{"a": 5}]


def test_what_no_column_can_show_is_left_out_and_the_message_kept() -> None:
    definition = record(("a", "int"), ("b", record(name="Empty")), ("A", "int"))
    assert arrow_type_of(avro(definition)) == pa.struct([("a", pa.int32())])
    payloads = encoded(definition, {"a": 1, "b": {}, "A": 2}, {"a": 3, "b": {}, "A": 2})
    values, raw = of(avro(definition), *payloads)
    assert (values, raw) == ([{"a": 1}, {"a": 3}], payloads)
    payloads = texts({"a": 1, "b": {}, "A": 2})
    assert of(as_json(definition), *payloads) == ([{"a": 1}], payloads)


def test_a_record_in_itself_ends_at_its_first_level() -> None:
    definition = record(("n", "int"), ("next", ["null", "R"]))
    value = {"n": 1, "next": {"n": 2, "next": None}}
    last = {"n": 3, "next": None}
    assert of(avro(definition), *encoded(definition, value))[0] == [{"n": 1}]
    values, raw = of(as_json(definition), *texts(value, last))
    assert values == [{"n": 1}, {"n": 3}]
    assert raw == texts(value, last)


def decimal(precision: int, scale: int) -> Any:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.usefixtures("few")
def test_decimals_are_numbers() -> None:
    definition = record(
        ("price", decimal(20, 3)),
        ("rate", ["null", decimal(38, 38)]),
        ("list", {"type": "array", "items": decimal(4, 0)}),
        ("map", {"type": "map", "values": ["null", decimal(4, 2)]}),
    )
    numbers = [0, 1, -1, 127, 128, -127, -129, 32767, 32768, 10**20 - 1, 1 - 10**20]
    values = [
        {
            "price": Decimal(number).scaleb(-3),
            "rate": Decimal((number < 0, (9,) * 38, -38)) if number % 2 else None,
            "list": [Decimal(number % 10_000), Decimal(-1)],
            "map": {"a": None, "b": Decimal("-0.01")},
        }
        for number in numbers
    ]
    assert arrow_type_of(avro(definition)).field("price").type == pa.decimal128(20, 3)
    shown = all_typed(avro(definition), *encoded(definition, *values))
    assert [{**row, "map": dict(row["map"])} for row in shown] == values


def test_decimals_in_a_record_in_itself() -> None:
    definition = record(("net", decimal(9, 2)), ("next", ["null", "R"]))
    value = {"net": Decimal("-12.50"), "next": None}
    assert of(avro(definition), *encoded(definition, value))[0] == [{"net": Decimal("-12.50")}]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "written",
    [b"", b"\x03\xe8", b"\xfc\x18", b"\x00\x01", b"\xff\xff", bytes(16) + b"\x01", b"\x7f" * 16],
    ids=["nothing", "1000", "-1000", "01", "-01", "17 bytes", "16 bytes"],
)
@pytest.mark.parametrize("more", [False, True])
def test_a_decimal_that_cannot_be_shown_or_is_written_too_long_is_kept(
    written: bytes, more: bool
) -> None:
    members = [("l", {"type": "array", "items": "string"})] if more else []
    plain = record(("net", "bytes"), *members)
    payloads = encoded(plain, {"net": written, "l": ["x"]}, {"net": b"\x03\xe7", "l": []})
    values, raw = of(avro(record(("net", decimal(3, 1)), *members)), *payloads)
    shown = Decimal(int.from_bytes(written, "big", signed=True)).scaleb(-1)
    few_digits = written and abs(shown) < 100
    assert [value["net"] for value in values] == [shown if few_digits else None, Decimal("99.9")]
    assert raw == [payloads[0], None]


@pytest.mark.parametrize(
    "kind",
    [
        decimal(39, 2),
        decimal(2, 3),
        decimal(0, 0),
        decimal(3, -1),
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5},
    ],
)
def test_decimals_that_no_column_holds_are_bytes(kind: Any) -> None:
    plain = {"type": "fixed", "name": "F", "size": 2} if kind["type"] == "fixed" else "bytes"
    payloads = encoded(record(("a", plain)), {"a": b"\x00\x07"})
    assert all_typed(avro(record(("a", kind))), *payloads) == [{"a": b"\x00\x07"}]


def test_bytes_that_became_decimals_stay_bytes_and_decimals_grow() -> None:
    old = record(("id", "int"), ("net", "bytes"), ("tax", decimal(3, 1)), ("fee", decimal(3, 1)))
    new = record(
        ("id", "int"),
        ("net", ["null", decimal(9, 2)]),
        ("tax", decimal(9, 1)),
        ("fee", decimal(9, 2)),
    )
    column = column_of(type_of_versions([avro(old), avro(new)]), avro(old), avro(new))
    assert column.type.field("tax").type == pa.decimal128(9, 1)
    tax, fee = Decimal("9.9"), Decimal("0.5")
    before = encoded(old, {"id": 1, "net": b"\0\x01", "tax": tax, "fee": fee})
    value = {"id": 2, "net": Decimal("1.27"), "tax": tax, "fee": fee}
    after = encoded(new, value, {**value, "tax": Decimal("100.1")})
    values, raw = through(column, [*before, *after], [V0, V1, V1])
    assert values == [
        {"id": 1, "net": b"\0\x01", "tax": tax, "fee": fee},
        {"id": 2, "net": b"\x7f", "tax": tax, "fee": fee},
        {"id": 2, "net": b"\x7f", "tax": Decimal("100.1"), "fee": fee},
    ]
    assert raw == [None] * 3


def test_columns_that_hold_bytes_of_decimals_give_them_back_as_they_were() -> None:
    """A table that was begun before its decimals had columns."""
    inner = record(("net", decimal(9, 2)), name="Inner")
    definition = record(
        ("one", inner),
        ("list", {"type": "array", "items": "Inner"}),
        ("map", {"type": "map", "values": decimal(9, 2)}),
    )
    plain = json.loads(json.dumps(definition).replace('"logicalType"', '"other"'))
    net = {"net": b"\0\0\x01"}
    payloads = encoded(plain, {"one": net, "list": [net], "map": {"a": b""}})
    column = column_of(value_type(avro(plain)), avro(definition))
    assert through(column, payloads, [V0])[1] == [None]
    both = b"\0\0\0\1k" + len(payloads[0] or b"").to_bytes(4, "big") + (payloads[0] or b"")
    inside = column_of(value_type(pair_with(plain)), pair_with(definition))
    assert through(inside, [both], [V0])[1] == [None]


def pair_with(value: Any) -> SchemaData:
    types = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "INLINE"}
    data = from_text(json.dumps({"key": "", "value": value}))
    return SchemaData(SchemaType.KEY_VALUE, data, types)


@pytest.mark.parametrize(
    "given",
    [
        schema(SchemaType.BYTES),
        schema(SchemaType.NONE),
        SchemaData(SchemaType.PROTOBUF_NATIVE, b"{}"),
        SchemaData(SchemaType.JSON, b'{"type": "object"}'),
        SchemaData(SchemaType.AVRO, b"nonsense"),
        avro(record()),
        avro(record(*((f"a_long_name_of_a_field_{i}", "int") for i in range(2000)))),
    ],
)
def test_other_values_are_bytes(given: SchemaData) -> None:
    assert value_type(given) == "binary"
    assert arrow_type_of(given) == pa.binary()
    assert decode_values(given, pa.array([b"x"], pa.binary())).to_pylist() == [b"x"]


def test_fields_of_later_versions_are_added_and_numbers_widen() -> None:
    old = avro(record(("a", "int"), ("b", record(("x", "int"), name="B"))))
    new_definition = record(
        ("c", ["null", "string"]),
        ("b", record(("x", "string"), ("y", "int"), name="B")),
        ("a", "long"),
        ("B", "int"),
    )
    new = avro(new_definition)
    kind = type_of_versions([old, new])
    assert merged(kind, value_type(old)) == kind
    column = column_of(kind, old, new)
    assert [field.name for field in column.type] == ["a", "b", "c"]
    payloads = [
        *encoded(json.loads(old.data), {"a": 1, "b": {"x": 2}}),
        *encoded(
            new_definition,
            {"a": 3, "b": {"x": "s", "y": 4}, "c": "t", "B": 5},
            {"a": 2**40, "b": {"x": "s", "y": 4}, "c": None, "B": 5},
        ),
        b"no version",
        b"unknown version",
    ]
    values, raw = through(column, payloads, [V0, V1, V1, None, b"?"])
    assert values == [
        {"a": 1, "b": {"x": 2, "y": None}, "c": None},
        {"a": 3, "b": {"x": None, "y": 4}, "c": "t"},
        {"a": 2**40, "b": {"x": None, "y": 4}, "c": None},
        None,
        None,
    ]
    assert raw == [None, *payloads[1:]]


def test_the_type_of_a_table_is_that_of_its_first_typed_version() -> None:
    text, number = schema(SchemaType.STRING), schema(SchemaType.INT32)
    assert type_of_versions([]) == type_of_versions([schema(SchemaType.BYTES)]) == "binary"
    assert type_of_versions([schema(SchemaType.BYTES), text, number]) == "string"
    column = column_of("string", text, number)
    assert through(column, [b"a", b"\0\0\0\1"], [V0, V1]) == (["a", None], [None, b"\0\0\0\1"])


# -- whatever comes ----------------------------------------------------------------------------

scalars = st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string"])
names = st.sampled_from(["a", "b", "c", "dd", "é"])


@st.composite
def types(draw: Any, depth: int = 2) -> Any:
    kinds = ["scalar", "scalar", "null or", "enum", "fixed", "time", "decimal", "union"]
    kind = draw(st.sampled_from([*kinds, "record", "array", "map"] if depth else kinds))
    match kind:
        case "null or":
            inner = draw(types(depth - 1) if depth else scalars)
            if isinstance(inner, list):
                return inner
            return draw(st.sampled_from([["null", inner], [inner, "null"]]))
        case "enum":
            return {"type": "enum", "name": _name(), "symbols": ["X", "Y"]}
        case "fixed":
            return {"type": "fixed", "name": _name(), "size": 3}
        case "time":
            return {"type": "long", "logicalType": "timestamp-millis"}
        case "decimal":
            return decimal(draw(st.integers(1, 38)), 1)
        case "union":
            return ["int", "string"]
        case "record":
            members = draw(st.lists(names, unique=True, max_size=4))
            return record(*((n, draw(types(depth - 1))) for n in members), name=_name())
        case "array":
            return {"type": "array", "items": draw(types(depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types(depth - 1))}
    return draw(scalars)


_numbers = itertools.count()


def _name() -> str:
    return f"T{next(_numbers)}"


def values_of(kind: Any, as_text: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.one_of(*(values_of(each, as_text) for each in kind))
    name = kind if isinstance(kind, str) else kind["type"]
    match name:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int":
            return st.integers(-(2**31), 2**31 - 1)
        case "long":
            return st.integers(-(2**63), 2**63 - 1)
        case "float":
            return st.floats(width=32, allow_nan=False)
        case "double":
            return st.floats(allow_nan=False)
        case "string":
            return st.text(max_size=5)
        case "bytes":
            longest = 18 if "precision" in kind else 5
            return st.text(max_size=5) if as_text else st.binary(max_size=longest)
        case "enum":
            return st.sampled_from(kind["symbols"])
        case "fixed":
            return st.just("abc") if as_text else st.binary(min_size=3, max_size=3)
        case "array":
            return st.lists(values_of(kind["items"], as_text), max_size=3)
        case "map":
            inner = values_of(kind["values"], as_text)
            return st.dictionaries(st.text(max_size=3), inner, max_size=3)
    return st.fixed_dictionaries(
        {field["name"]: values_of(field["type"], as_text) for field in kind["fields"]}
    )


definitions = st.builds(
    lambda members: record(*members.items()), st.dictionaries(names, types(), max_size=5)
)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), definition=definitions)
def test_any_avro_comes_back(data: Any, definition: Any) -> None:
    plain = json.loads(json.dumps(definition).replace('"logicalType"', '"other"'))
    values = data.draw(st.lists(values_of(definition, False), min_size=1, max_size=5))
    payloads = encoded(plain, *values) + data.draw(st.lists(st.binary(max_size=9), max_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_reader, "FEW", data.draw(st.sampled_from([1, 16])))
        shown, _ = of(avro(definition), *payloads)
    if value_type(avro(definition)) != "binary":
        for value, found in zip(values, shown, strict=False):
            check_shown(value, found)


forms = st.sampled_from([{}, {"indent": True}, {"separators": (",", ":"), "ensure_ascii": False}])


@settings(max_examples=80, deadline=None)
@given(data=st.data(), definition=definitions, form=forms)
def test_any_json_comes_back(data: Any, definition: Any, form: Any) -> None:
    values = data.draw(st.lists(values_of(definition, True), min_size=1, max_size=5))
    payloads = texts(*values, **form) + data.draw(st.lists(st.binary(max_size=9), max_size=2))
    shown, _ = of(as_json(definition), *payloads)
    if value_type(as_json(definition)) != "binary":
        for value, found in zip(values, shown, strict=False):
            check_shown(value, found)


def check_shown(sent: Any, found: Any) -> None:
    """What is shown of a value says what was sent, as far as it can be shown."""
    if isinstance(found, dict) and any(name.startswith("member") for name in found):
        (member,) = (each for each in found.values() if each is not None)
        check_shown(sent, member)
    elif isinstance(sent, dict) and isinstance(found, dict):
        for name, inner in found.items():
            check_shown(sent[name], inner)
    elif isinstance(sent, dict) and isinstance(found, list):
        for name, inner in found:
            check_shown(sent[name], inner)
    elif isinstance(sent, list):
        assert found is not None
        for each, inner in zip(sent, found, strict=True):
            check_shown(each, inner)
    elif isinstance(found, datetime):
        assert isinstance(sent, int)
        assert math.floor(found.timestamp() * 1000 + 0.5) == sent
    elif isinstance(found, Decimal):
        assert found == Decimal(int.from_bytes(sent, "big", signed=True)).scaleb(
            -1, Context(prec=50)
        )
    elif found is not None:
        assert found == sent
