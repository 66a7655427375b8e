"""Staged ledgers of many tasks become few; every message stays, in the order of the tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.errors import StorageError
from pulsark.rows.outgoing import OUTGOING_SCHEMA, Batching
from pulsark.runtime import OsDisk
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.staging import staged_merge
from pulsark.storage.table.staging.bulk_writer import BulkWriter, StagingArea
from pulsark.storage.table.staging.staged_ledger import StagedLedger
from pulsark.storage.table.staging.staged_merge import merge_ledgers, plan_merges

NOW = 1_700_000_000_000


def ledger(partition: int, size: int, number: int = 0) -> StagedLedger:
    file = DataFile(f"{NOW}-n{number}-0.parquet", partition, -1, 0, 0, 1, size, 0, {})
    return StagedLedger(partition, size, (file,))


def test_the_smallest_neighbours_are_merged_until_there_are_few_enough() -> None:
    ledgers = [ledger(0, size) for size in (900, 5, 7, 800, 1)] + [ledger(1, 2), ledger(1, 3)]
    runs = plan_merges(ledgers, 5, 5)
    assert [[each.length for each in run] for run in runs] == [[900], [5, 7], [800], [1], [2, 3]]
    assert plan_merges(ledgers, 7, 7) == [[each] for each in ledgers]


def test_runs_stay_within_their_partition_and_in_order() -> None:
    ledgers = [ledger(number // 50, 1 + number % 7, number) for number in range(200)]
    runs = plan_merges(ledgers, 1, 50)
    assert [each for run in runs for each in run] == ledgers
    assert [len({each.partition for each in run}) for run in runs] == [1] * 4


def test_large_files_are_merged_only_if_they_have_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = [ledger(0, staged_merge.CHEAP_BYTES) for _ in range(4)]
    assert len(plan_merges(ledgers, 1, 4)) == 4
    assert len(plan_merges(ledgers, 1, 3)) == 3
    monkeypatch.setattr(staged_merge, "MERGED_BYTES_MAX", staged_merge.CHEAP_BYTES)
    with pytest.raises(StorageError, match="4 files are more than 3"):
        plan_merges(ledgers, 1, 3)


def write(root: Path, task: int, values: ValueSchemas | None = None) -> StagedLedger:
    writer = BulkWriter(
        StagingArea([str(root)], 1, NOW, f"t{task}p1"), 0,
        Batching("p", max_messages=4, schema_version=bytes(8) if values is not None else None),
        OsDisk(), lambda: NOW, values=values,
    )  # fmt: skip
    texts = [json.dumps({"a": task * 100 + n}, separators=(",", ":")) for n in range(10 + task)]
    rows = [{"key": f"k{n}", "value": text.encode()} for n, text in enumerate(texts)]
    writer.add(pa.RecordBatch.from_pylist(rows, OUTGOING_SCHEMA), 1000)
    found = writer.finish()
    assert found is not None
    return found


TYPED = ValueSchemas(
    {"type": "struct", "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}},
    ]},
    (ValueSchema(bytes(8), SchemaData(SchemaType.JSON, json.dumps({
        "type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}],
    }).encode(), {})),),
)  # fmt: skip


@pytest.mark.parametrize("values", [None, TYPED], ids=["bytes", "typed"])
def test_a_merged_ledger_has_all_rows_of_its_parts(
    tmp_path: Path, values: ValueSchemas | None
) -> None:
    parts = [write(tmp_path, task, values) for task in range(3)]
    (merged,) = merge_ledgers(parts, [str(tmp_path)], 1, OsDisk())
    assert merged.rows == 33
    assert merged.entries == sum(part.entries for part in parts)
    assert merged.length == sum(part.length for part in parts)
    tables = [pq.read_table(tmp_path / part.files[0].path) for part in parts]
    whole = pq.read_table(tmp_path / merged.files[0].path)
    wanted = pa.concat_tables(tables)
    assert whole.drop_columns("entry_id").equals(wanted.drop_columns("entry_id"))
    base, ids = 0, []
    for part, table in zip(parts, tables, strict=True):
        ids += [base + number for number in table.column("entry_id").to_pylist()]
        base += part.entries
    assert whole.column("entry_id").to_pylist() == ids
    described = [pq.read_metadata(tmp_path / each.files[0].path).metadata for each in parts]
    assert (
        pq.read_metadata(tmp_path / merged.files[0].path).metadata[b"pulsark.formatVersion"]
        == (described[0][b"pulsark.formatVersion"])
    )
    assert pq.read_metadata(tmp_path / merged.files[0].path).metadata.get(b"pulsark.values") == (
        described[0].get(b"pulsark.values")
    )


def test_values_described_differently_stay_apart(tmp_path: Path) -> None:
    parts = [write(tmp_path, 0), write(tmp_path, 1), write(tmp_path, 2, TYPED)]
    merged = merge_ledgers(parts, [str(tmp_path)], 1, OsDisk())
    assert [each.rows for each in merged] == [21, 12]
    assert merged[1] is parts[2]


def test_a_part_that_is_gone_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    parts = [write(tmp_path, task) for task in range(2)]
    (tmp_path / parts[1].files[0].path).unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match=r"cannot be read: .*No such file"):
        merge_ledgers(parts, [str(tmp_path)], 1, OsDisk())
    assert sorted(tmp_path.iterdir()) == before
