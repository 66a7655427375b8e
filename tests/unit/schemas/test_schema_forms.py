"""Definitions of each type of schema: what is valid, what is the same, what reads what."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from pulsark.limits import SCHEMA_BYTES_MAX, SCHEMA_PROPERTIES_BYTES_MAX
from pulsark.schemas import key_value
from pulsark.schemas.avro_resolution import Effort
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType
from pulsark.schemas.parsed import parse, why_cannot_read

T = SchemaType
PRIMITIVE_TYPES = [t for t in T if 0 < t.value < 20 and t not in (T.JSON, T.AVRO, T.PROTOBUF)]
PRIMITIVE_TYPES.remove(T.KEY_VALUE)


def record(*fields: tuple[str, Any], **more: Any) -> bytes:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": listed, **more}).encode()


def native(root: str = "shop.Order", *, package: str = "shop", **changed: Any) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package=package)
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Line")
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "order.proto",
        **changed,
    }
    return json.dumps(definition).encode()


def pair(
    key: bytes = b"",
    value: bytes = b"",
    *,
    types: tuple[str, str] = ("STRING", "INT32"),
    **properties: str,
) -> SchemaData:
    data = b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))
    properties = {"key.schema.type": types[0], "value.schema.type": types[1], **properties}
    return SchemaData(T.KEY_VALUE, data, properties)


def reason(reader: SchemaData, writer: SchemaData) -> str | None:
    return why_cannot_read(parse(reader), parse(writer), Effort())


# -- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SchemaType)
def test_the_wire_knows_each_type_that_a_topic_can_have(kind: SchemaType) -> None:
    if kind.value >= 0 or kind is T.AUTO_CONSUME:
        assert SchemaType.from_wire(kind.on_the_wire) is kind
    else:
        assert kind.on_the_wire == 0


@pytest.mark.parametrize("kind", PRIMITIVE_TYPES)
def test_a_primitive_type_has_no_definition(kind: SchemaType) -> None:
    assert reason(SchemaData(kind), SchemaData(kind, properties={"a": "b"})) is None
    with pytest.raises(InvalidSchemaDataError, match=f"{kind.name} schema has no definition"):
        parse(SchemaData(kind, b"{}"))


def test_the_string_of_the_python_client_is_that_of_all_others() -> None:
    python, java = (parse(SchemaData(T.STRING, data)) for data in (b"null", b""))
    assert python.fingerprint == java.fingerprint
    with pytest.raises(InvalidSchemaDataError):
        parse(SchemaData(T.INT32, b"null"))


@pytest.mark.parametrize("kind", [T.AUTO, T.AUTO_CONSUME, T.AUTO_PUBLISH])
def test_what_clients_find_out_for_themselves_is_no_schema(kind: SchemaType) -> None:
    with pytest.raises(InvalidSchemaDataError, match="for clients"):
        parse(SchemaData(kind))


def test_bytes_may_say_anything() -> None:
    assert reason(SchemaData(T.BYTES, b"x"), SchemaData(T.BYTES, b"y")) is None


def test_each_type_has_a_fingerprint_of_its_own() -> None:
    types = [*PRIMITIVE_TYPES, T.BYTES, T.NONE]
    assert len({parse(SchemaData(kind)).fingerprint for kind in types}) == len(types)
    shaped = [parse(SchemaData(t, record())).fingerprint for t in (T.AVRO, T.JSON, T.PROTOBUF)]
    assert len(set(shaped)) == 3


def test_other_types_do_not_read_each_other() -> None:
    found = reason(SchemaData(T.INT32), SchemaData(T.STRING))
    assert found == "the reader's type is INT32, the writer's STRING"


def test_sizes_are_bounded() -> None:
    with pytest.raises(InvalidSchemaDataError, match=f"at most {SCHEMA_BYTES_MAX} are allowed"):
        SchemaData(T.AVRO, bytes(SCHEMA_BYTES_MAX + 1))
    most = SCHEMA_PROPERTIES_BYTES_MAX
    with pytest.raises(InvalidSchemaDataError, match=f"at most {most} are allowed"):
        SchemaData(T.AVRO, b"", {"k": "é" * (most // 2)})


# -- AVRO, JSON, PROTOBUF ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [T.AVRO, T.JSON, T.PROTOBUF])
def test_definitions_in_avro(kind: SchemaType) -> None:
    old, new = SchemaData(kind, record(("a", "int"))), SchemaData(kind, record(("a", "long")))
    assert reason(new, old) is None
    assert reason(old, new) == "record R, field a: the reader expects int, the writer has long"
    with pytest.raises(InvalidSchemaDataError, match=f"{kind.name} definition: .*Type 'int16'"):
        parse(SchemaData(kind, record(("a", "int16"))))


def test_only_avro_has_no_union_at_its_top() -> None:
    union = b'["null", "int"]'
    parse(SchemaData(T.JSON, union))
    with pytest.raises(InvalidSchemaDataError, match="union at the top"):
        parse(SchemaData(T.AVRO, union))


def test_spelling_and_comments_do_not_make_another_schema() -> None:
    plain = record(("a", "int"), ("b", ["null", "int"]))
    spaced = json.dumps(json.loads(plain), indent=2, sort_keys=True).encode()
    documented = json.loads(plain)
    documented["doc"] = documented["fields"][0]["doc"] = "what it is"
    same = [plain, spaced, json.dumps(documented).encode()]
    assert len({parse(SchemaData(T.AVRO, data)).fingerprint for data in same}) == 1
    other = [
        record(("b", ["null", "int"]), ("a", "int")),
        record(("a", "int"), ("b", ["int", "null"])),
        record(("a", "int"), ("b", ["null", "int"]), aliases=["S"]),
    ]
    assert len({parse(SchemaData(T.AVRO, data)).fingerprint for data in [plain, *other]}) == 4


def test_a_default_is_data_even_if_it_looks_like_a_comment() -> None:
    def with_default(doc: str) -> str:
        field = {
            "name": "a",
            "type": {"type": "map", "values": "string"},
            "default": {"doc": doc},
        }
        definition = {"type": "record", "name": "R", "fields": [field]}
        return parse(SchemaData(T.AVRO, json.dumps(definition).encode())).fingerprint

    assert with_default("x") != with_default("y")


@pytest.mark.parametrize("key", ["unknown", "default"])
def test_nesting_in_what_is_not_read_is_harmless(key: str) -> None:
    def definition(depth: int) -> SchemaData:
        field = f'{{"name":"a","type":"int","{key}":{"[" * depth}{"]" * depth}}}'
        return SchemaData(T.AVRO, f'{{"type":"record","name":"R","fields":[{field}]}}'.encode())

    parse(definition(100))
    with pytest.raises(InvalidSchemaDataError, match=r"too deep|not JSON"):
        parse(definition(100_000))


# -- JSON of old clients -------------------------------------------------------------------------


def test_the_old_description_of_json() -> None:
    def old(name: str) -> SchemaData:
        schema = {"type": "object", "id": f"urn:jsonschema:{name}", "properties": {"a": {}}}
        return SchemaData(T.JSON, json.dumps(schema).encode())

    new = SchemaData(T.JSON, record(("a", "int")))
    assert reason(new, old("A")) is None
    assert reason(old("A"), new) is None
    changed = json.loads(old("A").data) | {"properties": {}}
    assert reason(old("A"), SchemaData(T.JSON, json.dumps(changed).encode())) is None
    assert "the reader's id is urn:jsonschema:A, " in str(reason(old("A"), old("B")))
    with pytest.raises(InvalidSchemaDataError):
        parse(SchemaData(T.AVRO, old("A").data))


def test_json_that_is_no_schema() -> None:
    for data in (b"", b"[1]", b'{"type": "thing"}', b'{"type": ["object"]}'):
        with pytest.raises(InvalidSchemaDataError, match="Invalid JSON definition"):
            parse(SchemaData(T.JSON, data))


# -- PROTOBUF_NATIVE ---------------------------------------------------------------------------


def test_protobuf_keeps_its_root_message() -> None:
    order = SchemaData(T.PROTOBUF_NATIVE, native())
    assert reason(order, SchemaData(T.PROTOBUF_NATIVE, native(more=1))) is None
    line = SchemaData(T.PROTOBUF_NATIVE, native("shop.Order.Line"))
    found = reason(line, order)
    assert found == "the reader's root message is shop.Order.Line, the writer's shop.Order"
    parse(SchemaData(T.PROTOBUF_NATIVE, native("Order", package="")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        native(rootMessageTypeName=3),
        native(fileDescriptorSet="!"),
        native(fileDescriptorSet=base64.b64encode(b"\xff\xff").decode()),
        native(fileDescriptorSet="é"),
        native(rootFileDescriptorName="other.proto"),
        native("shop.Bill"),
        native("Order"),
        native("shop.Order.Line.Item"),
        native(""),
    ],
)
def test_protobuf_that_cannot_be_decoded(data: bytes) -> None:
    with pytest.raises(InvalidSchemaDataError):
        parse(SchemaData(T.PROTOBUF_NATIVE, data))


# -- KEY_VALUE ---------------------------------------------------------------------------------


def test_key_and_value_are_compared_each_by_its_type() -> None:
    types = ("AVRO", "AVRO")
    old = pair(record(("a", "int")), record(("b", "int")), types=types)
    newer_value = pair(record(("a", "int")), record(("b", "long")), types=types)
    newer_key = pair(record(("a", "long")), record(("b", "int")), types=types)
    assert reason(newer_value, old) is None
    assert str(reason(old, newer_value)).startswith("value: record R, field b")
    assert str(reason(old, newer_key)).startswith("key: record R, field a")
    other_type = pair(record(("a", "int")), types=("AVRO", "STRING"))
    assert reason(other_type, old) == "value: the reader's type is STRING, the writer's AVRO"


def test_primitive_pairs_differ_by_their_types_and_their_encoding() -> None:
    pairs = [
        pair(),
        pair(types=("INT32", "STRING")),
        pair(**{"kv.encoding.type": "SEPARATED"}),
        pair(**{"kv.encoding.type": "INLINE"}),
    ]
    assert len({parse(each).fingerprint for each in pairs}) == 4
    same = [pair(), pair(**{"key.schema.name": "k"})]
    assert len({parse(each).fingerprint for each in same}) == 1


def test_a_part_without_a_type_is_bytes() -> None:
    parse(SchemaData(T.KEY_VALUE, bytes(8)))
    parse(SchemaData(T.KEY_VALUE, b"\xff\xff\xff\xff" * 2))  # a length of -1: nothing


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (SchemaData(T.KEY_VALUE, b""), "length of the key's definition"),
        (SchemaData(T.KEY_VALUE, bytes(4)), "length of the value's definition"),
        (SchemaData(T.KEY_VALUE, b"\x7f\xff\xff\xff1234"), "has not 2147483647 bytes"),
        (SchemaData(T.KEY_VALUE, bytes(9)), "1 bytes follow"),
        (pair(types=("TEXT", "INT32")), "key.schema.type: TEXT is no type"),
        (pair(types=("INT32", "AUTO_CONSUME")), "for clients"),
        (
            pair(b"{", types=("AVRO", "INT32")),
            "Invalid AVRO definition: The definition is not JSON",
        ),
        (pair(**{"value.schema.properties": "[]"}), "value.schema.properties is a JSON object"),
        (pair(**{"value.schema.properties": "{"}), "not JSON"),
        (pair(**{"value.schema.properties": '{"a": 1}'}), "value.schema.properties is a JSON"),
    ],
)
def test_pairs_that_cannot_be_decoded(schema: SchemaData, why: str) -> None:
    with pytest.raises(InvalidSchemaDataError) as refused:
        parse(schema)
    assert why in str(refused.value)


def test_pairs_within_pairs_end_somewhere() -> None:
    def nested(levels: int) -> SchemaData:
        schema = pair()
        for _ in range(levels):
            inner = json.dumps(dict(schema.properties))
            types = ("KEY_VALUE", "INT32")
            schema = pair(schema.data, types=types, **{"key.schema.properties": inner})
        return schema

    parse(nested(3))
    with pytest.raises(InvalidSchemaDataError, match="nested too deep"):
        parse(nested(4))


def test_texts_of_half_characters_are_refused_or_harmless() -> None:
    half = "{" + '"a": "\\ud800"' + "}"
    parse(pair(**{"key.schema.properties": half}))
    with pytest.raises(InvalidSchemaDataError) as refused:
        parse(SchemaData(T.JSON, b'{"type": "\\ud800"}'))
    str(refused.value).encode()


def test_the_admin_apis_form_of_a_pair() -> None:
    definition = record(("a", "int"))
    data = pair(definition, b"", types=("AVRO", "STRING")).data
    text = key_value.to_text(data)
    assert json.loads(text) == {"key": json.loads(definition), "value": ""}
    assert key_value.to_text(key_value.from_text(text)) == text
    assert key_value.from_text('{"key":"","value":""}') == bytes(8)
    for wrong in ("", "[]", '{"key": ""}'):
        with pytest.raises(InvalidSchemaDataError):
            key_value.from_text(wrong)
