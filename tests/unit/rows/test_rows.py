"""Entries as rows, checked against the plain decoder of the wire."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.rows import ROW_SCHEMA, RowBuilder
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, encode_batch, read_messages
from pulsark.wire.entry import build_entry, entry_metadata

TOPIC = "persistent://public/default/t"
NOW = 1_700_000_000_000


def metadata(**fields: Any) -> pb.MessageMetadata:
    wanted: dict[str, Any] = {"producer_name": "p-1", "sequence_id": 7, "publish_time": NOW}
    return pb.MessageMetadata(**(wanted | fields))


def single(properties: dict[str, str] | None = None, **fields: Any) -> pb.SingleMessageMetadata:
    message = pb.SingleMessageMetadata(payload_size=0, **fields)
    for key, value in (properties or {}).items():
        message.properties.add(key=key, value=value)
    return message


def rows(*entries: bytes, **limits: int) -> list[dict[str, Any]]:
    builder = RowBuilder(TOPIC, 3)
    for entry_id, entry in enumerate(entries):
        builder.add(12, entry_id, entry, **limits)
    batch = builder.finish()
    batch.validate(full=True)
    assert batch.schema == ROW_SCHEMA
    return [{**row, "properties": dict(row["properties"])} for row in batch.to_pylist()]


def test_a_message_sent_alone_has_every_column() -> None:
    sent = metadata(
        partition_key="AA",
        event_time=NOW + 1,
        ordering_key=b"o",
        schema_version=b"\0\1",
        replicated_from="other",
        deliver_at_time=NOW + 2,
    )
    sent.properties.add(key="a", value="1")
    entry = build_entry(sent, b"hello")
    second = datetime.fromtimestamp(NOW // 1000, UTC)
    assert rows(entry) == [
        {
            "topic": TOPIC,
            "partition": 3,
            "message_id": "12:0:3:-1",
            "ledger_id": 12,
            "entry_id": 0,
            "batch_index": -1,
            "batch_size": 1,
            "key": "AA",
            "key_base64": False,
            "ordering_key": b"o",
            "value": b"hello",
            "value_raw": None,
            "properties": {"a": "1"},
            "producer_name": "p-1",
            "sequence_id": 7,
            "publish_time": second,
            "event_time": second.replace(microsecond=1000),
            "schema_version": b"\0\1",
            "replicated_from": "other",
            "deliver_at_time": second.replace(microsecond=2000),
            "entry_meta": sent.SerializeToString(),
        }
    ]


def test_a_message_without_extras_has_nulls() -> None:
    (row,) = rows(build_entry(metadata(), b"x"))
    absent = (
        "key", "key_base64", "ordering_key", "value_raw", "event_time", "schema_version",
        "replicated_from", "deliver_at_time",
    )  # fmt: skip
    assert [row[name] for name in absent] == [None] * len(absent)
    assert row["properties"] == {}


@pytest.mark.parametrize("compression", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_batches_of_every_compression(compression: pb.CompressionType) -> None:
    messages = [(single({"n": str(i)}, sequence_id=i), b"value-%d" % i) for i in range(5)]
    found = rows(build_batch(metadata(), messages, compression))
    assert [row["value"] for row in found] == [b"value-%d" % i for i in range(5)]
    assert [row["batch_index"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["message_id"] for row in found] == [f"12:0:3:{i}" for i in range(5)]
    assert {row["batch_size"] for row in found} == {5}
    assert [row["properties"]["n"] for row in found] == ["0", "1", "2", "3", "4"]
    assert [row["entry_meta"] is None for row in found] == [False, True, True, True, True]


texts = st.text(max_size=8)
messages_of_a_batch = st.lists(
    st.tuples(
        st.builds(
            lambda properties, fields: single(properties, **fields),
            st.dictionaries(texts, texts, max_size=3),
            st.fixed_dictionaries(
                {},
                optional={
                    "partition_key": texts,
                    "null_partition_key": st.booleans(),
                    "partition_key_b64_encoded": st.booleans(),
                    "event_time": st.integers(0, 2**64 - 1),
                    "ordering_key": st.binary(max_size=4),
                    "sequence_id": st.integers(0, 2**64 - 1),
                    "null_value": st.booleans(),
                    "compacted_out": st.booleans(),
                },
            ),
        ),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(messages=messages_of_a_batch, skip=st.integers(-1, 5), stop=st.integers(0, 6))
def test_rows_say_what_the_wire_says(messages: Any, skip: int, stop: int) -> None:
    entry = build_batch(metadata(), messages)
    expected = [
        (
            index,
            None if one.null_value else payload,
            one.partition_key if one.HasField("partition_key") and not one.null_partition_key
            else None,
            one.ordering_key if one.HasField("ordering_key") else None,
            {item.key: item.value for item in one.properties},
            (one.sequence_id if one.HasField("sequence_id") else 7) & (2**64 - 1),
        )
        for index, (one, payload) in enumerate(read_messages(entry, 1 << 20))
        if one is not None and not one.compacted_out and skip < index <= stop
    ]  # fmt: skip
    found = [
        (
            row["batch_index"],
            row["value"],
            row["key"],
            row["ordering_key"],
            row["properties"],
            row["sequence_id"] & (2**64 - 1),
        )
        for row in rows(entry, skip_through=skip, stop_after=stop)
    ]
    assert found == expected


def test_what_cannot_be_read_goes_through_as_it_was_sent() -> None:
    encrypted = metadata(num_messages_in_batch=5, partition_key="k")
    encrypted.encryption_keys.add(key="k", value=b"v")
    chunk = metadata(num_chunks_from_msg=3, chunk_id=1, uuid="u", total_chunk_msg_size=9)
    damaged_batch = metadata(num_messages_in_batch=2)
    damaged_compression = metadata(compression=pb.LZ4, uncompressed_size=10)
    bomb = metadata(compression=pb.ZSTD, uncompressed_size=2**32 - 1)
    sent = [encrypted, chunk, damaged_batch, damaged_compression, bomb]
    payload = b"\0\0\0\1" + b"raw-payload" * 4
    found = rows(*(build_entry(head, payload) for head in sent))
    assert [row["value"] for row in found] == [None] * 5
    assert [row["value_raw"] for row in found] == [payload] * 5
    assert [row["batch_index"] for row in found] == [-1] * 5
    assert [row["batch_size"] for row in found] == [5, 1, 2, 1, 1]
    assert [row["key"] for row in found] == ["k", None, None, None, None]
    assert {row["sequence_id"] for row in found} == {7}


def test_a_batch_damaged_in_the_middle_leaves_no_half_rows() -> None:
    good = build_batch(metadata(), [(single(), b"good")])
    payload = encode_batch([(single({"a": "b"}), b"one"), (single({"a": "b"}), b"two")])
    bad = build_entry(metadata(num_messages_in_batch=2), payload[:-1])
    found = rows(good, bad, good)
    assert [row["value"] for row in found] == [b"good", None, b"good"]
    assert found[1]["value_raw"] == payload[:-1]
    assert [row["properties"] for row in found] == [{}, {}, {}]


def test_an_entry_that_fails_its_checksum_is_kept_whole() -> None:
    entry = bytearray(build_entry(metadata(), b"payload"))
    entry[-1] ^= 1
    good = build_entry(metadata(sequence_id=9), b"payload")
    damaged, garbage, fine = rows(bytes(entry), b"nonsense", good)
    assert damaged["value_raw"] == bytes(entry)
    assert garbage["value_raw"] == b"nonsense"
    known = {"topic", "partition", "message_id", "ledger_id", "entry_id", "batch_index"}
    for row in (damaged, garbage):
        assert {name for name, value in row.items() if value not in (None, {})} == {
            *known,
            "value_raw",
        }
    assert fine["sequence_id"] == 9


def test_tombstones_have_no_value_and_markers_no_row() -> None:
    marker = build_entry(metadata(marker_type=20), b"")
    tombstone = build_entry(metadata(null_value=True, partition_key="k"), b"")
    (row,) = rows(marker, tombstone)
    assert (row["key"], row["value"], row["value_raw"]) == ("k", None, None)


def test_keys_that_are_not_text_become_base64() -> None:
    declared = single(partition_key=base64.b64encode(b"\xff").decode())
    declared.partition_key_b64_encoded = True
    # A proto2 string field that some client filled with arbitrary bytes.
    broken = pb.SingleMessageMetadata.FromString(single().SerializeToString() + b"\x12\x02\xff\xfe")
    found = rows(build_batch(metadata(), [(declared, b""), (broken, b""), (single(), b"")]))
    assert [(row["key"], row["key_base64"]) for row in found] == [
        ("/w==", True),
        (base64.b64encode(b"\xff\xfe").decode(), True),
        (None, None),
    ]


def test_properties_that_are_not_text_and_properties_given_twice() -> None:
    twice = single()
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        twice.properties.add(key=key, value=value)
    item = b"\x0a\x01\xff\x12\x01\xfe"
    broken = pb.SingleMessageMetadata.FromString(
        single().SerializeToString() + b"\x0a" + bytes([len(item)]) + item
    )
    found = rows(build_batch(metadata(), [(twice, b""), (broken, b"")]))
    assert found[0]["properties"] == {"a": "3", "b": "2"}
    assert found[1]["properties"] == {"\ufffd": "\ufffd"}


def test_times_that_no_clock_shows_are_null() -> None:
    entry = build_entry(metadata(publish_time=2**64 - 1, event_time=2**63), b"")
    (row,) = rows(entry)
    assert row["publish_time"] is None
    assert row["event_time"] is None


def test_only_the_columns_asked_for_in_the_order_asked_for() -> None:
    builder = RowBuilder(TOPIC, -1, ["value", "partition", "entry_id"])
    builder.add(1, 5, build_entry(metadata(), b"x"))
    assert (builder.rows, builder.size) == (1, 1)
    batch = builder.finish()
    assert batch.to_pylist() == [{"value": b"x", "partition": -1, "entry_id": 5}]
    assert builder.rows == 0
    assert builder.finish().num_rows == 0


def test_entry_metadata_is_kept_byte_for_byte() -> None:
    entry = build_entry(metadata(), b"x")
    (row,) = rows(entry)
    assert pb.MessageMetadata.FromString(row["entry_meta"]) == entry_metadata(entry)
    assert rows(entry[6:])[0]["entry_meta"] == row["entry_meta"]
