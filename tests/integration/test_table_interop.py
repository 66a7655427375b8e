"""Other engines read the table of a topic without Pulsark, while it grows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pulsark.rows import TABLE_SCHEMA
from pulsark.runtime import OsDisk
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.storage.table.files.file_skipping import STATED_COLUMNS
from pulsark.storage.table.log import checkpoint
from pulsark.storage.table.log.delta_log import COLUMN_TYPES
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from tests.support.tables import NOW, GrowingTable
from tests.support.typed_values import encoded


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    grown = GrowingTable(tmp_path)
    grown.attach(0, 5, 0, 10)
    grown.attach(0, 5, 10, 30)
    grown.attach(1, 7, 0, 20)
    return grown


def duckdb_count(table: GrowingTable, where: str = "true") -> int:
    files = DeltaTable(table.directory).file_uris()
    found = duckdb.execute(
        f"SELECT count(*) FROM read_parquet(?, hive_partitioning = true) WHERE {where}", [files]
    ).fetchone()
    assert found is not None
    return int(found[0])


def polars_count(table: GrowingTable, *where: pl.Expr) -> int:
    return int(pl.scan_delta(table.directory).filter(*where).select(pl.len()).collect().item())


def test_duckdb_and_polars_count_while_ledgers_come_and_go(table: GrowingTable) -> None:
    assert duckdb_count(table) == polars_count(table) == 120
    assert duckdb_count(table, "ledger_id = 7") == polars_count(table, pl.col("ledger_id") == 7)
    assert polars_count(table, pl.col("ledger_id") == 7, pl.col("partition") == 1) == 40
    assert polars_count(table, pl.col("entry_id") == 15) == 4
    assert duckdb_count(table, "key = 'k1' AND properties['n'] = '3'") == 2
    table.remove(5)
    assert duckdb_count(table) == polars_count(table) == 40
    table.attach(0, 9, 0, 1)
    assert duckdb_count(table) == polars_count(table) == 42


def test_decimals_are_numbers_for_every_engine(tmp_path: Path) -> None:
    net = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    fields = [{"name": "net", "type": ["null", net]}]
    definition = {"type": "record", "name": "Sale", "fields": fields}
    version = bytes(8)
    head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=NOW)
    head.schema_version = version
    sales = [{"net": number} for number in (Decimal("1234567890.12"), Decimal("-0.05"), None)]
    payloads = encoded(definition, *sales)
    messages = [(pb.SingleMessageMetadata(payload_size=0), payload) for payload in payloads]
    table = GrowingTable(tmp_path)
    schema = SchemaData(SchemaType.AVRO, json.dumps(definition).encode())
    table.attach_entries([build_batch(head, messages)], 0, [(version, schema)])
    total = Decimal("1234567890.07")
    files = DeltaTable(table.directory).file_uris()
    by_duckdb = duckdb.execute("SELECT sum(value.net) FROM read_parquet(?)", [files]).fetchone()
    assert by_duckdb == (total,)
    column = pl.col("value").struct.field("net")
    assert pl.scan_delta(table.directory).select(column.sum()).collect().item() == total


def test_times_are_found_by_statistics(table: GrowingTable) -> None:
    moment = datetime.fromtimestamp((NOW + 12) / 1000, UTC)
    assert polars_count(table, pl.col("publish_time") == moment) == 4
    assert duckdb_count(table, f"publish_time = '{moment.isoformat()}'::timestamptz") == 4
    actions = pl.DataFrame(DeltaTable(table.directory).get_add_actions(flatten=True))
    assert actions["num_records"].to_list() == [40, 60, 20] or actions["num_records"].sum() == 120
    for name in ("entry_id", "publish_time", "event_time"):
        assert {f"min.{name}", f"max.{name}", f"null_count.{name}"} <= set(actions.columns)
    low = actions.filter(pl.col("partition.ledger_id") == 7)["min.publish_time"].item()
    assert low == datetime.fromtimestamp(NOW / 1000, UTC)


def test_delta_rs_sees_the_schema_the_attach_and_a_sound_table(table: GrowingTable) -> None:
    found = DeltaTable(table.directory)
    assert found.version() == 3
    assert found.transaction_version("pulsark") == 3
    assert [field.name for field in found.schema().fields] == TABLE_SCHEMA.names
    assert list(COLUMN_TYPES) == TABLE_SCHEMA.names
    assert found.metadata().configuration == {
        "pulsark.formatVersion": "1",
        "delta.setTransactionRetentionDuration": "interval 30 days",
        "delta.dataSkippingStatsColumns": ",".join(STATED_COLUMNS),
    }
    assert found.metadata().partition_columns == ["partition", "ledger_id"]
    rows = pl.read_delta(table.directory).sort("ledger_id", "entry_id", "batch_index")
    assert rows["value"][0] == b"value 0.0"


def test_files_are_sorted_compressed_and_in_small_row_groups(table: GrowingTable) -> None:
    for uri in DeltaTable(table.directory).file_uris():
        metadata = pq.ParquetFile(uri).metadata
        assert metadata.metadata[b"pulsark.formatVersion"] == b"1"
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            assert group.total_byte_size <= 2 << 20
            assert group.column(0).compression == "ZSTD"
            assert [c.column_index for c in group.sorting_columns] == [0, 1]


def test_a_log_that_begins_with_a_checkpoint_is_read_by_other_engines(
    table: GrowingTable,
) -> None:
    table.remove(5)
    for ledger_id in (9, 11):
        table.attach(0, ledger_id, 0, 10)
    table.fold(4)
    log = Path(table.directory, "_delta_log")
    assert sorted(path.name[18:] for path in log.glob("0*")) == [
        "04.checkpoint.parquet", "04.json", "05.json", "06.json",
    ]  # fmt: skip
    assert duckdb_count(table) == polars_count(table) == 80
    for version, rows in ((4, 40), (5, 60), (6, 80)):
        found = pl.scan_delta(table.directory, version=version).select(pl.len()).collect().item()
        assert found == rows
    with pytest.raises(DeltaError):
        DeltaTable(table.directory, version=3)
    table.attach(0, 13, 0, 10)
    found = DeltaTable(table.directory)
    assert (found.version(), found.transaction_version("pulsark")) == (7, 7)
    assert duckdb_count(table) == polars_count(table) == 100


def test_long_logs_get_checkpoints_that_other_engines_use(
    table: GrowingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_COMMITS", 3)
    log = Path(table.directory, "_delta_log")
    assert checkpoint.checkpoint_if_due(OsDisk(), table.directory) == 3
    assert checkpoint.checkpoint_if_due(OsDisk(), table.directory) is None
    table.remove(5)
    for ledger_id in (9, 11):
        table.attach(0, ledger_id, 0, 10)
    assert checkpoint.checkpoint_if_due(OsDisk(), table.directory) == 6
    table.attach(0, 13, 0, 10)
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    monkeypatch.setattr(checkpoint, "CHECKPOINT_COMMITS", 1)
    monkeypatch.setattr(checkpoint, "CHECKPOINTS_KEPT", 2)
    assert checkpoint.checkpoint_if_due(OsDisk(), table.directory) == 7
    assert [path.name[18:20] for path in sorted(log.glob("*.checkpoint.parquet"))] == ["06", "07"]
    assert pl.scan_delta(table.directory, version=2).select(pl.len()).collect().item() == 80
    for version in range(6):
        Path(log, f"{version:020d}.json").unlink()
    assert duckdb_count(table) == polars_count(table) == 100
    found = DeltaTable(table.directory)
    assert (found.version(), found.transaction_version("pulsark")) == (7, 7)
    assert not list(log.glob("*.tmp"))
