"""Whatever bytes clients publish become rows, and the same messages again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import CorruptEntryError
from pulsark.rows import ROW_SCHEMA, RowBuilder, builder, entries_of
from pulsark.rows.values import ValueColumn, column
from pulsark.rows.values.codec import Codec
from pulsark.rows.values.json_values import JsonCodec
from pulsark.rows.values.losses import Losses
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.files.record import SealedLedger
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.process.reader import TableReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import EntryHeader, build_entry
from tests.sim.disk import SimDisk
from tests.support.any_entries import published
from tests.support.client_view import client_view
from tests.support.tables import entries

ROOT = "/root/t"
SCHEMAS = [
    None,
    SchemaData(SchemaType.STRING),
    SchemaData(SchemaType.INT64),
    SchemaData(
        SchemaType.JSON,
        b'{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]}]}',
    ),
]


def sealed_and_read(originals: list[bytes], schema: SchemaData | None = None) -> list[bytes]:
    disk = SimDisk()
    values = ValueSchemas.next(None, [(bytes(8), schema)]) if schema else None
    files = seal(enumerate(originals), 0, 5, [ROOT], disk, "n", values=values)
    ledger, reader = SealedLedger(5, 0, tuple(files)), TableReader([ROOT], disk)
    found: list[tuple[int, bytes]] = []
    while len(found) < len(originals):
        found += reader.read(ledger, len(found), len(originals), 1 << 30)
    reader.close()
    assert [entry_id for entry_id, _ in found] == list(range(len(originals)))
    return [entry for _, entry in found]


def check(originals: list[bytes], schema: SchemaData | None = None) -> None:
    again = sealed_and_read(originals, schema)
    assert list(map(client_view, again)) == list(map(client_view, originals))


def alone(**fields: int) -> bytes:
    wanted = {"producer_name": "p", "sequence_id": 1, "publish_time": 1}
    return build_entry(pb.MessageMetadata(**(wanted | fields)), b"x")


def batch(*members: tuple[bytes, bytes], **fields: int) -> bytes:
    """Each member with its metadata as they stand on the wire."""
    head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    head.num_messages_in_batch = len(members)
    sizes = [len(single).to_bytes(4, "big") for single, _ in members]
    pieces = zip(sizes, members, strict=True)
    return build_entry(head, b"".join(size + single + value for size, (single, value) in pieces))


CORPUS = {
    "a message without its size": batch((b"", b"")),
    "a message without its size between others": batch(
        (b"\x18\x01", b"a"), (b"\x12\x01k", b""), (b"\x18\x01", b"b")
    ),
    "a property without its name": batch((b"\x0a\x03\x12\x01v\x18\x01", b"a")),
    "a tombstone with a value, and a property without its value": batch(
        (b"\x0a\x03\x0a\x01n\x18\x01\x48\x01\x50\x01", b"a")
    ),
    "the last millisecond of the year 9999": alone(publish_time=253_402_300_799_999),
    "the year 10000": alone(publish_time=253_402_300_800_000, event_time=253_402_300_800_000),
    "the last time that a column can hold": alone(publish_time=(2**63 - 1) // 1000),
    "a time that no column can hold": alone(publish_time=2**64 - 1, event_time=2**63),
    "a delivery before the epoch": alone(deliver_at_time=-(2**63)),
    "a delivery in the year 10000": batch((b"\x18\x01", b"a"), deliver_at_time=253_402_300_800_000),
    "numbers with all bits": alone(sequence_id=2**64 - 1, highest_sequence_id=2**64 - 1),
    "a compression that nobody knows": build_entry(
        pb.MessageMetadata.FromString(b"\x0a\x01p\x10\x01\x18\x01\x40\x63\x48\x07"), b"x"
    ),
    "a chunk of no message": alone(num_chunks_from_msg=2**31 - 1, chunk_id=-1),
    "a marker": alone(marker_type=-1),
}
"""What stopped the sealing of its topic once, and what is next to that."""


@pytest.mark.parametrize("few", [0, 10**9], ids=["all at once", "one by one"])
@pytest.mark.parametrize("name", CORPUS)
def test_what_was_trouble_once_is_sealed_and_read_back_beside_others(
    name: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "FEW_MESSAGES", few)
    for schema in SCHEMAS:
        check([*entries(3), CORPUS[name], *entries(3)], schema)


@pytest.mark.parametrize("few", [0, 10**9], ids=["all at once", "one by one"])
@given(st.lists(published, min_size=1, max_size=6), st.sampled_from(SCHEMAS))
def test_whatever_is_published_is_sealed_and_read_back(
    few: int, originals: list[bytes], schema: SchemaData | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "FEW_MESSAGES", few)
        check(originals, schema)


@given(st.lists(published, min_size=1, max_size=6), st.integers(-1, 3), st.integers(0, 5))
def test_whatever_is_published_becomes_rows_of_a_data_frame(
    originals: list[bytes], skip_through: int, stop_after: int
) -> None:
    build = RowBuilder("t", 0)
    for entry_id, entry in enumerate(originals):
        build.add(5, entry_id, entry)
    build.add(5, len(originals), originals[0], skip_through, stop_after)
    rows = build.finish()
    rows.validate(full=True)
    assert rows.schema == ROW_SCHEMA


def test_an_entry_that_breaks_the_builder_is_kept_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builder, "FEW_MESSAGES", 10**9)
    originals = [alone(sequence_id=i) for i in range(40)]
    poison = {originals[0], originals[17], originals[39]}
    parse = builder.parse_entry

    def picky(entry: bytes) -> EntryHeader:
        if entry in poison:
            raise ZeroDivisionError("a defect")
        return parse(entry)

    monkeypatch.setattr(builder, "parse_entry", picky)
    build = RowBuilder.for_table(0, ValueColumn(ValueSchemas.next(None, [(bytes(8), SCHEMAS[1])])))
    for entry_id, entry in enumerate(originals):
        build.add(5, entry_id, entry)
    rows = build.finish()
    rows.validate(full=True)
    assert rows["entry_id"].to_pylist() == list(range(40))
    raw = rows["value_raw"].to_pylist()
    assert [raw[i] for i in (0, 17, 39)] == [originals[i] for i in (0, 17, 39)]
    assert rows["sequence_id"].to_pylist()[15:19] == [15, 16, None, 18]
    assert "cannot decode 3 entries" in caplog.text
    assert "5:0: ZeroDivisionError" in caplog.text
    build.add(5, 40, originals[1])
    assert build.finish()["sequence_id"].to_pylist() == [1], "as before"
    monkeypatch.undo()
    assert sealed_and_read(originals) == originals


def test_of_an_entry_that_breaks_the_builder_no_part_is_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(entry: bytes) -> EntryHeader:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(builder, "parse_entry", broken)
    build = RowBuilder("t", 0)
    build.add(5, 0, alone(), skip_through=0)
    assert build.finish().num_rows == 0


def test_a_value_that_breaks_its_codec_is_kept_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    originals = [
        build_entry(
            pb.MessageMetadata(
                producer_name="p", sequence_id=i, publish_time=1, schema_version=bytes(8)
            ),
            b'{"a":%d}' % i,
        )
        for i in range(20)
    ]
    decode = JsonCodec.decode

    def picky(codec: JsonCodec, payloads: pa.Array, lost: Losses) -> pa.Array:
        if b'{"a":13}' in payloads.to_pylist():
            raise ZeroDivisionError("a defect")
        return decode(codec, payloads, lost)

    monkeypatch.setattr(JsonCodec, "decode", picky)
    values = ValueColumn(ValueSchemas.next(None, [(bytes(8), SCHEMAS[3])]))
    build = RowBuilder.for_table(0, values)
    for entry_id, entry in enumerate(originals):
        build.add(5, entry_id, entry)
    rows = build.finish()
    assert rows["value"].to_pylist()[12:15] == [{"a": 12}, None, {"a": 14}]
    assert rows["value_raw"].to_pylist()[12:15] == [None, b'{"a":13}', None]
    again = ValueColumn.from_metadata(values.to_metadata())
    assert [entry for _, entry in entries_of(rows, again)] == originals


def test_a_schema_without_a_codec_leaves_values_as_they_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Codec:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(column, "codec_of", broken)
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, schema_version=bytes(8)
    )
    check([build_entry(head, b'{"a":1}'), *entries(3)], SCHEMAS[3])


def test_times_that_a_log_cannot_say_are_null_in_the_statistics() -> None:
    disk = SimDisk()
    originals = [alone(publish_time=5), alone(publish_time=253_402_300_800_000, event_time=7)]
    (file,) = seal(enumerate(originals), 0, 5, [ROOT], disk, "n")
    assert file.statistics["maxValues"]["publish_time"] == "1970-01-01T00:00:00.005000Z"
    assert file.statistics["nullCount"]["publish_time"] == 1
    assert file.statistics["maxValues"]["event_time"] == "1970-01-01T00:00:00.007000Z"


def test_a_failed_read_names_the_file_and_what_is_wrong_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    files = seal([(0, alone())], 0, 5, [ROOT], disk, "n")
    ledger, name = SealedLedger(5, 0, tuple(files)), files[0].path
    assert len(TableReader(["/lost/t", ROOT], disk).read(ledger, 0, 0, 1)) == 1
    (line,) = caplog.messages
    assert line == f"/lost/t/{name}: no such file; another storage root has it"
    caplog.clear()
    with pytest.raises(CorruptEntryError) as caught:
        TableReader(["/lost/t"], disk).read(ledger, 0, 0, 1)
    assert str(caught.value).endswith(f": /lost/t/{name}: no such file")
    assert not caplog.messages  # who asked says it, once
