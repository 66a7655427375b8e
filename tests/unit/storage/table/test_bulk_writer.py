"""Files of a bulk publish hold the messages, as a batching client would have sent them."""

from __future__ import annotations

import errno
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.rows.entries import entries_of
from pulsark.rows.outgoing import (
    OUTGOING_SCHEMA,
    Batching,
    entry_rows,
    message_sizes,
)
from pulsark.runtime import OsDisk
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from pulsark.storage.table.files.record import SealedLedger
from pulsark.storage.table.process.reader import TableReader, check_files
from pulsark.storage.table.staging.bulk_writer import BulkWriter, StagingArea, values_said
from pulsark.storage.table.staging.staged_ledger import StagedLedger
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import decode_batch
from pulsark.wire.entry import checksum_ok, entry_payload, parse_entry
from tests.sim.disk import SimDisk
from tests.support.client_view import client_view

NOW = 1_700_000_000_000


def time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def messages(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, OUTGOING_SCHEMA)


def random_rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        rows.append(
            {
                "key": rng.choice([None, f"k{rng.randrange(5)}", "ключ"]),
                "key_base64": rng.choice([None, False, True]),
                "ordering_key": rng.choice([None, None, b"o%d" % i]),
                "value": rng.choice([None, b"", b"v%d" % i, rng.randbytes(rng.randrange(3000))]),
                "properties": rng.choice(
                    [None, [], [("n", str(i)), ("o", "x")], [("empty", None)]]
                ),
                "event_time": rng.choice([None, time(NOW + i)]),
                "deliver_at_time": rng.choice([*[None] * 8, time(NOW + 10**6 + i)]),
            }
        )
    return rows


def unpacked(entries: list[bytes]) -> list[dict[str, Any]]:
    """What consumers see, message by message."""
    found = []
    for entry in entries:
        assert checksum_ok(entry)
        head = parse_entry(entry)
        members: list[tuple[Any, bytes]] = [(head.metadata, entry_payload(entry))]
        if head.batched:
            members = list(decode_batch(entry_payload(entry), head.messages))
        for one, value in members:
            has_key = one.HasField("partition_key")
            found.append(
                {
                    "key": one.partition_key if has_key else None,
                    "key_base64": one.partition_key_b64_encoded if has_key else None,
                    "ordering_key": one.ordering_key if one.HasField("ordering_key") else None,
                    "value": None if one.null_value else value,
                    "properties": [(p.key, p.value) for p in one.properties],
                    "event_time": time(one.event_time) if one.event_time else None,
                    "deliver_at_time": (
                        time(head.metadata.deliver_at_time)
                        if head.metadata.deliver_at_time
                        else None
                    ),
                }
            )
    return found


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as consumers see it."""
    return {
        **row,
        "key_base64": None if row["key"] is None else bool(row["key_base64"]),
        "properties": [(k, v or "") for k, v in row["properties"] or ()],
    }


@pytest.mark.parametrize("seed", range(8))
def test_entries_made_from_the_rows_are_the_messages(seed: int) -> None:
    rows = random_rows(200, seed)
    batching = Batching("p", max_messages=7, max_bytes=4000, schema_version=b"\0\1")
    made = entry_rows(messages(rows), batching, 5, 100, NOW)
    entries = entries_of(made.rows)
    assert [i for i, _ in entries] == list(range(5, 5 + made.entries))
    assert unpacked([e for _, e in entries]) == [shown(row) for row in rows]
    sequence_ids = []
    for _, entry in entries:
        head = parse_entry(entry)
        assert head.messages <= 7
        assert (head.producer_name, head.publish_time) == ("p", NOW)
        assert head.metadata.schema_version == b"\0\1"
        assert head.metadata.deliver_at_time == 0 or not head.batched
        sequence_ids.append(head.sequence_id)
    assert sequence_ids == sorted(set(sequence_ids))
    assert sequence_ids[0] == 100
    size = sum(len(e) for _, e in entries)
    assert 0.8 * size <= made.length <= 1.4 * size


def test_a_batch_has_the_key_of_its_first_message_as_clients_do_it() -> None:
    rows = [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    ((_, entry),) = entries_of(entry_rows(messages(rows), Batching("p"), 0, 0, NOW).rows)
    assert parse_entry(entry).metadata.partition_key == "a"


def test_a_batch_ends_at_its_size_in_bytes_and_a_large_message_is_one() -> None:
    rows = [{"value": b"x" * size} for size in (400, 400, 400, 5000, 10, 10)]
    made = entry_rows(messages(rows), Batching("p", max_bytes=1000), 0, 0, NOW)
    assert made.starts.tolist() == [0, 2, 3, 4, 6]
    assert message_sizes(messages(rows)).tolist() == [420, 420, 420, 5020, 30, 30]


def written(root: Path, rows: list[list[dict[str, Any]]], **options: Any) -> StagedLedger | None:
    place = StagingArea([str(root)], 1, NOW, "n")
    writer = BulkWriter(place, 3, Batching("p", max_messages=10), OsDisk(), lambda: NOW, **options)
    for part in rows:
        batch = messages(part)
        writer.add(batch, int(message_sizes(batch).sum()))
    return writer.finish()


def test_files_are_read_back_as_those_of_a_ledger(tmp_path: Path) -> None:
    parts = [random_rows(300, seed) for seed in range(24)]
    staged = written(tmp_path, parts, target_bytes=30_000)
    assert staged is not None
    assert len(staged.files) > 1
    check_files(OsDisk(), [str(tmp_path)], staged.files)
    reader = TableReader([str(tmp_path)], OsDisk())
    ledger = SealedLedger(-1, 3, staged.files)
    found: list[tuple[int, bytes]] = []
    while len(found) < staged.entries:
        found += reader.read(ledger, len(found), staged.entries - 1, 1 << 20)
    assert unpacked([e for _, e in found]) == [shown(row) for part in parts for row in part]
    assert staged.rows == 24 * 300
    for file in staged.files:
        metadata = pq.ParquetFile(tmp_path / file.path).metadata
        sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
        assert max(sizes) < 17 << 20
    assert StagedLedger.from_json(staged.to_json()) == staged


@pytest.mark.parametrize("version", [None, b"1", b"unknown"])
def test_in_a_table_with_types_values_are_typed_or_kept_as_they_are(
    tmp_path: Path, version: bytes | None
) -> None:
    schemas = ValueSchemas("string", (ValueSchema(b"1", SchemaData(SchemaType.STRING)),))
    rows = [{"value": value} for value in (b"a", None, b"\xff", b"")]
    writer = BulkWriter(
        StagingArea([str(tmp_path)], 1, NOW, "n"), 3, Batching("p", schema_version=version),
        OsDisk(),
        lambda: NOW, values=values_said(json.loads(schemas.encode())),
    )  # fmt: skip
    writer.add(messages(rows), 10)
    staged = writer.finish()
    assert staged is not None
    check_files(OsDisk(), [str(tmp_path)], staged.files)
    reader = TableReader([str(tmp_path)], OsDisk())
    found = reader.read(SealedLedger(-1, 3, staged.files), 0, 0, 1 << 20)
    assert [row["value"] for row in unpacked([e for _, e in found])] == [b"a", None, b"\xff", b""]
    table = pq.read_table(tmp_path / staged.files[0].path, columns=["value", "value_raw"])
    if version == b"1":
        assert table["value"].to_pylist() == ["a", None, None, ""]
        assert table["value_raw"].to_pylist() == [None, None, b"\xff", None]
    else:
        assert table["value"].to_pylist() == [None] * 4
        assert table["value_raw"].to_pylist() == [b"a", None, b"\xff", b""]


def test_nothing_comes_of_nothing_and_what_is_given_up_goes(tmp_path: Path) -> None:
    assert written(tmp_path, []) is None
    writer = BulkWriter(
        StagingArea([str(tmp_path)], 1, NOW, "n"),
        0,
        Batching("p"),
        OsDisk(),
        lambda: NOW,
        target_bytes=1,
    )
    writer.add(messages([{"value": b"x"}]), 10)
    writer.flush()
    assert list(tmp_path.iterdir())
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_a_client_cannot_tell_a_delayed_message_from_one_that_was_sent() -> None:
    row = random_rows(1, 1)[0] | {"deliver_at_time": time(NOW + 5), "value": b"v"}
    ((_, entry),) = entries_of(entry_rows(messages([row]), Batching("p"), 0, 0, NOW).rows)
    head = pb.MessageMetadata.FromString(parse_entry(entry).metadata.SerializeToString())
    assert head.deliver_at_time == NOW + 5
    assert not head.HasField("num_messages_in_batch")
    assert client_view(entry)


def test_what_rows_bring_is_compressed(tmp_path: Path) -> None:
    staged = written(tmp_path, [[{"key": "k", "value": b"x", "properties": [("a", "b")]}] * 100])
    assert staged is not None
    group = pq.ParquetFile(tmp_path / staged.files[0].path).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    kinds = {column.path_in_schema: column.compression for column in columns}
    some = {name for name, kind in kinds.items() if kind == "ZSTD"}
    assert some == {
        "key", "ordering_key", "value", "value_raw",
        "properties.key_value.key", "properties.key_value.value",
    }  # fmt: skip


def test_what_cannot_be_deleted_on_one_root_is_deleted_on_the_other() -> None:
    """A write that failed says why, and not what failed after that."""
    disk = SimDisk()
    area = StagingArea(["/one/_staged", "/two/_staged"], 1, NOW, "n")
    writer = BulkWriter(area, 0, Batching("p"), disk, lambda: NOW)
    writer.add(messages(random_rows(10, 1)), 1000)
    assert writer.finish() is not None
    disk.faulty, disk.name_errno = "/one/", errno.EROFS
    writer.abandon()
    assert [path.partition("/_staged")[0] for path in disk.files()] == ["/one"]
