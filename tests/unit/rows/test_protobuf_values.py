"""Protobuf messages as typed values: what columns show of them, and that no byte is ever lost."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.internal import encoder
from google.protobuf.internal.decoder import _DecodeVarint
from google.protobuf.message import DecodeError
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pulsark.limits import VALUE_FIELDS_MAX
from pulsark.rows.arrow import fields as fields_module
from pulsark.rows.values import ValueColumn, arrow_type_of, decode_values
from pulsark.schemas.column_types import merged
from pulsark.schemas.columns import is_column_type, type_of_versions, value_type
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.protobuf import PARSING_INFO
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from tests.support.protobuf_messages import (
    ENUM,
    INT32,
    MESSAGE,
    STRING,
    F,
    class_of,
    entry,
    enumeration,
    file,
    many,
    message,
    native,
    one,
)
from tests.support.typed_values import V0, V1, through


def of(schema: SchemaData, *payloads: bytes | None) -> tuple[list[Any], list[bytes | None]]:
    column = ValueColumn(ValueSchemas.next(None, [(V0, schema)]))
    return through(column, payloads, [V0] * len(payloads))


def all_typed(schema: SchemaData, *payloads: bytes | None) -> list[Any]:
    values, raw = of(schema, *payloads)
    assert raw == [None] * len(payloads)
    return values


FLIGHT = file(
    message(
        "R",
        one("number", 3),
        one("carrier", 1, STRING),
        one("delay", 2, F.TYPE_DOUBLE, proto3_optional=True, oneof_index=1),
        one("status", 4, "E"),
        one("from", 5, "Place"),
        many("tags", 6, STRING),
        many("hops", 7, F.TYPE_SINT64),
        many("places", 8, "Place"),
        many("seats", 9, "R.SeatsEntry"),
        one("gate", 10, STRING, oneof_index=0),
        one("stand", 2000, F.TYPE_UINT32, oneof_index=0),
        one("photo", 300_000, F.TYPE_BYTES),
        nested=[entry("SeatsEntry", STRING, INT32)],
        oneof_decl=[
            descriptor_pb2.OneofDescriptorProto(name="where"),
            descriptor_pb2.OneofDescriptorProto(name="_delay"),
        ],
    ),
    message("Place", one("lat", 1, F.TYPE_FLOAT), one("name", 2, STRING)),
    enums=[enumeration("E", ON_TIME=0, LATE=5)],
)
NOTHING = {
    "number": 0, "carrier": "", "delay": None, "status": "ON_TIME", "from": None, "tags": [],
    "hops": [], "places": [], "seats": [], "gate": None, "stand": None, "photo": b"",
}  # fmt: skip
FLIGHTS: list[dict[str, Any]] = [
    {},
    {"number": -1, "carrier": "é" * 70, "delay": 0.0, "status": 5, "tags": ["a", "", "b"]},
    {"from": {}, "hops": [0, -1, 2**63 - 1], "places": [{"lat": 0.5}, {"name": "x"}, {}]},
    {"from": {"lat": -0.0, "name": "y"}, "seats": {"1A": 1, "": 0}, "gate": "", "photo": b"\xff"},
    {"stand": 2**32 - 1, "hops": [300] * 200, "tags": ["t"] * 100},
]


def flight(**fields: Any) -> bytes:
    build = class_of(FLIGHT)
    place = (
        {"from": build().places.add().__class__(**fields.pop("from"))} if "from" in fields else {}
    )
    places = [build().places.add().__class__(**each) for each in fields.pop("places", [])]
    return bytes(build(**fields, **place, places=places).SerializeToString())


def shown(fields: dict[str, Any]) -> dict[str, Any]:
    place = {"lat": 0.0, "name": ""}
    found = NOTHING | fields
    found["places"] = [place | each for each in found["places"]]
    found["from"] = found["from"] if found["from"] is None else place | found["from"]
    found["seats"] = list(fields.get("seats", {}).items())
    if found["status"] == 5:
        found["status"] = "LATE"
    return found


def test_a_message_is_a_struct() -> None:
    payloads = [flight(**each) for each in FLIGHTS]
    values = all_typed(native(FLIGHT), *payloads, None)
    assert values[-1] is None
    for value, sent in zip(values, FLIGHTS, strict=False):
        assert {**value, "seats": sorted(value["seats"])} == {
            **shown(sent), "seats": sorted(shown(sent)["seats"]),
        }  # fmt: skip
    assert arrow_type_of(native(FLIGHT)).names == list(NOTHING)


def test_what_was_written_in_another_way_is_shown_and_kept() -> None:
    schema = native(FLIGHT)
    usual = flight(carrier="UA", number=7, hops=[1, 2], tags=["a", "b"])
    odd = [
        b"\x18\x07\x0a\x02UA",  # another order
        b"\x0a\x02UA\x18\x05\x18\x07",  # twice
        b"\x0a\x02UA\x18\x87\x00",  # a number in more bytes than it needs
        b"\x0a\x02UA\x18\x07\x20\x00",  # a default
        b"\x0a\x02UA\x18\x07\x32\x01a\x38\x02\x38\x04\x32\x01b",  # apart, not together
        b"\x0a\x02UA\x18\x07\xa2\x06\x01x",  # an unknown field
        b"\x0a\x02UA\x18\x07\x20\x09",  # an unknown symbol
        b"\x0a\x02UA\x18\x07\x52\x01g\x80\x7d\x01",  # two of which there can be one
        b"\x0a\x02UA\x18\x07\x4a\x04\x0a\x02aa\x4a\x06\x0a\x02aa\x10\x05",  # a key twice
    ]
    values, raw = of(schema, usual, *odd, usual)
    plain = shown({"carrier": "UA", "number": 7})
    full = plain | {"hops": [1, 2], "tags": ["a", "b"]}
    assert values == [
        full, plain, plain, plain, plain, full, plain, plain | {"status": None},
        plain | {"stand": 1}, plain | {"seats": [("aa", 5)]}, full,
    ]  # fmt: skip
    assert raw == [None, *odd, None]


def test_what_is_no_message_is_kept() -> None:
    odd = [
        b"\x0a\x05UA", b"\x0a\x02\xff\xfe", b"\x18", b"\x18" + b"\x80" * 11 + b"\x01", b"\xff" * 9,
        b"\x2a\x03\x12\x05x", b"\x3a\x02\x80\x80", b"\x4a\x04\x0a\x02\xff\xff", b"\x0b\x0c",
        b"\x32" + b"\xff" * 9 + b"\x7f", b"\x11\x00",
    ]  # fmt: skip
    values, raw = of(native(FLIGHT), flight(number=1), *odd)
    # A text that is not UTF-8 is null; the other fields stay.
    assert values[2] == {**NOTHING, "carrier": None}
    assert [values[1], *values[3:8]] == [None] * 6
    assert values[8]["places"] == [(None, None)] if False else values[8] is None
    assert values[10:] == [None] * 2
    assert values[9] == NOTHING
    assert raw == [None, *odd]


def test_long_lists_are_read_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields_module, "ROUNDS_MAX", 2)
    definition = file(
        message(
            "R", many("s", 1, STRING), many("n", 2, packed=False),
            many("d", 3, F.TYPE_DOUBLE, packed=False), many("p", 4, "P"),
        ),
        message("P", one("x", 1)),
    )  # fmt: skip
    build = class_of(definition)
    sent = [
        {"s": ["a" * n for n in range(count)], "n": [-1, 300, 0, 1][:count], "d": [0.5] * count}
        for count in range(5)
    ]
    payloads = []
    for each in sent:
        value = build(**each)
        for n in range(len(each["s"])):
            value.p.add(x=n)
        payloads.append(value.SerializeToString())
    values = all_typed(native(definition), *payloads)
    expected = [each | {"p": [{"x": n} for n in range(len(each["s"]))]} for each in sent]
    assert values == expected
    values, raw = of(native(definition), *(payload[:-1] for payload in payloads[1:]))
    assert values == [None] * 4
    assert raw == [payload[:-1] for payload in payloads[1:]]


def test_presence_of_proto2() -> None:
    definition = file(
        message(
            "R", one("a", 1), one("b", 2, STRING, label=F.LABEL_REQUIRED), one("e", 3, "E"),
            one("d", 4, default_value="5"), many("n", 5), many("m", 6, packed=True),
        ),
        syntax="proto2",
        enums=[enumeration("E", A=1)],
    )  # fmt: skip
    build = class_of(definition)
    sent = [
        {"a": 0, "b": "", "e": 1, "d": 0, "n": [1, 2], "m": [1, 2]},
        {"b": "x"},
    ]
    payloads = [build(**each).SerializeToString() for each in sent]
    assert payloads[0].endswith(b"\x28\x01\x28\x02\x32\x02\x01\x02")
    none = {"a": None, "e": None, "d": None, "n": [], "m": []}
    assert all_typed(native(definition), *payloads) == [sent[0] | {"e": "A"}, none | sent[1]]


def test_editions_say_it_by_features() -> None:
    definition = file(
        message("R", one("a", 1), one("b", 2), many("n", 3), many("m", 4), one("d", 5, "P")),
        message("P", one("x", 1)),
        syntax="editions",
        edition=descriptor_pb2.EDITION_2023,
    )
    fields = definition.message_type[0].field
    features = descriptor_pb2.FeatureSet
    fields[1].options.features.field_presence = features.IMPLICIT
    fields[3].options.features.repeated_field_encoding = features.EXPANDED
    fields[4].options.features.message_encoding = features.DELIMITED
    schema = native(definition)
    assert arrow_type_of(schema).names == ["a", "b", "n", "m"]
    payload = b"\x08\x00\x10\x01\x1a\x02\x01\x02\x20\x01\x20\x02"
    assert all_typed(schema, payload, b"") == [
        {"a": 0, "b": 1, "n": [1, 2], "m": [1, 2]},
        {"a": None, "b": 0, "n": [], "m": []},
    ]
    values, raw = of(schema, payload + b"\x2b\x08\x01\x2c")
    assert (values[0]["a"], raw) == (0, [payload + b"\x2b\x08\x01\x2c"])


def test_what_no_column_can_show_is_left_out() -> None:
    definition = file(
        message(
            "R",
            one("a", 1),
            one("self", 2, "R"),
            one("A", 3),
            one("none", 4, "Nothing"),
            many("g", 5, F.TYPE_GROUP, type_name=".t.R.G"),
            many("selves", 6, "R.SelvesEntry"),
            nested=[message("G", one("x", 1)), entry("SelvesEntry", INT32, "R")],
            extension_range=[descriptor_pb2.DescriptorProto.ExtensionRange(start=100, end=200)],
        ),
        message("Nothing"),
        syntax="proto2",
        extension=[one("more", 100, extendee=".t.R")],
    )
    schema = native(definition)
    assert arrow_type_of(schema) == pa.struct([("a", pa.int32())])
    plain = b"\x08\x01"
    kept = [plain + more for more in (b"\x12\x00", b"\x18\x01", b"\x22\x00", b"\xa0\x06\x01")]
    values, raw = of(schema, plain, *kept, plain + b"\x2b\x08\x01\x2c")
    assert values == [{"a": 1}] * 6
    assert raw == [None, *kept, plain + b"\x2b\x08\x01\x2c"]


def test_large_numbers_without_a_sign_are_null() -> None:
    definition = file(message("R", one("a", 1, F.TYPE_UINT64), one("b", 2, F.TYPE_FIXED64)))
    build = class_of(definition)
    sent = [{"a": 2**63 - 1, "b": 2**63 - 1}, {"a": 2**63, "b": 2**64 - 1}]
    payloads = [build(**each).SerializeToString() for each in sent]
    values, raw = of(native(definition), *payloads)
    assert (values, raw) == ([sent[0], {"a": None, "b": None}], [None, payloads[1]])


@pytest.mark.parametrize("count", [1, 12])
def test_files_may_stand_in_any_order_and_be_nested(count: int) -> None:
    inner = file(message("I", one("x", 1)), name="inner.proto")
    outer = file(message("O", nested=[message("R", one("i", 1, "I"))]), dependency=["inner.proto"])
    schema = native(outer, inner, root="t.O.R")
    data = json.loads(schema.data) | {"rootFileDescriptorName": "t.proto"}
    schema = SchemaData(schema.type, json.dumps(data).encode())
    assert all_typed(schema, *[b"\x0a\x02\x08\x05"] * count) == [{"i": {"x": 5}}] * count


def ever_wider(depth: int) -> SchemaData:
    """Messages that would have 2**depth fields."""
    messages = [
        message(f"M{n}", *(one(f"f{k}", k, f"M{n + 1}") for k in (1, 2))) for n in range(depth)
    ]
    return native(file(*messages, message(f"M{depth}", one("x", 1))), root="t.M0")


@pytest.mark.parametrize(
    "schema",
    [
        native(file(message("R"))),
        native(file(message("R", one("a", 1, "Missing")))),
        native(file(message("R", one("a", 1)), dependency=["missing.proto"])),
        native(file(message("R", one("a", 1)), dependency=["t.proto"])),
        native(file(message("R", one("a", 1))), root="t.Other"),
        native(file(message("R", *(one(f"f{n}", n) for n in range(1, VALUE_FIELDS_MAX + 2))))),
        ever_wider(40),
        SchemaData(SchemaType.PROTOBUF_NATIVE, b"[]"),
        SchemaData(SchemaType.PROTOBUF, b"{}"),
        SchemaData(SchemaType.PROTOBUF, b"{}", {PARSING_INFO: "nonsense"}),
        SchemaData(SchemaType.PROTOBUF, b"{}", {PARSING_INFO: '{"number": 1}'}),
        SchemaData(SchemaType.PROTOBUF, b"{}", {PARSING_INFO: "[5]"}),
        SchemaData(SchemaType.PROTOBUF, b"{}", {PARSING_INFO: '[{"number": 1}]'}),
    ],
)
def test_other_definitions_show_bytes(schema: SchemaData) -> None:
    assert value_type(schema) == "binary"
    assert decode_values(schema, pa.array([b"x"], pa.binary())).to_pylist() == [b"x"]


def parsing_info(*fields: tuple[str, int, str, str]) -> SchemaData:
    """As Java's client registers a message."""
    info = [
        {
            "number": number,
            "name": name,
            "type": kind,
            "label": f"LABEL_{label}",
            "definition": None,
        }
        for name, number, kind, label in fields
    ]
    avro = b'{"type":"record","name":"R","fields":[]}'
    return SchemaData(SchemaType.PROTOBUF, avro, {PARSING_INFO: json.dumps(info)})


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_fields_that_javas_client_lists(syntax: str) -> None:
    schema = parsing_info(
        ("name", 2, "STRING", "OPTIONAL"), ("count", 1, "SINT32", "OPTIONAL"),
        ("status", 3, "ENUM", "OPTIONAL"), ("place", 4, "MESSAGE", "OPTIONAL"),
        ("numbers", 5, "INT64", "REPEATED"), ("places", 6, "MESSAGE", "REPEATED"),
        ("group", 7, "GROUP", "OPTIONAL"), ("reals", 8, "DOUBLE", "REPEATED"),
    )  # fmt: skip
    assert arrow_type_of(schema) == pa.struct(
        [
            ("name", pa.string()), ("count", pa.int32()), ("status", pa.int32()),
            ("place", pa.binary()), ("numbers", pa.list_(pa.field("element", pa.int64()))),
            ("places", pa.list_(pa.field("element", pa.binary()))),
            ("reals", pa.list_(pa.field("element", pa.float64()))),
        ]
    )  # fmt: skip
    definition = file(
        message(
            "R", one("name", 2, STRING), one("count", 1, F.TYPE_SINT32), one("status", 3, "E"),
            one("place", 4, "P"), many("numbers", 5, F.TYPE_INT64), many("places", 6, "P"),
            many("reals", 8, F.TYPE_DOUBLE),
        ),
        message("P", one("x", 1)),
        syntax=syntax,
        enums=[enumeration("E", A=0, B=7)],
    )  # fmt: skip
    build = class_of(definition)
    value = build(name="n", count=-3, status=7, numbers=[1, -1], reals=[0.5, 1.5])
    value.place.x = 5
    value.places.add(x=6)
    found = all_typed(schema, value.SerializeToString(), build().SerializeToString())
    assert found == [
        {
            "name": "n", "count": -3, "status": 7, "place": b"\x08\x05", "numbers": [1, -1],
            "places": [b"\x08\x06"], "reals": [0.5, 1.5],
        },
        {
            "name": None, "count": None, "status": None, "place": None, "numbers": [],
            "places": [], "reals": [],
        },
    ]  # fmt: skip


def test_fields_of_later_versions_are_added() -> None:
    old = file(
        message("R", one("a", 1), many("m", 2, "R.MEntry"), nested=[entry("MEntry", INT32, "P")]),
        message("P", one("x", 1)),
    )
    new = file(
        message(
            "R", one("c", 4, STRING), one("a", 1, F.TYPE_INT64), many("m", 2, "R.MEntry"),
            nested=[entry("MEntry", INT32, "P")],
        ),
        message("P", one("y", 2), one("x", 1)),
    )  # fmt: skip
    kind = type_of_versions([native(old), native(new)])
    assert is_column_type(kind)
    assert merged(kind, value_type(native(old))) == kind
    schemas = ValueSchemas(kind, (ValueSchema(V0, native(old)), ValueSchema(V1, native(new))))
    before, after = class_of(old)(a=1), class_of(new)(a=2, c="t")
    before.m[7].x, after.m[8].x, after.m[8].y = 5, 6, 7
    far = class_of(new)(a=2**40)
    payloads = [each.SerializeToString() for each in (before, after, far)]
    values, raw = through(ValueColumn(schemas), payloads, [V0, V1, V1])
    assert values == [
        {"a": 1, "m": [(7, {"x": 5, "y": None})], "c": None},
        {"a": 2, "m": [(8, {"x": 6, "y": 7})], "c": "t"},
        {"a": 2**40, "m": [], "c": ""},
    ]
    assert raw == [None, None, None]


def test_a_map_with_another_key_keeps_its_type() -> None:
    def definition(key: Any) -> SchemaData:
        maps = many("m", 1, "R.MEntry")
        return native(file(message("R", maps, nested=[entry("MEntry", key, INT32)])))

    old, new = definition(STRING), definition(F.TYPE_BOOL)
    kind = type_of_versions([old, new])
    assert kind == value_type(old)
    column = ValueColumn(ValueSchemas(kind, (ValueSchema(V0, old), ValueSchema(V1, new))))
    payloads = [b"\x0a\x05\x0a\x01a\x10\x01", b"\x0a\x04\x08\x01\x10\x01"]
    values, raw = through(column, payloads, [V0, V1])
    assert (values, raw) == ([{"m": [("a", 1)]}, {"m": None}], [None, payloads[1]])


def pair(key: SchemaData, value: SchemaData, encoding: str) -> SchemaData:
    data = b"".join(len(part.data).to_bytes(4, "big") + part.data for part in (key, value))
    properties = {"kv.encoding.type": encoding}
    for name, part in (("key", key), ("value", value)):
        properties[f"{name}.schema.type"] = part.type.name
        properties[f"{name}.schema.properties"] = json.dumps(dict(part.properties))
    return SchemaData(SchemaType.KEY_VALUE, data, properties)


def test_pairs_of_protobuf_and_avro() -> None:
    definition = file(message("R", one("a", 1), many("t", 2, STRING)))
    record = b"""{"type":"record","name":"K","fields":[
        {"name":"l","type":{"type":"array","items":"int"}}]}"""
    listed = parsing_info(("n", 1, "INT32", "REPEATED"))
    avro = SchemaData(SchemaType.AVRO, record)
    sent = class_of(definition)(a=5, t=["x"]).SerializeToString()
    parts = {
        "avro": (avro, b"\x04\x02\x04\x00", {"l": [1, 2]}),
        "native": (native(definition), sent, {"a": 5, "t": ["x"]}),
        "listed": (listed, b"\x08\x01\x08\x02", {"n": [1, 2]}),
    }
    for (key, key_payload, key_value), (value, payload, shown) in itertools.product(
        parts.values(), repeat=2
    ):
        inline = pair(key, value, "INLINE")
        both = [
            b"".join(len(part).to_bytes(4, "big") + part for part in (key_payload, payload)),
            b"\xff" * 4 + len(payload).to_bytes(4, "big") + payload,
            len(key_payload).to_bytes(4, "big") + key_payload + b"\xff" * 4,
        ]
        assert all_typed(inline, *both * 10)[:3] == [
            {"key": key_value, "value": shown},
            {"key": None, "value": shown},
            {"key": key_value, "value": None},
        ]
        broken = b"\x00\x00\x00\x01\xff" + both[0][4 + len(key_payload) :]
        values, raw = of(inline, both[0], broken, b"\x00\x00\x00\x05")
        assert values[1] == {"key": None, "value": shown}
        assert (values[2], raw) == (None, [None, broken, b"\x00\x00\x00\x05"])
        assert all_typed(pair(key, value, "SEPARATED"), payload) == [shown]


# -- whatever comes ----------------------------------------------------------------------------

UNSHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]
"""Definitions have many parts; to make a failing one smaller takes minutes."""

SCALARS = [kind for kind in F.Type.values() if kind not in (F.TYPE_GROUP, MESSAGE, ENUM)]
KEYS = [k for k in SCALARS if k not in (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES)]


@st.composite
def definitions(draw: Any) -> Any:
    """A file with two messages in R, each with some fields of any type."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    messages = []
    for name, inner in (("R", ["M1", "M2"]), ("M1", ["M2"]), ("M2", [])):
        nested, fields, oneofs = [], [], []
        numbers = draw(
            st.lists(st.sampled_from([1, 2, 3, 15, 16, 2047, 2048, 2**29 - 1]), unique=True)
        )
        for place, number in enumerate(numbers):
            kind = draw(st.sampled_from([*SCALARS, "E", *inner, "map", *inner]))
            how = draw(st.sampled_from(["one", "many", "oneof", "optional"]))
            field = f"f{place}"
            if kind == "map":
                of_value = draw(st.sampled_from([*SCALARS, "E", *inner]))
                nested.append(entry(f"F{place}Entry", draw(st.sampled_from(KEYS)), of_value))
                fields.append(many(field, number, f"{name}.F{place}Entry"))
            elif how == "many":
                can_be = kind == "E" or kind not in (STRING, F.TYPE_BYTES, *inner)
                packed = draw(st.sampled_from([None, True, False])) if can_be else None
                fields.append(many(field, number, kind, packed=packed))
            elif how == "oneof":
                fields.append(one(field, number, kind, oneof_index=0))
                oneofs = [descriptor_pb2.OneofDescriptorProto(name="choice")]
            else:
                fields.append(one(field, number, kind))
        messages.append(message(name, *fields, nested=nested, oneof_decl=oneofs))
    return file(*messages, syntax=syntax, enums=[enumeration("E", A=0, B=1, C=-3, D=500)])


BOUNDS = {"int32": 2**31, "int64": 2**63, "uint32": 2**32, "uint64": 2**64}
NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in F.Type.items()}
ALIKE = {
    "sint32": "int32", "sfixed32": "int32", "fixed32": "uint32",
    "sint64": "int64", "sfixed64": "int64", "fixed64": "uint64",
}  # fmt: skip


def values_of(field: Any) -> st.SearchStrategy[Any]:
    """Values for a field that is no message."""
    kind = NAMES[field.type]
    kind = ALIKE.get(kind, kind)
    if kind in BOUNDS:
        bound = BOUNDS[kind]
        whole = st.integers(-bound, bound - 1) if kind[0] == "i" else st.integers(0, bound - 1)
        return st.one_of(st.integers(0, 2), whole)
    return {
        "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False),
        "bool": st.booleans(), "string": st.text(max_size=4), "bytes": st.binary(max_size=4),
        "enum": st.sampled_from([0, 1, -3, 500]),
    }[kind]  # fmt: skip


def fill(draw: Any, target: Any, depth: int = 3) -> Any:
    """A message with some of its fields."""
    for field in target.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, value = inner.fields
            for name in draw(st.lists(values_of(key), max_size=3)):
                if value.message_type is not None:
                    fill(draw, getattr(target, field.name)[name], depth - 1)
                else:
                    getattr(target, field.name)[name] = draw(values_of(value))
        elif inner is not None:
            if field.is_repeated:
                for _ in range(draw(st.integers(0, 3))):
                    fill(draw, getattr(target, field.name).add(), depth - 1)
            else:
                getattr(target, field.name).SetInParent()
                fill(draw, getattr(target, field.name), depth - 1)
        elif field.is_repeated:
            getattr(target, field.name).extend(draw(st.lists(values_of(field), max_size=4)))
        else:
            setattr(target, field.name, draw(values_of(field)))
    return target


def as_shown(sent: Any, kind: pa.StructType) -> dict[str, Any]:
    """What columns show of a message."""
    found: dict[str, Any] = {}
    for field in sent.DESCRIPTOR.fields:
        if kind.get_field_index(field.name) < 0:
            continue
        value, of_field = getattr(sent, field.name), kind.field(field.name).type
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            part = inner.fields[1]
            found[field.name] = {
                key: _one_shown(part, item, of_field.item_type) for key, item in value.items()
            }
        elif field.is_repeated:
            found[field.name] = [_one_shown(field, item, of_field.value_type) for item in value]
        elif field.has_presence and not sent.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _one_shown(field, value, of_field)
    return found


def _one_shown(field: Any, value: Any, kind: pa.DataType) -> Any:
    if field.message_type is not None:
        return as_shown(value, kind)
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return None if symbol is None else symbol.name
    return None if isinstance(value, int) and value >= 2**63 else value


def same(value: Any, expected: Any, kind: pa.DataType) -> None:
    """What is shown is what is expected; maps in any order."""
    if expected is None or value is None:
        assert value is expected
    elif pa.types.is_struct(kind):
        for field in kind:
            same(value[field.name], expected[field.name], field.type)
    elif pa.types.is_map(kind):
        assert {key for key, _ in value} == set(expected)
        for key, item in value:
            same(item, expected[key], kind.item_type)
    elif pa.types.is_list(kind):
        for item, wanted in zip(value, expected, strict=True):
            same(item, wanted, kind.value_type)
    else:
        assert value == expected


def has_large_keys(sent: Any) -> bool:
    """Whether a map has a key for which columns have no place."""
    for field, value in sent.ListFields():
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            if any(isinstance(key, int) and key >= 2**63 for key in value):
                return True
            value = value.values() if inner.fields[1].message_type is not None else ()
        elif inner is None:
            continue
        if any(map(has_large_keys, value if field.is_repeated else [value])):
            return True
    return False


@settings(max_examples=100, deadline=None, phases=UNSHRUNK)
@given(data=st.data(), definition=definitions())
def test_any_message_comes_back(data: Any, definition: Any) -> None:
    schema, build = native(definition), class_of(definition)
    if value_type(schema) == "binary":
        return
    kind = arrow_type_of(schema)
    sent = [fill(data.draw, build()) for _ in range(data.draw(st.integers(1, 4)))]
    payloads = [each.SerializeToString(deterministic=True) for each in sent]
    # One behind the other they are one message, too.
    payloads.append(payloads[0] + payloads[-1])
    sent.append(build.FromString(payloads[-1]))
    payloads += data.draw(st.lists(st.binary(max_size=9), max_size=2))
    values, raw = of(schema, *payloads)
    for value, each, payload, kept in zip(values, sent, payloads, raw, strict=False):
        if has_large_keys(each):
            assert (value, kept) == (None, payload)
            continue
        same(value, as_shown(each, kind), kind)


def pieces(payload: bytes) -> list[tuple[int, int, int]]:
    """Where the pieces with a length begin, where their content does, and where they end."""
    found, at = [], 0
    while at < len(payload):
        begin = at
        tag, at = _DecodeVarint(payload, at)
        if tag & 7 == 2:
            size, at = _DecodeVarint(payload, at)
            found.append((begin, at, at + size))
            at += size
        elif tag & 7 == 0:
            _, at = _DecodeVarint(payload, at)
        else:
            at += 8 if tag & 7 == 1 else 4
    return found


def with_other_end(payload: bytes, piece: tuple[int, int, int], less: int) -> bytes:
    """A message of which one piece ends earlier, or goes on, and says so."""
    begin, content, end = piece
    tag, _ = _DecodeVarint(payload, begin)
    size = max(end - content - less, 0)
    whole = payload[content:end] + bytes(8)
    head = encoder._VarintBytes(tag) + encoder._VarintBytes(size)
    return payload[:begin] + head + whole[:size] + payload[end:]


def without_texts(definition: Any) -> Any:
    """The same messages with bytes in the place of texts."""
    twin = type(definition)()
    twin.CopyFrom(definition)
    messages = list(twin.message_type)
    while messages:
        each = messages.pop()
        messages += each.nested_type
        for field in each.field:
            is_key = each.options.map_entry and field.number == 1
            if field.type == STRING and not is_key:
                field.type = F.TYPE_BYTES
    return twin


def shows_all(descriptor: Any, kind: pa.DataType) -> bool:
    """Whether each field of a message, and of those within it, has a column."""
    for field in descriptor.fields:
        if kind.get_field_index(field.name) < 0:
            return False
        inner, of_field = field.message_type, kind.field(field.name).type
        if inner is None:
            continue
        if inner.GetOptions().map_entry:
            inner, of_field = inner.fields[1].message_type, of_field.item_type
        elif field.is_repeated:
            of_field = of_field.value_type
        if inner is not None and not shows_all(inner, of_field):
            return False
    return True


def is_read(build: Any, payload: bytes) -> bool:
    try:
        build.FromString(payload)
    except DecodeError:
        return False
    return True


@settings(max_examples=200, deadline=None, phases=UNSHRUNK)
@given(data=st.data(), definition=definitions())
def test_of_a_damaged_message_nothing_is_lost(data: Any, definition: Any) -> None:
    """What Google's library cannot read is kept; else both read the same, or it is kept as well."""
    schema, build = native(definition), class_of(definition)
    if value_type(schema) == "binary":
        return
    kind, payloads = arrow_type_of(schema), list[bytes]()
    of_bytes = class_of(without_texts(definition))
    for _ in range(6):
        whole = fill(data.draw, build()).SerializeToString()
        if data.draw(st.booleans()) and (found := pieces(whole)):
            piece = data.draw(st.sampled_from(found))
            payloads.append(with_other_end(whole, piece, data.draw(st.integers(-3, 3))))
            continue
        payload = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.integers(0, len(payload)))
            change = data.draw(st.sampled_from(["cut", "shorter", "byte", "bit"]))
            if change == "cut":
                del payload[at:]
            elif change == "shorter":
                del payload[at : at + data.draw(st.integers(1, 3))]
            elif change == "byte":
                payload.insert(at, data.draw(st.integers(0, 255)))
            elif at < len(payload):
                payload[at] ^= 1 << data.draw(st.integers(0, 7))
        payloads.append(bytes(payload))
    values, raw = of(schema, *payloads)
    for value, payload, kept in zip(values, payloads, raw, strict=True):
        try:
            read = build.FromString(payload)
        except DecodeError:
            assert kept == payload
            # Unless it is only a text that is not UTF-8, or damage where no column looks.
            if not is_read(of_bytes, payload) and shows_all(build.DESCRIPTOR, kind):
                assert value is None
        else:
            if value is None or has_large_keys(read):
                assert kept == payload
            else:
                same(value, as_shown(read, kind), kind)


@settings(max_examples=60, deadline=None, phases=UNSHRUNK)
@given(data=st.data(), definition=definitions())
def test_what_encoders_write_is_not_kept_twice(data: Any, definition: Any) -> None:
    schema, build = native(definition), class_of(definition)
    sent = [fill(data.draw, build()) for _ in range(3)]
    told = [
        each.SerializeToString()
        for each in sent
        if value_type(schema) != "binary" and not _has_more(each, arrow_type_of(schema))
    ]
    if value_type(schema) != "binary":
        assert of(schema, *told)[1] == [None] * len(told)


def _has_more(sent: Any, kind: pa.DataType) -> bool:
    """Whether a message says something for which columns have no place."""
    for field, value in sent.ListFields():
        if kind.get_field_index(field.name) < 0 or "64" in NAMES[field.type]:
            return True
        inner = field.message_type
        if inner is None:
            continue
        of_field = kind.field(field.name).type
        if inner.GetOptions().map_entry:
            if any("64" in NAMES[part.type] for part in inner.fields):
                return True
            if inner.fields[1].message_type is None:
                continue
            value, of_field = value.values(), of_field.item_type
        elif field.is_repeated:
            of_field = of_field.value_type
        if any(_has_more(each, of_field) for each in (value if field.is_repeated else [value])):
            return True
    return False
