"""Fields of a DataFrame as values of a schema: what others read of them, and what files hold."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.datasource.options.columns import PAYLOAD_META
from pulsark.datasource.write.outgoing import ColumnError, columns_beside_fields, messages_of
from pulsark.datasource.write.typed_values import TopicSchema, TypedValues, ValueForm
from pulsark.rows.outgoing import Batching, message_sizes
from pulsark.rows.value_sizes import value_sizes
from pulsark.runtime import OsDisk
from pulsark.schemas.columns import value_type
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from pulsark.storage.table.files.record import SealedLedger
from pulsark.storage.table.process.reader import TableReader
from pulsark.storage.table.staging.bulk_writer import BulkWriter, StagingArea
from pulsark.wire.batch import decode_batch
from pulsark.wire.entry import entry_payload, parse_entry
from pulsark.wire.topic_name import TopicName
from tests.support.typed_values import encoded

NOW = 1_700_000_000_000
VERSION = (7).to_bytes(8, "big")
TOPIC = TopicName.parse("orders")
AVRO, JSON = SchemaType.AVRO, SchemaType.JSON
KINDS = (AVRO, JSON)


def field(name: str, kind: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(inner: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": inner, "containsNull": True}


PLACE = struct(field("x", "double", False), field("inner", struct(field("y", "string"))))
COLUMNS = struct(
    field("id", "long", False),
    field("flag", "boolean"),
    field("small", "short"),
    field("real", "float"),
    field("text", "string"),
    field("raw", "binary"),
    field("day", "date"),
    field("at", "timestamp"),
    field("price", "decimal(20,3)"),
    field("tags", array("string")),
    field(
        "counts",
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    ),
    field("place", PLACE),
    field("lines", array(struct(field("sku", "string"), field("n", array("integer"))))),
)
PLACE_TYPE = pa.struct([("x", pa.float64()), ("inner", pa.struct([("y", pa.string())]))])
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("real", pa.float32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "Europe/Berlin")),
        ("price", pa.decimal128(20, 3)),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", PLACE_TYPE),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.list_(pa.int32()))]))),
    ]
)


def random_row(rng: random.Random) -> dict[str, Any]:
    text = rng.choice(["", "a", 'quo"te\\', "é ü", "line\nend", "x" * rng.randrange(200)])
    row = {
        "flag": rng.random() < 0.5,
        "small": rng.randrange(-(2**15), 2**15),
        "real": rng.choice([0.1, -2.5, 3e10]),
        "text": text,
        "raw": rng.randbytes(rng.randrange(5)),
        "day": date(1969, 12, 1) + timedelta(days=rng.randrange(20000)),
        "at": datetime(2026, 1, 2, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**12)),
        "price": Decimal(rng.choice([0, 1, -1, 127, 128, -128, -129, 10**19, -(10**19)])) / 1000,
        "tags": [text] * rng.randrange(3),
        "counts": [(f"k{n}", rng.randrange(-(2**63), 2**63)) for n in range(rng.randrange(3))],
        "place": {"x": rng.random(), "inner": rng.choice([None, {"y": text}, {"y": None}])},
        "lines": [{"sku": text, "n": [1, 2]}, {"sku": None, "n": None}][: rng.randrange(3)],
    }
    shown = {name: value if rng.random() < 0.8 else None for name, value in row.items()}
    return {"id": rng.randrange(-(2**63), 2**63), **shown}


def random_rows(count: int, seed: int) -> pa.RecordBatch:
    rng = random.Random(seed)
    rows = pa.RecordBatch.from_pylist([random_row(rng) for _ in range(count + 3)], ARROW)
    return rows.slice(3)


def typed(schema_type: SchemaType, columns: Any = COLUMNS, known: Any = None) -> TypedValues:
    form = ValueForm(schema_type, columns, None)
    return TypedValues(form, TopicSchema(form.schema_for(TOPIC, known), VERSION))


def read(schema: SchemaData, payload: bytes) -> Any:
    """What a client without columns makes of a payload."""
    if schema.type is JSON:
        return json.loads(payload)
    stream = io.BytesIO(payload)
    definition = fastavro.parse_schema(json.loads(schema.data))
    found = fastavro.schemaless_reader(stream, definition, None)
    assert stream.tell() == len(payload)
    return found


def plain(row: dict[str, Any], schema_type: SchemaType) -> dict[str, Any]:
    """A row as a client shows it."""
    row = {**row, "counts": dict(row["counts"]) if row["counts"] is not None else None}
    if schema_type is AVRO:
        return row

    import base64

    if row["raw"] is not None:
        row["raw"] = base64.b64encode(row["raw"]).decode()
    if row["at"] is not None:
        row["at"] = row["at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for name in ("day", "price"):
        row[name] = None if row[name] is None else str(row[name])
    found = without_nulls(row)
    assert isinstance(found, dict)
    return found


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("schema_type", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_payloads_are_what_others_read(schema_type: SchemaType, seed: int) -> None:
    rows = random_rows(100, seed)
    makes = typed(schema_type)
    payloads = makes.payloads(makes.of(rows)).to_pylist()
    for row, payload in zip(rows.to_pylist(), payloads, strict=True):
        found = read(makes.schema, payload)
        if row["real"] is not None:
            row["real"] = pytest.approx(row["real"], rel=1e-6)
        assert found == plain(row, schema_type)


@pytest.mark.parametrize("schema_type", KINDS)
@pytest.mark.parametrize("table", ["all", "none", "narrower"])
def test_a_file_holds_values_whose_entries_have_the_payloads(
    tmp_path: Path, schema_type: SchemaType, table: str
) -> None:
    makes = typed(schema_type)
    rows = random_rows(200, 1)
    values = makes.of(rows)
    kind = value_type(makes.schema)
    if table == "narrower":
        assert isinstance(kind, dict)
        kind = {**kind, "fields": kind["fields"][2:]}
    known = ValueSchemas(kind, (ValueSchema(VERSION, makes.schema),))
    batching = Batching("p", 10, schema_version=VERSION, names_in_values=makes.names_its_fields)
    writer = BulkWriter(
        StagingArea([str(tmp_path)], 1, NOW, "n"), 3, batching, OsDisk(), lambda: NOW,
        values=known if table != "none" else None,
    )  # fmt: skip
    assert writer.takes_structs(values.type) == (table != "none")
    given = values if table != "none" else makes.payloads(values)
    writer.add(messages_of(rows, {}, given), 10)
    staged = writer.finish()
    assert staged is not None
    reader = TableReader([str(tmp_path)], OsDisk())
    entries = reader.read(SealedLedger(-1, 3, staged.files), 0, staged.entries - 1, 1 << 24)
    found = []
    for _, entry in entries:
        head = parse_entry(entry)
        assert head.metadata.schema_version == VERSION
        found += [payload for _, payload in decode_batch(entry_payload(entry), head.messages)]
    assert found == makes.payloads(values).to_pylist()
    file = pq.read_table(tmp_path / staged.files[0].path)
    raw_rows = len(file) - file["value_raw"].null_count
    assert raw_rows == (0 if table == "all" else 0 if table == "none" else 200)


@pytest.mark.parametrize("schema_type", KINDS)
def test_sizes_are_about_those_of_payloads(schema_type: SchemaType) -> None:
    makes = typed(schema_type)
    values = makes.of(random_rows(300, 2))
    sent = sum(len(payload) for payload in makes.payloads(values).to_pylist())
    about = int(value_sizes(values, names=makes.names_its_fields).sum())
    assert 0.6 * sent <= about <= 1.6 * sent
    batch = messages_of(random_rows(300, 2), {}, values)
    assert message_sizes(batch, names_in_values=makes.names_its_fields).sum() > about


def test_rows_of_nulls_are_tombstones() -> None:
    columns = struct(field("a", "long"), field("b", array("string")))
    rows = pa.RecordBatch.from_pydict(
        {"a": pa.array([1, None, None]), "b": pa.array([None, [], None], pa.list_(pa.string()))}
    )
    makes = typed(AVRO, columns)
    assert makes.payloads(makes.of(rows)).is_valid().to_pylist() == [True, True, False]


KNOWN = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "kind",
            "type": ["null", {"type": "enum", "name": "K", "symbols": ["A", "B"]}],
        },
        {"name": "code", "type": ["null", {"type": "fixed", "name": "F", "size": 2}]},
        {"name": "more", "type": ["null", "string"]},
    ],
}


def known_values(**columns: pa.Array) -> tuple[TypedValues, pa.RecordBatch]:
    types = {"id": "integer", "at": "timestamp", "kind": "string", "code": "binary"}
    known = SchemaData(AVRO, json.dumps(KNOWN).encode())
    rows = pa.RecordBatch.from_pydict(
        {
            "code": pa.array([b"ab"]),
            "AT": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)]),
            "kind": pa.array(["B"]),
            "id": pa.array([5], pa.int32()),
        }
        | columns
    )
    kind = struct(*(field(name, types[name.lower()]) for name in rows.schema.names))
    makes = typed(AVRO, kind, known)
    assert makes.schema is known
    return makes, rows


def test_values_are_those_of_the_topics_schema() -> None:
    makes, rows = known_values()
    (payload,) = makes.payloads(makes.of(rows)).to_pylist()
    assert read(makes.schema, payload) == {
        "id": 5, "at": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC), "kind": "B", "code": b"ab",
        "more": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": pa.array([None], pa.int32())}, "'id' is null in a row"),
        ({"kind": pa.array(["C"])}, "'kind' is 'C' in a row; the topic's schema knows A, B"),
        ({"code": pa.array([b"abc"])}, "'code' has to have 2 bytes"),
    ],
)
def test_what_the_topics_schema_does_not_hold_is_said(columns: Any, said: str) -> None:
    makes, rows = known_values(**columns)
    with pytest.raises(ColumnError, match=said):
        makes.of(rows)


def test_what_a_read_could_not_read_is_not_written() -> None:
    columns, fields, unread = columns_beside_fields(
        ["a", "__key", "__publishTime", "__messageId", "__valueRaw", "__messageProperties"]
    )
    assert columns == {"key": "__key", "properties": "__messageProperties"}
    assert (fields, unread) == (["a"], "__valueRaw")
    form = ValueForm(AVRO, struct(field("a", "long")), None, unread)
    makes = TypedValues(form, TopicSchema(form.schema_for(TOPIC, None), VERSION))
    rows = pa.RecordBatch.from_pydict(
        {"a": pa.array([1, None]), "__valueRaw": pa.array([None, b"x"])}
    )
    with pytest.raises(ColumnError, match="in 1 rows: leave them out"):
        makes.of(rows)
    assert len(makes.of(rows.slice(0, 1))) == 1


def test_each_column_of_a_read_can_stay() -> None:
    columns, fields, unread = columns_beside_fields(["a", *PAYLOAD_META])
    assert set(columns) == {"key", "properties", "event_time", "topic", "partition"}
    assert (fields, unread) == (["a"], "__valueRaw")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "__kez"], "did you mean '__key'"),
        (["a", "__properties", "__messageProperties"], "mean the same"),
        (["__key"], "no column can be a field"),
    ],
)
def test_columns_beside_fields_are_checked(names: list[str], said: str) -> None:
    with pytest.raises(ColumnError, match=said):
        columns_beside_fields(names)


def test_times_without_a_zone_and_of_a_day() -> None:
    def logical(kind: str, name: str) -> dict[str, str]:
        return {"type": kind, "logicalType": name}

    members = [
        ("lm", logical("long", "local-timestamp-millis")),
        ("lu", logical("long", "local-timestamp-micros")),
        ("tm", logical("int", "time-millis")),
        ("tu", logical("long", "time-micros")),
    ]
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in members],
    }
    schema = SchemaData(SchemaType.AVRO, json.dumps(definition).encode())
    numbers = {"lm": 1500, "lu": 1_500_001, "tm": 45_296_789, "tu": 1}
    plain = json.loads(json.dumps(definition).replace('"logicalType"', '"other"'))
    expected = encoded(plain, numbers)
    naive = pa.timestamp("us")
    shown = {
        "lm": pa.array([1_500_999], pa.int64()).cast(naive),
        "lu": pa.array([1_500_001], pa.int64()).cast(naive),
        "tm": pa.array(["12:34:56.789"]),
        "tu": pa.array(["00:00:00.000001"]),
    }
    as_numbers = {name: pa.array([number], pa.int64()) for name, number in numbers.items()}
    kind = struct(
        *({"name": name, "type": "long", "nullable": True, "metadata": {}} for name, _ in members)
    )
    for columns in (shown, as_numbers):
        values = TypedValues(ValueForm(SchemaType.AVRO, kind, None), TopicSchema(schema, bytes(8)))
        found = values.of(pa.RecordBatch.from_pydict(columns))
        assert values.payloads(found).to_pylist() == expected
    late = {**shown, "tm": pa.array(["24:00:00.000"])}
    with pytest.raises(ColumnError, match="'tm' has to be a time of a day"):
        values.of(pa.RecordBatch.from_pydict(late))
