"""``valueFormat`` auto and json: the payload's fields as columns."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo
from pyspark.sql.pandas.types import to_arrow_schema

from pulsark.datasource.options.errors import OptionError, SchemaChangedError
from pulsark.datasource.options.options import Options
from pulsark.datasource.read import reader as reader_module
from pulsark.datasource.read.ddl import json_scalar, parse_ddl
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import FilteringReader
from pulsark.datasource.read.shape import Shape
from pulsark.datasource.source import PulsarkSource
from pulsark.rows import ROW_SCHEMA
from pulsark.rows.values.json_values import DeclaredJson
from pulsark.rows.values.losses import Losses
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker
from tests.support.typed_values import encoded

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "sizes", "type": {"type": "array", "items": "int"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "at", "type": {"type": "record", "name": "P", "fields": [
            {"name": "x", "type": "float"}]}},
    ],
}  # fmt: skip
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "price", "type": ["null", "double"]}]}  # type: ignore[misc]
ORDER = {"id": 1, "item": "tea", "sizes": [1, 2], "more": {"a": 0.5}, "at": {"x": 1.5}}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def schema(definition: Any, kind: SchemaType = SchemaType.AVRO) -> SchemaData:
    return SchemaData(kind, json.dumps(definition).encode())


def avro(definition: Any, value: Any) -> bytes:
    return encoded(definition, value)[0]


def message(payload: bytes, version: int | None, key: str = "k") -> bytes:
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1000, partition_key=key
    )
    head.properties.add(key="n", value="1")
    if version is not None:
        head.schema_version = version.to_bytes(8, "big")
    return build_entry(head, payload)


def options(broker: FakeBroker, **raw: str) -> Options:
    given = {"adminUrl": broker.admin_url, "pollTimeoutMs": "2000"}
    given |= {} if "topics" in raw else {"topic": "t"}
    return Options.parse(given | raw, streaming=False)


def source(broker: FakeBroker, **raw: str) -> PulsarkSource:
    found = {"adminurl": broker.admin_url, "polltimeoutms": "2000"}
    found |= {} if "topics" in raw else {"topic": "t"}
    return PulsarkSource(found | {key.lower(): value for key, value in raw.items()})


def read(broker: FakeBroker, *filters: Any, **raw: str) -> list[dict[str, Any]]:
    origin = source(broker, **raw)
    columns = origin.schema()
    assert not isinstance(columns, str)
    reader = origin.reader(columns)
    if filters:
        assert list(reader.pushFilters(list(filters))) == []
    found = [rows for split in reader.partitions() for rows in reader.read(split)]
    for rows in found:
        assert isinstance(rows, pa.RecordBatch)
        assert rows.schema == to_arrow_schema(columns, timezone="UTC")
    return [row for rows in found for row in rows.to_pylist()]  # type: ignore[union-attr]


def test_the_fields_of_avro_are_columns_and_grow(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(FIRST)]
    broker.publish(topic, [message(avro(FIRST, ORDER), 0)])
    (row,) = read(broker, valueFormat="auto")
    wanted = {**ORDER, "more": [("a", 0.5)]}
    assert {name: row[name] for name in wanted} == wanted
    assert row["__topic"] == topic
    assert (row["__partition"], row["__key"], row["__valueRaw"]) == (-1, "k", None)
    place = row["__ledgerId"], row["__entryId"], row["__batchIndex"]
    assert row["__messageId"] == ":".join(map(str, (*place[:2], -1, place[2])))
    assert row["__messageProperties"] == [("n", "1")]
    broker.schemas["public/default/t"].append(schema(SECOND))
    broker.publish(topic, [message(avro(SECOND, {**ORDER, "id": 2, "price": 3.5}), 1)])
    rows = read(broker, valueFormat="auto", columns="id,price,__publishTime")
    assert [(row["id"], row["price"]) for row in rows] == [(1, None), (2, 3.5)]


def test_a_reader_that_began_before_a_schema_reads_its_messages(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(FIRST)]
    broker.publish(topic, [message(avro(FIRST, ORDER), 0)])
    given = options(broker, valueFormat="auto")
    layout = layout_of(given, lambda: {topic: {bytes(8): schema(FIRST)}})
    reader = FilteringReader(given, layout, ("id", "__valueRaw"))
    broker.schemas["public/default/t"].append(schema(SECOND))
    later = avro(SECOND, {**ORDER, "id": 2, "price": 3.5})
    broker.publish(topic, [message(later, 1)])
    found = [rows for split in reader.partitions() for rows in reader.read(split)]
    assert [row for rows in found for row in rows.to_pylist()] == [
        {"id": 1, "__valueRaw": None},
        {"id": 2, "__valueRaw": later},
    ]


def test_what_is_no_value_of_its_schema_is_kept_as_it_is(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(FIRST)]
    sent = [message(b"\xff\xff", 0), message(b"free", None), message(b"unknown", 9)]
    broker.publish(topic, sent)
    rows = read(broker, valueFormat="auto", columns="id,__valueRaw")
    assert [(row["id"], row["__valueRaw"]) for row in rows] == [
        (None, b"\xff\xff"), (None, b"free"), (None, b"unknown"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (SchemaType.INT32, b"\x00\x00\x00\x05", 5),
        (SchemaType.STRING, b"five", "five"),
        (SchemaType.DOUBLE, b"\x40\x14" + bytes(6), 5.0),
        (SchemaType.BYTES, b"five", b"five"),
    ],
)
def test_values_of_primitive_schemas(
    broker: FakeBroker, kind: SchemaType, payload: bytes, value: Any
) -> None:
    topic = broker.create("t")
    if kind is not SchemaType.BYTES:
        broker.schemas["public/default/t"] = [SchemaData(kind)]
    broker.publish(topic, [message(payload, 0)])
    (row,) = read(broker, valueFormat="auto")
    assert row["value"] == value


def test_filters_on_fields_and_on_the_message(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(FIRST)]
    orders = [{**ORDER, "id": i} for i in range(5)]
    sent = [message(avro(FIRST, order), 0, f"k{order['id']}") for order in orders]
    broker.publish(topic, sent)
    raw = {"valueFormat": "auto", "pushdown": "true"}
    assert [row["id"] for row in read(broker, EqualTo(("id",), 3), **raw)] == [3]
    assert [row["id"] for row in read(broker, EqualTo(("__key",), "k2"), **raw)] == [2]
    assert read(broker, EqualTo(("__partition",), 0), **raw) == []


def test_json_by_a_schema_of_the_query(broker: FakeBroker) -> None:
    topic = broker.create("t")
    texts = [
        b'{"id": 1, "at": {"x": 2.5}, "tags": ["a", null], "unknown": 0}',
        b'{"id": "one"}', b"no json", b"[1]", b"{}",
    ]  # fmt: skip
    broker.publish(topic, [message(text, None) for text in texts])
    ddl = "id BIGINT, at STRUCT<x: DOUBLE>, tags ARRAY<STRING>"
    rows = read(broker, valueFormat="json", valueSchema=ddl, includeProperties="false")
    assert "__messageProperties" not in rows[0]
    shown = [(row["id"], row["at"], row["tags"], row["__valueRaw"]) for row in rows]
    assert shown == [
        (1, {"x": 2.5}, ["a", None], None),
        (None, None, None, b'{"id": "one"}'),
        (None, None, None, b"no json"),
        (None, None, None, b"[1]"),
        (None, None, None, None),
    ]


@pytest.mark.parametrize("joining", ["a", "z"])
@pytest.mark.parametrize("has_schema", [False, True])
def test_a_topic_with_another_schema_may_join_a_pattern(
    broker: FakeBroker, joining: str, has_schema: bool
) -> None:
    """A query that is started again has the columns that it had."""
    for name in ("o", "p"):
        broker.schemas[f"public/default/{name}"] = [schema(FIRST)]
        broker.publish(broker.create(name), [message(avro(FIRST, ORDER), 0)])
    pattern = {"topics": "o,p", "valueFormat": "auto", "schemaEvolutionMode": "ignore"}
    before = source(broker, **pattern).schema()
    other = {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "string"}]}
    payload = avro(other, {"id": "x"}) if has_schema else b"no schema"
    if has_schema:
        broker.schemas[f"public/default/{joining}"] = [schema(other)]
    broker.publish(broker.create(joining), [message(payload, 0 if has_schema else None)])
    pattern["topics"] += f",{joining}"
    assert source(broker, **pattern).schema() == before
    rows = read(broker, **pattern)
    shown = {row["__topic"][-1]: (row["id"], row["__valueRaw"]) for row in rows}
    assert shown == {"o": (1, None), "p": (1, None), joining: (None, payload)}
    with pytest.raises(OptionError, match="or set schemaEvolutionMode to ignore"):
        source(broker, **{**pattern, "schemaEvolutionMode": "fail"}).schema()


def test_what_is_refused(broker: FakeBroker) -> None:
    def refused(**raw: str) -> str:
        with pytest.raises(OptionError) as caught:
            source(broker, **raw).schema()
        return str(caught.value)

    broker.create("t")
    broker.create("u")
    broker.schemas["public/default/t"] = [schema(FIRST)]
    broker.schemas["public/default/u"] = [schema(SECOND)]
    assert "t and persistent://public/default/u have different schemas" in refused(
        topics="t,u", valueFormat="auto"
    )
    assert "did you mean 'item'?" in refused(valueFormat="auto", columns="itme")
    clash = {**FIRST, "fields": [{"name": "__key", "type": "int"}]}
    broker.schemas["public/default/t"] = [schema(clash)]
    assert "the payload has a field __key" in refused(valueFormat="auto")
    for ddl, says in [
        ("a DECIMAL(39)", "DECIMAL(39,0): up to 38 digits"),
        ("a DECIMAL(2,3)", "DECIMAL(2,3): up to 38 digits"),
        ("a DECIMAL(x)", "'x' is in the place of a number"),
        ("a MAP<INT, INT>", "the keys of a map are STRING"),
        ("a INTERVAL", "'interval' is none of boolean"),
        ("a", "'' is none of"),
        ("a INT b INT", "'b' is in the place of a comma"),
        ("a INT, a INT", "'a' is there twice"),
        ("a STRUCT<x INT", "'' is in the place of a comma"),
        ("a ARRAY<INT", "'' is in the place of '>'"),
        ("a INT; b", "'; b' cannot be read"),
        (", a INT", "',' is in the place of a name"),
        ("a " + "ARRAY<" * 30 + "INT" + ">" * 30, "nested more than 20 times"),
    ]:
        message = refused(valueFormat="json", valueSchema=ddl)
        assert f"option 'valueSchema': {says}" in message or says in message


def test_json_values_of_all_types_that_ddl_names() -> None:
    kind = parse_ddl(
        "m MAP<STRING, ARRAY<DATE>>, d DATE, t TIMESTAMP, n DECIMAL(5,2), e DEC, b BINARY"
    )
    document = {
        "m": {"x": ["2026-01-31", "no date"]},
        "d": "2026-02-01",
        "t": "2026-02-01T10:00:00+01:00",
        "n": "12.34",
        "e": 7,
        "b": "AQI=",
    }
    wrong = {"m": 1, "d": 2, "t": "x", "n": "12.345", "e": "x", "b": "?"}
    naive = {"t": "2026-02-01 09:00:00", "unknown": 1}
    payloads = [json.dumps(each).encode() for each in (document, wrong, naive, [1])]
    lost = Losses(4)
    found = DeclaredJson(kind, json_scalar).decode(pa.array(payloads, pa.binary()), lost)
    assert found.to_pylist()[:2] == [
        {
            "m": [("x", [date(2026, 1, 31), None])],
            "d": date(2026, 2, 1),
            "t": datetime(2026, 2, 1, 9, tzinfo=UTC),
            "n": Decimal("12.34"),
            "e": Decimal(7),
            "b": b"\1\2",
        },
        dict.fromkeys(wrong),
    ]
    assert found[2].as_py()["t"] == datetime(2026, 2, 1, 9, tzinfo=UTC)
    assert found[3].as_py() is None
    assert lost.rows.tolist() == [True, True, False, True]
    assert lost.counts == {"m[][]": 1, **dict.fromkeys(wrong, 1), "": 1}


def test_ddl() -> None:
    assert parse_ddl("`a ``b` INT, c STRUCT<d: ARRAY<STRUCT<e TINYINT>>>") == {
        "type": "struct",
        "fields": [
            {"name": "a `b", "type": "integer", "nullable": True, "metadata": {}},
            {
                "name": "c",
                "type": {
                    "type": "struct",
                    "fields": [
                        {
                            "name": "d",
                            "type": {
                                "type": "array",
                                "elementType": {
                                    "type": "struct",
                                    "fields": [
                                        {
                                            "name": "e",
                                            "type": "byte",
                                            "nullable": True,
                                            "metadata": {},
                                        }
                                    ],
                                },
                                "containsNull": True,
                            },
                            "nullable": True,
                            "metadata": {},
                        }
                    ],
                },
                "nullable": True,
                "metadata": {},
            },
        ],
    }


@pytest.mark.parametrize("value_format", ["raw", "auto"])
def test_typed_files_give_the_rows_of_entries(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value_format: str
) -> None:
    monkeypatch.setattr(reader_module.split_partitions, "__defaults__", (0,))
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(FIRST), schema(SECOND)]
    sent = [
        message(avro(FIRST, ORDER), 0),
        message(avro(SECOND, {**ORDER, "price": 1.5}), 1),
        *(message(avro(FIRST, {**ORDER, "id": i}), 0) for i in range(20)),
    ]
    broker.publish(topic, sent)
    broker.roll(topic)
    broker.publish(topic, [*sent, message(b"\xff", 0), message(b"free", None)])
    for ledger_id, held in broker.topics[topic][-1].ledgers.items():
        broker.seal(topic, ledger_id, len(held), str(tmp_path))
    wanted = read(broker, valueFormat=value_format, readTableFiles="false")
    assert len(wanted) == 46
    broker.reads = 0
    assert read(broker, valueFormat=value_format) == wanted
    assert broker.reads == 0


@pytest.mark.parametrize("columns", [None, ("id",)])
def test_a_stream_does_not_drop_new_fields_unseen(columns: tuple[str, ...] | None) -> None:
    given: Any = Options.parse({"topic": "t", "valueFormat": "auto"}, streaming=True)
    assert given.fail_on_new_columns
    versions = {bytes(8): schema(FIRST)}
    layout = layout_of(given, lambda: {"t": versions})
    later = {**versions, (1).to_bytes(8, "big"): schema(SECOND)}
    wanted = columns or tuple(layout.columns)
    payload = avro(SECOND, {**ORDER, "id": 2, "price": 3.5})

    def shape(fails: bool) -> Shape:
        return Shape(layout, wanted, lambda _: later, fail_on_new_columns=fails)

    def batch(stored: tuple[str, ...]) -> pa.RecordBatch:
        row = {"value": payload, "schema_version": (1).to_bytes(8, "big")}
        arrays = [pa.array([row.get(name)], ROW_SCHEMA.field(name).type) for name in stored]
        return pa.RecordBatch.from_arrays(arrays, names=list(stored))

    if columns is None:
        failing = shape(True)
        with pytest.raises(
            SchemaChangedError, match=r"adds or widens .*price.*schemaEvolutionMode"
        ):
            failing.apply(batch(failing.stored), "t")
        ignoring = shape(False)
        (row,) = ignoring.apply(batch(ignoring.stored), "t").to_pylist()
        assert (row["id"], row["__valueRaw"]) == (2, payload)
        assert ignoring.lost["t"] == {"price": 1}
    else:
        only = shape(True)
        assert only.apply(batch(only.stored), "t").to_pylist() == [{"id": 2}]


WIDER = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
NARROW = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def loaded_before_the_schema_grew(broker: FakeBroker, **raw: str) -> tuple[PulsarkSource, Any]:
    """Return a source as Spark has it for the queries of a DataFrame that was loaded before."""
    topic = broker.create("t")
    broker.schemas["public/default/t"] = [schema(NARROW)]
    broker.publish(topic, [message(avro(NARROW, {"a": 1}), 0)])
    origin = source(broker, valueFormat="auto", **raw)
    columns = origin.schema()
    broker.schemas["public/default/t"].append(schema(WIDER))
    broker.publish(topic, [message(avro(WIDER, {"a": 1 << 40}), 1)])
    return pickle.loads(cloudpickle.dumps(origin)), columns


def test_a_loaded_dataframe_keeps_its_columns_if_new_ones_are_ignored(broker: FakeBroker) -> None:
    origin, columns = loaded_before_the_schema_grew(
        broker, schemaEvolutionMode="ignore", startingOffsets="earliest"
    )
    stream: Any = origin.streamReader(columns)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    for splits, reader in (
        (stream.partitions(start, end), stream),
        ((batch := origin.reader(columns)).partitions(), batch),
    ):
        rows = [
            row for split in splits for found in reader.read(split) for row in found.to_pylist()
        ]
        raw = avro(WIDER, {"a": 1 << 40})
        assert [(row["a"], row["__valueRaw"]) for row in rows] == [(1, None), (None, raw)]
    stream.stop()


def test_a_loaded_dataframe_says_what_has_changed(broker: FakeBroker) -> None:
    origin, columns = loaded_before_the_schema_grew(broker)
    for begin in (origin.streamReader, origin.reader):
        with pytest.raises(SchemaChangedError, match=r"adds or widens a, .* Call load\(\) again"):
            begin(columns)
    other = type(columns)([field for field in columns.fields if field.name == "__key"])
    origin.reader(other)


def test_a_stream_that_is_started_again_reads_new_fields() -> None:
    given: Any = Options.parse({"topic": "t", "valueFormat": "auto"}, streaming=True)
    versions = {bytes(8): schema(FIRST), (1).to_bytes(8, "big"): schema(SECOND)}
    layout = layout_of(given, lambda: {"t": versions})
    shape = Shape(layout, tuple(layout.columns), lambda _: versions, fail_on_new_columns=True)
    payload = avro(SECOND, {**ORDER, "id": 2, "price": 3.5})
    row = {"value": payload, "schema_version": (1).to_bytes(8, "big")}
    arrays = [pa.array([row.get(name)], ROW_SCHEMA.field(name).type) for name in shape.stored]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(shape.stored))
    (found,) = shape.apply(batch, "t").to_pylist()
    assert (found["id"], found["price"], found["__valueRaw"]) == (2, 3.5, None)
