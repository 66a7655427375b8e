"""Rows of a table as entries again: no client can tell them from the original."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.errors import CorruptEntryError
from pulsark.limits import ROW_PAYLOAD_BYTES_MAX
from pulsark.rows import FILE_SCHEMA, RowBuilder, builder, entries_of, file_schema
from pulsark.rows import entries as entries_module
from pulsark.rows.values import ValueColumn
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, encode_batch
from pulsark.wire.compression import compress
from pulsark.wire.entry import build_entry, checksum_ok, entry_without_checksum
from tests.support import protobuf_messages as proto
from tests.support.client_view import client_view

NOW = 1_700_000_000_000


@pytest.fixture(
    params=[0, 64, 10**9], ids=["all at once", "as it comes", "one by one"], autouse=True
)
def _few_messages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "FEW_MESSAGES", request.param)


def metadata(**fields: Any) -> pb.MessageMetadata:
    wanted: dict[str, Any] = {"producer_name": "p-1", "sequence_id": 7, "publish_time": NOW}
    return pb.MessageMetadata(**(wanted | fields))


def single(properties: Any = (), **fields: Any) -> pb.SingleMessageMetadata:
    message = pb.SingleMessageMetadata(payload_size=0, **fields)
    for key, value in properties:
        message.properties.add(key=key, value=value)
    return message


VERSION = bytes(8)
SCHEMAS = (
    SchemaData(SchemaType.STRING),
    SchemaData(
        SchemaType.JSON,
        b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]}]}',
    ),
    SchemaData(
        SchemaType.AVRO, b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
    ),
    SchemaData(
        SchemaType.AVRO,
        b'{"type":"record","name":"R","fields":['
        b'{"name":"l","type":{"type":"array","items":["null","string"]}},'
        b'{"name":"m","type":{"type":"map","values":"long"}}]}',
    ),
    proto.native(
        proto.file(
            proto.message(
                "R",
                proto.one("a", 1),
                proto.many("t", 2, proto.STRING),
                proto.many("m", 3, "R.MEntry"),
                nested=[proto.entry("MEntry", proto.INT32, proto.STRING)],
            )
        )
    ),
)


def rows_of(entries: list[bytes], values: ValueColumn | None = None) -> pa.RecordBatch:
    build = RowBuilder.for_table(0, values)
    for entry_id, entry in enumerate(entries):
        build.add(5, entry_id, entry)
    batch = build.finish()
    batch.validate(full=True)
    assert batch.schema == (FILE_SCHEMA if values is None else file_schema(values.type))
    return batch


def check(*entries: bytes) -> list[bytes]:
    """The entries as they come back, whatever types their values have; asserts that they are all
    there and equal."""
    for schema in SCHEMAS:
        values = ValueColumn(ValueSchemas.next(None, [(VERSION, schema)]))
        rows = rows_of(list(entries), values)
        again = ValueColumn.from_metadata(values.to_metadata())
        same(entries, entries_of(rows, again))
    return same(entries, entries_of(rows_of(list(entries))))


def same(entries: Sequence[bytes], found: list[tuple[int, bytes]]) -> list[bytes]:
    assert [entry_id for entry_id, _ in found] == list(range(len(entries)))
    for original, (_, again) in zip(entries, found, strict=True):
        assert client_view(again) == client_view(original)
        assert checksum_ok(again) or again == original
    return [entry for _, entry in found]


texts = st.text(max_size=6)
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
properties = st.lists(st.tuples(st.sampled_from(["a", "b", "", "é" * 70]), texts), max_size=4)
singles = st.builds(
    lambda properties, fields: single(properties, **fields),
    properties,
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": texts,
            "null_partition_key": st.booleans(),
            "partition_key_b64_encoded": st.booleans(),
            "event_time": numbers,
            "ordering_key": st.binary(max_size=4),
            "sequence_id": numbers,
            "null_value": st.booleans(),
            "compacted_out": st.booleans(),
        },
    ),
)
plain_singles = st.builds(
    lambda properties, fields: single(properties.items(), **fields),
    st.dictionaries(texts, st.text(max_size=200), max_size=3),
    st.fixed_dictionaries(
        {"sequence_id": numbers},
        optional={
            "partition_key": st.text(max_size=200),
            "partition_key_b64_encoded": st.just(False),
            "event_time": st.integers(0, NOW * 2),
            "ordering_key": st.binary(max_size=4),
        },
    ),
)
compressions = st.sampled_from([pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
heads = st.builds(
    lambda fields, items: _with_properties(metadata(**fields), items),
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": texts,
            "partition_key_b64_encoded": st.booleans(),
            "null_partition_key": st.booleans(),
            "event_time": numbers,
            "publish_time": numbers,
            "sequence_id": numbers,
            "ordering_key": st.binary(max_size=4),
            "schema_version": st.one_of(st.just(VERSION), st.binary(max_size=8)),
            "deliver_at_time": st.integers(0, 2**63 - 1),
            "replicated_from": texts,
            "highest_sequence_id": numbers,
            "txnid_least_bits": numbers,
            "null_value": st.booleans(),
            "uncompressed_size": st.integers(0, 100),
        },
    ),
    properties,
)


def _with_properties(head: pb.MessageMetadata, items: Any) -> pb.MessageMetadata:
    for key, value in items:
        head.properties.add(key=key, value=value)
    return head


payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b'{"a":1}', b'{"a": 2}', b"{}", b'{"a":null}', b"text", b"\x02x", b""]),
    # Lists and maps of Avro, fields of Protobuf: in the usual way and in others.
    st.sampled_from(
        [
            b"\x04\x00\x02\x02x\x00\x00",
            b"\x00\x02\x02k\x04\x00",
            b"\x01\x02\x00\x00\x00",
            b"\x08\x05\x12\x01x\x12\x00",
            b"\x1a\x05\x08\x01\x12\x01v",
            b"\x12\x01x\x08\x05",
            b"\x08\x05\xa0\x06\x01",
        ]
    ),
)


def batches(members: Any) -> Any:
    lists = st.lists(st.tuples(members, payloads), min_size=1, max_size=8)
    return st.builds(build_batch, heads, lists, compressions)


def _squeezed(
    head: pb.MessageMetadata, payload: bytes, kind: pb.CompressionType, more: int
) -> bytes:
    """A compressed message sent alone; ``more`` is by how much its claimed size is wrong."""
    head.compression = kind
    head.uncompressed_size = len(payload) + more
    return build_entry(head, compress(kind, payload))


alone = st.builds(build_entry, heads, payloads)
squeezed = st.builds(
    _squeezed, heads, payloads, compressions, st.sampled_from([0, 0, 0, 1, 2**31 - 100])
)
encrypted = st.builds(
    lambda head, payload: build_entry(_encrypted(head), payload), heads, st.binary(max_size=30)
)
chunks = st.builds(
    lambda head, payload: build_entry(_chunk(head), payload), heads, st.binary(max_size=30)
)
damaged = st.builds(lambda entry, at: _flipped(entry, at), alone, st.integers(6, 40))
markers = st.builds(
    lambda kind, payload: build_entry(metadata(marker_type=kind), payload),
    st.integers(0, 30),
    st.binary(max_size=10),
)
anything = st.one_of(
    batches(singles), batches(plain_singles), alone, squeezed, encrypted, chunks, damaged, markers,
    st.binary(max_size=40), alone.map(entry_without_checksum),
)  # fmt: skip


def _encrypted(head: pb.MessageMetadata) -> pb.MessageMetadata:
    head.encryption_keys.add(key="k", value=b"v")
    head.compression = pb.LZ4
    return head


def _chunk(head: pb.MessageMetadata) -> pb.MessageMetadata:
    head.num_chunks_from_msg, head.chunk_id, head.uuid = 3, 1, "u"
    head.total_chunk_msg_size, head.compression = 90, pb.ZSTD
    return head


def _flipped(entry: bytes, at: int) -> bytes:
    wrong = bytearray(entry)
    wrong[min(at, len(entry) - 1)] ^= 1
    return bytes(wrong)


@settings(max_examples=50, deadline=None)
@given(st.lists(anything, min_size=1, max_size=8))
def test_every_entry_comes_back(entries: list[bytes]) -> None:
    check(*entries)


@settings(max_examples=40, deadline=None)
@given(st.lists(batches(plain_singles), min_size=1, max_size=6))
def test_what_clients_write_needs_no_metadata_of_messages(entries: list[bytes]) -> None:
    rows = rows_of(entries)
    assert rows.column("message_meta").null_count == rows.num_rows
    check(*entries)


@pytest.mark.parametrize("kind", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_compressed_messages_sent_alone(kind: pb.CompressionType) -> None:
    entries = [
        _squeezed(metadata(sequence_id=n, schema_version=VERSION), value, kind, 0)
        for n, value in enumerate([b'{"a":1}', b"", b"\xff", b'{"a": 1, "b": 2}', b"x" * 1000] * 20)
    ]
    entries.insert(7, build_entry(metadata(schema_version=VERSION), b"plain"))
    check(*entries)
    rows = rows_of(entries)
    assert rows.column("value").to_pylist()[5:9] == [b'{"a":1}', b"", b"plain", b"\xff"]
    assert rows.column("value_raw").null_count == len(entries)
    typed = rows_of(entries, ValueColumn(ValueSchemas.next(None, [(VERSION, SCHEMAS[1])])))
    assert typed.column("value").to_pylist()[0] == {"a": 1}
    raw = typed.column("value_raw").to_pylist()
    assert (raw[0], raw[7], raw[8]) == (None, b"plain", compress(kind, b"\xff"))


def test_what_values_claim_to_become_counts() -> None:
    build = RowBuilder.for_table(0)
    build.add(5, 0, _squeezed(metadata(), b"x" * 50_000, pb.LZ4, 0))
    assert build.size == 50_000
    build.add(5, 1, _squeezed(metadata(), b"x", pb.LZ4, 2**31 - 100))
    assert build.size == 50_000 + ROW_PAYLOAD_BYTES_MAX
    rows = build.finish()
    assert rows.column("value").to_pylist() == [b"x" * 50_000, None]
    assert rows.column("value_raw").to_pylist()[1] == compress(pb.LZ4, b"x")


def test_large_fields_and_many_messages() -> None:
    rng = random.Random(1)

    def message(i: int) -> tuple[pb.SingleMessageMetadata, bytes]:
        items = [(f"p{k}", "x" * rng.choice([0, 1, 126, 127, 128, 129, 20_000])) for k in range(12)]
        key = "k" * rng.choice([0, 1, 127, 128, 16_384])
        one = single(items, partition_key=key, sequence_id=rng.getrandbits(64))
        return one, b"v" * rng.choice([0, 1, 127, 128, 70_000])

    check(*(build_batch(metadata(), [message(i) for i in range(20)]) for _ in range(5)))


def test_slices_of_a_batch_of_rows_are_entries_too() -> None:
    entries = [
        build_batch(metadata(), [(single([("n", str(i))], partition_key="k"), b"v%d" % i)] * 3)
        for i in range(10)
    ]
    rows = rows_of(entries)
    found = entries_of(rows.slice(9, 12))
    assert [entry_id for entry_id, _ in found] == [3, 4, 5, 6]
    assert [client_view(e) for _, e in found] == [client_view(e) for e in entries[3:7]]
    table = pa.Table.from_batches([rows.slice(0, 3), rows.slice(3)])
    assert [client_view(e) for _, e in entries_of(table)] == [client_view(e) for e in entries]


def test_fields_in_another_order_and_unknown_fields_come_back() -> None:
    one = single([("a", "1")], partition_key="k", sequence_id=3)
    unknown = pb.SingleMessageMetadata.FromString(one.SerializeToString() + b"\xa2\x06\x01x")
    entry = build_batch(metadata(), [(one, b"x"), (unknown, b"y")] * 40)
    rows = rows_of([entry])
    kept = rows.column("message_meta")
    assert kept.null_count == 40
    (again,) = check(entry)
    assert again == entry
    payload = encode_batch([(one, b"x")])
    swapped = b"\x18\x01" + payload[4:-1].replace(b"\x18\x01", b"")
    backwards = len(swapped).to_bytes(4, "big") + swapped + b"x"
    check(build_entry(metadata(num_messages_in_batch=1), backwards))


@pytest.mark.parametrize(
    "odd",
    [
        single(event_time=2**63),
        single([("a", "1"), ("b", "2"), ("a", "3")]),
        single([(str(i), "x") for i in range(12)] + [("3", "y")]),
        single(partition_key_b64_encoded=True),
        single(partition_key="k", null_partition_key=True),
        pb.SingleMessageMetadata.FromString(single().SerializeToString() + b"\x12\x01\xff"),
        pb.SingleMessageMetadata.FromString(
            single().SerializeToString() + b"\x0a\x06\x0a\x01\xff\x12\x01\xfe"
        ),
    ],
    ids=["late", "twice", "twice of many", "flag without key", "null key", "key", "property"],
)
def test_what_columns_cannot_say_is_in_the_metadata_of_the_message(
    odd: pb.SingleMessageMetadata,
) -> None:
    entry = build_batch(metadata(), [(single([("a", "1")]), b"x"), (odd, b"y")])
    rows = rows_of([entry])
    assert [meta is None for meta in rows.column("message_meta").to_pylist()] == [True, False]
    for row in rows.column("properties").to_pylist():
        assert len(dict(row)) == len(row)
    check(entry)


def test_what_follows_the_last_message_of_a_batch_is_nobodys() -> None:
    payload = encode_batch([(single(), b"a"), (single(), b"b")]) + b"trailing"
    (again,) = check(build_entry(metadata(num_messages_in_batch=2), payload))
    assert b"trailing" not in again


def test_a_batch_from_which_everything_was_removed_has_a_row_that_is_no_message() -> None:
    gone = build_batch(metadata(), [(single(compacted_out=True), b"")] * 3)
    marker = build_entry(metadata(marker_type=20), b"m")
    rows = rows_of([gone, marker])
    assert rows.column("batch_size").to_pylist() == [0, 0]
    assert check(gone, marker) == [gone, marker]


def test_messages_whose_rows_are_gone_are_holes_for_clients() -> None:
    entry = build_batch(metadata(), [(single(), b"%d" % i) for i in range(4)])
    rows = rows_of([entry]).take(pa.array([0, 2]))
    ((_, again),) = entries_of(rows)
    assert [view if view == "removed" else view[-1] for view in client_view(again)[1]] == [
        b"0", "removed", b"2", "removed",
    ]  # fmt: skip
    with pytest.raises(CorruptEntryError):
        entries_of(rows_of([entry]).slice(1))
    with pytest.raises(CorruptEntryError):
        entries_of(rows_of([entry]).take(pa.array([0, 0, 1])))


def test_large_payloads_are_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = build_batch(metadata(), [(single(), b"x" * 500)] * 4, pb.ZSTD)
    assert len(check(entry)[0]) > 2000
    monkeypatch.setattr(entries_module, "COMPRESS_FROM_BYTES", 1000)
    assert len(check(entry)[0]) < 200


def test_no_rows_are_no_entries() -> None:
    assert entries_of(rows_of([])) == []
    assert entries_of(pa.Table.from_batches([rows_of([])])) == []


def test_a_mix_keeps_its_order() -> None:
    batch = build_batch(metadata(), [(single([("a", "1")]), b"x")] * 40)
    odd = build_batch(metadata(), [(single(null_partition_key=True), b"x")] * 3)
    alone = build_entry(metadata(), b"alone")
    check(alone, batch, odd, batch, alone, odd, batch, build_entry(metadata(marker_type=1), b""))


def test_messages_sent_alone_are_the_same_beside_any_others() -> None:
    def alone(i: int, key: str, **fields: Any) -> bytes:
        head = _with_properties(metadata(sequence_id=i, partition_key=key, **fields), [("a", key)])
        return build_entry(head, b"%d" % i)

    usual = [
        alone(i, key, schema_version=VERSION, uncompressed_size=len(str(i)), ordering_key=b"o")
        for i, key in enumerate(["X", "@", "H", "k", "é", "X" * 200, ""] * 20)
    ]
    members = [(single(sequence_id=i), b"m") for i in range(3)]
    others = [
        build_batch(metadata(), members),
        build_batch(metadata(), members[:1]),
        alone(1, "k", event_time=2**63),
        alone(1, "k", publish_time=2**63),
        alone(1, "k", null_value=True),
        alone(1, "k", marker_type=3),
        alone(1, "k", txnid_least_bits=5),
        _flipped(usual[3], 20),
        usual[0][:11],
        b"\x0e\x01",
        _encrypted_entry(),
    ]
    for entry in others:
        check(*usual[:70], entry, *usual[70:])
    found = check(*usual)
    assert found == usual, "nothing is written otherwise"
    check(*others)
    rows = rows_of([*usual[:70], others[0], *usual[70:]])
    assert rows["entry_id"].to_pylist() == [*range(70), 70, 70, 70, *range(71, 141)]
    assert rows["batch_size"].to_pylist() == [1] * 70 + [3] * 3 + [1] * 70
    assert rows["key"].to_pylist()[:7] == ["X", "@", "H", "k", "é", "X" * 200, ""]
    assert set(rows["producer_name"].to_pylist()) == {"p-1"}
    assert rows["publish_time"].null_count == 0


def _encrypted_entry() -> bytes:
    return build_entry(_encrypted(metadata()), b"secret")
