"""Tables whose values have the types of the topic's schema, from entries to the log and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.errors import CorruptEntryError, MetadataError, StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.rows import FILE_SCHEMA, RowBuilder, entries_of
from pulsark.rows.values import ValueColumn
from pulsark.runtime import Runtime
from pulsark.schemas.column_types import BINARY, struct
from pulsark.schemas.columns import value_type
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, SealedLedger, TableRecord, table_directory
from pulsark.storage.table.files.seal import read_whole, seal
from pulsark.storage.table.log.delta_log import DeltaLog, first_commit
from pulsark.storage.table.process import reader as reader_module
from pulsark.storage.table.process.reader import TableReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry
from tests.sim.disk import SimDisk
from tests.support.client_view import client_view
from tests.support.tables import NOW, TABLE_ID, TOPIC, check_entries

V0, V1 = (bytes(7) + bytes([n]) for n in range(2))


def version(kind: SchemaType, **fields: Any) -> SchemaData:
    members = [{"name": name, "type": given} for name, given in fields.items()]
    definition = {"type": "record", "name": "R", "fields": members}
    return SchemaData(kind, json.dumps(definition).encode())


OLD = version(SchemaType.JSON, a="int")
NEW = version(SchemaType.JSON, a="int", b=["null", "string"])


def head(i: int, carried: bytes | None = V0, **fields: Any) -> pb.MessageMetadata:
    found = pb.MessageMetadata(producer_name="p", sequence_id=i, publish_time=NOW + i, **fields)
    if carried is not None:
        found.schema_version = carried
    return found


def batch(i: int, *values: bytes | None, carried: bytes = V0, kind: int = pb.NONE) -> bytes:
    members = []
    for j, value in enumerate(values):
        one = pb.SingleMessageMetadata(payload_size=0, sequence_id=i + j, null_value=value is None)
        members.append((one, value or b""))
    return build_batch(head(i, carried), members, kind)  # type: ignore[arg-type]


def encrypted(i: int) -> bytes:
    found = head(i)
    found.encryption_keys.add(key="k", value=b"v")
    return build_entry(found, b"secret")


ENTRIES = [
    batch(0, b'{"a":1}', b'{"a": 2}', None, b"nonsense", b'{"a":3}'),
    build_entry(head(1), b'{"a":4}'),
    build_entry(head(2, None), b'{"a":5}'),
    build_entry(head(3, null_value=True), b""),
    encrypted(4),
    batch(5, b'{"a":6}', b'{"a":"x"}', kind=pb.LZ4),
    build_entry(head(6, num_chunks_from_msg=2, chunk_id=0, uuid="u"), b'{"a":'),
    build_entry(head(7), b"\xff\x00"),
    build_entry(head(8, marker_type=20), b"marker"),
    batch(9, b'{"a":7,"b":"new"}', carried=V1),
]


def schemas(table: Any = None, *versions: SchemaData) -> ValueSchemas:
    return ValueSchemas.next(table, list(zip((V0, V1), versions, strict=False)))


def test_rows_have_the_value_and_what_it_does_not_tell() -> None:
    builder = RowBuilder.for_table(0, ValueColumn(schemas(None, OLD, NEW)))
    for i, entry in enumerate(ENTRIES):
        builder.add(5, i, entry)
    rows = builder.finish()
    rows.validate(full=True)
    found = list(
        zip(
            rows["entry_id"].to_pylist(), rows["value"].to_pylist(), rows["value_raw"].to_pylist(),
            strict=True,
        )
    )  # fmt: skip

    def typed(a: int, b: str | None = None) -> dict[str, Any]:
        return {"a": a, "b": b}

    assert found == [
        (0, typed(1), None),
        (0, typed(2), b'{"a": 2}'),
        (0, None, None),
        (0, None, b"nonsense"),
        (0, typed(3), None),
        (1, typed(4), None),
        (2, None, b'{"a":5}'),
        (3, None, None),
        (4, None, b"secret"),
        (5, typed(6), None),
        (5, typed(None), b'{"a":"x"}'),
        (6, None, b'{"a":'),
        (7, None, b"\xff\x00"),
        (8, None, b"marker"),
        (9, typed(7, "new"), None),
    ]


def test_a_compressed_message_that_its_schema_does_not_tell_stays_compressed() -> None:
    from pulsark.wire.compression import compress

    payload = b"no json " * 50
    squeezed = compress(pb.ZSTD, payload)
    entry = build_entry(head(0, compression=pb.ZSTD, uncompressed_size=len(payload)), squeezed)
    column = ValueColumn(schemas(None, OLD))
    builder = RowBuilder.for_table(0, column)
    builder.add(5, 0, entry)
    rows = builder.finish()
    assert rows["value_raw"].to_pylist() == [squeezed]
    assert entries_of(rows, ValueColumn.from_metadata(column.to_metadata())) == [(0, entry)]


def sealed(
    disk: SimDisk, entries: Sequence[bytes], values: ValueSchemas | None, nonce: str = "n",
    first: int = 0, root: str = "/r",
) -> list[DataFile]:  # fmt: skip
    numbered = [(first + i, entry) for i, entry in enumerate(entries)]
    return seal(numbered, 0, 5, [root], disk, nonce, values=values)


def test_entries_come_back_from_a_file() -> None:
    disk = SimDisk()
    for number, values in enumerate((None, schemas(None, OLD), schemas(None, OLD, NEW))):
        files = sealed(disk, ENTRIES, values, str(number))
        ledger = SealedLedger(5, 0, tuple(files))
        check_entries(disk, "/r", {5: ledger}, {5: ENTRIES})
        found = pq.ParquetFile(pa.BufferReader(read_whole(disk, f"/r/{files[0].path}")))
        expected = b"1" if values is None else b"3"
        assert found.metadata.metadata[b"pulsark.formatVersion"] == expected
        assert found.schema_arrow.names == [*FILE_SCHEMA.names, "partition", "ledger_id"]


def test_a_file_that_describes_its_values_wrongly_is_refused() -> None:
    for metadata in (b"", b"[]", b'{"type": "string"}', b'{"type":"x","schemas":[]}'):
        with pytest.raises(CorruptEntryError, match="described wrongly"):
            ValueColumn.from_metadata(metadata)


def test_a_file_of_format_1_is_read_and_a_newer_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    old, new = sealed(disk, ENTRIES, None, "1"), sealed(disk, ENTRIES, schemas(None, OLD), "2")
    for files, newest, readable in ((old, 1, True), (new, 3, True), (new, 2, False)):
        monkeypatch.setattr(reader_module, "FILE_FORMAT_VERSION", newest)
        reader = TableReader(["/r"], disk)
        ledger = SealedLedger(5, 0, tuple(files))
        if readable:
            found = reader.read(ledger, 1, 1, 1)
            assert client_view(found[0][1]) == client_view(ENTRIES[1])
        else:
            with pytest.raises(CorruptEntryError, match=f"format b'3'; .* up to {newest}"):
                reader.read(ledger, 1, 1, 1)


# -- the log -----------------------------------------------------------------------------------

ROOTS = [table_directory(root, TOPIC, TABLE_ID) for root in ("/one", "/two")]


async def opened(disk: SimDisk, tree: MemoryTree) -> TableOwner:
    runtime = Runtime(disk=disk)
    return await TableOwner.open(
        table_path(TOPIC),
        TABLE_ID,
        ROOTS,
        MemoryMetadataStore(tree),
        runtime,
        runtime.new_worker("table"),
    )


def columns(disk: SimDisk, root: str) -> list[Any]:
    """The type of ``value`` after each commit that says it, and the format's version."""
    log = DeltaLog(disk, root)
    found = []
    for number in log.versions():
        for action in log.read(number):
            if "metaData" in action:
                fields = json.loads(action["metaData"]["schemaString"])["fields"]
                assert [field["name"] for field in fields][2:] == FILE_SCHEMA.names
                kind = next(field["type"] for field in fields if field["name"] == "value")
                found.append((kind, action["metaData"]["configuration"]["pulsark.formatVersion"]))
    return found


def test_the_first_attach_gives_the_column_its_type_and_later_ones_add_fields() -> None:
    async def main() -> None:
        disk, tree = SimDisk(), MemoryTree()
        owner = await opened(disk, tree)
        steps = [(OLD,), (OLD,), (OLD, NEW)]
        for number, versions in enumerate(steps):
            record = owner.record
            values = schemas(record.value if record.attached else None, *versions)
            files = seal([(number, ENTRIES[number])], 0, 5, ROOTS, disk, str(number), values=values)
            await owner.attach(files, value=values.kind)
            owner = await opened(disk, tree)
        assert owner.record.value == value_type(NEW)
        for root in ROOTS:
            assert columns(disk, root) == [
                (BINARY, "1"), (value_type(OLD), "2"), (value_type(NEW), "2"),
            ]  # fmt: skip
        # A root that was lost gets the same commits again.
        for path in disk.files():
            if path.startswith("/two/"):
                disk.discard(path)
        owner = await opened(disk, tree)
        await owner.attach(seal([(3, ENTRIES[3])], 0, 5, ROOTS, disk, "z", values=values))
        assert columns(disk, ROOTS[0]) == columns(disk, ROOTS[1])

    asyncio.run(main())


def test_a_table_with_bytes_keeps_them() -> None:
    async def main() -> None:
        disk, tree = SimDisk(), MemoryTree()
        owner = await opened(disk, tree)
        assert schemas(None) == schemas(BINARY, OLD) == ValueSchemas()
        await owner.attach(seal([(0, ENTRIES[0])], 0, 5, ROOTS, disk, "a"), value=BINARY)
        assert owner.record.version == 1
        files = seal([(1, ENTRIES[1])], 0, 5, ROOTS, disk, "b", values=schemas(None, OLD))
        with pytest.raises(StorageError, match="other columns"):
            await owner.attach(files, value=value_type(OLD))
        assert owner.record.attached == 1

    asyncio.run(main())


def test_files_with_fewer_columns_than_the_table_are_not_attached_as_its_type() -> None:
    record = TableRecord(TABLE_ID, 7, ("/r",)).intending(8, [], [], value_type(NEW))
    with pytest.raises(StorageError, match="other columns"):
        record.intending(9, [], [], value_type(OLD))
    again = record.intending(9, [], [])
    assert (again.value, again.intent and again.intent.value) == (value_type(NEW), None)


def test_a_record_of_version_1_is_read_and_one_of_version_3_is_refused() -> None:
    plain = TableRecord(TABLE_ID, 7, ("/r",)).intending(8, [], [])
    assert b'"version":1' in plain.encode()
    assert b"value" not in plain.encode()
    assert TableRecord.decode("/x", plain.encode()) == plain
    typed = TableRecord(TABLE_ID, 7, ("/r",)).intending(8, [], [], struct([("a", "long")]))
    assert b'"version":2' in typed.encode()
    assert TableRecord.decode("/x", typed.encode()) == typed
    assert first_commit(typed) == first_commit(plain)
    newer = typed.encode().replace(b'"version":2', b'"version":3')
    with pytest.raises(MetadataError, match="3"):
        TableRecord.decode("/x", newer)
