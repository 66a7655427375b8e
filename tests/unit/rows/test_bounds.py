"""Payloads that would take too much of a parser never reach one."""

from __future__ import annotations

import io
import json
import random
import time
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark import limits
from pulsark.rows import RowBuilder, builder, entries_of
from pulsark.rows.values import bounds, decode_values
from pulsark.rows.values.bounds import AvroShape, JsonBounds, ProtobufBounds, json_shape
from pulsark.rows.values.codec import Codec, codec_of
from pulsark.rows.values.losses import Losses
from pulsark.schemas.avro import Array, AvroType, Primitive, Record, Union, parse_avro
from pulsark.schemas.definition import InvalidSchemaDataError, SchemaData, SchemaType
from pulsark.schemas.protobuf import Field, Message
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.roots.disk_source import DiskSource
from pulsark.storage.table.files import seal
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.compression import compress
from pulsark.wire.entry import build_entry, parse_entry
from tests.sim.disk import SimDisk

SECONDS_MAX = 20.0
"""More than any of these takes on a busy machine; without the bounds they take minutes or die."""


def decode_with(codec: Codec, payloads: pa.Array) -> pa.Array:
    return codec.decode(payloads, Losses(len(payloads)))


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


def doubled(levels: int, last: Any) -> Any:
    """A record that stands for 2**levels others."""
    for n in range(levels):
        again = last["name"] if isinstance(last, dict) else last
        last = record(f"R{n}", ("a", last), ("b", again))
    return last


NODE = record("Node", ("v", "int"), ("next", ["null", "Node"]))


def avro(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode())


def as_json(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.JSON, json.dumps(definition).encode())


def decoded(schema: SchemaData, *payloads: bytes) -> list[Any]:
    """The values, alone and in a crowd: neighbours change nothing."""
    began = time.monotonic()
    together = decode_values(schema, pa.array(payloads, pa.binary())).to_pylist()
    for payload, value in zip(payloads, together, strict=True):
        assert decode_values(schema, pa.array([payload], pa.binary())).to_pylist() == [value]
    assert time.monotonic() - began < SECONDS_MAX
    return together


def chain_of(nodes: int) -> bytes:
    return b"\x02\x02" * (nodes - 1) + b"\x02\x00"


@pytest.mark.parametrize("nodes", [limits.VALUE_DEPTH_MAX + 1, 50_000, 3_000_000])
def test_a_recursive_record_beyond_the_depth_has_no_value(nodes: int) -> None:
    short = chain_of(limits.VALUE_DEPTH_MAX)
    assert decoded(avro(NODE), short, chain_of(nodes)) == [{"v": 1}, None]


def test_recursion_through_arrays_and_maps_counts_too() -> None:
    tree = record("Tree", ("v", "int"), ("inside", {"type": "array", "items": "Tree"}))
    assert decoded(avro(tree), b"\x02\x00", b"\x02\x02" * 50_000 + b"\x02" + bytes(50_001)) == [
        {"v": 1},
        None,
    ]
    by_name = record("Tree", ("v", "int"), ("inside", {"type": "map", "values": "Tree"}))
    deep = b"\x02\x02\x00" * 50_000 + b"\x02" + bytes(50_001)
    assert decoded(avro(by_name), b"\x02\x00", deep) == [{"v": 1}, None]


@pytest.mark.parametrize(
    "loop",
    [
        record("A", ("next", "A"), ("v", "int")),
        record("A", ("v", "int"), ("next", "A")),
        record("A", ("b", record("B", ("a", "A"))), ("v", "int")),
    ],
)
def test_a_record_that_has_no_end_has_no_values(loop: Any) -> None:
    for inside in (loop, ["null", "int", loop]):
        schema = avro(record("T", ("v", "int"), ("l", inside)))
        assert decoded(schema, b"", b"\x02", b"\x02\x04", b"\x02" * 1000) == [None] * 4
    hidden = avro(record("T", ("v", "int"), ("l", ["null", "int", loop])))
    assert decoded(hidden, b"\x02\x00")[0]["v"] == 1, "it is not in this one"


@pytest.mark.parametrize("levels", [20, 60])
@pytest.mark.parametrize("last", ["int", record("E"), {"type": "fixed", "name": "F", "size": 0}])
def test_shared_types_that_stand_for_many_values(levels: int, last: Any) -> None:
    schema = avro(record("T", ("v", "int"), ("u", ["null", "int", doubled(levels, last)])))
    many = b"\x02\x04" + (b"\x02" * (1 << 20) if last == "int" else b"")
    assert decoded(schema, b"\x02\x00", many, b"\x02\x02\x06") == [{"v": 1}, None, {"v": 1}]


def test_values_within_the_bounds_are_passed_over() -> None:
    schema = avro(record("T", ("v", "int"), ("u", ["null", "int", doubled(12, "int")])))
    payload = b"\x02\x04" + b"\x02" * (1 << 12)
    assert decoded(schema, *[payload] * 20) == [{"v": 1}] * 20


@pytest.mark.parametrize("count", [1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("items", ["null", record("E"), "int", "string", NODE])
def test_counts_and_lengths_that_nothing_stands_behind(count: int, items: Any) -> None:
    number = bytearray()
    left = (count << 1) ^ (count >> 63)
    while left > 0x7F:
        number.append(left & 0x7F | 0x80)
        left >>= 7
    number.append(left)
    for kind in ({"type": "array", "items": items}, {"type": "map", "values": items}):
        schema = avro(record("T", ("v", "int"), ("l", kind)))
        odd = [b"\x02" + bytes(number) + tail for tail in (b"", b"\x02\x00", b"\x02" * 100)]
        found = decoded(schema, *odd)
        # The library takes the smallest of all numbers for none.
        assert found == [None] * 3 or (count == -(1 << 63) and found[::2] == [None] * 2)
    texts = avro(record("T", ("v", "string"), ("b", "bytes")))
    assert decoded(texts, bytes(number), b"\x00" + bytes(number)) == [None] * 2


def test_json_that_is_nested_too_deep_has_no_value() -> None:
    schema = as_json(record("T", ("a", "int")))
    for opening, closing in ((b"[", b"]"), (b'{"x":', b"}")):
        deep, far = (
            b'{"a":1,"u":' + opening * n + b"1" + closing * n + b"}"
            for n in (limits.VALUE_DEPTH_MAX - 1, limits.VALUE_DEPTH_MAX)
        )
        endless = b'{"a":1,"u":' + opening * 100_000
        assert decoded(schema, b'{"a":1}', deep, far, endless) == [{"a": 1}] * 2 + [None] * 2
    text = b'{"a":1,"u":"' + b"[" * 1000 + b'\\"' + b"{" * 1000 + b'"}'
    assert decoded(schema, text) == [{"a": 1}], "brackets of a text are none"
    assert decoded(schema, *['{"a":1}'.encode("utf-16")] * 2) == [None] * 2


def test_json_of_many_values_has_none() -> None:
    schema = as_json(record("T", ("a", "int")))
    many = b'{"a":1,"u":[' + b"0," * limits.VALUE_ITEMS_MAX + b"0]}"
    long = b'{"a":1,"u":"' + b"0," * limits.VALUE_ITEMS_MAX + b'"}'
    assert decoded(schema, many, long) == [None, {"a": 1}]


def wide(columns: int) -> Any:
    return record("W", *((f"c{n}", ["null", "int"]) for n in range(columns)))


def test_empty_objects_cannot_fill_hundreds_of_columns() -> None:
    schema = as_json(record("T", ("l", {"type": "array", "items": wide(500)})))
    few, many = (b'{"l":[' + b"{}," * n + b"{}]}" for n in (50, 300_000))
    found = decoded(schema, few, many)
    assert len(found[0]["l"]) == 51
    assert found[1] is None


@pytest.mark.parametrize(
    "number", [b"1e400", b"-1e400", b"-" + b"1" * 400, b"9" * 1_000_000, b"0." + b"3" * 100_000]
)
def test_giant_numbers_end_as_a_value_or_none(number: bytes) -> None:
    schema = as_json(record("T", ("i", ["null", "int"]), ("d", ["null", "double"])))
    found = decoded(schema, b'{"d":' + number + b"}", b'{"i":' + number + b"}", b'{"i":1}')
    assert found[1:] == [{"i": None, "d": None}, {"i": 1, "d": None}]


def test_duplicate_names_and_half_characters_do_not_depend_on_neighbours() -> None:
    schema = as_json(record("T", ("a", ["null", "int"]), ("s", ["null", "string"])))
    odd = [b'{"a":1,"a":2}', b'{"s":"\\ud800"}', b'{"s":"\\udc00\\ud800"}', b'{"u":"\\ud800"}']
    decoded(schema, *odd, *[b'{"a":1,"s":"x"}'] * 20)


INNER = Message(tuple(Field(f"c{n}", n + 1, "int32") for n in range(1000)))
OUTER = Message((Field("v", 1, "int32"), Field("l", 2, "message", repeated=True, message=INNER)))


def test_empty_messages_cannot_fill_a_thousand_columns() -> None:
    from pulsark.rows.values.protobuf import ProtobufCodec

    codec = ProtobufCodec(OUTER)
    few, many = b"\x08\x01" + b"\x12\x00" * 50, b"\x08\x01" + b"\x12\x00" * 500_000
    odd = b"\x12\x00" * 500_000 + b"\x08\x01"
    found = decode_with(codec, pa.array([few, many, odd], pa.binary())).to_pylist()
    assert len(found[0]["l"]) == 50
    assert found[1:] == [None, None]
    assert codec.bounds.refused == 2


@pytest.mark.parametrize("depth", [99, 50_000])
def test_unknown_groups_within_groups(depth: int) -> None:
    from pulsark.rows.values.protobuf import ProtobufCodec

    codec = ProtobufCodec(Message((Field("v", 1, "int32"),)))
    payload = b"\x08\x01" + b"\x1b" * depth + b"\x1c" * depth
    found = decode_with(codec, pa.array([payload] * 2, pa.binary())).to_pylist()
    assert found == ([{"v": 1}] * 2 if depth < 100 else [None] * 2)


def test_what_is_refused_is_counted() -> None:
    codec: Any = codec_of(avro(NODE))
    decode_with(codec, pa.array([chain_of(2), chain_of(500), None, chain_of(600)], pa.binary()))
    assert codec.bounds.refused == 2


# -- the measures are right ----------------------------------------------------------------------

names = st.integers(0, 10**6)


@st.composite
def definitions(draw: st.DrawFn) -> Any:
    """Random types that share and contain each other."""
    known: list[str] = []

    def kind(depth: int) -> Any:
        choices = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
        shape = draw(st.integers(0, 9 if depth < 4 else 3))
        if shape == 4:
            return {"type": "array", "items": kind(depth + 1)}
        if shape == 5:
            return {"type": "map", "values": kind(depth + 1)}
        if shape == 6:
            return {"type": "fixed", "name": new("F"), "size": draw(st.integers(0, 3))}
        if shape == 7 and known:
            return draw(st.sampled_from(known))
        if shape == 8:
            branches = {json.dumps(b): b for b in (kind(depth + 1) for _ in range(2))}
            kinds = {
                b if isinstance(b, str) else b["type"]: b
                for b in branches.values()
                if not isinstance(b, list)
            }
            return ["null", *(b for k, b in kinds.items() if k != "null")]
        if shape == 9:
            name = new("R")
            known.append(name)
            fields = [(f"f{n}", kind(depth + 1)) for n in range(draw(st.integers(0, 3)))]
            return record(name, *fields)
        return draw(st.sampled_from(choices))

    def new(prefix: str) -> str:
        return f"{prefix}{draw(names)}x{len(known)}x{random.Random(len(known)).random()}".replace(
            ".", ""
        ) + str(draw(names))

    known.append("Top")
    return record("Top", *((f"f{n}", kind(0)) for n in range(draw(st.integers(1, 4)))))


@settings(max_examples=150, deadline=None)
@given(definitions(), st.lists(st.binary(max_size=60), max_size=6))
def test_random_schemas_and_bytes_end_soon(definition: Any, payloads: list[bytes]) -> None:
    try:
        parsed = parse_avro(definition)
    except InvalidSchemaDataError:
        return
    shape = AvroShape(parsed)
    for payload in payloads:
        walked = shape._is_within(payload)
        if shape.bounds.within(pa.array([payload], pa.binary())) is not None:
            assert not walked, "a payload is only refused if the walk refuses it"
        if walked:
            plain = fastavro.parse_schema(definition)
            stream = io.BytesIO(payload)
            try:
                fastavro.schemaless_reader(stream, plain, None)
            except Exception:
                continue
            assert stream.tell() == len(payload)
    decoded(avro(definition), *payloads)


@settings(max_examples=150, deadline=None)
@given(definitions(), st.data())
def test_what_is_written_by_others_is_within_the_bounds(
    definition: Any, data: st.DataObject
) -> None:
    try:
        shape = AvroShape(parse_avro(definition))
        plain = fastavro.parse_schema(definition)
        from fastavro.utils import generate_one

        values = [generate_one(plain) for _ in range(3)]
    except Exception:
        return
    for value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, plain, value)
        payload = stream.getvalue()
        assert shape._is_within(payload) or len(payload) > 10_000
        cut = payload[: data.draw(st.integers(0, max(len(payload) - 1, 0)))]
        if len(cut) < len(payload):
            assert not shape._is_within(cut)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet='"\\[]{},:x', max_size=9),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(alphabet='"\\[]{},x', max_size=4), inner, max_size=4)
        ),
        max_leaves=30,
    ),
    st.integers(1, 40),
)
def test_the_shape_of_json(value: Any, step: int) -> None:
    depth = objects = 0

    def count(each: Any, around: int) -> int:
        nonlocal depth, objects
        if isinstance(each, list | dict):
            depth = max(depth, around + 1)
            objects += isinstance(each, dict)
            inside = each if isinstance(each, list) else list(each.values())
            return 1 + sum(count(one, around + 1) for one in inside)
        return 1

    values = count(value, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_STEP_BYTES", step)
        found = json_shape(json.dumps(value).encode())
    assert found[0] == depth
    assert found[2] == objects
    assert values <= found[1] <= values + found[2] + depth + values


def test_only_suspicious_texts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    shape = json_shape
    monkeypatch.setattr(bounds, "json_shape", lambda t: measured.append(len(t)) or shape(t))
    ordinary = [json.dumps({"a": n, "l": [{"b": n}] * 20}).encode() for n in range(100)]
    deep = b"[" * 200
    for texts in ([*ordinary, deep], [deep], [deep, *ordinary], [*ordinary, deep, *ordinary]):
        found = JsonBounds(2).within(pa.array([b"", *texts], pa.binary())[1:])
        assert found is not None
        assert np.flatnonzero(~found).tolist() == [texts.index(deep)]
    assert measured == [200] * 4


def test_a_protobuf_message_is_measured_to_its_end() -> None:
    within = ProtobufBounds(OUTER, codec_type(OUTER))._check
    assert within(b"")
    assert within(b"\x08\x01\x12\x02\x08\x05")
    for odd in (
        b"\x08",
        b"\x12\x05\x08",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x1b",
        b"\x1c",
        b"\x0f",
        b"\x12\x01\x1b\x1c",
        b"\x80" * 11,
    ):
        assert not within(odd)


def codec_type(message: Message) -> pa.DataType:
    from pulsark.rows.values.protobuf import ProtobufCodec

    return ProtobufCodec(message).type


# -- entries -------------------------------------------------------------------------------------


def rows_of(*entries: bytes) -> list[dict[str, Any]]:
    """Rows for a table's file; each entry can be rebuilt from them."""
    rows = RowBuilder.for_table(0)
    for number, entry in enumerate(entries):
        rows.add(7, number, entry)
    found = rows.finish()
    assert [entry_id for entry_id, _ in entries_of(found)] == list(range(len(entries)))
    return list(found.to_pylist())


def batch(messages: int, properties: int = 0) -> bytes:
    single = pb.SingleMessageMetadata(payload_size=0)
    for n in range(properties):
        single.properties.add(key=f"k{n}", value="v")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    return build_batch(metadata, [(single, b"x")] * messages)


def test_a_batch_of_too_many_messages_is_kept_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builder, "ROW_BATCH_MESSAGES_MAX", 100)
    most, more = batch(100), batch(101)
    found = rows_of(most, more)
    assert len(found) == 101
    assert found[-1]["value"] is None
    assert found[-1]["value_raw"] == more[parse_entry(more).payload_offset :]


def test_a_payload_that_claims_too_much_is_kept_as_it_was_sent() -> None:
    sent = compress(pb.ZLIB, bytes(limits.ROW_PAYLOAD_BYTES_MAX + 1))
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, compression=pb.ZLIB,
        uncompressed_size=limits.ROW_PAYLOAD_BYTES_MAX + 1,
    )  # fmt: skip
    (row,) = rows_of(build_entry(metadata, sent))
    assert (row["value"], row["value_raw"]) == (None, sent)


def test_a_message_of_many_properties_is_read_by_itself() -> None:
    began = time.monotonic()
    found = rows_of(*[batch(1, properties=20_000), batch(1, properties=2)] * 40)
    assert [len(row["properties"]) for row in found] == [20_000, 2] * 40
    assert time.monotonic() - began < 4 * SECONDS_MAX


def test_a_row_group_of_a_wide_table_has_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = as_json(wide(100))
    kept = ValueSchemas.next(None, [(b"\0", schema)])
    monkeypatch.setattr(seal, "ROW_GROUP_CELLS_MAX", 1000)
    disk = SimDisk()
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, schema_version=b"\0"
    )
    entries = [(n, build_entry(metadata, b"{}")) for n in range(40)]
    (file,) = seal.seal(entries, 0, 7, ["/root"], disk, "n", values=kept)
    with DiskSource(disk.open(f"/root/{file.path}"), file.size) as source:
        groups = pq.ParquetFile(source).metadata.num_row_groups
    assert groups >= 5
    assert file.rows == 40


FEW_ITEMS, FEW_LEVELS = 60, 4


class _Beyond(Exception):
    """A payload is no value within the bounds."""


class _OneByOne:
    """Measures a payload as its type says, value by value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = self._items = 0

    def is_within(self, kind: AvroType) -> bool:
        try:
            self._value(kind, 0)
        except (_Beyond, IndexError):
            return False
        return self._at == len(self._data)

    def _number(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise _Beyond

    def _bytes(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise _Beyond

    def _value(self, kind: AvroType, depth: int) -> None:
        self._items += 1
        match kind:
            case Primitive("double" | "boolean" as name):
                self._bytes(8 if name == "double" else 1)
            case Primitive("string"):
                self._bytes(self._number())
            case Primitive("int" | "long"):
                self._number()
            case Record(fields=fields):
                for each in fields.values():
                    self._within(each.type, depth)
            case Union(branches):
                number = self._number()
                if not 0 <= number < len(branches):
                    raise _Beyond
                self._value(branches[number], depth)
            case Array(items):
                while number := self._number():
                    if number < 0:
                        self._number()
                    for _ in range(abs(number)):
                        self._within(items, depth)
        if self._items > FEW_ITEMS:
            raise _Beyond

    def _within(self, kind: AvroType, depth: int) -> None:
        if depth == FEW_LEVELS:
            raise _Beyond
        self._value(kind, depth + 1)


def _random_type(rng: random.Random, depth: int, names: list[str]) -> Any:
    kinds = ["int", "long", "double", "boolean", "string"] + ["record"] * 3 + ["array", "union"]
    kind = rng.choice(kinds if depth else kinds[:5])
    if kind == "record":
        names.append(name := f"N{len(names)}")
        fields = [_random_type(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
        return record(name, *[(f"f{n}", field) for n, field in enumerate(fields)])
    if kind == "array":
        return {"type": "array", "items": _random_type(rng, depth - 1, names)}
    return ["null", _random_type(rng, 0, names)] if kind == "union" else kind


def test_values_passed_over_together_count_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "VALUE_ITEMS_MAX", FEW_ITEMS)
    monkeypatch.setattr(bounds, "VALUE_DEPTH_MAX", FEW_LEVELS)
    monkeypatch.setattr(bounds, "_FEW_NUMBERS", 2)
    rng = random.Random(1)
    answers = {True: 0, False: 0}
    for _ in range(50):
        kind = parse_avro(_random_type(rng, 5, []))
        shape = AvroShape(kind)
        for _ in range(300):
            alphabet = rng.choice([b"\x02\x04", b"\x00\x02\x30\x80", bytes(range(256))])
            data = bytes(rng.choice(alphabet) for _ in range(rng.choice([2, 5, 9, 40])))
            found = shape._is_within(data)
            assert found == _OneByOne(data).is_within(kind), data
            answers[found] += 1
    assert min(answers.values()) > 300, answers


def test_a_hundred_thousand_numbers_are_passed_over_in_few_steps() -> None:
    numbers = {"type": "array", "items": record("P", ("a", "long"), ("b", "long"))}
    shape = AvroShape(parse_avro(record("T", ("p", numbers), ("next", ["null", "T"]))))
    count = 100_000
    data = b"\xc0\x9a\x0c" + b"\x80\x01\x02" * count + b"\x00\x00"
    walk = bounds._AvroWalk(data)
    steps = 0
    over = walk._over

    def counted(step: Any) -> Any:
        nonlocal steps
        steps += 1
        return over(step)

    walk._over = counted  # type: ignore[method-assign]
    assert shape._root is not None
    assert walk.is_within(shape._root)
    assert steps < 10
    assert not shape._is_within(data[:-1])
